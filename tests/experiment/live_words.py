"""The benchmark's source for Structured Streaming, for a topic that goes on: it asks the broker where that ends."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from bench.source import KafkaWords, KafkaWordsReader, Offsets

TIMEOUT_S = 30


class LiveWords(KafkaWords):
    """A source whose topic goes on."""

    @classmethod
    def name(cls) -> str:
        return "live-words"

    def streamReader(self, schema: StructType) -> LiveWordsReader:  # noqa: N802 - PySpark's name
        return LiveWordsReader(self.options)


class LiveWordsReader(KafkaWordsReader):
    """Asks the broker where the topic ends, with one consumer that it keeps."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._bootstrap = options["bootstrap"]
        self._consumer: Consumer | None = None

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        if self._consumer is None:
            self._consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "experiment", "log_level": 0})
        for partition in self._until:
            here = TopicPartition(self._topic, int(partition))
            self._until[partition] = self._consumer.get_watermark_offsets(here, timeout=TIMEOUT_S)[1]
        return super().latestOffset(start, limit)
