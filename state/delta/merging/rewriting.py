"""A larger table is rewritten file by file, in memory, by the rule of `change.py`.

Each file is read a part at a time, its keys are looked for among those that come, and what is left of the file is
written as a new one; a file without a touched key stays. New rows go to the files that are written, unless they are too
large. Threads rewrite a file each; where there are too few for that, a large part is written to several files at once:
Arrow and Parquet work without Python's lock. Nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.merging.change import Change
from state.delta.tables.data_files import DataFile, Lane, WrittenFile, lanes_for, side_by_side, with_all
from state.delta.tables.storage import opened_parquet
from state.rows.expiring import time_scalar
from transactional.model.aggregates.key_matching import (
    compute_sort_order,
    find_key_positions,
    is_quick_to_sort,
    is_strictly_ascending,
    sort_by_key,
)

PART_ROWS = 500_000
"""Small files, and parts of files, are taken together up to so many rows; where keys are hashed, up to as many as come:
each part has a hash table of its own."""
PAST_SHARE = 0.5
"""A file whose rows lie by time is written again once so many of them have expired: no more are written than go."""


@dataclass(slots=True)
class Unit:
    """Files that become one."""

    files: list[DataFile] = field(default_factory=list)
    opened: list[parquet.ParquetFile] = field(default_factory=list)
    rows: int = 0

    def parts(self, rows_max: int) -> Iterator[UnitPart]:
        """The rows of all files, in parts that are worth a hash table."""
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
        """How many there are."""
        return sum(opened.metadata.row_group(group).num_rows for opened, group in self.groups)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Some columns; what the table has gained since a file was written, is NULL there."""
        tables = [opened.read_row_group(group, columns=schema.names) for opened, group in self.groups]
        return pa.concat_tables([with_all(table, schema) for table in tables])


def units_of(storage: FileSystem, files: Iterable[DataFile], rows_max: int) -> Iterator[Unit]:
    """Files of a table, opened when it is their turn; small ones together up to so many rows."""
    unit = Unit()
    for file in files:
        opened = opened_parquet(storage, file.name, file.size_bytes)
        if unit.files and unit.rows + opened.metadata.num_rows > rows_max:
            yield unit
            unit = Unit()
        unit.files.append(file)
        unit.opened.append(opened)
        unit.rows += opened.metadata.num_rows
    if unit.files:
        yield unit


class UnitQueue:
    """What several threads take one after the other, until one of them ends it."""

    def __init__(self, units: Iterator[Unit]) -> None:
        self._units, self._lock = units, Lock()

    def next(self) -> Unit | None:
        """The next unit; None: there is none, or it has ended."""
        with self._lock:
            return next(self._units, None)

    def end(self) -> None:
        """Give nobody another one."""
        with self._lock:
            self._units = iter(())


@dataclass(slots=True)
class Rewritten:
    """Files to be replaced, and those to be put in their place."""

    old: list[DataFile] = field(default_factory=list)
    new: list[WrittenFile] = field(default_factory=list)


def rewrite_files(
    storage: FileSystem, files: Sequence[DataFile], names: Sequence[str], change: Change, aging: Sequence[DataFile] = ()
) -> Rewritten:
    """Write what becomes of the files of a table, whose columns are `names` in order; of those that are `aging`, which
    have no key that comes, each by itself, so that rows of other times stay in other files.

    Nothing is left where it does not work out. Raises `WriteRefused`, and `OSError` or `ArrowException` where a file
    can't be read or written.
    """
    rows = sort_by_key(change.rows, change.columns.key.names).combine_chunks()
    work = _Rewriting(storage, names, replace(change, rows=rows))
    try:
        for unit in units_of(storage, aging, 0):
            work.take(unit)
            work.close()
        work.take_all(units_of(storage, files, work.part_rows))
        return work.done()
    except BaseException:
        work.undo()
        raise


def rewritten_parts(stored: pa.RecordBatchReader, names: Sequence[str], change: Change) -> pa.RecordBatchReader:
    """What becomes of all rows of a table, whose columns are `names` in order; as they are read. Reading raises."""
    change, schema = replace(change, rows=change.rows.combine_chunks()), change.schema(names)

    def parts() -> Iterator[pa.RecordBatch]:
        matched = list[pa.Array]()
        for batch in stored:
            rows = pa.table(batch).select(names).cast(schema)
            matched.append(find_key_positions(rows, change.rows, change.columns.key.names, is_unique=True))
            yield from change.applied(rows, matched[-1]).select(names).cast(schema).to_batches()
            matched[-1] = matched[-1].drop_null()
        yield from change.new(matched).select(names).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, parts())


