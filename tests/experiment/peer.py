"""The same count by Structured Streaming: `foreachBatch` with a Delta MERGE, one micro-batch after another.

`python -m tests.experiment.peer MASTER`, in the folder of its table and checkpoint; the variables are those of `ours`.
Its source is the benchmark's, quick in all that it can be, but for the end of the topic, for which it asks the broker.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial

from bench import tables
from bench.peers import merge_counts
from tests.experiment.live_words import LiveWords
from tests.experiment.load import PARTITIONS
from transactional.runtime.spark.session import spark_session

TABLE, CHECKPOINT = "counts", "checkpoint"


def main() -> None:
    """Run until killed."""
    master, here = sys.argv[1], os.getcwd()
    settings = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
    session = spark_session("experiment-peer", master=master, parallelism=PARTITIONS, conf=settings)
    session.dataSource.register(LiveWords)
    if not os.path.exists(f"{here}/{TABLE}"):
        tables.create(f"{here}/{TABLE}")
    source = session.readStream.format(LiveWords.name()).options(
        bootstrap=os.environ["BOOTSTRAP"],
        topic=os.environ["TOPIC"],
        until=json.dumps(dict.fromkeys(map(str, range(PARTITIONS)), 0)),
        batch=os.environ["BATCH"],
        tasks=str(PARTITIONS),
    )
    upsert = partial(merge_counts, path=f"{here}/{TABLE}", application=CHECKPOINT)
    query = source.load().writeStream.foreachBatch(upsert)
    query.option("checkpointLocation", f"{here}/{CHECKPOINT}").start().awaitTermination()


if __name__ == "__main__":
    main()
