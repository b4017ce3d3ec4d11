"""The peers' Kafka source for Structured Streaming: a Python data source over the very reader that our spouts use.

Spark's own connector would read in the JVM; in earlier measurements it was as fast as this source, within 15 %. What a
data source can do to be quick is done: Arrow record batches instead of rows, consumers that are kept in the Python
workers and read on, as many tasks as cores, garbage collection kept off what stays anyway, and no question to Kafka
between two micro-batches, since the end of a round is known. So planning costs the peers nothing, while our spouts
query the broker for every transaction.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import output_schema
from spouts.planning import Limits, share_records
from transactional.model.batch import Offset, OffsetRange, PartitionId

Offsets = dict[str, int]

_reads = itertools.count(1)


@dataclass
class KafkaRanges(InputPartition):
    """What one task reads: ranges of some Kafka partitions, as (partition, start, until)."""

    ranges: list[tuple[int, int, int]]


class KafkaWords(DataSource):
    """A streaming source. Options: `bootstrap`, `topic`, `field`, `until` (offsets as JSON), `batch`, `tasks`, and
    `timed` where the records' times are read, too."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for `readStream.format`."""
        return "kafka-words"

    def schema(self) -> str:
        """No other fields than of our spout: the keys as text or the values as bytes, and the time where it counts."""
        field = "key string" if self.options.get("field", "key") == "key" else "value binary"
        return f"{field}, timestamp timestamp" if "timed" in self.options else field

    def streamReader(self, schema: StructType) -> KafkaWordsReader:  # noqa: N802 - PySpark's name
        """The reader, in the driver's Python helper process and in the Python workers."""
        return KafkaWordsReader(self.options)


class KafkaWordsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches without a query, and reads their ranges."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._until: Offsets = json.loads(options["until"])
        self._topic = options["topic"]
        self._batch, self._tasks = int(options["batch"]), int(options["tasks"])
        fields = (options.get("field", "key"), *(["timestamp"] if "timed" in options else []))
        schema = output_schema(fields, key_type="string", value_type="binary")
        self._reader = KafkaPartitionReader(KafkaConnection(options["bootstrap"]), schema)

    def initialOffset(self) -> Offsets:  # noqa: N802
        """The beginning of every partition."""
        return dict.fromkeys(self._until, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As many messages per micro-batch as the round wants."""
        return ReadMaxRows(self._batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The end is known already."""

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next micro-batch: dealt out to the partitions as our spouts do it."""
        most = None if isinstance(limit, ReadAllAvailable) else self._batch
        backlog = {_partition(self._topic, p): until - start[p] for p, until in self._until.items()}
        shares = share_records(backlog, Limits(most), turn=sum(start.values()))
        return {p: start[p] + shares[_partition(self._topic, p)] for p in self._until}

    def partitions(self, start: Offsets, end: Offsets) -> list[KafkaRanges]:
        """One input partition per task; Kafka partition i goes to task i mod `tasks`, as with our spouts."""
        ranges = [(int(p), start[p], end[p]) for p in sorted(end, key=int) if start[p] < end[p]]
        return [KafkaRanges(part) for task in range(self._tasks) if (part := ranges[task :: self._tasks])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of one task."""
        assert isinstance(partition, KafkaRanges)
        _spare_the_collector()
        for number, start, until in partition.ranges:
            # Without a topic id the reader does not check, after reading, whether the topic is still the same.
            offsets = OffsetRange(Offset(start), Offset(until))
            yield from self._reader.read(PartitionId(self._topic, number), offsets)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint keeps the offsets."""


def _partition(topic: str, number: str) -> PartitionId:
    return PartitionId(topic, int(number))


def _spare_the_collector() -> None:
    """PySpark's workers collect all garbage after each task, which takes longer than reading 1,000 messages.

    So at the second task, right after such a collection, everything that lives is exempted from the later ones. And
    the young generation gets room for all messages of a fetch, which are no garbage: peers are 1.1 times quicker.
    """
    if next(_reads) == 2:
        gc.freeze()
        gc.set_threshold(500_000, 50, 50)
