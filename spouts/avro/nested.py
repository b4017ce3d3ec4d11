"""The nodes of types that contain others: unions, arrays, maps and records."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spouts.avro.cursor import Cursor, Lanes, Longs
from spouts.avro.nodes import AvroNode, Null
from spouts.avro.scan import Scan, ScanError

DEPTH_MAX = 60
"""A value of a recursive type may be nested this deep."""
LANES_MIN = 64
"""The items of fewer records are scanned, one record after the other: side by side an item would cost 20 µs or more."""

_Take = Callable[[Cursor, Lanes, Longs], None]
"""Takes the next item of records: where they are read, and the positions of their records."""


class Union(AvroNode):
    """One of several types, all of which are read as the same one."""

    def __init__(self, path: str, branches: Sequence[AvroNode], type_: pa.DataType | None) -> None:
        super().__init__(path)
        self.branches, self.type = branches, type_

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        assert self.type is not None
        parts, order = list[pa.Array](), np.full(len(lanes), -1, np.int64)
        begin = 0
        for node, rows in self._branches(cursor, lanes):
            if isinstance(node, Null):
                continue
            part = node.read(cursor, lanes[rows])
            parts.append(part if part.type == self.type else part.cast(self.type))
            order[rows] = np.arange(begin, begin + len(rows))
            begin += len(rows)
        if len(parts) == 1 and begin == len(lanes):
            return parts[0]
        values = pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        return values.take(pa.array(order, mask=order < 0))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        for node, rows in self._branches(cursor, lanes):
            node.skip(cursor, lanes[rows])

    def scan(self, scan: Scan) -> None:
        number = scan.long(self.path)
        if not 0 <= number < len(self.branches):
            raise ScanError(f"{self.path}: there is no such branch")
        self.branches[number].scan(scan)

    def _branches(self, cursor: Cursor, lanes: Lanes) -> list[tuple[AvroNode, Longs]]:
        """Return the branches that occur, each with the rows of its records."""
        numbers = cursor.read_longs(lanes, self.path)
        is_unknown_branch = (numbers < 0) | (numbers >= len(self.branches))
        if is_unknown_branch.any():
            cursor.fail(lanes[is_unknown_branch], f"{self.path}: there is no such branch")
        if len(cursor.problems):
            numbers[cursor.is_damaged(lanes)] = -1
        chosen = [(node, np.flatnonzero(numbers == number)) for number, node in enumerate(self.branches)]
        return [(node, rows) for node, rows in chosen if len(rows)]


@dataclass(slots=True)
class _Items:
    """Items of arrays or maps that were read, with the rows of their records."""

    rows: list[Longs] = field(default_factory=list)
    parts: list[tuple[pa.Array, ...]] = field(default_factory=list)


class Repeated(AvroNode):
    """An array, or a map: blocks of items. `items` are read one after the other: the values, or a key and a value.

    The items of many records are read side by side, as far as so many have one. The others are scanned: then all of
    them are read at once.
    """

    def __init__(self, path: str, items: Sequence[AvroNode], type_: pa.DataType | None) -> None:
        super().__init__(path)
        self.items, self.type = items, type_
        self._item_bytes, self._is_fixed = sum(node.bytes_min for node in items), all(node.is_fixed for node in items)

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        items = _Items()

        def take(cursor: Cursor, lanes: Lanes, rows: Longs) -> None:
            items.rows.append(rows)
            items.parts.append(tuple(node.read(cursor, lanes) for node in self.items))

        self._take_all(cursor, lanes, take)
        return self._joined(items, len(lanes))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        def pass_by(cursor: Cursor, lanes: Lanes, _: Longs) -> None:
            for node in self.items:
                node.skip(cursor, lanes)

        self._take_all(cursor, lanes, pass_by)

    def scan(self, scan: Scan) -> None:
        while count := self._scan_count(scan):
            self._scan_items(scan, count, None)

    def _take_all(self, cursor: Cursor, lanes: Lanes, take: _Take) -> None:
        rows = np.arange(len(lanes), dtype=np.int64)
        while len(rows) >= LANES_MIN:
            counts = self._counts(cursor, lanes[rows])
            rows, counts = rows[counts > 0], counts[counts > 0]
            if self._is_fixed:
                self._take_block(cursor, lanes[rows], counts, rows, take)
            else:
                counts_taken = self._take_some(cursor, lanes, rows, counts, take)
                is_open = (counts > counts_taken) & ~cursor.is_damaged(lanes[rows])
                self._take_scanned(cursor, lanes[rows[is_open]], counts[is_open] - counts_taken, rows[is_open], take)
                rows = rows[~is_open]
            rows = rows[~cursor.is_damaged(lanes[rows])]
        self._take_scanned(cursor, lanes[rows], np.zeros(len(rows), np.int64), rows, take)

    def _take_some(self, cursor: Cursor, lanes: Lanes, rows: Longs, counts: Longs, take: _Take) -> int:
        """Take items while many records have a next one. Returns how many items of a record."""
        counts_taken = 0
        while True:
            has_next = (counts > counts_taken) & ~cursor.is_damaged(lanes[rows])
            if np.count_nonzero(has_next) < LANES_MIN:
                return counts_taken
            take(cursor, lanes[rows[has_next]], rows[has_next])
            counts_taken += 1

    def _take_block(self, cursor: Cursor, lanes: Lanes, counts: Longs, rows: Longs, take: _Take) -> None:
        """Take all items of blocks whose items have the same number of bytes."""
        size, firsts = self._item_bytes, np.cumsum(counts) - counts
        begin = cursor.skip(lanes, counts * size, self.path)
        offsets = np.arange(counts.sum()) - np.repeat(firsts, counts)
        items = cursor.items(np.repeat(begin, counts) + offsets * size, np.repeat(lanes, counts))
        take(items, items.all_lanes(), np.repeat(rows, counts))
        cursor.take_problems(items)

    def _take_scanned(self, cursor: Cursor, lanes: Lanes, counts: Longs, rows: Longs, take: _Take) -> None:
        """Take the remaining items of these arrays at once. Their current blocks still have `counts` items."""
        begin, counts_taken, problems = array("q"), list[int](), dict[int, str]()
        for lane, count in zip(lanes.tolist(), counts.tolist(), strict=True):
            scan, first = cursor.scan(lane), len(begin)
            try:
                while count or (count := self._scan_count(scan)):
                    self._scan_items(scan, count, begin)
                    count = 0
            except ScanError as error:
                problems[lane] = str(error)
            cursor.move(lane, scan)
            counts_taken.append(len(begin) - first)
        if begin:
            items = cursor.items(np.frombuffer(begin, np.int64).copy(), np.repeat(lanes, counts_taken))
            take(items, items.all_lanes(), np.repeat(rows, counts_taken))
            cursor.take_problems(items)
        for lane, reason in problems.items():  # unless an item has said it
            cursor.fail(np.array([lane]), reason)

    def _counts(self, cursor: Cursor, lanes: Lanes) -> Longs:
        """Return how many items the next block of each record has."""
        counts = cursor.read_longs(lanes, self.path)
        with_size = np.flatnonzero(counts < 0)
        if len(with_size):
            counts[with_size] *= -1
            cursor.read_longs(lanes[with_size], self.path)
        cursor.count_items(lanes, counts, self._item_bytes, self.path)
        return np.where(cursor.is_damaged(lanes), 0, counts)

    def _scan_count(self, scan: Scan) -> int:
        """Return how many items the next block has."""
        count = scan.long(self.path)
        if count < 0:
            count = -count
            scan.long(self.path)
        scan.count_items(count, self._item_bytes, self.path)
        return count

    def _scan_items(self, scan: Scan, count: int, begin: array[int] | None) -> None:
        """Skip the items of a block. Appends their positions to `begin`, also of an item that can't be skipped."""
        if self._is_fixed:
            first, size = scan.position, self._item_bytes
            scan.skip(count * size, self.path)
            if begin is not None:
                begin.extend(range(first, scan.position, size) if size else [first] * count)
            return
        for _ in range(count):
            if begin is not None:
                begin.append(scan.position)
            for node in self.items:
                node.scan(scan)

    def _joined(self, items: _Items, count: int) -> pa.Array:
        assert self.type is not None
        rows = np.concatenate(items.rows) if items.rows else np.zeros(0, np.int64)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        order = pa.array(np.argsort(rows, kind="stable"))
        kinds = (self.type.value_type,) if pa.types.is_list(self.type) else (self.type.key_type, self.type.item_type)
        columns = [
            pa.concat_arrays([part[place] for part in items.parts]).take(order) if items.parts else pa.nulls(0, kind)
            for place, kind in enumerate(kinds)
        ]
        if pa.types.is_list(self.type):
            return pa.ListArray.from_arrays(pa.array(offsets), *columns).cast(self.type)
        keys, values = columns
        # A key is NULL where it is damaged, which Arrow does not allow.
        return pa.MapArray.from_arrays(pa.array(offsets), keys.fill_null(""), values).cast(self.type)


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a record, as the writer has it. `place` is that among the reader's fields, None for one to skip."""

    node: AvroNode
    place: int | None


