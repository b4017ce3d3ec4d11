"""Tuples that are followed: the acker names the messages that explicit sets of outstanding tuples name; bad use."""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar

import pytest

from spouts.memory import MemoryTransactionalSpout
from tests.unit.topology.reliable.random_trees import ATTEMPT, compared
from transactional.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.messages import FailedMessage
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import RichBolt, TopologyBuilder, TupleCollector
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.reliable.tracking import TrackedBolt, all_copies, copy_id

WORLDS = 1_000


@pytest.mark.sampled(20)
@pytest.mark.parametrize("first", range(0, WORLDS, 10))
def test_the_acker_names_what_explicit_sets_name(first: int) -> None:
    """With anchors to one tuple, to several and to none (Storm row C2); most groupings (Storm row C7)."""
    found = [compared(seed) for seed in range(first, first + 10)]
    for seed, (told, expected, _) in enumerate(found, first):
        assert told == expected, f"seed {seed}"
    assert sum(received for _, _, received in found) > 20


def test_random_trees_have_finished_and_unfinished_messages() -> None:
    found = [compared(seed) for seed in range(30)]
    assert sum(len(expected) for _, expected, _ in found) > 50
    assert sum(not expected for _, expected, _ in found) > 1
    assert sum(received for _, _, received in found) > 500


def test_receivers_of_one_tuple_have_ids_of_their_own() -> None:
    """Else two acks of the same id would cancel each other."""
    ids = [copy_id(77, number) for number in range(50)]
    assert len(set(ids)) == 50
    assert ids[0] == 77
    value = all_copies(77, 50)
    for each in ids:
        assert value
        value ^= each
    assert value == 0


# --- one bolt at a time ------------------------------------------------------------------------------------------


class Mute(Exception):
    """Can't be told."""

    def __str__(self) -> str:
        raise AttributeError


RAISED = {"exit": SystemExit(3), "mute": Mute(), "bytes": ValueError(f"no file {os.fsdecode(bytes([255]))}")}


class Words(RichBolt):
    """Does what the word says."""

    output = "word string"
    streams: ClassVar = {"numbers": "n long"}
    held: ClassVar[list[Any]] = []

    def prepare(self, context: TopologyContext, collector: TupleCollector) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:
        what = tuple.word
        if what == "hold":
            self.held.append(tuple)
        elif what == "anchor":
            self.collector.emit("x", anchors=self.held[-1])
        elif what == "ack":
            self.collector.ack(self.held[-1])
        elif what == "two":
            self.collector.emit("x", "y", anchors=tuple)
        elif what == "text":
            self.collector.emit("many", anchors=tuple, stream="numbers")
        elif what == "stream":
            self.collector.emit("x", anchors=tuple, stream="number")
        elif what in RAISED:
            raise RAISED[what]
        elif what == "reason":
            self.collector.fail(tuple, ValueError("not a text"))  # type: ignore[arg-type]
        elif what == "own":
            self.collector.emit("x", anchors=Tuple(("word",), ("x",), "me"))
        if what not in ("hold", "forget"):
            self.collector.ack(tuple)


class Emits(BasicBolt):
    """Ends the tree."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        pass


class Twice(Words):
    """Another bolt."""


def failed(*words: str, bolt: RichBolt | None = None) -> dict[int, str]:
    """The offsets of the words that have failed, with the reasons."""
    built = TopologyBuilder("words", guarantee="at-least-once")
    built.set_spout("spout", MemoryTransactionalSpout([[(word,) for word in words]], "word string", take=99))
    built.set_bolt("words", bolt or Words()).shuffle_grouping("spout")
    built.set_bolt("numbers", Emits()).shuffle_grouping("words", stream="numbers")
    built.set_bolt("end", Emits()).shuffle_grouping("words")
    batch = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(0), Offset(len(words)))})
    found = LocalExecutor(built.build()).run(ATTEMPT, batch).failed
    assert all(isinstance(each, FailedMessage) for each in found)
    return {each.offset: each.error for each in found}


@pytest.mark.parametrize(("root", "roots", "expected"), [(None, [3, 5], {3, 5}), (4, None, {4})])
def test_a_refused_tuple_fails_all_messages_that_it_is_of(
    root: int | None, roots: list[int] | None, expected: set[int]
) -> None:
    """Its hidden fields are the last of its values."""
    bolt = TrackedBolt("words", Words(), {"default": Schema.parse(Words.output)})
    bolt.prepare_batch(TopologyContext("words", "words", 0, 1, {}), ATTEMPT)
    bolt.refused(("not a number", 7, root, roots), "no number")
    assert bolt.ledger.errors == dict.fromkeys(expected, "no number")


def test_a_forgotten_tuple_has_timed_out_when_its_batch_ends() -> None:
    """Storm row C4: at once, not after a time."""
    assert failed("fine", "forget", "fine") == {1: "not every tuple of the message was acked when its batch ended"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("two", r"'words' declares the fields \['word'\] for stream 'default' and emitted 2 values"),
        ("text", "'words'"),
        ("stream", "'words' emitted on stream 'number'; .* did you mean 'numbers'"),
        ("exit", "bolt 'words' raised SystemExit: 3"),
        ("bytes", r"bolt 'words' raised ValueError: no file \\udcff"),
        ("mute", "bolt 'words' raised Mute: its text can't be read"),
        ("reason", "not a text"),
        ("own", "bolt 'words', task 0, anchored a tuple to .*, which is not a tuple that it has received"),
    ],
)
def test_a_mistake_fails_its_message_alone(word: str, expected: str) -> None:
    found = failed("fine", word, "fine")
    assert list(found) == [1]
    assert re.search(expected, found[1]), found[1]


@pytest.mark.parametrize(("word", "what"), [("anchor", "anchored a tuple to"), ("ack", "acked")])
def test_a_tuple_of_another_batch_is_not_its_own(word: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "held", [])
    failed("hold")
    Words.held[0]._tree[0].attempt = "7:9"
    found = failed(word)
    assert f"bolt 'words', task 0, {what} a tuple of 'spout' of another batch (7:9; this is 1:1)" in found[0]


def test_a_tuple_of_another_bolt_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "held", [])
    failed("hold", bolt=Twice())
    found = failed("ack")
    assert "acked a tuple of 'spout' that bolt 'words' received, task 0; a bolt may only use its own" in found[0]
