"""Spouts over rows in memory: for first steps, examples and tests (like Storm's `MemoryTransactionalSpout`).

An offset is a row's index in its partition. The rows are read in place, not copied: appended rows are new input for a
topology that runs in this process. Spark's executors get a copy when the topology starts, so with Spark the rows must
not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spouts.base import PartitionedSpout
from spouts.planning import Limits, Logs, PartitionLog
from transactional.core.ports import PartitionReader
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.zones import naive_times_in
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import ConfigError, ReplayMismatch
from transactional.model.schema import Schema

Rows = Sequence[Sequence[Any]]

_SOURCE = "memory"
_BATCH_ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class MemoryPartitionReader(PartitionReader):
    """Reads ranges of rows in memory. `partitions` maps a partition's index to its rows."""

    partitions: Mapping[int, Rows]
    output: Schema

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range. Raises `ReplayMismatch` if not all of them exist."""
        rows = self.partitions.get(partition.index, ())
        if len(rows) < offsets.until:
            raise ReplayMismatch(
                f"{partition} should be read over {offsets} but has {len(rows)} rows here. Rows that are added to a "
                "memory spout later only reach a topology in the same process, not Spark's executors"
            )
        schema = arrow_schema(self.output)
        for start in range(offsets.start, offsets.until, _BATCH_ROWS_MAX):
            part = rows[start : min(start + _BATCH_ROWS_MAX, offsets.until)]
            yield batch_from_rows([tuple(row) for row in part], schema, component=str(partition))

    @property
    def knows_offsets(self) -> bool:
        """True: an offset is the index of a row."""
        return True

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: object = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the rows of the range with their indices."""
        start = int(offsets.start)
        for batch in self.read(partition, offsets, metadata):
            yield batch, pa.array(range(start, start + batch.num_rows), pa.int64())
            start += batch.num_rows


class MemoryTransactionalSpout(PartitionedSpout):
    """A transactional spout over rows in memory.

    `partitions` is a sequence of partitions, or a mapping from a partition's number to its rows. A row has one value
    for each of `fields`, which are written in Spark's DDL (`"word string"`). A batch takes at most `take` rows from
    each partition. Raises `ConfigError` for rows that do not match the fields.

        MemoryTransactionalSpout({0: [("cat",), ("dog",)], 1: [("cat",)]}, fields="word string", take=3)
    """

    def __init__(self, partitions: Sequence[Rows] | Mapping[int, Rows], fields: str | Schema, take: int) -> None:
        super().__init__(fields if isinstance(fields, Schema) else Schema.parse(fields), _make_limits(take))
        self._partitions = _number_partitions(partitions)
        for index, rows in self._partitions.items():
            _check_rows(index, rows, self.output)

    @property
    def replays_exactly(self) -> bool:
        """True: the rows of a range don't change."""
        return True

    @property
    def take(self) -> int | None:
        """The maximum number of rows per partition and batch. May be changed between two batches."""
        return self.limits.partition_records_max

    @take.setter
    def take(self, take: int) -> None:
        self.limits = _make_limits(take)

    def identity(self) -> Mapping[str, str]:
        """Return the class and the fields; not the rows."""
        return {"kind": type(self).__name__, "fields": str(self.output)}

    def logs(self, previous_batch: BatchMetadata) -> Logs:
        """Return logs with all rows of all partitions."""
        return {
            PartitionId(_SOURCE, index): PartitionLog(Offset(0), Offset(len(rows)))
            for index, rows in self._partitions.items()
        }

    def reader(self) -> MemoryPartitionReader:
        """Return the reader of the rows. Pickling it copies them."""
        return MemoryPartitionReader(self._partitions, self.output)


class OpaqueMemoryTransactionalSpout(MemoryTransactionalSpout):
    """A memory spout whose replays may contain different rows: change `take`, or disable partitions, between attempts.

    A disabled partition does not respond, as if its broker were down: its position does not move.
    """

    def __init__(
        self,
        partitions: Sequence[Rows] | Mapping[int, Rows],
        fields: str | Schema,
        take: int,
        *,
        disabled: Collection[int] = (),
    ) -> None:
        super().__init__(partitions, fields, take)
        self._disabled = set(disabled)

    @property
    def replays_exactly(self) -> bool:
        """False: a replay is planned again."""
        return False

    def set_disabled(self, partition: int, *, disabled: bool) -> None:
        """Disable a partition, or enable it again."""
        (self._disabled.add if disabled else self._disabled.discard)(partition)

    def logs(self, previous_batch: BatchMetadata) -> Logs:
        """Return logs with all rows of the enabled partitions; a disabled one does not respond."""
        return {p: None if p.index in self._disabled else log for p, log in super().logs(previous_batch).items()}


def _make_limits(take: int) -> Limits:
    if type(take) is not int or take < 1:
        raise ConfigError(f"take is the number of rows per partition and batch, at least 1; got {take!r}")
    return Limits(partition_records_max=take)


def _number_partitions(partitions: Sequence[Rows] | Mapping[int, Rows]) -> Mapping[int, Rows]:
    if not partitions:
        raise ConfigError("a memory spout needs at least one partition, which may be empty: [[]]")
    if not isinstance(partitions, Mapping):
        return dict(enumerate(partitions))
    invalid_indices = [index for index in partitions if type(index) is not int or index < 0]
    if invalid_indices:
        raise ConfigError(
            f"the partitions of a memory spout are numbered from 0; {invalid_indices[0]!r} is not such a number"
        )
    return partitions


def _check_rows(index: int, rows: Rows, output: Schema) -> None:
    for number, row in enumerate(rows):
        if isinstance(row, str | bytes) or not hasattr(row, "__len__") or len(row) != len(output):
            raise ConfigError(
                f"row {number} of partition {index} is {row!r}, but a row is a tuple with a value for each of the "
                f"{len(output)} fields '{output}'"
            )
    with naive_times_in("UTC"):  # the topology says what becomes of times without a zone, when they are read
        batch_from_rows([tuple(row) for row in rows], arrow_schema(output), component=f"{_SOURCE}[{index}]")
