"""Several spouts in one topology: one sequence of transactions, each with a batch of every stream (Storm row T28)."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.fakes import stored
from transactional.core.ports import StateKind
from transactional.core.ports.several.spouts import SeveralSpouts
from transactional.errors import ConfigError, FailedException, RetriesExhausted, TopologyChanged
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import complete_topology
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.topology.stages import plan_stages
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology, field

WORD = "word string"
rows = st.lists(st.sampled_from(["a", "b", "c"]).map(lambda word: (word,)), max_size=6)
kinds = st.sampled_from([MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])


class Flaky:
    """Fails the first attempts at each word of a side."""

    left: Counter[Any] = Counter()  # noqa: RUF012

    def __call__(self, row: Tuple) -> bool:
        if self.left[tuple(row)] > 0:
            self.left[tuple(row)] -= 1
            raise FailedException(str(row))
        return True


@settings(max_examples=examples(60))
@given(rows, rows, rows, kinds, kinds, st.sets(st.sampled_from(["a", "b"])), st.integers(1, 3))
def test_every_tuple_of_every_stream_counts_once(
    first: Any, more: Any, second: Any, kind: Any, other: Any, failing: set[str], take: int
) -> None:
    """Of one kind or mixed, with one that has ended and one that goes on, under failures and replays."""
    Flaky.left = Counter({(word, 1): 1 for word in failing})
    topology, table = TridentTopology("both", parallelism=2), MemoryTable("counts")
    one = topology.new_stream("one", kind([first, more], WORD, take))
    two = topology.new_stream("two", other([second], "other string", 1)).rename(word="other")
    both = one.with_columns(side=1).filter(Flaky()).merge(two.with_columns(side=2))
    both.group_by("word", "side").persistent_aggregate(MemoryMapState(table=table), Count())
    complete_topology(topology.build(strict=True), config=TopologyConfig(attempts_max=99, retry_pause_ms=1))
    expected = Counter((word, 1) for (word,) in [*first, *more]) + Counter((word, 2) for (word,) in second)
    assert {key: value.value[0] for key, value in table.rows.items()} == expected


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def spouts(*kinds: Any) -> SeveralSpouts:
    return SeveralSpouts({f"s{n}": kind([[("a",), ("b",)]], WORD, 1) for n, kind in enumerate(kinds)})


def test_a_batch_has_a_part_of_each_and_carries_positions_on() -> None:
    both = SeveralSpouts(
        {
            "s0": MemoryTransactionalSpout([[("a",)]], WORD, 1),
            "s1": MemoryTransactionalSpout([[("a",), ("b",)]], WORD, 1),
        }
    )
    both.open()
    one, two = PartitionId("s0/memory", 0), PartitionId("s1/memory", 0)
    first = both.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    assert first.ranges == {one: offsets(0, 1), two: offsets(0, 1)}
    second = both.plan(first, replay=False)
    assert second is not None
    assert second.ranges == {one: offsets(1, 1), two: offsets(1, 2)}
    assert both.plan(second, replay=False) is None
    gone = PartitionId("s2/memory", 0)
    kept = both.plan(BatchMetadata({**first.ranges, gone: offsets(3, 5)}), replay=False)
    assert kept is not None
    assert kept.ranges == {**second.ranges, gone: offsets(5, 5)}, "positions of a stream that is gone are kept"
    assert both.parts.backlog.lag(first) == 1
    assert both.reader().stream_of(one) == "default"
    assert both.reader().stream_of(two) == "s1"


class Noting(MemoryTransactionalSpout):
    """Keeps what it has counted in the metadata of its partition."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        batch = super().plan(after, replay=replay)
        return batch and replace(batch, metadata=dict.fromkeys(batch.ranges, "counted"))


