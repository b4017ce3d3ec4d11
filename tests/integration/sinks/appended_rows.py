"""The topology of `dying_appender`, maintained by others between two lives, and what must hold of its rows."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from tests.integration.sinks.deaths import Victim
from tests.integration.sinks.dying import BAD
from tests.integration.sinks.dying_appender import POINTS, ROWS
from tests.integration.tables import counts, rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.spark.session import spark_session

MAINTENANCE = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # A VACUUM lists folders by so many tasks, by default ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def make_appender(folder: Path, topology_id: str, processing: str, store_url: str = "") -> Victim:
    """Make the victim in a folder of its own. Without a `store_url` the store is an SQLite database there.

    Others maintain its table by Spark if it is processed there, else by delta-rs.
    """
    folder.mkdir(parents=True)
    store_url = store_url or f"sqlite:///{folder}/store.db"
    return Victim(
        "tests.integration.sinks.dying_appender",
        POINTS,
        topology_id,
        folder,
        partial(_check_rows, folder, topology_id, store_url),
        processing,
        store_url,
        draw_arguments=lambda chance, _: (chance.choice(("staged", "by the driver")),),
        points_of_start={point for point, (_, name, _) in POINTS.items() if name in ("open", "position")},
        maintain=partial(_maintain, folder / "events", by_spark=processing == "spark"),
    )


def _maintain(table_folder: Path, chance: random.Random, *, by_spark: bool) -> None:
    """Every other time, compact the table and delete at once whatever is no part of it, as others may."""
    if chance.random() < 0.5 or not DeltaTable.is_deltatable(str(table_folder)):
        return
    if by_spark:
        spark = spark_session("maintenance", master="local[1]", parallelism=1, conf=MAINTENANCE)
        spark.sql(f"OPTIMIZE delta.`{table_folder}`")
        spark.sql(f"VACUUM delta.`{table_folder}` RETAIN 0 HOURS")
        return
    table = DeltaTable(str(table_folder))
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def _check_rows(folder: Path, topology_id: str, store_url: str) -> None:
    """Check that each good row is in the table once, with a committed transaction, and that nothing waits."""
    good = [row for row in ROWS if row[1] not in BAD]
    appended = DeltaTable(str(folder / "events")).to_pyarrow_table().to_pylist()
    assert Counter((row["word"], row["number"], row["event_time"]) for row in appended) == Counter(good)
    assert all(row["event_time_day"] == row["event_time"].date() for row in appended)
    assert counts(folder / "counts", "word") == Counter(word for word, _, _ in good)
    assert len(rows(folder / "letters", "txid")) == len(BAD)
    with closing(SqlCoordinatorStore(store_url)) as store:
        progress = store.sinks(topology_id)
        [status] = store.status(topology_id)
    assert {name: sink.waiting for name, sink in progress.items()} == {"events": 0}
    assert {row["txid"] for row in appended} <= set(range(1, status.committed_txid + 1))
