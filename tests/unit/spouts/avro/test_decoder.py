"""What is read of Avro records: as fastavro reads them, whatever is damaged, and by whatever schema."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spouts.avro import nodes
from spouts.avro.cursor import Cursor, Longs
from spouts.avro.decoder import Decoder
from spouts.avro.reader_types import type_from_avro
from spouts.avro.schema import AvroField, AvroSchemaError, AvroType
from tests.unit.spouts.avro.differential import compared, compared_pair, damaged, same
from tests.unit.spouts.avro.drawing import Drawn, by_fastavro, decoded, read_of, written
from transactional.model.arrow.zones import naive_times_in


@pytest.mark.parametrize("seed", range(20))
def test_records_are_read_as_by_fastavro(seed: int) -> None:
    drawn = Drawn(Random(seed))
    schema = drawn.schema()
    payloads, reader = written(schema, [drawn.value(schema) for _ in range(30 + 50 * (seed % 2))]), read_of(schema)
    assert decoded(schema, payloads, reader) == [by_fastavro(each, schema, reader) for each in payloads]


def test_exactly_those_that_are_damaged_are_at_fault() -> None:
    done, bad = compared(0, 1_000)
    assert done // 10 < bad < done


def test_another_schema_reads_what_the_specification_says() -> None:
    found = [compared_pair(seed) for seed in range(60)]
    assert 0 < sum(bad for _, bad in found) < sum(done for done, _ in found) // 2


def test_arrays_and_maps_come_in_blocks_of_which_some_have_sizes() -> None:
    """Those are written as the negative number of items, and how many bytes they take; here -2 in 4, then 1 in 2."""
    fields = [{"name": "a", "type": {"type": "array", "items": "int"}}, {"name": "n", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    payloads = [bytes([3, 4, 2, 4, 2, 6, 0, 14]), bytes([2, 2, 1, 2, 4, 0, 16]), bytes([0, 18])]
    expected = [{"a": [1, 2, 3], "n": 7}, {"a": [1, 2], "n": 8}, {"a": [], "n": 9}]
    assert [by_fastavro(each, schema) for each in payloads] == expected
    assert decoded(schema, payloads, schema) == expected
    assert decoded(schema, payloads, {**schema, "fields": fields[1:]}) == [{"n": each["n"]} for each in expected]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(40))
def test_a_record_is_read_the_same_alone_and_among_others(seed: int) -> None:
    """Also what is wrong with it has the same words."""
    drawn = Drawn(Random(seed))
    schema = drawn.schema()
    payloads = [damaged(drawn.random, each) for each in written(schema, [drawn.value(schema) for _ in range(80)])]
    together = decoded(schema, payloads, read_of(schema))
    assert same(together) == same([one for each in payloads for one in decoded(schema, [each], read_of(schema))])


PAIR = {"type": "record", "name": "P", "fields": [{"name": "k", "type": "string"}, {"name": "v", "type": "double"}]}
LISTS = {"type": "array", "items": ["null", "string"]}


@pytest.mark.parametrize(
    ("items", "item"), [("double", 1.5), ("long", 300), (PAIR, {"k": "x", "v": 2.5}), (LISTS, ["a", None])]
)
def test_a_long_array_takes_no_more_steps_than_a_short_one(
    items: Any, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is read, and one that is passed by. A step takes 10 µs or more, for any number of items."""
    steps, positions_of = [0], Cursor._positions_of

    def count_step(cursor: Cursor, lanes: Longs) -> Longs:
        steps[0] += 1
        return positions_of(cursor, lanes)

    monkeypatch.setattr(Cursor, "_positions_of", count_step)
    array = {"type": "array", "items": items}
    fields = [{"name": "a", "type": array}, {"name": "n", "type": "int"}]
    unread = {"name": "unread", "type": {"type": "array", "items": items if items is not PAIR else "P"}}
    writer = {"type": "record", "name": "R", "fields": [fields[0], unread, fields[1]]}
    taken = list[int]()
    for number in (10, 3_000):
        value = {"a": [item] * number, "n": 5}
        payloads, steps[0] = written(writer, [value | {"unread": value["a"]}]), 0
        assert decoded(writer, payloads, {**writer, "fields": fields}) == [value]
        taken.append(steps[0])
    assert taken[1] <= 2 * taken[0]


