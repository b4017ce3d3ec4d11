"""Who works on a point of the grid: ours by layout, and the peers, on the same numbers, which each makes itself.

There is no broker: what is read costs next to nothing, and the same for all, so that what is left is planning, counting
and the table. A batch has each of its keys once, spread over all keys of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col, lit
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bench.ours import Ours
from bench.peers import ExpertRecipe, SparkMerge, StreamingPeer
from bench.rounds import Stage
from bench.workload import Workload
from bench.works import Work
from spouts import OpaquePartitionedTransactionalSpout
from state import DeltaMapState, LogLayout
from transactional import Topology, TransactionalTopologyBuilder

FILL_MAX = 2_000_000
"""Keys in one batch while a table is filled."""
_SLICE = 100_000
_NOTHING = Workload("", (), 0)


@dataclass(frozen=True, slots=True)
class Course:
    """The batches of a point: those that fill a table with its keys, and then batches of `keys` out of them."""

    keys: int
    table: int
    tasks: int

    @property
    def fills(self) -> int:
        """How many batches fill the table."""
        return -(-self.table // FILL_MAX)

    def messages(self, until: int) -> int:
        """How many there are in all batches before one."""
        return self.table + (until - self.fills) * self.keys if until >= self.fills else until * FILL_MAX

    def part(self, number: int, task: int) -> Iterator[pa.RecordBatch]:
        """What a task reads of a batch."""
        if number < self.fills:
            begin, step, end = number * FILL_MAX, 1, min(self.table, (number + 1) * FILL_MAX)
        else:
            step = self.table // self.keys
            begin, end = (number - self.fills) % step, self.table
        count = min(self.keys, -(-(end - begin) // step)) if number >= self.fills else end - begin
        for first in range(task, count, self.tasks * _SLICE):
            places = pa.array(range(first, min(count, first + self.tasks * _SLICE), self.tasks), pa.int64())
            yield pa.record_batch({"key": pc.add(pc.multiply(places, step), begin)})


class Numbers(OpaquePartitionedTransactionalSpout[int]):
    """Our spout: a partition for each task; the metadata are a batch's number."""

    output = "key long"

    def __init__(self, course: Course, until: int) -> None:
        self.course, self.until = course, until

    def identity(self) -> dict[str, str]:
        """What it reads."""
        return {"numbers": f"{self.course.keys} of {self.course.table}"}

    def partitions(self) -> list[str]:
        """One for each task."""
        return [str(number) for number in range(self.course.tasks)]

    def next_batch(self, partition: str, previous: int | None) -> int | None:
        """The number of the batch."""
        number = 0 if previous is None else previous + 1
        return number if number < self.until else None

    def emit_partition_batch(self, partition: str, metadata: int) -> Iterator[pa.RecordBatch]:
        """A task's part of it."""
        return self.course.part(metadata, int(partition))


class NumbersSource(DataSource):
    """The peers' source. Options: those of `Course`, and `until`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for `readStream.format`."""
        return "grid-numbers"

    def schema(self) -> str:
        """As of our spout."""
        return "key long"

    def streamReader(self, schema: StructType) -> NumbersReader:  # noqa: N802 - PySpark's name
        """The reader, in the driver's Python helper process and in the Python workers."""
        return NumbersReader(self.options)


@dataclass
class Part(InputPartition):
    """A task's part of a batch."""

    number: int
    task: int


class NumbersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are numbers of batches."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._until = int(options["until"])
        self._course = Course(int(options["keys"]), int(options["table"]), int(options["tasks"]))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The last of those that fill the table: the others are written without them."""
        return {"batch": self._course.fills - 1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One batch at a time."""
        return ReadMaxRows(self._course.keys)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The end is known already."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next batch."""
        last = self._until if isinstance(limit, ReadAllAvailable) else start["batch"] + 1
        return {"batch": min(self._until, last)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Part]:
        """One for each task."""
        numbers = range(start["batch"], end["batch"])
        return [Part(number, task) for number in numbers for task in range(self._course.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What a task reads."""
        assert isinstance(partition, Part)
        return self._course.part(partition.number, partition.task)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint keeps the offsets."""


class OursOnGrid(Ours):
    """Ours, with a table in the given layout."""

    def __init__(self, stage: Stage, course: Course, layout: str | LogLayout, name: str, *, in_flight: int) -> None:
        super().__init__(stage, _work(course), "grid", in_flight=in_flight, name=name)
        self.course, self.layout = course, layout

    def topology(self, until: Mapping[int, int], batch_messages: int) -> Topology:
        """A count per key, up to a batch."""
        spout = Numbers(self.course, until[0])
        builder = TransactionalTopologyBuilder(self.topology_id, "numbers", spout, parallelism=self.stage.tasks)
        builder.set_committer_bolt("count", self.state().count()).fields_grouping("numbers", "key")
        return builder.build()

    def state(self) -> DeltaMapState:
        """The state."""
        return DeltaMapState(self.path, "key long", "count long", layout=self.layout)

    def fill(self) -> None:
        """Run until the table has all of its keys: a state's rows are written by its topology."""
        self.run(dict.fromkeys(range(self.course.tasks), self.course.fills), FILL_MAX)

    def rows(self) -> pa.Table:
        """The table's contents."""
        return self.state().read()


class _OnGrid(StreamingPeer):
    key_type = "long"

    def __init__(self, stage: Stage, course: Course) -> None:
        super().__init__(stage, _work(course), "grid")
        self.course = course
        stage.session.dataSource.register(NumbersSource)

    def source(self, until: Mapping[int, int], batch_messages: int) -> DataFrame:
        """The numbers, up to a batch."""
        options = {name: str(number) for name, number in asdict(self.course).items()}
        reader = self.stage.session.readStream.format(NumbersSource.name()).options(**options, until=str(until[0]))
        return reader.load()

    def fill(self) -> None:
        """Write what all batches but one would leave in the table, each as a file: fifty merges into a hundred million
        keys would take longer than what is measured. The last one is merged, and makes the recipe warm."""
        written = self.course.fills - 1
        if written:
            numbers = self.stage.session.range(0, written * FILL_MAX, 1, written)
            rows = numbers.select(col("id").alias("key"), lit(1).cast("long").alias("count"))
            rows.write.format("delta").mode("append").save(self.path)
        self.opened()
        self.run(dict.fromkeys(range(self.course.tasks), self.course.fills), FILL_MAX)

    def opened(self) -> None:
        """Nobody keeps the table's handle."""

    def rows(self) -> pa.Table:
        """The table's contents."""
        return pa.table(QueryBuilder().register("t", DeltaTable(self.path)).execute("SELECT * FROM t").read_all())


class MergeOnGrid(_OnGrid, SparkMerge):
    """Structured Streaming and Delta's MERGE."""


class ExpertOnGrid(_OnGrid, ExpertRecipe):
    """The expert's recipe."""

    def opened(self) -> None:
        """The table's handle has to hear of what Spark has written."""
        self._table.update_incremental()


def _work(course: Course) -> Work:
    return Work(f"table-{course.table}", f"count per key, {course.table:,} keys", _NOTHING)
