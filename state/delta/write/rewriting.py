"""Rewriting of a larger table file by file, in memory, by the rule of `change.py`.

A file is read one part at a time, the keys of the new rows are looked up in it, and its rows after the transaction are
written to a new file. A file that the transaction does not change is left alone. Rows with new keys are written to the
same new files, unless those get too large. Every thread rewrites another file; if there are fewer files than threads,
a large part is written to several files at once, since Arrow and Parquet run without Python's lock. Nothing is
committed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, islice
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile, Lane, Replacement, with_all
from state.delta.tables.storage import open_parquet
from state.delta.write.change import Change
from state.rows.expiring import time_scalar
from transactional.model.aggregates.key_matching import (
    compute_sort_order,
    find_key_positions,
    is_quick_to_sort,
    is_strictly_ascending,
    sort_by_key,
)
from transactional.model.plumbing.pools import DaemonPool

LANE_ROWS = 200_000
"""Number of rows that are worth a thread, and a file, of their own."""
LANES_MAX = 4
"""Largest number of files that a rewritten file may become."""
PART_ROWS = 500_000
"""Number of rows up to which small files, and parts of files, are combined. Where keys are hashed it is at least the
number of new rows, since every part has a hash table of its own."""
EXPIRED_SHARE = 0.5
"""Share of expired rows from which a file that holds rows by time is rewritten. Then no more rows are written than
removed."""


@dataclass(slots=True)
class Unit:
    """Files that are rewritten as one."""

    files: list[DataFile] = field(default_factory=list)
    opened: list[parquet.ParquetFile] = field(default_factory=list)
    rows: int = 0

    def parts(self, rows_max: int) -> Iterator[UnitPart]:
        """Yield the rows of all files in parts of up to about `rows_max` rows."""
        part = UnitPart([])
        for opened in self.opened:
            for group in range(opened.num_row_groups):
                part.groups.append((opened, group))
                if part.rows >= rows_max:
                    yield part
                    part = UnitPart([])
        if part.groups:
            yield part


@dataclass(frozen=True, slots=True)
class UnitPart:
    """Row groups of some files."""

    groups: list[tuple[parquet.ParquetFile, int]]

    @property
    def rows(self) -> int:
        """The number of rows in the row groups of the part."""
        return sum(opened.metadata.row_group(group).num_rows for opened, group in self.groups)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Read some columns. A column that the table has gained since the file was written is NULL."""
        tables = [opened.read_row_group(group, columns=schema.names) for opened, group in self.groups]
        return pa.concat_tables([with_all(table, schema) for table in tables])


def units_of(storage: FileSystem, files: Iterable[DataFile], rows_max: int) -> Iterator[Unit]:
    """Yield units of files, which are opened one by one. Small files are one unit up to `rows_max` rows."""
    unit = Unit()
    for file in files:
        opened = open_parquet(storage, file.name, file.size_bytes)
        if unit.files and unit.rows + opened.metadata.num_rows > rows_max:
            yield unit
            unit = Unit()
        unit.files.append(file)
        unit.opened.append(opened)
        unit.rows += opened.metadata.num_rows
    if unit.files:
        yield unit


class UnitQueue:
    """Units that several threads take one by one, until the queue is empty or a thread ends it."""

    def __init__(self, units: Iterator[Unit]) -> None:
        self._units, self._lock = units, Lock()

    def next(self) -> Unit | None:
        """Return the next unit, or None if the queue is empty or has ended."""
        with self._lock:
            return next(self._units, None)

    def end(self) -> None:
        """End the queue: no thread gets another unit."""
        with self._lock:
            self._units = iter(())


def rewrite_files(
    storage: FileSystem, files: Sequence[DataFile], names: Sequence[str], change: Change, aging: Sequence[DataFile] = ()
) -> Replacement:
    """Write new files with the rows of `files` after a change. The table's columns are `names`, in order.

    The `aging` files have no key of the change. Each is rewritten by itself, so that rows of other times stay in other
    files. After an error the new files are deleted. Raises `WriteRefused`, and `OSError` or `ArrowException` if a file
    can't be read or written.
    """
    work = _Rewriting(storage, names, change)
    try:
        for unit in units_of(storage, aging, 0):
            work.take(unit)
            work.close()
        work.take_all(units_of(storage, files, work.part_rows))
        return work.finish()
    except BaseException:
        work.undo()
        raise