@pytest.mark.parametrize("others", [0, 99])
def test_items_without_bytes_are_counted_in_all_arrays_of_a_record(others: int) -> None:
    """Otherwise 602 bytes are 15 million items."""
    lists = {"type": "array", "items": {"type": "array", "items": "null"}}
    fields = [{"name": "a", "type": lists}, {"name": "b", "type": lists["items"]}]
    schema = {"type": "record", "name": "R", "fields": fields}
    most = {"a": [[None] * 200] * 4, "b": [None] * 200}
    payloads = written(schema, [most, most | {"b": [None] * 201}, most | {"a": [[None] * 200] * 6, "b": []}])
    readable = {"type": "record", "name": "R", "fields": [{"name": "c", "type": "int", "default": 7}]}
    read = decoded(schema, payloads + payloads[:1] * others, readable)
    assert [str(each) for each in read[:3]] == [
        "{'c': 7}",
        "b: more than 1,000 items of a record take no bytes",
        "a[]: more than 1,000 items of a record take no bytes",
    ]


def test_of_many_bad_items_of_a_record_the_first_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, convert = [0], nodes.converted

    def count_step(*args: Any) -> pa.Array:
        steps[0] += 1
        return convert(*args)

    monkeypatch.setattr(nodes, "converted", count_step)
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "bytes"}}]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "string"}}]}
    [why] = decoded(schema, written(schema, [{"a": [b"x", *[b"\xff"] * 5_000]}]), reader)
    assert (str(why), steps[0] < 50) == ("a[]: Invalid UTF8 payload", True)


@pytest.mark.parametrize(("zone", "hour"), [(None, 12), ("UTC", 12), ("Europe/Berlin", 10)])
def test_local_times_are_in_the_zone_that_the_topology_names(zone: str | None, hour: int) -> None:
    at = {"type": "long", "logicalType": "local-timestamp-micros"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": at}]}
    payloads = written(schema, [{"at": datetime(2026, 7, 1, 12)}])  # noqa: DTZ001
    with naive_times_in(zone):
        assert decoded(schema, payloads, schema) == [{"at": datetime(2026, 7, 1, hour, tzinfo=UTC)}]


@pytest.mark.parametrize("names", [("x",), ("x", "y"), ("y", "z")])
def test_each_record_of_a_union_at_the_top_is_read_by_its_names(names: tuple[str, ...]) -> None:
    one = {"type": "record", "name": "A", "fields": [{"name": "n", "type": "long"}, {"name": "x", "type": "string"}]}
    other = {"type": "record", "name": "B", "fields": [{"name": "y", "type": "int"}]}
    fields = [{"name": name, "type": ["null", "int" if name == "y" else "string"], "default": None} for name in names]
    payloads = written(
        ["null", one, other], [("A", {"n": 7, "x": "q"}), ("B", {"y": 3}), None, ("A", {"n": 1, "x": ""})]
    )
    *rows, why, last = decoded(
        ["null", one, other], [*payloads, b"\6"], {"type": "record", "name": "R", "fields": fields}
    )
    assert [*rows[:2], why] == [{n: v.get(n) for n in names} for v in ({"x": "q"}, {"y": 3}, {"x": ""})]
    assert [str(rows[2]), str(last)] == ["it is null, and no record", "the value: there is no such branch"]


def test_a_union_at_the_top_of_records_and_others_is_read_as_one_field_only() -> None:
    record = AvroType("record", "A", fields=(AvroField("x", AvroType("string")),))
    union, text = AvroType("union", branches=(AvroType("string"), record)), AvroType("string")
    fields = tuple(AvroField(name, text) for name in "xy")
    with pytest.raises(AvroSchemaError, match=r"union of string, record A, .*all types of a union have to be records"):
        Decoder(union, type_from_avro(AvroType("record", "R", fields=fields)))
    Decoder(union, type_from_avro(AvroType("record", "R", fields=fields[:1])))
