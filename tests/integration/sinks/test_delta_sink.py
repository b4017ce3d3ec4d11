"""The Delta sink beside Spark: a stream that reads its table, maintenance by others, and processes that are killed."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from sinks import DeltaSink
from sinks.delta import compaction
from spouts import MemoryTransactionalSpout
from tests.integration.sinks.appended_rows import MAINTENANCE, make_appender
from tests.integration.sinks.deaths import die_often
from tests.unit.sinks.delta.leaders import Leader
from transactional import RunSummary, TopologyConfig, run_topology
from transactional.errors import SchemaMismatch
from transactional.model.plumbing.pools import await_calls
from transactional.trident import TridentTopology

FIELDS = "id long, country string, event_time timestamp"
ROUNDS = 2


def append(folder: Path, count: int) -> RunSummary:
    """Append rows up to a number, ten in a transaction."""
    rows = [(n, ("de", "fr", None)[n % 3], datetime(2026, 11, 1 + n // 60, tzinfo=UTC)) for n in range(count)]
    topology = TridentTopology("landing")
    stream = topology.new_stream("rows", MemoryTransactionalSpout([rows], FIELDS, take=10))
    stream.sink_to(DeltaSink(folder / "events", partition_by=["day(event_time)"]), name="events")
    config = TopologyConfig(stop_when_drained=True)
    return run_topology(topology.build(), store=f"sqlite:///{folder}/store.db", config=config, master="none")


@pytest.mark.spark
@pytest.mark.long("Spark for half a minute; the unit tests maintain the table by delta-rs")
def test_a_stream_of_spark_reads_on_whatever_is_maintained(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row arrives once: new files are read, merged ones not again. Rows that are deleted leave the disk."""
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    append(tmp_path, 30)
    for name, text in MAINTENANCE.items():
        spark.conf.set(name, text)
    uri = str(tmp_path / "events")
    rows = spark.readStream.format("delta").load(uri)
    query = rows.writeStream.format("memory").queryName("landed").option("checkpointLocation", f"{tmp_path}/c").start()
    try:
        for number in range(1, ROUNDS + 1):
            append(tmp_path, 30 + 30 * number)
            query.processAllAvailable()
            if number == ROUNDS:
                spark.sql(f"OPTIMIZE delta.`{uri}`")
            spark.sql(f"VACUUM delta.`{uri}` RETAIN 0 HOURS")
        append(tmp_path, 110)
        query.processAllAvailable()
        assert query.isActive
        landed = Counter(spark.table("landed").select("id").toArrow()["id"].to_pylist())
        query.stop()
        assert landed == Counter(range(110))
        table = spark.read.format("delta").load(uri)
        assert table.count() == 110
        assert table.where("event_time_day = date'2026-11-02'").count() == 50
        assert any("compacted-" in path.read_text("utf-8") for path in (tmp_path / "events/_delta_log").glob("*.json"))
        spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration'='0 hours')")
        spark.sql(f"DELETE FROM delta.`{uri}` WHERE id IN (5, 105)")
        spark.sql(f"VACUUM delta.`{uri}` RETAIN 0 HOURS")
        assert {5, 105} <= ids_on_disk(tmp_path), "the sink has not swept yet"
        append(tmp_path, 120)
        assert await_calls(60)
    finally:
        query.stop()
        for name in MAINTENANCE:
            spark.conf.unset(name)
    assert ids_on_disk(tmp_path) == {*range(120)} - {5, 105}


def ids_on_disk(folder: Path) -> set[int]:
    """The ids in all data files below the folder of the table, whether they are part of it or not."""
    files = (path for path in (folder / "events").rglob("*.parquet") if "_delta_log" not in path.parts)
    return {id for path in files for id in parquet.ParquetFile(path).read(columns=["id"])["id"].to_pylist()}


UNFIT_TABLES = {
    "id BIGINT, txid BIGINT": {
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')": "column mapping",
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')": "features .*deletionVectors",
        "TBLPROPERTIES ('delta.enableRowTracking' = 'true')": "features .*rowTracking",
        "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')": "has protocol .*writer",
        "CLUSTER BY (id)": "features .*clustering",
    },
    "id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2), txid BIGINT": {"": "has protocol .*writer"},
    "id BIGINT, number BIGINT GENERATED ALWAYS AS IDENTITY, txid BIGINT": {"": "has protocol .*writer"},
    "id BIGINT NOT NULL, txid BIGINT": {"": "a column 'id' that is NOT NULL"},
}
"""The refusals of tables that Spark has made, by columns and options."""


@pytest.mark.spark
@pytest.mark.long("Spark for some seconds; the unit tests write such entries of the log by hand")
def test_tables_that_spark_has_made_are_refused_or_appended_to(spark: SparkSession, tmp_path: Path) -> None:
    for number, (columns, refusals) in enumerate(UNFIT_TABLES.items()):
        for option, message in refusals.items():
            folder = tmp_path / f"{number}-{len(option)}"
            spark.sql(f"CREATE TABLE delta.`{folder}/events` ({columns}) USING delta {option}")
            with pytest.raises(SchemaMismatch, match=message):
                Leader(folder, 1, fields="id long").open()
    uri = f"{tmp_path}/plain/events"
    spark.sql(f"CREATE TABLE delta.`{uri}` (id BIGINT) USING delta TBLPROPERTIES ('delta.appendOnly' = 'true')")
    leader = Leader(tmp_path / "plain", 1, fields="id long").open()
    leader.publish(leader.stage(1, 2))
    spark.sql(f"ALTER TABLE delta.`{uri}` ADD COLUMN note STRING")
    leader.publish(leader.stage(2, 3))
    spark.sql(f"ALTER TABLE delta.`{uri}` ADD CONSTRAINT positive CHECK (id > 0)")
    with pytest.raises(SchemaMismatch, match=r"has protocol .*constraints"):
        leader.publish(leader.stage(3, 4))
    rows = spark.read.format("delta").load(uri).toArrow().sort_by("id").to_pylist()
    assert list(map(tuple, map(dict.values, rows))) == [(2, 1, None), (3, 2, None)]


@pytest.mark.long("processes that are killed, six times; the unit tests have lost answers and earlier leaders")
def test_deaths_at_points_of_appending(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    deaths = die_often(make_appender(tmp_path / "run", f"deaths-{seed}", "none"), random.Random(seed))
    assert json.dumps(deaths), seed