def rewritten_parts(stored: pa.RecordBatchReader, names: Sequence[str], change: Change) -> pa.RecordBatchReader:
    """Return a reader of all rows of a table after a change, whose columns are `names` in order.

    The stored rows are read while it is read, which may raise.
    """
    change, schema = replace(change, rows=change.rows.combine_chunks()), change.schema(names)

    def parts() -> Iterator[pa.RecordBatch]:
        matched = list[pa.Array]()
        for batch in stored:
            rows = pa.table(batch).select(names).cast(schema)
            matched.append(find_key_positions(rows, change.rows, change.columns.key.names, is_unique=True))
            yield from change.merged_rows(rows, matched[-1]).select(names).cast(schema).to_batches()
            matched[-1] = matched[-1].drop_null()
        yield from change.new(matched).select(names).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, parts())


class _Rewriting:
    def __init__(self, storage: FileSystem, names: Sequence[str], change: Change) -> None:
        columns, self._latest, lane_count = change.columns, _latest(change), lanes_for()
        rows = sort_by_key(change.rows, columns.key.names).combine_chunks()
        is_hashed = not is_quick_to_sort(rows, columns.key.names)
        self.part_rows = max(PART_ROWS, rows.num_rows) if is_hashed else PART_ROWS
        self._change = replace(change, rows=rows)
        self._schema = change.schema(names)
        # The columns that show whether a file is changed.
        decisive = [*columns.key.names, columns.txid, *([columns.deleted] if columns.deletes else [])]
        if change.removes and columns.expires is not None and columns.expires not in decisive:
            decisive.append(columns.expires)
        self._decisive_columns = change.schema(decisive)
        self._other_columns = change.schema([name for name in names if name not in decisive])
        self._matched, self._old = list[pa.Array](), list[DataFile]()
        self._lanes = [Lane(storage, self._schema) for _ in range(lane_count)]
        self._newest = Lane(storage, self._schema)

    def take_all(self, units: Iterator[Unit]) -> None:
        """Rewrite units: one in every thread at a time if there are enough, else one after the other by all threads."""
        first = list(islice(units, len(self._lanes)))
        if len(first) < len(self._lanes) or self._latest is not None or self.part_rows > PART_ROWS:
            for unit in chain(first, units):
                self.take(unit)
            return
        queue = UnitQueue(chain(first, units))
        _threads().run_concurrently([partial(self._take_some, queue, lane) for lane in self._lanes])

    def _take_some(self, queue: UnitQueue, lane: Lane) -> None:
        try:
            while (unit := queue.next()) is not None:
                self.take(unit, lane)
        except BaseException:
            queue.end()
            raise

    def take(self, unit: Unit, lane: Lane | None = None) -> None:
        """Rewrite the files of a unit if the change concerns them. `lane` None: all lanes write."""
        is_changed, unread = False, list[UnitPart]()
        for part in unit.parts(self.part_rows):
            match = self._match(part)
            if not is_changed and not self._is_changed(*match[1:]):
                # Its rows are read again if a later part is changed: a file may be larger than the memory.
                unread.append(part)
                continue
            for earlier in () if is_changed else unread:
                self._rewrite(earlier, self._match(earlier), lane)
            is_changed = True
            self._rewrite(part, match, lane)
        if is_changed:
            self._old += unit.files

    def _rewrite(self, part: UnitPart, match: tuple[pa.Array | None, pa.Table, pa.Array], lane: Lane | None) -> None:
        order, rows, places = match
        undecisive = part.read(self._other_columns)
        if order is not None:
            undecisive = undecisive.combine_chunks().take(order)
        for field_, column in zip(self._other_columns, undecisive.columns, strict=True):
            rows = rows.append_column(field_, column)
        self._matched.append(places.drop_null())
        build = partial(self._applied, rows, places)
        if lane is None:
            self._write(rows.num_rows, build)
        else:
            lane.write(build(0, rows.num_rows))

    def finish(self) -> Replacement:
        """Write the rows with new keys, and close the files."""
        rows = self._change.new(self._matched)
        self._write(rows.num_rows, rows.slice)
        self.close()
        return Replacement(self._old, [file for lane in (*self._lanes, self._newest) for file in lane.written_files])

    def close(self) -> None:
        """Close the files. Later rows are written to other ones."""
        _threads().run_concurrently([lane.close for lane in (*self._lanes, self._newest)])

    def undo(self) -> None:
        """Delete the files that were written."""
        for lane in (*self._lanes, self._newest):
            lane.undo()

    def _write(self, row_count: int, build: Callable[[int, int], pa.Table]) -> None:
        """Write rows that `build(position, number)` makes, one piece at a time.

        Rows with the latest time are written to a file of their own. The next transactions add to that file, and the
        other files are left alone until their rows expire together.
        """
        if self._latest is not None:
            rows = build(0, row_count)
            is_latest = pc.fill_null(pc.equal(rows[self._change.columns.expires], self._latest), False)
            self._lanes[0].write(rows.filter(pc.invert(is_latest)))
            return self._newest.write(rows.filter(is_latest))
        lanes = self._lanes[: lanes_for(row_count)]
        if len(lanes) == 1:
            return lanes[0].write(build(0, row_count))
        ends = [row_count * number // len(lanes) for number in range(len(lanes) + 1)]

        def work(lane: Lane, begin: int, end: int) -> None:
            lane.write(build(begin, end - begin))

        pieces = zip(lanes, ends, ends[1:], strict=False)
        return _threads().run_concurrently([partial(work, *piece) for piece in pieces])

    def _applied(self, rows: pa.Table, places: pa.Array, begin: int, row_count: int) -> pa.Table:
        return self._change.merged_rows(rows.slice(begin, row_count), places.slice(begin, row_count))

    def _match(self, part: UnitPart) -> tuple[pa.Array | None, pa.Table, pa.Array]:
        """Return the order in which a part is written (None: its own), its decisive columns, and the positions of its
        keys in the new rows."""
        rows, key = part.read(self._decisive_columns), self._change.columns.key.names
        order = None
        if (
            is_quick_to_sort(self._change.rows, key)
            and is_quick_to_sort(rows, key)
            and not is_strictly_ascending(rows[key[0]])
        ):
            order = compute_sort_order(rows[key[0]])
            rows = rows.combine_chunks().take(order)
        return order, rows, find_key_positions(rows, self._change.rows, key, is_unique=True)

    def _is_changed(self, rows: pa.Table, places: pa.Array) -> bool:
        """True if a row has a new row's key, is of a dead attempt of this transaction, is a tombstone, or has
        expired."""
        if places.null_count < len(places):
            return True
        columns = self._change.columns
        is_own = pc.any(pc.equal(rows[columns.txid], int(self._change.txid))).as_py()
        return bool(
            is_own or (columns.deletes and pc.any(rows[columns.deleted]).as_py()) or self._has_expired_rows(rows)
        )

    def _has_expired_rows(self, rows: pa.Table) -> bool:
        expires, horizon = self._change.columns.expires, self._change.horizons.previous
        if not self._change.removes or expires is None or horizon is None:
            return False
        expired_count = pc.sum(pc.less_equal(rows[expires], time_scalar(horizon)), min_count=0).as_py()
        # A file that holds rows by time is dropped as a whole before long.
        return bool(expired_count) and (
            not self._change.columns.is_by_time or expired_count >= EXPIRED_SHARE * rows.num_rows
        )


def _latest(change: Change) -> pa.Scalar | None:
    """Return the latest time among the new rows, or None if rows do not expire by a key column."""
    if not change.columns.is_by_time or not change.rows.num_rows:
        return None
    latest = pc.max(change.rows[change.columns.expires])
    return latest if latest.is_valid else None


def lanes_for(rows: int | None = None) -> int:
    """Return the number of files that are worth it for a number of rows; None: the largest number of files."""
    most: int = max(1, min(LANES_MAX, pa.cpu_count()))
    return most if rows is None else max(1, min(most, rows // LANE_ROWS))


@cache
def _threads() -> DaemonPool:
    return DaemonPool(LANES_MAX - 1, "rewriting")
