"""What a start says about streams that are new or gone; a topology that is not one of streams hears nothing of them."""

from __future__ import annotations

import logging

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import builder, counts, stored
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

CONFIG = TopologyConfig(stop_when_drained=True, idle_pause_ms=1, tick_ms=1)


def run(topology: Topology, store: MemoryCoordinatorStore) -> None:
    TopologyDriver(topology, store, LocalExecutor(topology), CONFIG, owner="test", accept_changes=True).run()


def streams(table: MemoryTable, *names: str) -> Topology:
    topology = TridentTopology("words")
    made = [topology.new_stream(name, MemoryTransactionalSpout([[(name,)]], "word string", 1)) for name in names]
    counted = (made[0].merge(*made[1:]) if made[1:] else made[0]).group_by("word")
    counted.persistent_aggregate(MemoryMapState(table=table), Count(), name="counts")
    return topology.build(strict=True)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [
        record.getMessage() for record in caplog.records if record.name == "transactional.runtime.engine.streams"
    ]
    caplog.clear()
    return messages


def test_a_renamed_stream_is_a_removed_and_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    store, table = MemoryCoordinatorStore(), MemoryTable("counts")
    with caplog.at_level(logging.WARNING):
        run(streams(table, "web", "app"), store)
        assert told(caplog) == []
        run(streams(table, "app", "web"), store)
        assert told(caplog) == []
        run(streams(table, "web", "phone"), store)
    assert told(caplog) == [
        "topology 'words' no longer has stream 'app': its positions are kept, and it is not read",
        "topology 'words' has a new stream, 'phone': it is read from its start",
    ]
    assert stored(table) == {"web": 1, "app": 1, "phone": 1}


def test_a_topology_without_streams_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryCoordinatorStore()
    made = builder()
    made.set_committer_bolt("counts", counts(MemoryTable("plain")).count()).fields_grouping("spout", "word")
    topology = made.build()
    with caplog.at_level(logging.WARNING):
        run(topology, store)
        run(topology, store)
    assert told(caplog) == []
