"""A topology that appends rows to the table of a Delta sink, with a store in SQLite."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sinks import DeltaSink
from spouts import MemoryTransactionalSpout
from tests.unit.sinks.delta.leaders import Row
from transactional import RunSummary, Topology, TopologyConfig, run_topology
from transactional.core.store.outbox import SinkProgress
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.trident import TridentTopology

FIELDS = "id string, country string, event_time timestamp, amount long"


def rows(count: int) -> list[list[Row]]:
    """Rows of three days and two countries, and of none."""
    return [
        [
            (f"o{n}", (None, "de", "fr")[n % 3], datetime(2026, 11, 27 + n // 8, n % 24, tzinfo=UTC), n)
            for n in range(count)
        ]
    ]


def run(
    folder: Path,
    source: list[list[Row]],
    fields: str = FIELDS,
    table: str = "events",
    *,
    accept_changes: bool = True,
    **options: Any,
) -> RunSummary:
    """Append rows, four in a transaction."""
    topology = build(folder, source, fields, table, **options)
    config, store = TopologyConfig(stop_when_drained=True), f"sqlite:///{folder}/store.db"
    return run_topology(topology, store=store, config=config, master="none", accept_changes=accept_changes)


def build(
    folder: Path, source: list[list[Row]], fields: str = FIELDS, table: str = "events", **options: Any
) -> Topology:
    """Return the topology, which appends to a table in the folder."""
    topology = TridentTopology("landing")
    stream = topology.new_stream("rows", MemoryTransactionalSpout(source, fields, take=4))
    stream.sink_to(DeltaSink(folder / table, **options), name="events")
    return topology.build()


def progress_of(folder: Path) -> SinkProgress:
    """Return what the store has of the sink."""
    with closing(SqlCoordinatorStore(f"sqlite:///{folder}/store.db")) as store:
        return store.sinks("landing")["events"]
