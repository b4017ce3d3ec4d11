"""`JsonTranslator` at once and record by record: a small part of what `tests/proof/test_json.py` compares."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spouts.decoding.json_records import _Parser
from tests.unit.spouts.decoding.json_differential import compared
from transactional.schema import Schema


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
