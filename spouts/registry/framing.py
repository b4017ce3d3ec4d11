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
    and why. `description` says for messages of what the records are.
    """

    payloads: pa.Array
    positions: Mapping[SchemaId, pa.Array]
    bad: Sequence[tuple[int, str]]
    description: str

    @property
    def ids(self) -> tuple[SchemaId, ...]:
        """The schema ids of the records, each once."""
        return tuple(self.positions)


def unframed(records: pa.RecordBatch, part: Part = "value") -> Unframed:
    """Split records of one topic into payloads and schema ids. `records` has the columns topic, headers and
    `part`."""
    column, ids_in_headers = records.column(part), _in_headers(records.column("headers"), f"__{part}_schema_id")
    magic = pc.binary_slice(column, 0, 1)
    heads = pc.binary_slice(column, 0, 1)
    payloads = pa.nulls(len(column), pa.binary())
    for number, length in _LENGTHS.items():
        has_magic = pc.equal(magic, pa.scalar(bytes([number]), pa.binary()))
        if pc.any(has_magic).as_py():
            heads = pc.if_else(has_magic, pc.binary_slice(column, 0, length), heads)
            payloads = pc.if_else(has_magic, pc.binary_replace_slice(column, 0, length, b""), payloads)
    if ids_in_headers is not None:
        has_header = pc.and_(pc.is_valid(ids_in_headers), pc.is_valid(column))
        heads, payloads = pc.if_else(has_header, ids_in_headers, heads), pc.if_else(has_header, column, payloads)
    return _group_by_id(heads, payloads, f"{part}s of topic {records.column('topic')[0].as_py()!r}")


def without_rows(payloads: pa.Array, rows: Collection[int]) -> pa.Array:
    """Return the payloads, with NULL in these positions."""
    if not rows:
        return payloads
    left_out = set(rows)
    is_kept = pa.array([row not in left_out for row in range(len(payloads))], pa.bool_())
    return pc.if_else(is_kept, payloads, pa.scalar(None, pa.binary()))


def _in_headers(headers: pa.Array, name: str) -> pa.Array | None:
    """Return the value of each record's first header of this name; None if no record has one."""
    flat = headers.flatten()
    if not len(flat):
        return None
    matching = pc.indices_nonzero(pc.equal(flat.field("key"), name))
    if not len(matching):
        return None
    rows = pc.list_parent_indices(headers).take(matching).to_pylist()
    values: list[bytes | None] = [None] * len(headers)
    for row, value in zip(reversed(rows), reversed(flat.field("value").take(matching).to_pylist()), strict=True):
        values[row] = b"" if value is None else value
    return pa.array(values, pa.binary())


def _group_by_id(heads: pa.Array, payloads: pa.Array, description: str) -> Unframed:
    encoded = heads.dictionary_encode()
    ids_or_reasons = [_id_of(head) for head in encoded.dictionary.to_pylist()]
    ids = list(dict.fromkeys(id_ for id_ in ids_or_reasons if not isinstance(id_, str)))
    numbers = {schema_id: number for number, schema_id in enumerate(ids)}
    number_of_head = pa.array([None if isinstance(id_, str) else numbers[id_] for id_ in ids_or_reasons], pa.int64())
    number_of = number_of_head.take(encoded.indices)
    bad = [
        (row, str(ids_or_reasons[head]))
        for row, head in enumerate(encoded.indices.to_pylist() if len(numbers) < len(set(ids_or_reasons)) else ())
        if head is not None and isinstance(ids_or_reasons[head], str)
    ]
    if bad:
        payloads = pc.if_else(pc.is_valid(number_of), payloads, pa.scalar(None, pa.binary()))
    return Unframed(payloads, dict(zip(ids, _positions(number_of, len(ids)), strict=True)), bad, description)


def _positions(number_of: pa.Array, count: int) -> list[pa.Array]:
    """Return the positions of each number. NULLs are sorted behind all numbers."""
    if count <= 1:
        return [pc.indices_nonzero(pc.is_valid(number_of)).cast(pa.int64())] * count
    order = pc.sort_indices(number_of).cast(pa.int64())
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(number_of).to_pylist()}
    parts, start = [], 0
    for number in range(count):
        parts.append(order.slice(start, counts[number]))
        start += counts[number]
    return parts


def _id_of(head: bytes) -> SchemaId | str:
    """Return the id behind a magic byte, or why there is none."""
    length = _LENGTHS.get(head[0]) if head else None
    if length is None:
        return "it has no schema id, neither in a header nor in front"
    if len(head) != length:
        return f"its schema id has {len(head)} bytes, not {length}"
    return int.from_bytes(head[1:], "big") if length == _LENGTHS[0] else uuid.UUID(bytes=head[1:])
