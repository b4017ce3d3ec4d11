"""Facts of batches: stamped when planned, recorded, handed to bolts in both phases; event times; a spout's streams."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total, total, words
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports.spout_parts import SpoutParts, Streams
from transactional.errors import FailedException
from transactional.model.batch import PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.facts import BatchFacts, EventTime
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock, MemoryCoordinatorStore, complete_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Notes(BasicBolt):
    """Notes the facts that it is given, and then fails the first attempt."""

    output = "time long"
    noted: ClassVar[list[BatchFacts | None]] = []
    fails: ClassVar[list[str]] = []

    def prepare(self, context: TopologyContext) -> None:
        self.batch = context.batch

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.noted.append(self.batch)
        if self.fails:
            raise FailedException(self.fails.pop())
        collector.emit(self.batch.time_ms if self.batch else None)


class Sums(Total):
    """Notes the facts in the processing phase."""

    output = "count long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: Any) -> None:
        super().prepare(context, collector, attempt)
        Notes.noted.append(context.batch)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notes, "noted", [])
    monkeypatch.setattr(Notes, "fails", [])


class Ticking(ManualClock):
    """Moves on whenever it is asked, so that no two answers are the same."""

    def wall_ms(self) -> int:
        self.advance(1)
        return super().wall_ms()


def topology(spout: MemoryTransactionalSpout, bolt: Any = None) -> Topology:
    built = TransactionalTopologyBuilder("words", "spout", spout)
    built.set_bolt("notes", bolt or Notes()).shuffle_grouping("spout")
    built.set_committer_bolt("total", Total(), state=total()).global_grouping("notes")
    return built.build()


def run(made: Topology, store: MemoryCoordinatorStore, clock: ManualClock, **options: Any) -> None:
    config = TopologyConfig(stop_when_drained=True, retry_pause_ms=1, attempts_max=3, idle_pause_ms=1, **options)
    TopologyDriver(made, store, LocalExecutor(made), config, clock=clock).run()


def recorded(store: MemoryCoordinatorStore) -> list[BatchFacts | None]:
    return [record.batch.facts for record in store.attempts("words", limit=100)][::-1]


def test_every_attempt_at_a_batch_has_the_facts_that_were_recorded_with_it() -> None:
    Notes.fails.append("once")
    store = MemoryCoordinatorStore()
    run(topology(words([[("cat",), ("dog",)]], take=1)), store, Ticking(wall_ms=1_000))
    first, again, second = recorded(store)
    assert Notes.noted == [first, again, second]
    assert first == again
    assert first is not None
    assert second is not None
    assert 1_000 < first.time_ms < second.time_ms
    assert first.watermark_us is second.watermark_us is None


def test_a_batch_that_is_planned_again_has_facts_of_its_own() -> None:
    Notes.fails.append("once")
    store = MemoryCoordinatorStore()
    run(topology(OpaqueMemoryTransactionalSpout([[("cat",)]], "word string", 1)), store, Ticking())
    first, again = recorded(store)
    assert Notes.noted == [first, again]
    assert first is not None
    assert again is not None
    assert first.time_ms < again.time_ms


def test_the_commit_phase_has_the_facts_as_well() -> None:
    """A bolt behind a committer runs there from its first tuple."""
    built = TransactionalTopologyBuilder("words", "spout", words([[("cat",)]]))
    built.set_committer_bolt("total", Sums(), state=total()).global_grouping("spout")
    built.set_bolt("notes", Behind()).shuffle_grouping("total")
    complete_topology(built.build())
    assert len(Notes.noted) == 2
    assert Notes.noted[0] is not None
    assert Notes.noted[0] == Notes.noted[1]


class Behind(BatchBolt):
    """Notes the facts."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: Any) -> None:
        Notes.noted.append(context.batch)

    def execute(self, tuple: Tuple) -> None: ...

    def finish_batch(self) -> None: ...


# --- event times ------------------------------------------------------------------------------------------------


class Timed(MemoryTransactionalSpout):
    """Its field `at` is when something happened."""

    @property
    def parts(self) -> SpoutParts:
        parts = super().parts
        times = {"default": EventTime("at", 2_000, max_ahead_ms=None)}
        return replace(parts, streams=replace(parts.streams, event_times=times))


def at(second: int | None) -> tuple[datetime | None]:
    return (None if second is None else NOON + timedelta(seconds=second),)


def us(second: int) -> int:
    return int((NOON + timedelta(seconds=second)).timestamp()) * 1_000_000


def test_what_is_late_follows_from_the_event_times_that_are_committed() -> None:
    rows = [[at(0), at(9), at(5), at(6), at(7)], [at(3), at(None), at(None), at(None), at(8)]]
    store = MemoryCoordinatorStore()
    run(topology(Timed(rows, "at timestamp", take=2)), store, Ticking())
    first, second, third = recorded(store)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.watermark_us is None
    assert second.watermark_us == us(3 - 2)  # the slower of 9 and 3
    assert third.watermark_us == us(3 - 2)  # nothing known of the second partition
    last = store.attempts("words", limit=1)[0].batch
    assert {p: seen.event_us for p, seen in last.event_times.items()} == {
        PartitionId("memory", 0): us(9),
        PartitionId("memory", 1): us(8),
    }
    assert last.digests[PartitionId("memory", 0)].event_us == us(7)


def test_event_times_outlive_a_restart() -> None:
    rows = [[at(4), at(5)]]
    store = MemoryCoordinatorStore()
    made = topology(Timed(rows, "at timestamp", take=2))
    run(made, store, Ticking())
    rows[0].append(at(6))
    run(made, store, Ticking())
    last = recorded(store)[-1]
    assert last is not None
    assert last.watermark_us == us(5 - 2)


# --- streams of a spout -----------------------------------------------------------------------------------------


class TwoStreams(MemoryTransactionalSpout):
    """Partition 1 is emitted on a stream of its own."""

    @property
    def parts(self) -> SpoutParts:
        outputs = {"default": self.output, "odd": self.output}
        return replace(super().parts, streams=Streams(outputs, "two streams"))

    def reader(self) -> MemoryPartitionReader:
        return TwoStreamsReader(self._partitions, self.output)


class TwoStreamsReader(MemoryPartitionReader):
    """Knows the stream."""

    def stream_of(self, partition: PartitionId) -> str:
        return "odd" if partition.index % 2 else "default"


def test_a_spout_emits_on_the_stream_of_a_partition() -> None:
    built = TransactionalTopologyBuilder(
        "words", "spout", TwoStreams([[("cat",)], [("dog",), ("owl",)]], "word string", 9)
    )
    state = MemoryMapState("word string", "count long", table=MemoryTable("counts"))
    built.set_committer_bolt("count", state.count()).fields_grouping("spout", "word", stream="odd")
    built.set_bolt("same", lambda batch: batch, output="word string").shuffle_grouping("spout")
    emitted = complete_topology(built.build())
    assert [row.word for row in emitted["spout", "odd"]] == ["dog", "owl"]
    assert [row.word for row in emitted["same"]] == ["cat"]
    assert pa.table(state.read()).num_rows == 2
