"""A count by key and minute, of messages that have times: ours as a stream, and Structured Streaming as it is meant.

Both keep windows open until a watermark has passed them, 10 seconds behind the newest message, and write those that
close to a Delta table. Ours keeps open windows in a Delta table, Structured Streaming in RocksDB, with what changes
logged to its checkpoint. Both are checked against a count in plain Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.ours import BoundedKafkaSpout, Ours
from bench.peers import StreamingPeer
from bench.rounds import BatchTimes
from bench.works import Work
from state import DeltaMapState
from state.delta.tables.table import DEFAULT_PROPERTIES
from transactional import Topology
from transactional.trident import Count, TridentTopology, tumbling

DELAY_S = 10
MINUTE_MS = 60_000
BEHIND = 6
"""So many batches before the newest one every window that had ended has closed, with three in flight."""
KEY = ("key", "window_start")


@dataclass(frozen=True, slots=True)
class ByMinute(Work):
    """A count by key and minute; `batch_messages` is how many messages the last batches had."""

    batch_messages: int = 0

    def ends_by(self, until: Mapping[int, int]) -> datetime:
        """Windows that have ended by then have surely closed, once all messages before the offsets are read."""
        read = sum(until.values()) - BEHIND * self.batch_messages
        return _time(self.workload.time_ms(read) - DELAY_S * 1_000)

    def expected(self, until: Mapping[int, int]) -> dict[str, int]:
        """Window → count, of the windows that have surely closed."""
        return known(self._windows(sum(until.values())), self.ends_by(until))

    def _windows(self, messages: int) -> Iterator[tuple[str, datetime, int]]:
        words = enumerate(islice(self.workload.words, messages))
        found = Counter((word, self.workload.time_ms(number) // MINUTE_MS) for number, word in words)
        return ((word, _time(minute * MINUTE_MS), count) for (word, minute), count in found.items())


def known(windows: Iterator[tuple[str, datetime, int]], ends_by: datetime) -> dict[str, int]:
    """Those that end by a time, by names. Raises ValueError when one is there twice."""
    found = dict[str, int]()
    for key, start, count in windows:
        if start.timestamp() * 1_000 + MINUTE_MS <= ends_by.timestamp() * 1_000:
            name = f"{key} at {start:%d %H:%M}"
            if name in found:
                raise ValueError(f"the window {name} closed twice")
            found[name] = count
    return found


class Windows(Ours):
    """A stream with windows: two Delta tables, of what is open and of what has closed."""

    def topology(self, until: Mapping[int, int], batch_messages: int) -> Topology:
        """The work as a topology that ends at the given offsets."""
        options: dict[str, Any] = {"key_type": "string", "batch_records_max": batch_messages}
        spout = BoundedKafkaSpout(
            self.stage.bootstrap, self.work.workload.topic, until, fields=("key", "timestamp"), **options
        )
        topology = TridentTopology(self.topology_id, parallelism=self.stage.tasks)
        messages = topology.new_stream("messages", spout, event_time="timestamp", max_delay=f"{DELAY_S} seconds")
        minutes = messages.group_by("key").window(tumbling("1 minute"))
        counts = minutes.persistent_aggregate(DeltaMapState(f"{self.path}-open"), Count(), name="open")
        counts.closed().persist(DeltaMapState(self.path, KEY), name="closed")
        return topology.build(strict=True)

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """As all of ours."""
        self._until = dict(until)
        return super().run(until, batch_messages)

    def counts(self) -> dict[str, int]:
        """The windows that have surely closed."""
        closed = DeltaMapState(self.path, "key string, window_start timestamp", "window_end timestamp, count long")
        return _counts(self.work, self._until, closed.read())


class StructuredStreaming(StreamingPeer):
    """`withWatermark`, `groupBy` by windows, append to Delta."""

    name = "streaming"

    def create(self) -> None:
        """Make the table: as those of the other peers."""
        times = [pa.field(name, pa.timestamp("us", tz="UTC")) for name in ("window_start", "window_end")]
        schema = pa.schema([("key", pa.string()), *times, ("count", pa.int64())])
        properties = {name: value for name, value in DEFAULT_PROPERTIES.items() if name.startswith("delta.")}
        DeltaTable.create(self.path, schema, configuration=properties)

    def writer(self, source: DataFrame) -> DataStreamWriter:
        """Windows that close are appended."""
        windows = source.withWatermark("timestamp", f"{DELAY_S} seconds").groupBy(
            "key", f.window("timestamp", "1 minute")
        )
        times = (f.col("window.start").alias("window_start"), f.col("window.end").alias("window_end"))
        closed = windows.count().select("key", *times, "count")
        return closed.writeStream.format("delta").outputMode("append").option("path", self.path)

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """As all peers."""
        self._until = dict(until)
        return super().run(until, batch_messages)

    def counts(self) -> dict[str, int]:
        """The windows that have surely closed."""
        query = f'SELECT {", ".join(KEY)}, "count" FROM t'
        return _counts(
            self.work,
            self._until,
            pa.table(QueryBuilder().register("t", DeltaTable(self.path)).execute(query).read_all()),
        )


def _counts(work: Work, until: Mapping[int, int], closed: pa.Table) -> dict[str, int]:
    assert isinstance(work, ByMinute)
    rows = zip(*(closed[name].to_pylist() for name in (*KEY, "count")), strict=True)
    return known(rows, work.ends_by(until))


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)
