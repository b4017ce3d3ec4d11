"""Nodes that read one type of the writer as one of the reader: a tree, made once for a schema (see `resolution`). Nodes
with others below them are in `nested`.

Every node can `skip` what the writer has written, and most can `read` it, as an Arrow array with an entry for each of
the given records. A damaged record is failed at the cursor; its entry means nothing. Every node can also `scan` the
next value of a single record, without reading it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from spouts.avro.cursor import Cursor, Lanes, Longs
from spouts.avro.scan import Scan

_DECIMAL_BYTES = 16
UUID_BYTES = 16


class AvroNode:
    """One type. `path` is the field, for messages; `bytes_min` the fewest bytes that a value takes. With `is_fixed`
    every value takes so many."""

    bytes_min = 1
    is_fixed = False

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        """Return the next value of each of these records."""
        raise NotImplementedError

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        """Skip the next value of each of these records."""
        self.read(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        """Skip the next value of a single record. Raises `ScanError`."""
        if self.is_fixed:
            scan.skip(self.bytes_min, self.path)
        else:
            scan.long(self.path)


class Mismatched(AvroNode):
    """Skips a value that can't be read as the reader's type: its record is at fault."""

    def __init__(self, path: str, node: AvroNode, reason: str) -> None:
        super().__init__(path)
        self.node, self.reason, self.bytes_min, self.is_fixed = node, reason, node.bytes_min, node.is_fixed

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        cursor.fail(lanes, self.reason)
        return pa.nulls(len(lanes))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        self.node.skip(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        self.node.scan(scan)


class Null(AvroNode):
    """A null, which takes no bytes."""

    bytes_min = 0
    is_fixed = True

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.nulls(len(lanes))


class Boolean(AvroNode):
    """A boolean, which takes one byte."""

    is_fixed = True

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.array(cursor.data[cursor.skip(lanes, 1, self.path)] != 0)


class Number(AvroNode):
    """An int or a long, of variable length."""

    def __init__(self, path: str, *, is_int: bool) -> None:
        super().__init__(path)
        self.is_int = is_int

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        numbers = cursor.read_longs(lanes, self.path)
        if self.is_int:
            narrow = numbers.astype(np.int32)
            wrong = np.flatnonzero(narrow != numbers)
            for row in wrong.tolist():
                cursor.fail(lanes[row : row + 1], f"{self.path}: {numbers[row]} is no int")
            return pa.array(narrow)
        return pa.array(numbers)


class Float(AvroNode):
    """A float or a double, by its size in bytes."""

    is_fixed = True

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.bytes_min = size

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        words = cursor.words[cursor.skip(lanes, self.bytes_min, self.path)]
        return pa.array(words.view(np.float64) if self.bytes_min == 8 else words.astype(np.uint32).view(np.float32))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.skip(lanes, self.bytes_min, self.path)


class Text(AvroNode):
    """A string or bytes, with their length in front."""

    def __init__(self, path: str, *, is_string: bool) -> None:
        super().__init__(path)
        self.is_string = is_string

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        sizes = cursor.read_longs(lanes, self.path)
        begin = cursor.skip(lanes, sizes, self.path)
        if len(cursor.problems):
            sizes[cursor.is_damaged(lanes)] = 0
        values = cursor.view_texts(begin, sizes)
        return converted(values, pa.string(), cursor, lanes, self.path) if self.is_string else values.cast(pa.binary())

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.skip(lanes, cursor.read_longs(lanes, self.path), self.path)

    def scan(self, scan: Scan) -> None:
        scan.skip(scan.long(self.path), self.path)


class Fixed(AvroNode):
    """A fixed number of bytes."""

    is_fixed = True

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.bytes_min = size

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        begin = cursor.skip(lanes, self.bytes_min, self.path)
        return cursor.view_texts(begin, np.full(len(lanes), self.bytes_min, np.int64)).cast(pa.binary())

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.skip(lanes, self.bytes_min, self.path)


class Uuid(Fixed):
    """A UUID of sixteen bytes, as text."""

    def __init__(self, path: str) -> None:
        super().__init__(path, UUID_BYTES)

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.array(
            [str(uuid.UUID(bytes=octets)) for octets in super().read(cursor, lanes).to_pylist()], pa.string()
        )


class Decimal(AvroNode):
    """A decimal in bytes; in a fixed with `size`. `type` has the writer's scale."""

    def __init__(self, path: str, type_: pa.DataType, size: int | None) -> None:
        super().__init__(path)
        self.type, self.size = type_, size
        self.bytes_min, self.is_fixed = (1, False) if size is None else (size, True)

    def scan(self, scan: Scan) -> None:
        scan.skip(scan.long(self.path) if self.size is None else self.size, self.path)

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        if self.size is None:
            sizes = cursor.read_longs(lanes, self.path)
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
        values = pa.Array.from_buffers(self.type, len(lanes), [None, pa.py_buffer(numbers.tobytes())])
        return converted(values, self.type, cursor, lanes, self.path, _with_its_precision)

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

    def __init__(self, path: str, symbols: Sequence[str | None], writer_symbols: Sequence[str]) -> None:
        super().__init__(path)
        self.symbols, self.writer_symbols = pa.array(symbols, pa.string()), writer_symbols

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        numbers = cursor.read_longs(lanes, self.path)
        is_unknown_number = (numbers < 0) | (numbers >= len(self.writer_symbols))
        if is_unknown_number.any():
            cursor.fail(lanes[is_unknown_number], f"{self.path}: there is no such symbol")
        numbers[is_unknown_number] = 0
        values = self.symbols.take(pa.array(numbers))
        if values.null_count:
            missing = np.flatnonzero(np.asarray(values.is_null()))
            symbol = self.writer_symbols[numbers[missing[0]]]
            cursor.fail(lanes[missing], f"{self.path}: the reader has no symbol {symbol!r}, and no default")
        return values

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        cursor.read_longs(lanes, self.path)


class Converted(AvroNode):
    """A value in another type of the reader's, without loss."""

    def __init__(self, node: AvroNode, convert: Callable[[pa.Array], pa.Array], target: pa.DataType) -> None:
        super().__init__(node.path)
        self.node, self.convert, self.target = node, convert, target
        self.bytes_min, self.is_fixed = node.bytes_min, node.is_fixed

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return converted(self.node.read(cursor, lanes), self.target, cursor, lanes, self.path, self.convert)

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        self.node.skip(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        self.node.scan(scan)


def _with_its_precision(values: pa.Array) -> pa.Array:
    values.validate(full=True)
    return values


def converted(
    read: pa.Array,
    target: pa.DataType,
    cursor: Cursor,
    lanes: Lanes,
    path: str,
    convert: Callable[[pa.Array], pa.Array] | None = None,
) -> pa.Array:
    """Return the values in the reader's type. A record whose value does not fit the type counts as damaged."""

    try:
        return read.cast(target) if convert is None else convert(read)
    except pa.ArrowException as error:
        if len(read) == 1:
            cursor.fail(lanes, f"{path}: {error}")
            return pa.nulls(1, target)
    if cursor.is_damaged(lanes).all():  # the items of a record behind one that is damaged
        return pa.nulls(len(read), target)
    middle = len(read) // 2  # few are damaged, and those are found by halves
    halves = (slice(0, middle), slice(middle, None))
    return pa.concat_arrays([converted(read[half], target, cursor, lanes[half], path, convert) for half in halves])
