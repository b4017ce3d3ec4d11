"""What reads one type of the writer as one of the reader: a tree of nodes, made once for a schema (see `resolution`).

Every node can `skip` what the writer has written, and most can `read` it, as an Arrow array with an entry for each of
the given records. Records that are found to be damaged are noted at the cursor; their entries mean nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spouts.avro.cursor import Cursor, Lanes, Longs

DEPTH_MAX = 60
"""A value of a recursive type may be nested this deep."""
_EMPTY_ITEMS_MAX = 100_000
_DECIMAL_BYTES = 16
UUID_BYTES = 16


class AvroNode:
    """One type. `path` is the field, for messages; `bytes_min` the fewest bytes that a value takes."""

    bytes_min = 1

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        """The next value of each of these records."""
        raise NotImplementedError

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        """Pass it by."""
        self.read(cursor, lanes)


class Mismatched(AvroNode):
    """Passes a value by that can't be read as what is wanted: its record is at fault."""

    def __init__(self, path: str, node: AvroNode, why: str) -> None:
        super().__init__(path)
        self.node, self.why, self.bytes_min = node, why, node.bytes_min

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        cursor.fail(lanes, self.why)
        return pa.nulls(len(lanes))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        self.node.skip(cursor, lanes)


class Null(AvroNode):
    """No bytes."""

    bytes_min = 0

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.nulls(len(lanes))


class Boolean(AvroNode):
    """A byte."""

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.array(cursor.data[cursor.skip(lanes, 1, self.path)] != 0)


class Number(AvroNode):
    """An int or a long."""

    def __init__(self, path: str, *, is_int: bool) -> None:
        super().__init__(path)
        self.is_int = is_int

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        numbers = cursor.longs(lanes, self.path)
        if self.is_int:
            narrow = numbers.astype(np.int32)
            wrong = np.flatnonzero(narrow != numbers)
            if len(wrong):
                cursor.fail(lanes[wrong], f"{self.path}: {numbers[wrong[0]]} is no int")
            return pa.array(narrow)
        return pa.array(numbers)


class Float(AvroNode):
    """A float or a double."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.bytes_min = size

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        words = cursor.words[cursor.skip(lanes, self.bytes_min, self.path)]
        return pa.array(words.view(np.float64) if self.bytes_min == 8 else words.astype(np.uint32).view(np.float32))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.skip(lanes, self.bytes_min, self.path)


class Text(AvroNode):
    """A string, or bytes."""

    def __init__(self, path: str, *, is_string: bool) -> None:
        super().__init__(path)
        self.is_string = is_string

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        sizes = cursor.longs(lanes, self.path)
        begin = cursor.skip(lanes, sizes, self.path)
        if len(cursor.problems):
            sizes[cursor.is_damaged(lanes)] = 0
        read = cursor.texts(begin, sizes)
        return converted(read, pa.string(), cursor, lanes, self.path) if self.is_string else read.cast(pa.binary())

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.skip(lanes, cursor.longs(lanes, self.path), self.path)


class Fixed(AvroNode):
    """So many bytes."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.bytes_min = size

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        begin = cursor.skip(lanes, self.bytes_min, self.path)
        return cursor.texts(begin, np.full(len(lanes), self.bytes_min, np.int64)).cast(pa.binary())

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.skip(lanes, self.bytes_min, self.path)


class Uuid(Fixed):
    """Sixteen bytes, as text."""

    def __init__(self, path: str) -> None:
        super().__init__(path, UUID_BYTES)

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.array([str(uuid.UUID(bytes=each)) for each in super().read(cursor, lanes).to_pylist()], pa.string())


