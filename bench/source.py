"""The peers' Kafka source for Structured Streaming: Spark's own connector, by the jars of its release.

The connector reads in the JVM with cached consumers. A query with the trigger `availableNow` ends where the topic ended
when the query started, and takes no other end; so the messages of a round are produced just before that round.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from transactional.runtime.spark.jars import JarSet
from transactional.runtime.spark.session import DELTA_JARS

CONNECTOR_JARS = JarSet("spark-sql-kafka-4.2.0", Path(__file__).with_name("spark_kafka.lock"))
_COLUMNS = {
    "key": "CAST(key AS STRING) AS key",
    "value": "value",
    "timestamp": "timestamp",
}
_OPTIONS = {
    "startingOffsets": "earliest",
    # As much in one fetch as our own consumers take; the connector's default is 1 MiB a partition.
    "kafka.max.partition.fetch.bytes": str(16 * 2**20),
    "kafka.receive.buffer.bytes": str(2**20),
}


def jar_settings(*others: JarSet) -> dict[str, str]:
    """The settings of a Spark session that can read Kafka with the connector, and use the jars of `others`.

    Downloads what is missing. Raises `OperatingError` if that fails.
    """
    sets = (DELTA_JARS, CONNECTOR_JARS, *others)
    return {"spark.jars": ",".join(str(file) for jars in sets for file in jars.files())}


def read_topic(
    session: SparkSession, bootstrap: str, topic: str, batch_messages: int, columns: tuple[str, ...]
) -> DataFrame:
    """A stream over a whole topic with some of the columns key, value, timestamp.

    A micro-batch has `batch_messages` at most.
    """
    options: Mapping[str, str] = {
        **_OPTIONS,
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "maxOffsetsPerTrigger": str(batch_messages),
    }
    records = session.readStream.format("kafka").options(**options).load()
    return records.selectExpr(*(_COLUMNS[name] for name in columns))
