"""`Scan`: one Avro record, value by value.

It finds where the items of a long array begin, so that these can be read side by side, as records are. Only bytes are
looked at: what values are, and what is wrong with them, is for the nodes to say.
"""

from __future__ import annotations

VARINT_BYTES = 10
_LONG_MASK = 2**64 - 1
EMPTY_ITEMS_MAX = 1_000
"""Items without bytes, such as null, in all arrays of a record together: a few bytes may claim any number."""


def explain_count(path: str, bytes_min: int) -> str:
    """Return why a block can't have so many items."""
    if bytes_min:
        return f"{path}: it ends before"
    return f"{path}: more than {EMPTY_ITEMS_MAX:,} items of a record take no bytes"


class ScanError(Exception):
    """The bytes are no number of the schema."""


class Scan:
    """The `position` in a record that ends at `end`. `data` has zeros behind the last record.

    `depth` is the number of types within themselves that are being passed by, `empty_items` that of items without
    bytes.
    """

    def __init__(self, data: memoryview, position: int, end: int, depth: int, empty_items: int) -> None:
        self.data, self.position, self.end = data, position, end
        self.depth, self.empty_items = depth, empty_items

    def long(self, path: str) -> int:
        """Read a number: variable length, zigzag."""
        position = self.position
        byte = self.data[position]
        if byte < 0x80 and position < self.end:
            self.position = position + 1
            return (byte >> 1) ^ -(byte & 1)
        number = byte & 0x7F
        while byte >= 0x80:
            position += 1
            byte = self.data[position]
            if position - self.position == VARINT_BYTES:
                is_cut = self.end - self.position < VARINT_BYTES
                raise ScanError(f"{path}: {'it ends before its schema does' if is_cut else 'a number has no end'}")
            number |= (byte & 0x7F) << (7 * (position - self.position))
        if position >= self.end:
            raise ScanError(f"{path}: it ends before its schema does")
        self.position = position + 1
        number &= _LONG_MASK
        return (number >> 1) ^ -(number & 1)

    def skip(self, size: int, path: str) -> None:
        """Pass this number of bytes."""
        if not 0 <= size <= self.end - self.position:
            raise ScanError(f"{path}: it ends before its schema does")
        self.position += size

    def count_items(self, count: int, bytes_min: int, path: str) -> None:
        """Raise `ScanError` if a block can't have so many items."""
        count_max = (self.end - self.position) // bytes_min if bytes_min else EMPTY_ITEMS_MAX - self.empty_items
        self.empty_items += 0 if bytes_min else count
        if not 0 <= count <= count_max:
            raise ScanError(explain_count(path, bytes_min))
