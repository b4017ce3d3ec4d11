"""What a run leaves in the store with each commit: lag by partition, tuples by subscription, times of states."""

from __future__ import annotations

from typing import Any

from examples.stateful_words import WordCount
from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.unit.drivers import World
from tests.unit.fakes import WORD_COUNTS, builder, counts, opaque_words
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.runtime.engine.history.run_history import LAGS_MAX, read_lags


def details_of(world: World, topology: Any = None) -> list[Any]:
    """The details of all attempts, oldest first."""
    world.run(topology)
    [status] = world.store.status()
    return [record.details for record in world.store.attempts(status.topology_id, limit=99)[::-1]]


def test_each_commit_tells_the_tuples_of_each_subscription_and_the_time_of_each_state() -> None:
    world = World()
    first = details_of(world)[0]
    assert {tuple(edge[:3]): edge[3] for edge in first["edges"]}[("spout", "default", "total")] > 0
    assert set(first["states"]) == {"counts", "total"}
    assert all(facts["at"] >= 0 and facts["ms"] >= 0 and facts["rows"] > 0 for facts in first["states"].values())
    assert first["states"]["counts"]["at"] <= first["states"]["total"]["at"]
    assert first["letters"] == 0


def test_so_are_those_that_were_sent_in_the_commit_phase() -> None:
    made = builder(opaque_words(take=99))
    made.set_stateful_bolt("count", WordCount(), state=counts()).fields_grouping("spout", "word")
    again = MemoryMapState("word string", "count long")
    made.set_stateful_bolt("again", WordCount(), state=again).fields_grouping("count", "word")
    [details] = details_of(World(), made.build(strict=True))
    in_all = sum(WORD_COUNTS.values())
    sent = [["count", "default", "again", in_all], ["spout", "default", "count", in_all]]
    assert details["edges"] == sent


def test_the_lag_is_told_by_partition_and_in_all() -> None:
    for details in details_of(World()):
        assert details["lag"] == sum(lag for _, _, lag in details["lags"])
    assert details["lag"] == 0


class ManyPartitions(OpaqueMemoryTransactionalSpout):
    """A thousand partitions, each further behind than the one before."""

    def lag_by_partition(self, after: BatchMetadata) -> dict[PartitionId, int]:
        return {PartitionId("words", index): index for index in range(1_000)}


def test_of_many_partitions_those_with_the_highest_lag_are_kept_and_the_sum_is_of_all() -> None:
    told = read_lags(ManyPartitions([[]], fields="word string", take=1), BatchMetadata({}))
    assert told["lag"] == sum(range(1_000))
    assert told["lags"][0] == ["words", 999, 999]
    assert len(told["lags"]) == LAGS_MAX


def test_a_spout_that_fails_to_report_its_lag_does_no_harm() -> None:
    class Broken(OpaqueMemoryTransactionalSpout):
        def lag_by_partition(self, after: BatchMetadata) -> dict[PartitionId, int]:
            raise OSError("gone")

    assert read_lags(Broken([[]], fields="word string", take=1), BatchMetadata({})) == {"lag": None}
