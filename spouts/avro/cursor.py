"""`Cursor`: where each of many Avro records has been read up to. All of them are read side by side."""

from __future__ import annotations

import copy

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spouts.avro.scan import EMPTY_ITEMS_MAX, VARINT_BYTES, Scan, explain_count

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Lanes = Longs
"""The numbers of the records from which something is read next. No number comes twice."""

_INLINE_BYTES = 12
_ZEROS = 64
_ONE = np.uint64(1)
_HIGH_BITS = np.uint64(0x8080808080808080)
_HALVES = [
    tuple(map(np.uint64, half))
    for half in (
        (1, 0x7F007F007F007F00, 0x007F007F007F007F),
        (2, 0x3FFF00003FFF0000, 0x00003FFF00003FFF),
        (4, 0x0FFFFFFF00000000, 0x000000000FFFFFFF),
    )
]
"""Shifts and masks that join the seven bits of each byte: of two bytes, then of four, then of eight."""
_SHORT: Longs = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(256)], np.int64)
"""The number that each single byte stands for."""


class Cursor:
    """The positions in payloads, which lie one behind the other.

    A damaged record continues in a place of zeros, which can be read as every type, so that it disturbs no other.
    `problems` has the reasons by the numbers of the records.
    """

    def __init__(self, payloads: pa.Array, room: int = 0) -> None:
        """Begin at the first byte of each record. `payloads` is an array of binary; a record without one is damaged.
        `room` is the largest number of bytes that is read at once, apart from texts."""
        count, (_, offsets, data) = len(payloads), payloads.buffers()
        ends = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + count + 1].astype(np.int64)
        used = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]] if count else np.zeros(0, np.uint8)
        self.data: Bytes = np.concatenate([used, np.zeros(room + _ZEROS, np.uint8)])
        # The eight bytes from each byte on.
        self.words: NDArray[np.uint64] = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))
        self._buffer = pa.py_buffer(self.data)
        self._zeros = len(used)
        ends -= ends[0]
        self.position, self._end = ends[:-1].copy(), ends[1:].copy()
        self.problems = dict[int, str]()
        self.depth = 0
        self._is_damaged = np.zeros(count, np.bool_)
        self._empty_items = np.zeros(count, np.int64)
        self._records: Lanes | None = None
        if payloads.null_count:
            self.fail(np.flatnonzero(~np.asarray(payloads.is_valid())), "the record has none")

    def all_lanes(self) -> Lanes:
        """Return the numbers of all records."""
        return np.arange(len(self.position), dtype=np.int64)

    def items(self, begin: Longs, records: Lanes) -> Cursor:
        """Return another cursor over items of these records, in ascending order, as if each item was a record.
        `take_problems` brings their problems back."""
        items = copy.copy(self)
        items.position, items._end, items._records = begin, self._end[records], records
        items.problems = dict[int, str]()
        items._is_damaged, items._empty_items = np.zeros(len(begin), np.bool_), np.zeros(len(begin), np.int64)
        return items

    def take_problems(self, items: Cursor) -> None:
        """Fail the records of which an item has failed, each with the reason of its first one."""
        assert items._records is not None
        for item in sorted(items.problems):
            self.fail(items._records[item : item + 1], items.problems[item])

    def scan(self, lane: int) -> Scan:
        """Return the rest of one record."""
        begin, end = int(self.position[lane]), int(self._end[lane])
        return Scan(self.data.data, begin, end, self.depth, int(self._empty_items[lane]))

    def move(self, lane: int, scan: Scan) -> None:
        """Continue in a record where a scan has ended."""
        self.position[lane], self._empty_items[lane] = scan.position, scan.empty_items

    def count_items(self, lanes: Lanes, counts: Longs, bytes_min: int, path: str) -> None:
        """Fail records whose block can't have so many items."""
        if bytes_min:
            counts_max = self.remaining_bytes(lanes) // bytes_min
        else:
            counts_max = EMPTY_ITEMS_MAX - self._empty_items[lanes]
            self._empty_items[lanes] += np.clip(counts, 0, EMPTY_ITEMS_MAX + 1)
        is_impossible = (counts < 0) | (counts > counts_max)
        if is_impossible.any():
            self.fail(lanes[is_impossible], explain_count(path, bytes_min))

    def fail(self, lanes: Lanes, reason: str) -> None:
        """Mark records as damaged. An item takes the later items of its record along."""
        damaged = lanes
        if self._records is not None:
            records, places = np.unique(self._records[lanes], return_index=True)
            lanes, ends = lanes[places], np.searchsorted(self._records, records, side="right")
            later_items = [np.arange(*span) for span in zip(lanes.tolist(), ends.tolist(), strict=True)]
            damaged = np.concatenate([lanes, *later_items])
        for lane in lanes.tolist():
            self.problems.setdefault(lane, reason)
        self._is_damaged[damaged] = True
        self.position[damaged] = self._zeros
        self._end[damaged] = len(self.data)

    def is_damaged(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Return for each record whether it is damaged."""
        return self._is_damaged[lanes]

    def read_longs(self, lanes: Lanes, field: str) -> Longs:
        """Read the next number of each record: of variable length, in zigzag. `field` is for messages."""
        positions = self._positions_of(lanes)
        byte = self.data[positions]
        numbers: Longs = _SHORT[byte]
        more = np.flatnonzero(byte & 0x80)
        if not len(more):
            positions += 1
            self._move(lanes, positions, field)
            return numbers
        sizes = np.ones(len(lanes), np.int64)
        numbers[more], sizes[more] = self._read_numbers_and_sizes(positions[more])
        positions += sizes
        unended = np.flatnonzero(sizes > VARINT_BYTES)
        # A number that is cut short looks like one without end if the next record's bytes continue it.
        self._move(lanes, positions, field, unended[self.remaining_bytes(lanes[unended]) >= VARINT_BYTES])
        if self.problems:
            numbers[self._is_damaged[lanes]] = 0
        return numbers

    def _read_numbers_and_sizes(self, positions: Longs) -> tuple[Longs, Longs]:
        """Read numbers of several bytes in zigzag. Returns the numbers and how many bytes each takes.

        The size is above `VARINT_BYTES` if a number has no end. The positions are not moved.
        """
        word = self.words[positions]
        ends = ~word & _HIGH_BITS
        # All bits up to those of the first byte without the highest one; all of them where there is none.
        used = ends ^ (ends - _ONE)
        sizes = (np.bitwise_count(used) >> 3).astype(np.int64)
        number = word & used & ~_HIGH_BITS
        for shift, high, low in _HALVES:
            number = (number & high) >> shift | number & low
        for row in np.flatnonzero(ends == 0).tolist():
            number[row], sizes[row] = self._read_number_and_size(int(positions[row]))
        zigzag: Longs = ((number >> _ONE) ^ (~(number & _ONE) + _ONE)).view(np.int64)
        return zigzag, sizes

    def _read_number_and_size(self, position: int) -> tuple[int, int]:
        """Read one number without undoing zigzag: it is 0 if the number has no end."""
        number = 0
        for place, byte in enumerate(self.data[position : position + VARINT_BYTES].tolist()):
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return number & (2**64 - 1), place + 1
        return 0, VARINT_BYTES + 1

    def skip(self, lanes: Lanes, sizes: Longs | int, field: str) -> Longs:
        """Pass so many bytes in each record. Returns where they begin; for a damaged record, the place of zeros."""
        begin = self._positions_of(lanes)
        is_beyond = (sizes < 0) | (sizes > self.remaining_bytes(lanes))
        if is_beyond.any():
            self.fail(lanes[is_beyond], f"{field}: it ends before its schema does")
        if self.problems:
            is_damaged = self._is_damaged[lanes]
            begin[is_damaged] = self._zeros
            sizes = np.where(is_damaged, 0, sizes)
        if len(lanes) == len(self.position):
            self.position = begin + sizes
        else:
            self.position[lanes] = begin + sizes
        return begin

    def remaining_bytes(self, lanes: Lanes) -> Longs:
        """Return how many bytes of each record are still to be read."""
        is_all = len(lanes) == len(self.position)
        remaining: Longs = self._end - self.position if is_all else self._end[lanes] - self.position[lanes]
        return remaining

    def view_texts(self, begin: Longs, sizes: Longs) -> pa.Array:
        """Return bytes of various lengths as views of the payloads. A view holds short ones itself."""
        views = np.empty((len(begin), 4), np.uint32)
        views[:, 0] = sizes
        views[:, 1:3] = self.words[begin].view(np.uint32).reshape(-1, 2)
        views[:, 3] = self.words[begin + 8]
        is_long = sizes > _INLINE_BYTES
        if is_long.any():
            views[is_long, 2], views[is_long, 3] = 0, begin[is_long]
        buffers = [None, pa.py_buffer(views), self._buffer]
        return pa.Array.from_buffers(pa.binary_view(), len(begin), buffers)

    def finish(self) -> None:
        """Fail the records that have bytes left."""
        has_bytes_left = (self.position != self._end) & ~self._is_damaged
        self.fail(np.flatnonzero(has_bytes_left), "it has more bytes than its schema")

    def _positions_of(self, lanes: Lanes) -> Longs:
        positions: Longs = self.position.copy() if len(lanes) == len(self.position) else self.position[lanes]
        return positions

    def _move(self, lanes: Lanes, positions: Longs, field: str, unended: Longs | None = None) -> None:
        if unended is not None and len(unended):
            self.fail(lanes[unended], f"{field}: a number has no end")
            positions[unended] = self._zeros
        wrong = positions > (self._end if len(lanes) == len(self._end) else self._end[lanes])
        if len(lanes) == len(positions) == len(self.position):
            self.position = positions
        else:
            self.position[lanes] = positions
        if wrong.any():
            self.fail(lanes[wrong], f"{field}: it ends before its schema does")
        if self.problems:
            self.position[lanes[self._is_damaged[lanes]]] = self._zeros
