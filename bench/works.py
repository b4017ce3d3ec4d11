"""What is done with a topic's messages, by every system: which bolts ours has, which columns the peers select."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from bench.workload import Workload
from examples.opaque_kafka_count import parse_flight
from examples.transactional_words import Bucketize, KeyedCountUpdater
from state import DeltaMapState
from state.delta.open_table import OpenTable
from transactional import TransactionalTopologyBuilder
from transactional.bolts import Tuple
from transactional.model.attempt import AttemptId

EVERYTHING = "all"
BUCKET_SIZE = 10
FAR_MS = 50
"""What a Delta commit waits for a storage that is far away: about a request to an object store."""
_FLIGHT = "carrier string"


class FarMapState(DeltaMapState):
    """A state whose table is on this machine's disk and answers as if it were far away."""

    def _confirm(self, attempt_id: AttemptId, write: Callable[[OpenTable], None]) -> None:
        Event().wait(FAR_MS / 1000)
        super()._confirm(attempt_id, write)


LogMapState = partial(DeltaMapState, layout="log")
"""A state whose table is a log of what each transaction adds."""


@dataclass(frozen=True, slots=True)
class Work:
    """A count per key, where `key_of` says which key a counted word has; ours in `bolt`, the peers' in `select`.

    `field` is the part of a message that is read. Without `bolt` the message's key is the table's.
    """

    name: str
    title: str
    workload: Workload
    field: str = "key"
    key_of: Callable[[str], str] = str
    bolt: Callable[..., Any] | None = None
    output: str = "key string"
    select: Callable[[DataFrame], DataFrame] = lambda frame: frame
    has_buckets: bool = False
    state: Callable[..., DeltaMapState] = DeltaMapState

    def expected(self, until: Mapping[int, int]) -> dict[str, int]:
        """Key → count, after all messages before the given offsets."""
        found: Counter[str] = Counter()
        for word, count in Counter(self.workload.words_until(until)).items():
            found[self.key_of(word)] += count
        return dict(found)

    def wire(self, builder: TransactionalTopologyBuilder, source: str, table: str, tasks: int, bolt: Any) -> None:
        """Bolts and committers behind the spout `source`. `bolt` stands before this work's own one."""
        bolt = bolt or self.bolt
        if bolt is not None:
            builder.set_bolt("select", bolt, tasks, output=self.output).local_or_shuffle_grouping(source)
            source = "select"
        if self.has_buckets:
            _count_words(builder, source, table, tasks)
        else:
            count = self.state(table, key="key string").count()
            builder.set_committer_bolt("count", count).fields_grouping(source, "key")


def per_key(workload: Workload, name: str) -> Work:
    """A count per key of the messages."""
    keys = len(set(workload.words))
    return Work(name, f"count per key, {keys:,} keys", workload)


def far_away(workload: Workload) -> Work:
    """A count per key into a table whose storage takes its time."""
    return Work("far", f"count per key, storage answers after {FAR_MS} ms", workload, state=FarMapState)


def global_count(workload: Workload) -> Work:
    """How many messages there are: a table of one row."""
    return Work("global", "global count", workload, key_of=lambda _: EVERYTHING, bolt=everything, select=_everything)


def carriers(workload: Workload) -> Work:
    """Flights per carrier, from JSON: ours with Arrow's reader, the peers with Spark's."""
    return Work("carriers", "flights per carrier (real data)", workload, "value", bolt=carrier, select=_carrier)


def words(workload: Workload) -> Work:
    """Storm's TransactionalWords: counts, and from what they were and are now how many words have such a count.

    Ours alone. Of two tables that depend on each other a micro-batch that is repeated can't make the second one right:
    the first has been written, and its old counts are gone.
    """
    return Work(
        "words", "TransactionalWords, tuple by tuple", workload, bolt=as_word, output="word string", has_buckets=True
    )


def capitals(workload: Workload) -> Work:
    """A count per key in capitals: what differs is how the bolt before it is written."""
    return Work("capitals", "count per key in capitals", workload, key_of=str.upper)


def everything(batch: pa.RecordBatch) -> pa.Table:
    """One key for all."""
    return pa.table({"key": pa.repeat(EVERYTHING, batch.num_rows)})


def carrier(batch: pa.RecordBatch) -> pa.Table:
    """JSON values → their carriers, as the example does it."""
    return pa.table({"key": parse_flight(batch).column("carrier")})


def as_word(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The key under the name that the example has for it."""
    return batch.rename_columns(["word"])


def capitals_by_tuple(row: Tuple) -> tuple[str]:
    """Tuple by tuple."""
    return (row["key"].upper(),)


def capitals_by_arrow(batch: pa.RecordBatch) -> pa.Table:
    """A record batch at a time."""
    return pa.table({"key": pc.utf8_upper(batch.column("key"))})


def capitals_by_dataframe(frame: DataFrame) -> DataFrame:
    """In the JVM."""
    return frame.select(f.upper("key").alias("key"))


def _everything(frame: DataFrame) -> DataFrame:
    return frame.select(f.lit(EVERYTHING).alias("key"))


def _carrier(frame: DataFrame) -> DataFrame:
    return frame.select(f.from_json(f.col("value").cast("string"), _FLIGHT).getField("carrier").alias("key"))


def _count_words(builder: TransactionalTopologyBuilder, source: str, table: str, tasks: int) -> None:
    counts = DeltaMapState(table, key="word string", values="count long")
    builder.set_committer_bolt("count", KeyedCountUpdater(), tasks, state=counts).fields_grouping(source, "word")
    builder.set_bolt("bucketize", Bucketize(BUCKET_SIZE)).shuffle_grouping("count")
    buckets = DeltaMapState(f"{table}-buckets", key="bucket long").sum("words", "count")
    builder.set_committer_bolt("buckets", buckets).fields_grouping("bucketize", "bucket")
