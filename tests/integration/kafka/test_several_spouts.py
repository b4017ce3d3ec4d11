"""Several Kafka spouts in a topology of bolts: they come, go and change places between runs that die."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from state import DeltaMapState
from tests.integration.kafka_topics import new_topic, put
from transactional import TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.operations.doctor.examine import examine
from transactional.operations.loading import open_store
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.source import KafkaSource

pytestmark = pytest.mark.kafka

KINDS: dict[str, type[KafkaSpout]] = {"orders": OpaqueKafkaSpout, "refunds": TransactionalKafkaSpout}


def with_side(row: Tuple) -> tuple[str, str]:
    return row.source, row.value


class World:
    """Two topics, and what was written to them."""

    def __init__(self, bootstrap: str, folder: Path, processing: str) -> None:
        self.bootstrap, self.folder, self.processing = bootstrap, folder, processing
        self.store = f"sqlite:///{folder}/store.db"
        self.topics = {"orders": new_topic(bootstrap, 2), "refunds": new_topic(bootstrap, 3)}
        self.written = Counter[Any]()

    def write(self, count: int) -> None:
        """So many records more in each partition."""
        for side, partitions in (("orders", 2), ("refunds", 3)):
            for partition in range(partitions):
                values = [f"{side}-{partition}-{self.written.total() + n}" for n in range(count)]
                put(self.bootstrap, self.topics[side], values, partition)
                self.written += Counter((side, value) for value in values)

    def topology(self, *sides: str) -> Topology:
        spouts = {
            side: KINDS[side](self.bootstrap, [self.topics[side]], value_type="string", batch_records_max=7)
            for side in sides
        }
        made = TransactionalTopologyBuilder("both", sides[0], spouts[sides[0]], 2)
        for side in sides[1:]:
            made.set_spout(side, spouts[side])
        declared = made.set_bolt("sides", with_side, 2, output="side string, value string")
        for side in sides:
            declared.shuffle_grouping(side)
        counts = DeltaMapState(f"{self.folder}/counts", "side string, value string").count()
        made.set_committer_bolt("counts", counts).fields_grouping("sides", "side", "value")
        return made.build()

    def run(self, *sides: str) -> None:
        config = TopologyConfig(
            stop_when_drained=True, max_spout_pending=3, processing=self.processing, lease_ms=60_000, tick_ms=5
        )
        run_topology(self.topology(*sides), store=self.store, config=config, master="none", accept_changes=True)

    def counted(self) -> Counter[Any]:
        rows: pa.Table = DeltaMapState(f"{self.folder}/counts", "side string, value string", "count long").read()
        return Counter({(row["side"], row["value"]): row["count"] for row in rows.to_pylist()})


@pytest.mark.parametrize("processing", ["spark", "workers"])
def test_each_record_of_each_topic_counts_once(processing: str, bootstrap: str, tmp_path: Path) -> None:
    world = World(bootstrap, tmp_path, processing)
    for sides in (("orders",), ("orders", "refunds"), ("refunds", "orders"), ("refunds",), ("orders", "refunds")):
        world.write(9)
        world.run(*sides)
        assert not problems(world, *sides), sides
    assert world.counted() == world.written


def problems(world: World, *sides: str) -> list[Any]:
    """What the doctor finds, or the verifier."""
    with closing(open_store(world.store)) as store:
        found = examine(world.topology(*sides), store, world.store)
    prefixes = [f"{side}/" for side in sides] if len(sides) > 1 else [""]
    sources = [KafkaSource(world.bootstrap, reads_records=True, prefix=prefix) for prefix in prefixes]
    report = verify(world.store, "both", [], sources)
    return [*found, *report.findings]
