"""`JsonTranslator` at once and record by record: a small part of what `tests/proof/test_json.py` compares."""

from __future__ import annotations

from codecs import BOM_UTF8
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from spouts.decoding.json_records import _Parser
from tests.unit.spouts.decoding.json_differential import compared
from transactional.model.arrow.zones import naive_times_in
from transactional.model.schema import Schema


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_many_hostile_records_are_read_as_each_of_them_alone(seed: int) -> None:
    done, bad = compared(seed, 6_000)
    assert done > bad


@pytest.mark.parametrize(
    ("last", "bad"),
    [
        ([b'{"h":', b'{"x":1}}', b"{}{}"], 3),
        ([b'{"z":[{}', b"]}", b"{}{}"], 3),
        ([b"{}{}\0}", b"{}"], 1),
        ([b'{"a":"\xc3"}', b'{"a":"\xa9"}'], 2),
    ],
)
def test_bad_records_do_not_make_up_for_each_other(last: list[bytes], bad: int) -> None:
    """In one piece they have as many objects as there are records."""
    parser = _Parser(Schema.parse("a string, h struct<x:int>"))
    found, refused = parser.parse(pa.array([*([b"{}"] * 1_000), *last], pa.binary()))
    assert refused == list(range(1_000, 1_000 + bad))
    assert found.num_rows == 1_000 + len(last) - bad


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("type_", "shape"),
    [("double", "{}"), ("float", "{}"), ("array<double>", "[1.5,{}]"), ("struct<y:double>", '{{"y":{}}}')],
)
@pytest.mark.parametrize("count", [1, 2_000])
def test_what_is_no_json_number_is_refused(text: str, type_: str, shape: str, count: int) -> None:
    good, bad = (f'{{"x":{shape.format(each)}}}'.encode() for each in ("2.5", text))
    parser = _Parser(Schema.parse(f"x {type_}"))
    found, refused = parser.parse(pa.array([good] * count + [bad, b"{}"], pa.binary()))
    assert (found.num_rows, refused) == (count + 1, [count])
    assert parser.reason(bad) == "a number is NaN or infinite, which is no JSON"


@pytest.mark.parametrize("count", [1, 2_000])
def test_a_byte_order_mark_is_passed_over(count: int) -> None:
    """Other parsers that read bytes do so, too: Kafka Connect's, and Spark's."""
    parser = _Parser(Schema.parse("x long"))
    batch, refused = parser.parse(pa.array([b'{"x":1}'] * count + [BOM_UTF8 + b'{"x":2}\n', BOM_UTF8], pa.binary()))
    assert (batch.column("x").to_pylist()[-2:], refused) == (([1] * count + [2])[-2:], [count + 1])
    assert parser.reason(BOM_UTF8 + b'{"x":"a"}') == parser.reason(b'{"x":"a"}')


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_the_byte_order_mark_of_another_encoding_is_named(encoding: str) -> None:
    parser, value = _Parser(Schema.parse("x long")), '\ufeff{"x":1}'.encode(encoding)
    assert parser.parse(pa.array([value], pa.binary()))[1] == [0]
    name = encoding[:6].upper()
    assert parser.reason(value) == f"it begins with the byte order mark (BOM) of {name}, and JSON is UTF-8"


@pytest.mark.parametrize(("zone", "local_hour"), [(None, 12), ("UTC", 12), ("Europe/Berlin", 10)])
@pytest.mark.parametrize("count", [1, 2_000])
def test_times_without_an_offset_are_in_the_zone_that_the_topology_names(
    zone: str | None, local_hour: int, count: int
) -> None:
    record = b"""{"t": "2026-06-01T12:00:00", "nested": [{"t": "2026-06-01 12:00", "n": 1}, {"t": null}, null],
        "d": "2026-06-01", "utc": "2026-06-01T12:00:00Z", "other": "2026-06-01T12:00:00.5-05"}""".replace(b"\n", b"")
    schema = Schema.parse(
        "t timestamp, nested array<struct<t:timestamp,n:long>>, d date, utc timestamp, other timestamp"
    )
    with naive_times_in(zone):
        batch, refused = _Parser(schema).parse(pa.array([record] * count + [b'{"t":"noon"}', b"{}"], pa.binary()))
    local = datetime(2026, 6, 1, local_hour, tzinfo=UTC)
    expected = {
        "t": local,
        "nested": [{"t": local, "n": 1}, {"t": None, "n": None}, None],
        "d": date(2026, 6, 1),
        "utc": datetime(2026, 6, 1, 12, tzinfo=UTC),
        "other": datetime(2026, 6, 1, 17, 0, 0, 500_000, tzinfo=UTC),
    }
    assert (batch.to_pylist(), refused) == ([*[expected] * count, dict.fromkeys(expected)], [count])
