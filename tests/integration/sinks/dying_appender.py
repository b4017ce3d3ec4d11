"""A topology with a table, dead letters and a Delta sink, whose process kills itself at a given point.

`tests.integration.sinks.deaths` runs it. The last argument is "staged" if tasks write all files. Files are merged and
swept after every second Delta commit.
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
from tests.integration.sinks.dying import BAD, Point, die_at, run
from transactional import Topology, TransactionalTopologyBuilder, Tuple
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.processing import staging

BEGIN = datetime(2026, 11, 28, tzinfo=UTC)
ROWS = [(f"word-{number % 3}", number, BEGIN + timedelta(hours=number)) for number in range(120)]
FIELDS = "word string, number long, event_time timestamp"
POINTS: dict[str, Point] = {
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


if __name__ == "__main__":
    topology_id, processing, take, store_url, point, number, staged = sys.argv[1:]
    if staged == "staged":
        staging.RECORDS_BYTES_MIN = 0  # type: ignore[misc]
    compaction.FILES_MIN = 2  # type: ignore[misc]
    append_log._PROPERTIES["delta.checkpointInterval"] = "2"
    append_log._PROPERTIES["delta.deletedFileRetentionDuration"] = "interval 0 seconds"
    die_at(POINTS.get(point), int(number))
    run(build(topology_id, Path.cwd(), int(take)), processing, store_url, attempts_max=1)
