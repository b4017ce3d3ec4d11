"""The peers, with every setting that makes them quick: two recipes for Structured Streaming, exactly once into Delta.

They run on the Spark session of our own topologies (`transactional.runtime.spark.session`): AQE off, shuffle partitions
as many as cores, Delta snapshots of 2 partitions, unix-domain sockets, FAIR scheduling. Same broker, topic, disk;
`source.py` says what makes their source quick, `tables.py` what their table is like.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import CommitProperties, Transaction
from deltalake import DeltaTable as RustDeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench import tables
from bench.rounds import BatchTimes, Stage
from bench.source import read_topic
from bench.works import Work

SETTINGS = {
    # Progress of every micro-batch, not of the last hundred.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    # Windows: what a micro-batch has changed is appended, not whole files, and no row is counted for statistics.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
_TIMEOUT_S = 300


class StreamingPeer(ABC):
    """One recipe: the query, its checkpoint and its table. A run continues where the last one ended."""

    name: str
    key_type = "string"

    def __init__(self, stage: Stage, work: Work, label: str) -> None:
        self.stage, self.work = stage, work
        self.directory = stage.directory / f"{self.name}-{work.name}-{label}"
        self.path, self.checkpoint = str(self.directory / "table"), str(self.directory / "checkpoint")
        self.directory.mkdir(parents=True)
        self.create()

    def create(self) -> None:
        """Make the table."""
        tables.create(self.path, self.key_type)

    @abstractmethod
    def writer(self, source: DataFrame) -> DataStreamWriter:
        """What is done with what the source reads."""

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """One query with the trigger `availableNow`, whose micro-batches follow each other without a pause.

        It reads its topic to the end, which has to be at `until`.
        """
        source = self.source(until, batch_messages)
        writer = self.writer(source).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(_TIMEOUT_S):
                raise TimeoutError(f"{self.name} did not finish a round within {_TIMEOUT_S} s")
            return [self._times(progress) for progress in _worked(query)]
        finally:
            with suppress(Exception):
                query.stop()

    def source(self, until: Mapping[int, int], batch_messages: int) -> DataFrame:
        """A stream over the topic, without the columns that the work does not need."""
        workload = self.work.workload
        columns = (self.work.field, *(["timestamp"] if workload.per_minute else []))
        return read_topic(self.stage.session, self.stage.bootstrap, workload.topic, batch_messages, columns)

    def counts(self) -> dict[str, int]:
        """The table's contents."""
        return tables.read_counts(self.path)

    def _times(self, progress: Any) -> BatchTimes:
        durations = {name: float(ms) for name, ms in progress.durationMs.items()}
        whole_ms = durations.pop("triggerExecution")
        started_at_ms = datetime.fromisoformat(progress.timestamp).timestamp() * 1000
        return BatchTimes(started_at_ms, whole_ms, whole_ms - durations.get("latestOffset", 0), durations)


def _worked(query: StreamingQuery) -> list[Any]:
    """The progress of the micro-batches that had something to read."""
    return [p for p in query.recentProgress if p.sources[0].startOffset != p.sources[0].endOffset]


class Upserting(StreamingPeer):
    """One that is handed each micro-batch."""

    @abstractmethod
    def upsert(self, batch: DataFrame, batch_id: int) -> None:
        """Count the micro-batch into the table, exactly once."""

    def writer(self, source: DataFrame) -> DataStreamWriter:
        """`foreachBatch`."""
        return self.work.select(source).writeStream.foreachBatch(self.upsert)


class SparkMerge(Upserting):
    """What the manuals say: `foreachBatch` with a Delta MERGE, made idempotent by txnAppId and txnVersion.

    Tried beside it, and no quicker beyond the noise: the counts fetched first and merged from a local DataFrame, no
    materialised source (`merge.materializeSource`), no statistics (`stats.collect`), no repartitioning before the write
    (`merge.repartitionBeforeWrite.enabled`). A cached source is refused by Delta.
    """

    name = "merge"

    def upsert(self, batch: DataFrame, batch_id: int) -> None:
        """One MERGE, which does nothing when the table's version of this application is not lower."""
        merge_counts(batch, batch_id, path=self.path, application=self.checkpoint)


def merge_counts(batch: DataFrame, batch_id: int, *, path: str, application: str) -> None:
    """Count a micro-batch by its `key` into the table at `path`, once: by the version of `application` there."""
    session = batch.sparkSession
    session.conf.set("spark.databricks.delta.write.txnAppId", application)
    session.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
    (
        SparkDeltaTable.forPath(session, path)
        .alias("t")
        .merge(batch.groupBy("key").count().alias("s"), "t.key = s.key")
        .whenMatchedUpdate(set={"count": "t.count + s.count"})
        .whenNotMatchedInsertAll()
        .execute()
    )


class ExpertRecipe(Upserting):
    """The best recipe we know: `foreachBatch` that counts in Spark, fetches Arrow, and merges with delta-rs.

    The table's handle is kept from one micro-batch to the next, so that no log is read twice.
    """

    name = "expert"

    def __init__(self, stage: Stage, work: Work, label: str) -> None:
        super().__init__(stage, work, label)
        self._table = RustDeltaTable(self.path)

    def upsert(self, batch: DataFrame, batch_id: int) -> None:
        """Count, fetch, and merge, unless the table's version of this application says that it is done."""
        done = self._table.transaction_version(self.checkpoint)
        if done is not None and done >= batch_id:
            return
        counts = batch.groupBy("key").count().toArrow()
        (
            self._table.merge(
                counts,
                "t.key = s.key",
                source_alias="s",
                target_alias="t",
                commit_properties=CommitProperties(app_transactions=[Transaction(self.checkpoint, batch_id)]),
            )
            .when_matched_update({"count": 't."count" + s."count"'})
            .when_not_matched_insert_all()
            .execute()
        )
