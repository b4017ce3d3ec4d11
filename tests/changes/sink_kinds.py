"""The kinds of change that sinks meet: their names, their targets, and the fields of their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from tests.changes.kind import FIELDS, ONWARDS, PLAIN, SENT_FIELDS, Kind, add_field, retype
from tests.changes.plain import END
from tests.changes.program import Program
from tests.changes.topics import Publishing

WORDS = tuple(f"{data}{n}-{end}" for data in ("web", "app", "shop", "orders") for n in range(2) for end in "ab")
PLACES = ("x", "y", "z")
ROUTED = Publishing("routed", "place", topics=(*PLACES, *WORDS, "old", END))
"""A sink whose records go to the topic that the field `place` names; none names `old`."""
SINK = {"sinks": (Publishing(), ROUTED)}
TABLE_SINK = {"sinks": (Publishing(fields=(), is_table=True),)}
OF_SINK, LEFT, RETARGETED = "sinks.", "is no longer part of the topology", "unsent"
NEXT_RECORDS = "records have it from the next transaction on"


def _sink(**changed: Any) -> Callable[[Program, Random], Program]:
    def change(program: Program, random: Random) -> Program:
        first, *others = program.sinks
        return replace(program, sinks=(replace(first, **changed), *others))

    return change


def _routed(**changed: Any) -> Callable[[Program, Random], Program]:
    def change(program: Program, random: Random) -> Program:
        sinks = (replace(sink, **changed) if sink.name == ROUTED.name else sink for sink in program.sinks)
        return replace(program, sinks=tuple(sinks))

    return change


def _another_sink(program: Program, random: Random) -> Program:
    return replace(program, sinks=(*program.sinks, Publishing("copy", "copy", "place", ())))


def _without_field(program: Program, random: Random) -> Program:
    return replace(program, branches=tuple(replace(branch, outputs=SENT_FIELDS) for branch in program.branches))


def _no_sink(program: Program, random: Random) -> Program:
    return replace(program, sinks=program.sinks[1:])


SINK_KINDS = (
    Kind("another sink", _another_sink, result=ONWARDS, program=SINK, world="sinks"),
    Kind("the name of a sink", _sink(name="other"), OF_SINK, ONWARDS, unsent=LEFT, program=SINK, world="sinks"),
    Kind(
        "the topic of a sink",
        _sink(topic="elsewhere"),
        "topic: stored",
        "the next transactions are sent there",
        unsent=RETARGETED,
        program=SINK,
        world="sinks",
    ),
    Kind(
        "the key of a sink's records",
        _sink(key="place"),
        "key: stored",
        NEXT_RECORDS,
        unsent=RETARGETED,
        program=SINK,
        world="sinks",
    ),
    Kind(
        "the order of the fields in a sink's values",
        _sink(fields=("m", "n", "id")),
        "value: stored",
        NEXT_RECORDS,
        unsent=RETARGETED,
        program=SINK,
        world="sinks",
    ),
    Kind(
        "the fields in a sink's values",
        _sink(fields=("id", "m", "place", "at")),
        "value: stored",
        NEXT_RECORDS,
        unsent=RETARGETED,
        program=SINK,
        world="sinks",
    ),
    Kind(
        "the type of a field that a sink sends",
        retype("m", "string"),
        FIELDS,
        NEXT_RECORDS,
        every=PLAIN,
        program=SINK,
        world="sinks",
    ),
    Kind(
        "the cluster of a sink's topic",
        _sink(cluster="elsewhere"),
        "cluster: stored",
        for_good="TX404 has nothing of it",
        by_target=True,
        program=SINK,
        world="sinks",
    ),
    Kind("the order of a sink's `topics`", _routed(topics=ROUTED.topics[::-1]), program=SINK, world="sinks"),
    Kind(
        "a topic is added to a sink's `topics`",
        _routed(topics=(*ROUTED.topics, "new")),
        result="records may name it",
        program=SINK,
        world="sinks",
    ),
    Kind(
        "a topic is removed from a sink's `topics`",
        _routed(topics=tuple(topic for topic in ROUTED.topics if topic != "old")),
        'topics.old: stored "listed", given nothing',
        "a tuple that names it is a bad one",
        unsent='topics.old: stored "listed", given nothing',
        program=SINK,
        world="sinks",
    ),
    Kind(
        "the field that names the topics of a sink's records",
        _routed(topic="word"),
        'topic: stored "field place", given "field word"',
        NEXT_RECORDS,
        unsent=RETARGETED,
        program=SINK,
        world="sinks",
    ),
    Kind(
        "several `topics` of a sink in place of one",
        _sink(topic="place", topics=ROUTED.topics),
        'given "field place"',
        "the next transactions are sent there",
        unsent=RETARGETED,
        program=SINK,
        world="sinks",
    ),
    Kind("a sink is removed", _no_sink, OF_SINK, "its topic stays as it is", unsent=LEFT, program=SINK, world="sinks"),
    Kind(
        "the name of a `DeltaSink`",
        _sink(name="other"),
        OF_SINK,
        for_good="TX100 each sink has a table of its own",
        by_target=True,
        program=TABLE_SINK,
        world="tables of sinks",
    ),
    Kind("the folder of a `DeltaSink`'s table", _sink(suffix=".moved"), program=TABLE_SINK, world="tables of sinks"),
    Kind(
        "another table for a `DeltaSink`",
        _sink(suffix=".other"),
        "table_id: stored",
        for_good="TX404 has no position of a sink",
        by_target=True,
        unsent=RETARGETED,
        program=TABLE_SINK,
        world="tables of sinks",
    ),
    Kind(
        "the partition columns of a `DeltaSink`",
        _sink(key="place"),
        "partition_by: stored",
        for_good="TX101 partitions can't change",
        by_target=True,
        program=TABLE_SINK,
        world="tables of sinks",
    ),
    Kind(
        "the type of a field that a `DeltaSink` appends",
        retype("m", "string"),
        FIELDS,
        for_good="TX101 a column keeps its type",
        by_target=True,
        every=PLAIN,
        program=TABLE_SINK,
        world="tables of sinks",
    ),
    Kind(
        "a field is added before a `DeltaSink`",
        add_field,
        FIELDS,
        "its column is NULL in the existing rows",
        program=TABLE_SINK,
        world="tables of sinks",
    ),
    Kind(
        "a field is removed before a `DeltaSink`",
        _without_field,
        result="its column is NULL in later rows",
        every=PLAIN,
        program=TABLE_SINK,
        world="tables of sinks",
    ),
    Kind(
        "a `DeltaSink` is removed",
        _no_sink,
        OF_SINK,
        "its table stays as it is",
        unsent=LEFT,
        program=TABLE_SINK,
        world="tables of sinks",
    ),
)