class Decimal(AvroNode):
    """A decimal in bytes; in a fixed with `size`. `type` has the writer's scale."""

    def __init__(self, path: str, type_: pa.DataType, size: int | None) -> None:
        super().__init__(path)
        self.type, self.size = type_, size
        self.bytes_min = 1 if size is None else size

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        if self.size is None:
            sizes = cursor.longs(lanes, self.path)
        else:
            sizes = np.full(len(lanes), self.size, np.int64)
        begin = cursor.skip(lanes, sizes, self.path)
        sizes = np.where(cursor.is_damaged(lanes), 0, sizes)
        sizes = self._without_padding(cursor, lanes, begin, sizes)
        last = begin + sizes - 1
        numbers = np.zeros((len(lanes), _DECIMAL_BYTES), np.uint8)
        is_negative = (cursor.data[np.maximum(last - sizes + 1, 0)] >= 0x80) & (sizes > 0)
        for place in range(_DECIMAL_BYTES):
            byte = cursor.data[np.maximum(last - place, 0)]
            numbers[:, place] = np.where(place < sizes, byte, np.where(is_negative, 0xFF, 0))
        read = pa.Array.from_buffers(self.type, len(lanes), [None, pa.py_buffer(numbers.tobytes())])
        return converted(read, self.type, cursor, lanes, self.path, _with_its_precision)

    def _without_padding(self, cursor: Cursor, lanes: Lanes, begin: Longs, sizes: Longs) -> Longs:
        """Sixteen bytes at most; `begin` moves. More are more than its digits, unless they only repeat the sign."""
        long = np.flatnonzero(sizes > _DECIMAL_BYTES)
        for row in long.tolist():
            value = cursor.data[begin[row] : begin[row] + sizes[row]].tobytes()
            if value[:-_DECIMAL_BYTES].strip(b"\xff" if value[-_DECIMAL_BYTES] & 0x80 else b"\0"):
                cursor.fail(lanes[row : row + 1], f"{self.path}: it has more digits than a {self.type}")
        begin[long] += sizes[long] - _DECIMAL_BYTES
        return np.minimum(sizes, _DECIMAL_BYTES)


class Enum(AvroNode):
    """A symbol. `symbols` are the reader's, by the writer's numbers; None for one that it does not have."""

    def __init__(self, path: str, symbols: Sequence[str | None], written: Sequence[str]) -> None:
        super().__init__(path)
        self.symbols, self.written = pa.array(symbols, pa.string()), written

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        numbers = cursor.longs(lanes, self.path)
        beyond = (numbers < 0) | (numbers >= len(self.written))
        if beyond.any():
            cursor.fail(lanes[beyond], f"{self.path}: there is no such symbol")
        numbers[beyond] = 0
        read = self.symbols.take(pa.array(numbers))
        if read.null_count:
            unknown = np.flatnonzero(np.asarray(read.is_null()))
            symbol = self.written[numbers[unknown[0]]]
            cursor.fail(lanes[unknown], f"{self.path}: the reader has no symbol {symbol!r}, and no default")
        return read

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.longs(lanes, self.path)


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
            read = node.read(cursor, lanes[rows])
            parts.append(read if read.type == self.type else read.cast(self.type))
            order[rows] = np.arange(begin, begin + len(rows))
            begin += len(rows)
        if len(parts) == 1 and begin == len(lanes):
            return parts[0]
        together = pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        return together.take(pa.array(order, mask=order < 0))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        for node, rows in self._branches(cursor, lanes):
            node.skip(cursor, lanes[rows])

    def _branches(self, cursor: Cursor, lanes: Lanes) -> list[tuple[AvroNode, Longs]]:
        """Which of the records have which of them."""
        numbers = cursor.longs(lanes, self.path)
        beyond = (numbers < 0) | (numbers >= len(self.branches))
        if beyond.any():
            cursor.fail(lanes[beyond], f"{self.path}: there is no such branch")
        if len(cursor.problems):
            numbers[cursor.is_damaged(lanes)] = -1
        chosen = [(node, np.flatnonzero(numbers == number)) for number, node in enumerate(self.branches)]
        return [(node, rows) for node, rows in chosen if len(rows)]


@dataclass(slots=True)
class _Items:
    """What has been read of arrays or maps: rows are positions among the records."""

    rows: list[Longs] = field(default_factory=list)
    parts: list[tuple[pa.Array, ...]] = field(default_factory=list)