class Record(AvroNode):
    """A record. `constants` are the reader's fields that the writer lacks, by their places: their defaults, or NULL."""

    def __init__(
        self, path: str, members: Sequence[Member], type_: pa.StructType | None, constants: dict[int, pa.Scalar]
    ) -> None:
        super().__init__(path)
        self.members, self.type, self.constants = members, type_, constants
        self.bytes_min = sum(member.node.bytes_min for member in members)
        self.is_fixed = all(member.node.is_fixed for member in members)

    def columns(self, cursor: Cursor, lanes: Lanes) -> list[pa.Array]:
        """Return the fields, in the reader's order."""
        assert self.type is not None
        columns = {place: pa.repeat(value, len(lanes)) for place, value in self.constants.items()}
        for member in self.members:
            if member.place is None:
                member.node.skip(cursor, lanes)
                continue
            target, values = self.type.field(member.place).type, member.node.read(cursor, lanes)
            columns[member.place] = values if values.type == target else values.cast(target)
        return [columns[place] for place in range(len(self.type))]

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        assert self.type is not None
        return pa.StructArray.from_arrays(self.columns(cursor, lanes), fields=list(self.type))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        for member in self.members:
            member.node.skip(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        for member in self.members:
            member.node.scan(scan)


class Unreadable(Record):
    """A record that lacks what the reader needs: it is at fault."""

    def __init__(self, path: str, members: Sequence[Member], type_: pa.StructType | None, reason: str) -> None:
        super().__init__(path, members, type_, {})
        self.reason = reason

    def columns(self, cursor: Cursor, lanes: Lanes) -> list[pa.Array]:
        assert self.type is not None
        cursor.fail(lanes, self.reason)
        return [pa.nulls(len(lanes), field.type) for field in self.type]


class RecordUnion(Union):
    """A union of records, as the writer's schema itself: all of them are read as the same fields."""

    def columns(self, cursor: Cursor, lanes: Lanes) -> list[pa.Array]:
        """Return the fields, in the reader's order."""
        return list(self.read(cursor, lanes).flatten())


class Recursive(AvroNode):
    """A type within itself. It is only skipped: no reader has such a type."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.node: AvroNode | None = None

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        assert self.node is not None
        if cursor.depth == DEPTH_MAX:
            cursor.fail(lanes, f"{self.path}: it is nested deeper than {DEPTH_MAX} times")
            return
        cursor.depth += 1
        self.node.skip(cursor, lanes)
        cursor.depth -= 1

    def scan(self, scan: Scan) -> None:
        assert self.node is not None
        if scan.depth == DEPTH_MAX:
            raise ScanError(f"{self.path}: it is nested deeper than {DEPTH_MAX} times")
        scan.depth += 1
        self.node.scan(scan)
        scan.depth -= 1
