"""The schema ids that Confluent's serializers give to records: in a header, or in front of the payload.

Both begin with a magic byte: 0 is followed by an id of four bytes, 1 by a GUID of sixteen. A header goes before the
payload, as in Confluent's own deserializers.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from spouts.registry.schemas import SchemaId

Part = Literal["key", "value"]

_LENGTHS = {0: 5, 1: 17}
"""The bytes of an id with its magic byte."""


@dataclass(frozen=True, slots=True)
class Unframed:
    """Records without their schema ids. Positions are those of the records, from 0 on.

    `payloads` has one for each record: NULL where the record has no such part, or where no id can be read. `positions`
    are the records of each of the `ids`, ascending, as 64-bit integers. `bad` are the records whose id can't be read,
    and why. `of` says of what the records are.
    """

    payloads: pa.Array
    positions: Mapping[SchemaId, pa.Array]
    bad: Sequence[tuple[int, str]]
    of: str

    @property
    def ids(self) -> tuple[SchemaId, ...]:
        """Each once."""
        return tuple(self.positions)


def unframed(records: pa.RecordBatch, part: Part = "value") -> Unframed:
    """The payloads of records of one topic, and their schema ids. `records` has the columns topic, headers and
    `part`."""
    column, given = records.column(part), _in_headers(records.column("headers"), f"__{part}_schema_id")
    magic = pc.binary_slice(column, 0, 1)
    heads = pc.binary_slice(column, 0, 1)
    payloads = pa.nulls(len(column), pa.binary())
    for number, length in _LENGTHS.items():
        is_so = pc.equal(magic, pa.scalar(bytes([number]), pa.binary()))
        if pc.any(is_so).as_py():
            heads = pc.if_else(is_so, pc.binary_slice(column, 0, length), heads)
            payloads = pc.if_else(is_so, pc.binary_replace_slice(column, 0, length, b""), payloads)
    if given is not None:
        is_given = pc.and_(pc.is_valid(given), pc.is_valid(column))
        heads, payloads = pc.if_else(is_given, given, heads), pc.if_else(is_given, column, payloads)
    return _sorted_out(heads, payloads, f"{part}s of topic {records.column('topic')[0].as_py()!r}")


def without_rows(payloads: pa.Array, rows: Collection[int]) -> pa.Array:
    """The payloads, with NULL in these positions."""
    if not rows:
        return payloads
    left_out = set(rows)
    kept = pa.array([row not in left_out for row in range(len(payloads))], pa.bool_())
    return pc.if_else(kept, payloads, pa.scalar(None, pa.binary()))


def _in_headers(headers: pa.Array, name: str) -> pa.Array | None:
    """The value of each record's first header of this name; None if no record has one."""
    flat = headers.flatten()
    if not len(flat):
        return None
    found = pc.indices_nonzero(pc.equal(flat.field("key"), name))
    if not len(found):
        return None
    rows = pc.list_parent_indices(headers).take(found).to_pylist()
    values: list[bytes | None] = [None] * len(headers)
    for row, value in zip(reversed(rows), reversed(flat.field("value").take(found).to_pylist()), strict=True):
        values[row] = b"" if value is None else value
    return pa.array(values, pa.binary())


def _sorted_out(heads: pa.Array, payloads: pa.Array, of: str) -> Unframed:
    encoded = heads.dictionary_encode()
    read = [_id_of(head) for head in encoded.dictionary.to_pylist()]
    ids = list(dict.fromkeys(each for each in read if not isinstance(each, str)))
    numbers = {each: number for number, each in enumerate(ids)}
    of_head = pa.array([None if isinstance(each, str) else numbers[each] for each in read], pa.int64())
    number_of = of_head.take(encoded.indices)
    bad = [
        (row, str(read[head]))
        for row, head in enumerate(encoded.indices.to_pylist() if len(numbers) < len(set(read)) else ())
        if head is not None and isinstance(read[head], str)
    ]
    if bad:
        payloads = pc.if_else(pc.is_valid(number_of), payloads, pa.scalar(None, pa.binary()))
    return Unframed(payloads, dict(zip(ids, _positions(number_of, len(ids)), strict=True)), bad, of)


def _positions(number_of: pa.Array, count: int) -> list[pa.Array]:
    """The positions of each number, which NULL is not: sorted they stand last."""
    if count <= 1:
        return [pc.indices_nonzero(pc.is_valid(number_of)).cast(pa.int64())] * count
    order = pc.sort_indices(number_of).cast(pa.int64())
    counts = {each["values"]: each["counts"] for each in pc.value_counts(number_of).to_pylist()}
    parts, start = [], 0
    for number in range(count):
        parts.append(order.slice(start, counts[number]))
        start += counts[number]
    return parts


def _id_of(head: bytes) -> SchemaId | str:
    """The id that begins with a magic byte; or why there is none."""
    length = _LENGTHS.get(head[0]) if head else None
    if length is None:
        return "it has no schema id, neither in a header nor in front"
    if len(head) != length:
        return f"its schema id has {len(head)} bytes, not {length}"
    return int.from_bytes(head[1:], "big") if length == _LENGTHS[0] else uuid.UUID(bytes=head[1:])
