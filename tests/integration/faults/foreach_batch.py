"""The other recipe: Structured Streaming with `foreachBatch` and a Delta MERGE, idempotent by txnAppId and txnVersion.

It reads Kafka through a Python data source that plans offsets and reads them as Spark's own connector does, and shares
no code with our spouts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, MutableMapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

TIMEOUT_S = 150
KEPT_NOTES = ("offsets", "commits")

Offsets = dict[str, int]


class KafkaWords(DataSource):
    """A streaming source of a topic's values. Options: `bootstrap`, `topic`, `batch` (records per micro-batch)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "words-of-kafka"

    def schema(self) -> str:
        return "word string"

    def streamReader(self, schema: StructType) -> KafkaWordsReader:  # noqa: N802 - PySpark's name
        return KafkaWordsReader(self.options["bootstrap"], self.options["topic"], int(self.options["batch"]))


@dataclass
class KafkaRange(InputPartition):
    """What one task reads."""

    partition: int
    start: int
    until: int


class KafkaWordsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches up to where the topic ended when the query began, and reads what lies in between."""

    def __init__(self, bootstrap: str, topic: str, batch: int) -> None:
        self.bootstrap, self.topic, self.batch = bootstrap, topic, batch
        self.ends: Offsets = {}

    def initialOffset(self) -> Offsets:  # noqa: N802
        return {str(partition): 0 for partition in self._partitions()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with closing(self._consumer()) as consumer:
            for partition in self._partitions():
                _, high = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=TIMEOUT_S)
                self.ends[str(partition)] = high

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Each partition goes on by its part of a micro-batch."""
        most = max(self.ends.values()) if isinstance(limit, ReadAllAvailable) else self.batch // len(self.ends)
        return {partition: max(start[partition], min(end, start[partition] + most)) for partition, end in self._ends()}

    def partitions(self, start: Offsets, end: Offsets) -> list[KafkaRange]:
        return [KafkaRange(int(p), start[p], end[p]) for p in end if start[p] < end[p]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KafkaRange)
        words: list[str] = []
        with closing(self._consumer()) as consumer:
            consumer.assign([TopicPartition(self.topic, partition.partition, partition.start)])
            while len(words) < partition.until - partition.start:
                for message in consumer.consume(partition.until - partition.start - len(words), timeout=TIMEOUT_S):
                    assert message.error() is None, message.error()
                    words.append((message.value() or b"").decode())
        yield pa.RecordBatch.from_pydict({"word": words})

    def commit(self, end: Offsets) -> None:
        """The checkpoint keeps the offsets."""

    def _ends(self) -> list[tuple[str, int]]:
        return list(self.ends.items())

    def _partitions(self) -> list[int]:
        with closing(self._consumer()) as consumer:
            return sorted(consumer.list_topics(self.topic, timeout=TIMEOUT_S).topics[self.topic].partitions)

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.bootstrap, "group.id": "peer", "log_level": 0})


@dataclass
class Peer:
    """One streaming query with its checkpoint and its table of counts. Each run goes on where the last one ended."""

    session: SparkSession
    bootstrap: str
    topic: str
    folder: Path
    dies: str = ""

    def __post_init__(self) -> None:
        schema = pa.schema([("word", pa.string()), ("count", pa.int64())])
        DeltaTable.create(self.table, schema)
        self.session.dataSource.register(KafkaWords)

    @property
    def table(self) -> str:
        return str(self.folder / "peer")

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, batch: int, dies: str = "") -> bool:
        """Count all there is, in micro-batches. `dies`, such as "before 2" or "after 2", is where: at the MERGE of that
        micro-batch, the first being 0. True when it has died."""
        self.dies = dies
        options = {"bootstrap": self.bootstrap, "topic": self.topic, "batch": str(batch)}
        source = self.session.readStream.format(KafkaWords.name()).options(**options).load()
        writer = source.writeStream.foreachBatch(self.upsert).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), f"the query has not ended in {TIMEOUT_S} s"
            return False
        except StreamingQueryException as error:
            if not dies or f"the power is gone {dies}" not in str(error):
                raise
            return True
        finally:
            with suppress(Exception):
                query.stop()

    def upsert(self, batch: DataFrame, batch_id: int) -> None:
        """The recipe of the manuals."""
        self._live_on(f"before {batch_id}")
        session = batch.sparkSession
        session.conf.set("spark.databricks.delta.write.txnAppId", "peer")
        session.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
        (
            SparkDeltaTable.forPath(session, self.table)
            .alias("t")
            .merge(batch.groupBy("word").count().alias("s"), "t.word = s.word")
            .whenMatchedUpdate(set={"count": "t.count + s.count"})
            .whenNotMatchedInsertAll()
            .execute()
        )
        self._live_on(f"after {batch_id}")

    def _live_on(self, point: str) -> None:
        if point == self.dies:
            raise RuntimeError(f"the power is gone {point}")

    def notes(self) -> tuple[int, int]:
        """How many micro-batches the checkpoint has as planned, and as done."""
        planned, done = (sum(path.name.isdigit() for path in (self.checkpoint / k).iterdir()) for k in KEPT_NOTES)
        return planned, done

    def lose_last_plan(self) -> None:
        """The checkpoint's note of what the last micro-batch holds."""
        number = self.notes()[0] - 1
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "offsets" / name).unlink(missing_ok=True)

    def lose_checkpoint(self) -> None:
        """The whole of it."""
        shutil.rmtree(self.checkpoint)
