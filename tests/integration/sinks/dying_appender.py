"""A topology with a table, dead letters and a Delta sink, whose process kills itself at a given point.

`python -m tests.integration.sinks.dying_appender TOPOLOGY PROCESSING TAKE STAGED POINT NUMBER` runs in the folder of
its tables and its store. It dies when it comes to the point for the n-th time; with the point "nowhere" it lives until
everything is published. Files are merged and swept after every second Delta commit. A
replay after a death with another TAKE is another batch. With STAGED tasks write all files.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sinks import DeltaSink
from sinks.delta import append_log, compaction
from sinks.delta.append_log import AppendLog
from sinks.delta.compaction import FileMerger
from sinks.delta.publisher import DeltaPublisher
from sinks.delta.run_files import RunFiles
from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from state.dead_letters import DeadLetterTable
from tests.integration.sinks.dying_publisher import BAD, die_at
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.processing import staging

BEGIN = datetime(2026, 11, 28, tzinfo=UTC)
ROWS = [(f"word-{number % 3}", number, BEGIN + timedelta(hours=number)) for number in range(120)]
FIELDS = "word string, number long, event_time timestamp"
POINTS: dict[str, tuple[Any, str, str]] = {
    "before the commit is recorded": (SqlCoordinatorStore, "record_commit", "before"),
    "after the commit is recorded": (SqlCoordinatorStore, "record_commit", "after"),
    "before a sink is opened": (DeltaSink, "open", "before"),
    "after a sink is opened": (DeltaSink, "open", "after"),
    "after the final position is read": (DeltaSink, "position", "after"),
    "before files are written": (DeltaSink, "stage", "before"),
    "after a file is written": (RunFiles, "write_file", "after"),
    "after all files are written": (DeltaSink, "stage", "after"),
    "before the Delta commit": (AppendLog, "write", "before"),
    "after the Delta commit": (AppendLog, "write", "after"),
    "after files are merged": (FileMerger, "_merge", "after"),
    "before a merge is committed": (DeltaPublisher, "replace_files", "before"),
    "after a merge is committed": (DeltaPublisher, "replace_files", "after"),
    "before the outbox is settled": (SqlCoordinatorStore, "settle_sink", "before"),
    "after the outbox is settled": (SqlCoordinatorStore, "settle_sink", "after"),
}
STARTS = {point for point, (_, name, _) in POINTS.items() if name in ("open", "position")}
"""The points at which a life comes once."""


def parse(tuple: Tuple) -> Any:
    """The tuple, unless it is a bad one."""
    if tuple["number"] in BAD:
        raise ValueError(f"number {tuple['number']} is bad")
    return (tuple["word"], tuple["number"], tuple["event_time"])


def build(topology_id: str, folder: Path, take: int) -> Topology:
    """Rows to a table with two partition columns, and the counts of words to a state."""
    spout = OpaqueMemoryTransactionalSpout([ROWS[::2], ROWS[1::2]], fields=FIELDS, take=take)
    builder = TransactionalTopologyBuilder(topology_id, "rows", spout, 2)
    builder.set_bolt("parse", parse, 2, output=FIELDS).shuffle_grouping("rows")
    sink = DeltaSink(folder / "events", partition_by=["word", "day(event_time)"])
    builder.set_sink("events", sink, 2).shuffle_grouping("parse")
    state = DeltaMapState(folder / "counts", key="word string")
    builder.set_committer_bolt("counts", state.count()).shuffle_grouping("parse")
    builder.set_dead_letters(DeadLetterTable(folder / "letters"))
    return builder.build()


def run(topology_id: str, processing: str, take: int) -> None:
    """Run until everything is published. `processing` is "none" for a run without Spark."""
    options: dict[str, Any] = {"max_spout_pending": 2, "stop_when_drained": True, "tick_ms": 10, "attempts_max": 1}
    if processing != "none":
        options["processing"] = processing
    topology = build(topology_id, Path.cwd(), take)
    config = TopologyConfig(retry_pause_ms=10, **options)
    store = f"sqlite:///{Path.cwd()}/store.db"
    run_topology(topology, store=store, config=config, master="none" if processing == "none" else "local[2]")


if __name__ == "__main__":
    topology_id, processing, take, staged, point, number = sys.argv[1:]
    if staged == "staged":
        staging.RECORDS_BYTES_MIN = 0  # type: ignore[misc]
    compaction.FILES_MIN = 2  # type: ignore[misc]
    append_log._PROPERTIES["delta.checkpointInterval"] = "2"
    append_log._PROPERTIES["delta.deletedFileRetentionDuration"] = "interval 0 seconds"
    die_at(POINTS.get(point), int(number))
    run(topology_id, processing, int(take))
