"""What reads one type of the writer as one of the reader: a tree of nodes, made once for a schema (see `resolution`).
Those that have others below them are in `nested`.

Every node can `skip` what the writer has written, and most can `read` it, as an Arrow array with an entry for each of
the given records. Records that are found to be damaged are noted at the cursor; their entries mean nothing. Every node
can also `scan` the next value of a single record, without reading it.
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
    """One type. `path` is the field, for messages; `bytes_min` the fewest bytes that a value takes, with `is_fixed`
    those of every value."""

    bytes_min = 1
    is_fixed = False

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        """The next value of each of these records."""
        raise NotImplementedError

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        """Pass it by."""
        self.read(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        """Pass it by in a single record. Raises `ScanError`."""
        if self.is_fixed:
            scan.skip(self.bytes_min, self.path)
        else:
            scan.long(self.path)


class Mismatched(AvroNode):
    """Passes a value by that can't be read as what is wanted: its record is at fault."""

    def __init__(self, path: str, node: AvroNode, why: str) -> None:
        super().__init__(path)
        self.node, self.why, self.bytes_min, self.is_fixed = node, why, node.bytes_min, node.is_fixed

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        cursor.fail(lanes, self.why)
        return pa.nulls(len(lanes))

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        self.node.skip(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        self.node.scan(scan)


class Null(AvroNode):
    """No bytes."""

    bytes_min = 0
    is_fixed = True

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return pa.nulls(len(lanes))


class Boolean(AvroNode):
    """A byte."""

    is_fixed = True

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
            for row in wrong.tolist():
                cursor.fail(lanes[row : row + 1], f"{self.path}: {numbers[row]} is no int")
            return pa.array(narrow)
        return pa.array(numbers)


class Float(AvroNode):
    """A float or a double."""

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

    def scan(self, scan: Scan) -> None:
        scan.skip(scan.long(self.path), self.path)


class Fixed(AvroNode):
    """So many bytes."""

    is_fixed = True

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
        self.bytes_min, self.is_fixed = (1, False) if size is None else (size, True)

    def scan(self, scan: Scan) -> None:
        scan.skip(scan.long(self.path) if self.size is None else self.size, self.path)

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


class Converted(AvroNode):
    """A value in another type of the reader's, without loss."""

    def __init__(self, node: AvroNode, convert: Callable[[pa.Array], pa.Array], wanted: pa.DataType) -> None:
        super().__init__(node.path)
        self.node, self.convert, self.wanted = node, convert, wanted
        self.bytes_min, self.is_fixed = node.bytes_min, node.is_fixed

    def read(self, cursor: Cursor, lanes: Lanes) -> pa.Array:
        return converted(self.node.read(cursor, lanes), self.wanted, cursor, lanes, self.path, self.convert)

    def skip(self, cursor: Cursor, lanes: Lanes) -> None:
        self.node.skip(cursor, lanes)

    def scan(self, scan: Scan) -> None:
        self.node.scan(scan)


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

    try:
        return read.cast(wanted) if convert is None else convert(read)
    except pa.ArrowException as error:
        if len(read) == 1:
            cursor.fail(lanes, f"{path}: {error}")
            return pa.nulls(1, wanted)
    if cursor.is_damaged(lanes).all():  # the items of a record behind one that is damaged
        return pa.nulls(len(read), wanted)
    middle = len(read) // 2  # few are damaged, and those are found by halves
    halves = (slice(0, middle), slice(middle, None))
    return pa.concat_arrays([converted(read[half], wanted, cursor, lanes[half], path, convert) for half in halves])
