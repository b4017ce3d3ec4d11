"""An identity that can't be stored is an error that names the user's method, wherever it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sinks import KeyedSink
from spouts import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.unit.own_spouts import WordLists
from transactional import TransactionalTopologyBuilder
from transactional.errors import ConfigError
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.stored_values import read_identity
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Topology


class InFolder:
    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def identity(self) -> Any:
        return {"folder": self.folder}


class Spout(InFolder, WordLists):
    def __init__(self) -> None:
        super().__init__(Path("in"))
        self.words = {}


class State(MemoryMapState):
    def identity(self) -> Any:
        return {"folder": Path("in")}


class Sink(KeyedSink):
    def identity(self) -> Any:
        return {"folder": Path("in")}

    def encode(self, batch: Any) -> Any: ...

    def deliver(self, keys: Any, records: Any) -> None: ...


WORDS = MemoryTransactionalSpout([[]], "word string", 1)


def topology(spout: Any = WORDS, state: MemoryMapState | None = None, sink: KeyedSink | None = None) -> Topology:
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    counts = (state or MemoryMapState("word string")).count()
    builder.set_committer_bolt("count", counts).fields_grouping("spout", "word")
    if sink is not None:
        builder.set_sink("sink", sink).shuffle_grouping("spout")
    return builder.build()


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("Spout", lambda: topology(Spout()).fingerprint()),
        ("State", lambda: topology(state=State("word string")).fingerprint()),
        ("State", lambda: describe_topology(topology(state=State("word string")))),
        ("Sink", lambda: topology(sink=Sink()).fingerprint()),
    ],
)
def test_a_path_is_refused_by_name(name: str, declared: Any) -> None:
    message = f"{name}.identity returned properties that are not JSON, {{'folder': PosixPath('in')}}: Object of type "
    with pytest.raises(ConfigError, match=rf"{re.escape(message)}.*\(tests/unit/[\w/]*test_stored_values\.py:\d+\)$"):
        declared()


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"folder": ("in",)}, "which JSON turns into {'folder': ['in']}"),
        ({1: "in"}, "which JSON turns into {'1': 'in'}"),
        ("in", "returned 'in'; return a dictionary, such as {'path': '/in'}"),
    ],
)
def test_what_comes_back_as_something_else_is_refused(identity: Any, message: str) -> None:
    class Source(InFolder):
        def identity(self) -> Any:
            return self.folder

    with pytest.raises(ConfigError, match=re.escape(message)):
        read_identity(Source(identity))


def test_what_json_keeps_is_an_identity() -> None:
    assert read_identity(InFolder(["in", 1, None])) == {"folder": ["in", 1, None]}


def test_metadata_of_a_plain_spout_that_are_not_json_are_refused() -> None:
    batch = BatchMetadata({PartitionId("a", 0): OffsetRange(Offset(0), Offset(1))}, metadata={PartitionId("a", 0): {1}})
    with pytest.raises(ConfigError, match="the metadata of a batch are not JSON: Object of type set"):
        batch.to_json()