class Repeated(AvroNode):
    """An array, or a map: blocks of items. `items` are read one after the other: the values, or a key and a value."""

    def __init__(self, path: str, items: Sequence[AvroNode], type_: pa.DataType | None) -> None:
        super().__init__(path)
        self.items, self.type = items, type_

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        found = _Items()

        def take(rows: Longs) -> None:
            found.rows.append(rows)
            found.parts.append(tuple(node.read(cursor, lanes[rows]) for node in self.items))

        self._each(cursor, lanes, take)
        return self._joined(found, len(lanes))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        def pass_by(rows: Longs) -> None:
            for node in self.items:
                node.skip(cursor, lanes[rows])

        self._each(cursor, lanes, pass_by)

    def _each(self, cursor: Cursor, lanes: Lanes, take: Callable[[Longs], None]) -> None:
        """Call `take` with those that have a next item, until none has."""
        rows = np.arange(len(lanes), dtype=np.int64)
        while len(rows):
            counts = self._counts(cursor, lanes[rows])
            rows, counts = rows[counts > 0], counts[counts > 0]
            taken = 0
            while taken < counts.max(initial=0):
                is_there = (counts > taken) & ~cursor.is_damaged(lanes[rows])
                if not is_there.any():
                    break
                take(rows[is_there])
                taken += 1
            rows = rows[~cursor.is_damaged(lanes[rows])]

    def _counts(self, cursor: Cursor, lanes: Lanes) -> Longs:
        """How many items the next block of each has."""
        counts = cursor.longs(lanes, self.path)
        with_size = np.flatnonzero(counts < 0)
        if len(with_size):
            counts[with_size] *= -1
            cursor.longs(lanes[with_size], self.path)
        least = sum(node.bytes_min for node in self.items)
        most = cursor.left(lanes) // least if least else _EMPTY_ITEMS_MAX
        beyond = (counts < 0) | (counts > most)
        if beyond.any():
            cursor.fail(lanes[beyond], f"{self.path}: it ends before")
        return np.where(cursor.is_damaged(lanes), 0, counts)

    def _joined(self, found: _Items, count: int) -> pa.Array:
        assert self.type is not None
        rows = np.concatenate(found.rows) if found.rows else np.zeros(0, np.int64)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
        order = pa.array(np.argsort(rows, kind="stable"))
        kinds = (self.type.value_type,) if pa.types.is_list(self.type) else (self.type.key_type, self.type.item_type)
        columns = [
            pa.concat_arrays([part[place] for part in found.parts]).take(order) if found.parts else pa.nulls(0, kind)
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

    def columns(self, cursor: Cursor, lanes: Lanes) -> list[pa.Array]:
        """Its fields, in the reader's order."""
        assert self.type is not None
        columns = {place: pa.repeat(value, len(lanes)) for place, value in self.constants.items()}
        for member in self.members:
            if member.place is None:
                member.node.skip(cursor, lanes)
                continue
            wanted, read = self.type.field(member.place).type, member.node.read(cursor, lanes)
            columns[member.place] = read if read.type == wanted else read.cast(wanted)
        return [columns[place] for place in range(len(self.type))]

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        assert self.type is not None
        return pa.StructArray.from_arrays(self.columns(cursor, lanes), fields=list(self.type))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        for member in self.members:
            member.node.skip(cursor, lanes)


class Unreadable(Record):
    """A record that lacks what the reader needs: it is at fault."""

    def __init__(self, path: str, members: Sequence[Member], type_: pa.StructType | None, why: str) -> None:
        super().__init__(path, members, type_, {})
        self.why = why

    def columns(self, cursor: Cursor, lanes: Lanes) -> list[pa.Array]:
        assert self.type is not None
        cursor.fail(lanes, self.why)
        return [pa.nulls(len(lanes), field.type) for field in self.type]


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


class Converted(AvroNode):
    """A value in another type of the reader's, without loss."""

    def __init__(self, node: AvroNode, convert: Callable[[pa.Array], pa.Array], wanted: pa.DataType) -> None:
        super().__init__(node.path)
        self.node, self.convert, self.wanted, self.bytes_min = node, convert, wanted, node.bytes_min

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return converted(self.node.read(cursor, lanes), self.wanted, cursor, lanes, self.path, self.convert)

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        self.node.skip(cursor, lanes)


def _with_its_precision(values: pa.Array) -> pa.Array:
    values.validate(full=True)
    return values


def converted(
    read: pa.Array,
    wanted: pa.DataType,
    cursor: Cursor,
    lanes: Lanes,
    path: str,
    convert: Callable[[pa.Array], pa.Array] | None = None,
) -> pa.Array:
    """What was read, in the wanted type. A record whose value has no place in it is damaged."""

    def whole(values: pa.Array) -> pa.Array:
        return values.cast(wanted) if convert is None else convert(values)

    try:
        return whole(read)
    except pa.ArrowException:
        pass
    made = list[pa.Array]()
    for row in range(len(read)):
        try:
            made.append(whole(read.slice(row, 1)))
        except pa.ArrowException as error:
            cursor.fail(lanes[row : row + 1], f"{path}: {error}")
            made.append(pa.nulls(1, wanted))
    return pa.concat_arrays(made)
