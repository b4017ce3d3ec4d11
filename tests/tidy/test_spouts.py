"""Abilities of spouts and readers: nothing is probed for, and what wraps others has an answer of its own to each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from spouts.base import PartitionedSpout
from spouts.contract_spout import ContractSpout
from spouts.kafka.reader import KafkaPartitionReader
from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.tidy.rooms import PACKAGES
from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.several.parts import (
    ExaminationOfSources,
    ReplaysOfParts,
    RoutedMessages,
    SharedPlanning,
    SummedBacklog,
)
from transactional.core.ports.several.readers import SeveralReaders
from transactional.core.ports.several.spouts import SeveralSpouts
from transactional.core.ports.spout_parts import (
    Backlog,
    Messages,
    Planning,
    Replays,
    SourceExamination,
    SpoutParts,
    Streams,
)
from transactional.runtime.engine.letter_spout import LetterSpout
from transactional.runtime.tasks.program import NoReader
from transactional.testing.rows_spout import RowsReader, RowsSpout
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.reliable.queue_spout import QueueInstances, QueueReader
from transactional.topology.streams.questions import QuestionReader, Questions

WRAPPERS: dict[type, type] = {
    SeveralSpouts: Spout,
    LetterSpout: Spout,
    SeveralReaders: PartitionReader,
    SharedPlanning: Planning,
    SummedBacklog: Backlog,
    ReplaysOfParts: Replays,
    RoutedMessages: Messages,
    ExaminationOfSources: SourceExamination,
}
"""The classes that pass calls on to other spouts or readers, or to parts of them, and the base of each."""
REPLACED = {"streams", "planning"}
"""The parts that a run of letters has of its own."""
SOURCES = (
    *(PartitionedSpout, ContractSpout, QueueInstances, RowsSpout, Questions),
    *(KafkaPartitionReader, MemoryPartitionReader, QueueReader, RowsReader, QuestionReader, NoReader),
)
"""What has a source of its own: where it overrides nothing, the base says what is true of it."""


def abilities(base: type) -> list[str]:
    """What a spout or a reader can be asked."""
    return sorted(name for name in vars(base) if not name.startswith("_"))


def left_out(wrapper: type, base: type) -> list[str]:
    """What a wrapper neither overrides nor delegates, so that the base would answer for what it wraps."""
    return [name for name in abilities(base) if name not in vars(wrapper)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_answers_everything_itself(wrapper: type) -> None:
    assert left_out(wrapper, WRAPPERS[wrapper]) == []


def test_what_is_left_out_is_noticed() -> None:
    class Forgetful(SummedBacklog):
        lag = SummedBacklog.lag

    assert left_out(Forgetful, Backlog) == ["lag_by_partition", "list_partitions"]


class Able(MemoryTransactionalSpout):
    """A spout that has every part."""

    @property
    def parts(self) -> SpoutParts:
        own = super().parts
        streams = Streams(own.streams.outputs, "able", {}, ("words",))
        return SpoutParts(streams, *(PARTS[part.name] for part in fields(SpoutParts)[1:]))


PARTS: dict[str, Any] = {part.name: object() for part in fields(SpoutParts)[1:]}


def lost_parts(parts: SpoutParts) -> set[str]:
    """The parts that a wrapper neither passes on nor replaces on purpose."""
    defaults = SpoutParts(parts.streams)
    return {
        part.name for part in fields(parts) if type(getattr(parts, part.name)) is type(getattr(defaults, part.name))
    } - {"streams"}


def test_no_wrapper_loses_a_part() -> None:
    spout = Able([[]], "word string", 1)
    builder = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout([[]], "word string", 1))
    builder.set_committer_bolt("count", MemoryMapState("word string").count()).fields_grouping("spout", "word")
    parts = LetterSpout(replace(builder.build(), spout=spout)).parts
    passed_on = {part.name for part in fields(parts) if getattr(parts, part.name) is PARTS.get(part.name)}
    assert passed_on | REPLACED == {part.name for part in fields(parts)}
    assert passed_on & REPLACED == set()
    assert parts.streams == Streams({"default": spout.output}, "LetterSpout", {}, ("words",))
    assert lost_parts(parts) == lost_parts(SeveralSpouts({"one": spout, "two": spout}).parts) == set()
    assert lost_parts(Questions(spout.output).parts) == {part.name for part in fields(parts)} - {"streams"}


def subclasses(of: type) -> Iterator[type]:
    known: type
    for known in of.__subclasses__():
        yield known
        yield from subclasses(known)


def test_every_spout_and_reader_is_known_to_be_a_wrapper_or_a_source() -> None:
    ours = {each for base in (Spout, PartitionReader) for each in subclasses(base) if each.__module__[:5] != "tests"}
    ours = {each for each in ours if each.__module__.partition(".")[0] in PACKAGES}
    unknown = {each for each in ours if not issubclass(each, (SeveralSpouts, LetterSpout, *SOURCES, PartitionReader))}
    assert not unknown, "a spout of ours is in WRAPPERS, or derives from one of SOURCES"
    assert len(ours) > len(SOURCES) + 3


PROBE = re.compile(r"(isinstance|issubclass|hasattr|getattr|callable)\((type\()?[\w.]*(spout|reader)(\(\))?\)?,")
ALLOWED = {
    'if hasattr(spout, "as_spout"):': "what a user passes may still have to be made a spout",
    "if isinstance(spout, type):": "a class in place of an instance",
    "if not isinstance(spout, Spout):": "what is no spout at all",
    "if topology.sinks and isinstance(topology.spout, LetterSpout):": "which run this is, not what a spout can do",
    "leaves_pending=isinstance(self.topology.spout, LetterSpout),": "which run this is, not what a spout can do",
}


def test_no_ability_is_probed_for() -> None:
    lines = {
        line.strip(): path
        for package in PACKAGES
        for path in sorted(Path(package).rglob("*.py"))
        for line in path.read_text().splitlines()
        if PROBE.search(line)
    }
    assert {line: lines[line] for line in lines if line not in ALLOWED} == {}


def test_the_base_has_no_protocol_beside_it() -> None:
    """An optional ability is a method of the base."""
    tree = ast.parse(Path("transactional/core/ports/spouts.py").read_text())
    protocols = [
        each.name
        for each in tree.body
        if isinstance(each, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in each.bases)
    ]
    assert protocols == ["SpoutMaker"]