class _Rewriting:
    def __init__(self, storage: FileSystem, names: Sequence[str], change: Change) -> None:
        self._change, columns = change, change.columns
        self._schema = change.schema(names)
        # By these shows whether a file is touched.
        looked_at = [*columns.key.names, columns.txid, *([columns.deleted] if columns.deletes else [])]
        if change.removes and columns.expires is not None and columns.expires not in looked_at:
            looked_at.append(columns.expires)
        self._first = change.schema(looked_at)
        self._rest = change.schema([name for name in names if name not in looked_at])
        self._matched, self._old = list[pa.Array](), list[DataFile]()
        is_hashed = not is_quick_to_sort(change.rows, columns.key.names)
        self.part_rows = max(PART_ROWS, change.rows.num_rows) if is_hashed else PART_ROWS
        self._lanes = [Lane(storage, self._schema) for _ in range(lanes_for())]
        self._newest, self._latest = Lane(storage, self._schema), _latest(change)

    def take_all(self, units: Iterator[Unit]) -> None:
        """Rewrite units, in each thread one at a time if there are enough; they are written in their order."""
        first = list(islice(units, len(self._lanes)))
        if len(first) < len(self._lanes) or self._latest is not None or self.part_rows > PART_ROWS:
            for unit in chain(first, units):
                self.take(unit)
            return
        queue = UnitQueue(chain(first, units))
        side_by_side([partial(self._take_some, queue, lane) for lane in self._lanes])

    def _take_some(self, queue: UnitQueue, lane: Lane) -> None:
        try:
            while (unit := queue.next()) is not None:
                self.take(unit, lane)
        except BaseException:
            queue.end()
            raise

    def take(self, unit: Unit, lane: Lane | None = None) -> None:
        """Rewrite the files of a unit, or leave them; None: by all lanes."""
        is_touched, passed = False, list[UnitPart]()
        for part in unit.parts(self.part_rows):
            found = self._look(part)
            if not is_touched and not self._is_touched(*found[1:]):
                # What was seen of it is not kept: a file may be larger than the memory.
                passed.append(part)
                continue
            for each in () if is_touched else passed:
                self._rewrite(each, self._look(each), lane)
            is_touched = True
            self._rewrite(part, found, lane)
        if is_touched:
            self._old += unit.files

    def _rewrite(self, part: UnitPart, found: tuple[pa.Array | None, pa.Table, pa.Array], lane: Lane | None) -> None:
        order, rows, places = found
        rest = _taken(part.read(self._rest), order)
        for field_, column in zip(self._rest, rest.columns, strict=True):
            rows = rows.append_column(field_, column)
        self._matched.append(places.drop_null())
        made = partial(self._applied, rows, places)
        if lane is None:
            self._write(rows.num_rows, made)
        else:
            lane.write(made(0, rows.num_rows))

    def done(self) -> Rewritten:
        """Write the new rows, and end the files that are written."""
        rows = self._change.new(self._matched)
        self._write(rows.num_rows, rows.slice)
        self.close()
        return Rewritten(self._old, [file for lane in (*self._lanes, self._newest) for file in lane.written])

    def close(self) -> None:
        """End the files: what is written from now on goes to others."""
        side_by_side([lane.close for lane in (*self._lanes, self._newest)])

    def undo(self) -> None:
        """Delete what was written."""
        for lane in (*self._lanes, self._newest):
            lane.undo()

    def _write(self, many: int, made: Callable[[int, int], pa.Table]) -> None:
        """Write so many rows, which are made a piece at a time: from a place on, so many of them.

        Rows with the latest time go to a file of their own: the next transaction adds to those, and the others are left
        alone until they expire together.
        """
        if self._latest is not None:
            rows = made(0, many)
            is_latest = pc.fill_null(pc.equal(rows[self._change.columns.expires], self._latest), False)
            self._lanes[0].write(rows.filter(pc.invert(is_latest)))
            self._newest.write(rows.filter(is_latest))
            return
        lanes = self._lanes[: lanes_for(many)]
        ends = [many * number // len(lanes) for number in range(len(lanes) + 1)]

        def work(lane: Lane, begin: int, end: int) -> None:
            lane.write(made(begin, end - begin))

        side_by_side([partial(work, *each) for each in zip(lanes, ends, ends[1:], strict=False)])

    def _applied(self, rows: pa.Table, places: pa.Array, begin: int, many: int) -> pa.Table:
        return self._change.applied(rows.slice(begin, many), places.slice(begin, many))

    def _look(self, part: UnitPart) -> tuple[pa.Array | None, pa.Table, pa.Array]:
        """In which order a part is written (None: its own), its rows so far, and where they stand in what comes."""
        rows, key = part.read(self._first), self._change.columns.key.names
        order = None
        if (
            is_quick_to_sort(self._change.rows, key)
            and is_quick_to_sort(rows, key)
            and not is_strictly_ascending(rows[key[0]])
        ):
            order = compute_sort_order(rows[key[0]])
        rows = _taken(rows, order)
        return order, rows, find_key_positions(rows, self._change.rows, key, is_unique=True)

    def _is_touched(self, rows: pa.Table, places: pa.Array) -> bool:
        """Whether a row comes, was written by a dead attempt of this transaction, is a tombstone of a dead key, or is
        past and removed for that."""
        if places.null_count < len(places):
            return True
        columns = self._change.columns
        is_own = pc.any(pc.equal(rows[columns.txid], int(self._change.txid))).as_py()
        return bool(is_own or (columns.deletes and pc.any(rows[columns.deleted]).as_py()) or self._has_past(rows))

    def _has_past(self, rows: pa.Table) -> bool:
        expires, horizon = self._change.columns.expires, self._change.horizons.previous
        if not self._change.removes or expires is None or horizon is None:
            return False
        past = pc.sum(pc.less_equal(rows[expires], time_scalar(horizon)), min_count=0).as_py()
        # Where rows lie by the time in their key, a file goes as a whole before long.
        return bool(past) and (not self._change.columns.is_by_time or past >= PAST_SHARE * rows.num_rows)


def _latest(change: Change) -> pa.Scalar | None:
    """The latest time of the keys that come, where rows expire by it; None: they do not."""
    if not change.columns.is_by_time or not change.rows.num_rows:
        return None
    latest = pc.max(change.rows[change.columns.expires])
    return latest if latest.is_valid else None


def _taken(rows: pa.Table, order: pa.Array | None) -> pa.Table:
    return rows if order is None else rows.combine_chunks().take(order)
