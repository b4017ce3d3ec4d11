"""A spout over the rows of a test, in place of the one that a topology has: see `testing.complete_topology`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.spout_parts import Backlog, SpoutParts
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema

_PARTITION = PartitionId("rows", 0)


class RowsSpout(Spout, Backlog):
    """Gives the rows, `take` of them per batch, with the fields and the guarantee of the spout that it stands for."""

    def __init__(self, spout_id: str, stands_for: Spout, rows: Iterable[Sequence[Any]], take: int | None) -> None:
        if (stream_count := len(stands_for.parts.streams.outputs)) > 1:
            raise ConfigError(
                f"complete_topology: rows stand for one stream, and the topology reads {stream_count}: "
                "leave them out, and pass the rows to its spouts"
            )
        self._stands_for = stands_for
        if take is not None and (type(take) is not int or take < 1):
            raise ConfigError(f"take is the number of rows per batch, at least 1; got {take!r}")
        self.rows = _batch_of(spout_id, list(rows), self.output)
        self.take = len(self.rows) if take is None else take

    @property
    def output(self) -> Schema:
        """The fields of the spout that it stands for."""
        return self._stands_for.output

    @property
    def replays_exactly(self) -> bool:
        """The guarantee of the spout that it stands for."""
        return self._stands_for.replays_exactly

    @property
    def parts(self) -> SpoutParts:
        """The backlog of the rows."""
        return replace(super().parts, backlog=self)

    def identity(self) -> dict[str, str]:
        """Return the same identity for all rows: a test has no stored progress."""
        return {"kind": type(self).__name__}

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan the next `take` rows."""
        start = previous_batch.positions().get(_PARTITION, Offset(0))
        until = Offset(min(start + self.take, len(self.rows)))
        return BatchMetadata({_PARTITION: OffsetRange(start, until)}) if until > start or replay else None

    def reader(self) -> RowsReader:
        """Return the reader of the rows."""
        return RowsReader(self.rows)

    def lag(self, previous_batch: BatchMetadata) -> int | None:
        """Return the number of rows after the given batch."""
        return len(self.rows) - previous_batch.positions().get(_PARTITION, Offset(0))


@dataclass(frozen=True)
class RowsReader(PartitionReader):
    """Reads ranges of a record batch."""

    rows: pa.RecordBatch

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        yield self.rows.slice(offsets.start, len(offsets))

    @property
    def knows_offsets(self) -> bool:
        """True: they are the rows' numbers."""
        return True

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: object = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the rows of a range, with their numbers."""
        yield self.rows.slice(offsets.start, len(offsets)), pa.array(range(offsets.start, offsets.until), pa.int64())


def _batch_of(spout_id: str, rows: list[Sequence[Any]], output: Schema) -> pa.RecordBatch:
    for number, row in enumerate(rows):
        if not isinstance(row, tuple | list) or len(row) != len(output):
            raise ConfigError(
                f"row {number} for spout {spout_id!r} is {row!r}; expected a tuple with a value for each of its "
                f"{len(output)} fields, '{output}'"
            )
    return batch_from_rows([tuple(row) for row in rows], arrow_schema(output), component=spout_id)
