"""The same count by Structured Streaming: `foreachBatch` with a Delta MERGE, one micro-batch after another.

`python -m tests.experiment.peer MASTER`, in the folder of its table and checkpoint; the variables are those of `ours`.
Its source is the benchmark's: Spark's own connector for Kafka.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from bench import tables
from bench.peers import merge_counts
from bench.source import jar_settings, read_topic
from tests.experiment.load import PARTITIONS
from transactional.runtime.spark.session import spark_session

TABLE, CHECKPOINT = "counts", "checkpoint"


def main() -> None:
    """Run until killed."""
    master, here = sys.argv[1], os.getcwd()
    settings = {"spark.sql.streaming.minBatchesToRetain": "1000000", **jar_settings()}
    session = spark_session("experiment-peer", master=master, parallelism=PARTITIONS, conf=settings)
    if not os.path.exists(f"{here}/{TABLE}"):
        tables.create(f"{here}/{TABLE}")
    source = read_topic(
        session, os.environ["BOOTSTRAP"], os.environ["TOPIC"], int(os.environ["BATCH"]), columns=("key",)
    )
    upsert = partial(merge_counts, path=f"{here}/{TABLE}", application=CHECKPOINT)
    query = source.writeStream.foreachBatch(upsert)
    query.option("checkpointLocation", f"{here}/{CHECKPOINT}").start().awaitTermination()


if __name__ == "__main__":
    main()
