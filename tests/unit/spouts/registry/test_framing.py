"""Schema ids of records: in a header, in front of the payload, neither, and damaged; all in one batch."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spouts.kafka.records import record_schema
from spouts.registry.framing import Part, Unframed, unframed
from spouts.registry.schemas import SchemaId
from transactional.model.arrow import arrow_schema

GUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NO_ID = "it has no schema id, neither in a header nor in front"
Record = tuple[bytes | None, list[tuple[str, bytes | None]]]


def of(records: Sequence[Record], part: Part = "value") -> Unframed:
    rows = [
        {"topic": "t", part: value, "headers": [{"key": key, "value": given} for key, given in headers]}
        for value, headers in records
    ]
    schema = arrow_schema(record_schema(("topic", part, "headers")))
    return unframed(pa.RecordBatch.from_pylist(rows, schema=schema), part)


def plain(record: Record, part: Part = "value") -> tuple[SchemaId | None, bytes | None, str | None]:
    """The same for one record: id, payload, or what is wrong."""
    value, headers = record
    if value is None:
        return None, None, None
    given = [each or b"" for key, each in headers if key == f"__{part}_schema_id"]
    head = given[0] if given else value[: {0: 5, 1: 17}.get(value[0], 1)] if value else b""
    length = {0: 5, 1: 17}.get(head[0]) if head else None
    if length is None:
        return None, None, NO_ID
    if len(head) != length:
        return None, None, f"its schema id has {len(head)} bytes, not {length}"
    found = int.from_bytes(head[1:], "big") if length == 5 else uuid.UUID(bytes=head[1:])
    return found, value if given else value[length:], None


def by_record(framed: Unframed) -> list[tuple[SchemaId | None, bytes | None, str | None]]:
    ids = {row: each for each, rows in framed.positions.items() for row in rows.to_pylist()}
    assert sum(map(len, framed.positions.values())) == len(ids), "a record has one id"
    assert all(rows.to_pylist() == sorted(rows.to_pylist()) for rows in framed.positions.values())
    bad: dict[int, Any] = dict(framed.bad)
    return [(ids.get(row), each, bad.get(row)) for row, each in enumerate(framed.payloads.to_pylist())]


def test_ids_are_found_in_headers_and_in_front_of_payloads() -> None:
    records: list[Record] = [
        (b"\0\0\0\0\7{}", []),
        (b"\1" + GUID.bytes + b"[]", [("other", b"x")]),
        (b"whole", [("__value_schema_id", b"\0\0\0\0\7"), ("__value_schema_id", b"no")]),
        (b"whole", [("__value_schema_id", b"\1" + GUID.bytes)]),
        (None, [("__value_schema_id", b"\0\0\0\0\7")]),
        (b"{}", []),
        (b"", []),
        (b"\0\0\0", []),
        (b"\0\0\0\0\1x", [("__value_schema_id", None), ("__key_schema_id", b"\0\0\0\0\2")]),
    ]
    assert by_record(of(records)) == [
        (7, b"{}", None),
        (GUID, b"[]", None),
        (7, b"whole", None),
        (GUID, b"whole", None),
        (None, None, None),
        (None, None, NO_ID),
        (None, None, NO_ID),
        (None, None, "its schema id has 3 bytes, not 5"),
        (None, None, NO_ID),
    ]
    assert of(records).ids == (7, GUID)


def test_keys_have_headers_of_their_own() -> None:
    record: Record = (b"\0\0\0\0\1x", [("__value_schema_id", b"\0\0\0\0\2")])
    assert by_record(of([record], "key")) == [(1, b"x", None)]
    assert of([record], "key").description == "keys of topic 't'"


HEADS = st.sampled_from([b"", b"\0", b"\1", b"\2", b"{", b"\0\0\0\0\1", b"\0\0\0\1\0", b"\1" + GUID.bytes])
VALUES = st.none() | st.tuples(HEADS, st.binary(max_size=3)).map(b"".join)
NAMES = st.sampled_from(["__value_schema_id", "__key_schema_id", "x"])
RECORDS = st.tuples(VALUES, st.lists(st.tuples(NAMES, st.none() | HEADS), max_size=2))


@given(st.lists(RECORDS, min_size=1, max_size=12))
def test_records_are_told_apart_as_if_each_came_alone(records: list[Record]) -> None:
    assert by_record(of(records)) == [plain(record) for record in records]
