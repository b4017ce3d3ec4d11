"""A sink in memory, which outlives the runs of a topology that publishes words to it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TopologyConfig, TopologyDriver, TransactionalTopologyBuilder
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.core.store import CoordinatorStore
from transactional.errors import RecordRefused, SchemaMismatch
from transactional.model.schema import Schema
from transactional.runtime.executors.local import LocalExecutor

ROWS = [[("cat",), ("dog",), ("owl",), ("cat",), ("emu",)]]
PUBLISHED = [(1, ["cat", "dog"]), (2, ["owl", "cat"]), (3, ["emu"])]


class Target:
    """What outlives the runs: published words by transaction, and the newest publication."""

    def __init__(self) -> None:
        self.published: list[tuple[int, list[str]]] = []
        self.position: SinkPosition | None = None
        self.errors: list[Exception] = []
        self.opened = self.closed = 0
        self.errors_of: dict[str, list[Exception]] = {"prepare": [], "look": []}
        self.is_free = threading.Event()
        """Publishing hangs until this is set."""
        self.is_free.set()
        self.was_tried = threading.Event()


TARGETS: dict[str, Target] = {}


class WordSink(Sink):
    """Publishes the field `word`. A "bad" one can't be encoded."""

    kind = "word sink"
    can_send = True

    def __init__(self, target: str) -> None:
        self.target = target

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        fields.require(["word"], of="the stream", used_by=used_by)

    def identity(self) -> Mapping[str, Any]:
        return {"target": self.target}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        if "bad" in batch.column("word").to_pylist():
            raise SchemaMismatch("a bad word")
        return pa.Table.from_batches([batch.select(["word"])])

    def prepare(self) -> None:
        self._start("prepare")

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        self._start("look")
        return TARGETS[self.target].position

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self.owner = owner
        TARGETS[self.target].opened += 1

    def position(self) -> SinkPosition | None:
        return TARGETS[self.target].position

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        target = TARGETS[self.target]
        target.was_tried.set()
        target.is_free.wait()
        if target.errors:
            is_final = isinstance(target.errors[0], RecordRefused)
            raise target.errors[0] if is_final else target.errors.pop(0)
        for each in group:
            target.published.append((each.publication.attempt.txid, each.records.column("word").to_pylist()))
        target.position = SinkPosition(self.owner.store_id, group[-1].publication)

    def send(self, records: pa.Table) -> Mapping[int, str]:
        target, words = TARGETS[self.target], records.column("word").to_pylist()
        if target.errors:
            raise target.errors.pop(0)
        target.published.append((0, [word for word in words if word != "refused"]))
        return {number: "too rude" for number, word in enumerate(words) if word == "refused"}

    def _start(self, method: str) -> None:
        target = TARGETS[self.target]
        if target.errors_of[method]:
            target.was_tried.set()
            raise target.errors_of[method].pop(0)

    def close(self) -> None:
        TARGETS[self.target].closed += 1


def build(
    sink: str | None = "words", counts: MemoryMapState | None = None, rows: list[list[tuple[str]]] = ROWS
) -> Topology:
    """Each word to the sink, and to a table; bad ones to the dead letters."""
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(rows, "word string", take=2))
    if sink is not None:
        builder.set_sink("alerts", WordSink(sink)).shuffle_grouping("rows")
    state = MemoryMapState("word string") if counts is None else counts
    builder.set_committer_bolt("count", state.count()).shuffle_grouping("rows")
    return builder.build()


def run(topology: Topology, store: CoordinatorStore, *, accept_changes: bool = False, **options: Any) -> None:
    config = TopologyConfig(stop_when_drained=True, tick_ms=5, retry_pause_ms=1, **options)
    TopologyDriver(topology, store, LocalExecutor(topology), config, accept_changes=accept_changes).run()
