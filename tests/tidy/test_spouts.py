"""Abilities of spouts and readers: nothing is probed for, and what wraps others has an answer of its own to each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spouts.base import PartitionedSpout
from spouts.contract_spout import ContractSpout
from spouts.kafka.reader import KafkaPartitionReader
from spouts.memory import MemoryPartitionReader
from tests.tidy.rooms import PACKAGES
from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.several import SeveralReaders, SeveralSpouts
from transactional.runtime.engine.letter_spout import LetterSpout
from transactional.runtime.tasks.program import NoReader
from transactional.testing.rows_spout import RowsReader, RowsSpout
from transactional.topology.reliable.queue_spout import QueueInstances, QueueReader
from transactional.topology.streams.questions import QuestionReader, Questions

WRAPPERS = (SeveralSpouts, SeveralReaders, LetterSpout)
"""What passes calls on to other spouts or readers."""
SOURCES = (
    *(PartitionedSpout, ContractSpout, QueueInstances, RowsSpout, Questions),
    *(KafkaPartitionReader, MemoryPartitionReader, QueueReader, RowsReader, QuestionReader, NoReader),
)
"""What has a source of its own: where it overrides nothing, the base says what is true of it."""


def abilities(base: type) -> list[str]:
    """What a spout or a reader can be asked."""
    return sorted(name for name in vars(base) if not name.startswith("_"))


def left_out(wrapper: type) -> list[str]:
    """What a wrapper neither overrides nor delegates, so that the base would answer for what it wraps."""
    base = Spout if issubclass(wrapper, Spout) else PartitionReader
    return [name for name in abilities(base) if name not in vars(wrapper)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_answers_everything_itself(wrapper: type) -> None:
    assert left_out(wrapper) == []


def test_what_is_left_out_is_noticed() -> None:
    class Forgetful(SeveralSpouts):
        lag = SeveralSpouts.lag

    assert "lag" not in left_out(Forgetful)
    assert {"lag_by_partition", "read_held_ranges", "outputs", "can_limit_batches"} <= set(left_out(Forgetful))


def subclasses(of: type) -> Iterator[type]:
    known: type
    for known in of.__subclasses__():
        yield known
        yield from subclasses(known)


def test_every_spout_and_reader_is_known_to_be_a_wrapper_or_a_source() -> None:
    ours = {each for base in (Spout, PartitionReader) for each in subclasses(base) if each.__module__[:5] != "tests"}
    ours = {each for each in ours if each.__module__.partition(".")[0] in PACKAGES}
    unknown = {each for each in ours if not issubclass(each, (*WRAPPERS, *SOURCES, PartitionReader))}
    assert not unknown, "a spout of ours is in WRAPPERS, or derives from one of SOURCES"
    assert len(ours) > len(WRAPPERS) + len(SOURCES)


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