def test_one_without_anything_new_keeps_what_it_has_noted() -> None:
    """Else it would begin from nothing when there is something again."""
    both = SeveralSpouts(
        {"s0": Noting([[("a",)]], WORD, 1), "s1": MemoryTransactionalSpout([[("a",), ("b",)]], WORD, 1)}
    )
    both.open()
    first = both.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    second = both.plan(first, replay=False)
    assert second is not None
    assert second.metadata == first.metadata == {PartitionId("s0/memory", 0): "counted"}


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
@pytest.mark.parametrize("fails", [False, True])
def test_a_topology_gains_a_stream_and_reads_nothing_again(kind: Any, *, fails: bool) -> None:
    """Positions of the first one, and a batch that is recorded and not committed, are where they were."""
    store, table = MemoryCoordinatorStore(), MemoryTable("counts")

    def counted(rows: Any, more: Any) -> Topology:
        topology = TridentTopology("gains")
        words = topology.new_stream("words", kind([rows], WORD, 1)).filter(Flaky())
        if more:
            others = topology.new_stream("others", MemoryTransactionalSpout([more], "other string", 1))
            words = words.merge(others.rename(word="other"))
        words.group_by("word").persistent_aggregate(MemoryMapState(table=table), Count(), name="counts")
        return topology.build(strict=True)

    Flaky.left = Counter({("b",): 9} if fails else {})
    config = TopologyConfig(attempts_max=2, retry_pause_ms=1, stop_when_drained=True, idle_pause_ms=1, tick_ms=1)

    def live(topology: Topology, *, accept_changes: bool = False) -> None:
        executor = LocalExecutor(topology)
        TopologyDriver(topology, store, executor, config, owner="test", accept_changes=accept_changes).run()

    with contextlib.suppress(RetriesExhausted):
        live(counted([("a",), ("a",), ("b",)], []))
    Flaky.left = Counter()
    gained = counted([("a",), ("a",), ("b",), ("c",)], [("c",), ("d",)])
    with pytest.raises(TopologyChanged):
        live(gained)
    live(gained, accept_changes=True)
    assert stored(table) == {"a": 2, "b": 1, "c": 2, "d": 1}


def test_a_source_may_be_named_as_another_stream() -> None:
    class Named(MemoryTransactionalSpout):
        def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
            assert after.ranges.keys() <= {PartitionId("s1/memory", 0)}
            return BatchMetadata({PartitionId("s1/memory", 0): offsets(0, 1)})

    both = SeveralSpouts(
        {f"s{n}": kind([[("a",)]], WORD, 1) for n, kind in enumerate((Named, MemoryTransactionalSpout))}
    )
    first = both.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    assert first.ranges == {PartitionId("s0/s1/memory", 0): offsets(0, 1), PartitionId("s1/memory", 0): offsets(0, 1)}
    assert both.plan(first, replay=False) is not None


def test_it_replays_exactly_if_all_of_them_do() -> None:
    assert spouts(MemoryTransactionalSpout, MemoryTransactionalSpout).replays_exactly
    mixed = spouts(MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout)
    assert not mixed.replays_exactly
    topology = TridentTopology("mixed")
    streams = [topology.new_stream(name, spout) for name, spout in mixed.spouts.items()]
    streams[0].persistent_aggregate(MemoryMapState(kind=StateKind.TRANSACTIONAL), Count())
    with pytest.raises(ConfigError, match="keeps a transactional state behind the opaque spout 's0'"):
        topology.build(strict=True)


def test_a_join_of_two_streams() -> None:
    topology, table = TridentTopology("orders"), MemoryTable("paid")
    orders = topology.new_stream(
        "orders", MemoryTransactionalSpout([[("ada", 3), ("bob", 4)]], "customer string, n int", 2)
    )
    payments = topology.new_stream("payments", MemoryTransactionalSpout([[("bob", 4)]], "payer string, paid int", 1))
    paid = topology.join((orders, "customer"), (payments, "payer"), how="left").filter(field("paid").is_valid())
    paid.group_by("customer").persistent_aggregate(MemoryMapState(table=table), Count())
    complete_topology(topology.build(strict=True))
    assert stored(table) == {"bob": 1}


def test_one_component_reads_all_of_them() -> None:
    topology = TridentTopology("both", parallelism=2)
    one = topology.new_stream("one", MemoryTransactionalSpout([[]], WORD, 1)).parallelism_hint(3)
    two = topology.new_stream("two", MemoryTransactionalSpout([[]], WORD, 1)).filter(lambda t: t.word)
    one.merge(two).persistent_aggregate(MemoryMapState(), Count())
    built = topology.build(strict=True)
    assert (built.spout_id, built.spout_parallelism) == ("one", 3)
    read = {c.id: [(g.source, g.stream) for g in c.inputs] for c in built.components if not c.is_update}
    assert read == {"b-0-filter": [("one", "two")], "b-1-merge": [("one", "default"), ("b-0-filter", "default")]}
    assert plan_stages(built).depth == 1


def test_rows_of_a_test_stand_for_one_stream() -> None:
    topology = TridentTopology("both")
    for name in ("one", "two"):
        stream = topology.new_stream(name, MemoryTransactionalSpout([[]], WORD, 1))
        stream.persistent_aggregate(MemoryMapState(), Count())
    with pytest.raises(ConfigError, match="rows stand for one stream, and the topology reads 2: leave them out"):
        complete_topology(topology.build(), [("a",)])
