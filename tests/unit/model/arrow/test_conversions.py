"""Types between Spark's DDL and Arrow, checked rows, digests that don't see how records are cut, stable hashing."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.model.arrow.keys import tasks_of_keys
from transactional.errors import ConfigError, SchemaMismatch
from transactional.model.arrow import (
    RecordDigest,
    arrow_schema,
    arrow_type,
    batch_from_rows,
    conform,
    declared_schema,
    from_ipc,
    rows_by_task,
    spark_type,
    task_of_rows,
    to_ipc,
)
from transactional.model.schema import Schema

TYPES = [
    "string",
    "binary",
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "date",
    "timestamp",
    "decimal(10,2)",
    "array<string>",
    "array<decimal(3,1)>",
    "map<string,long>",
    "map<decimal(10,2),array<int>>",
    "map<struct<a:int,b:string>,map<string,long>>",
    "struct<a:int,b:array<string>,c:decimal(4,0)>",
    "map<struct<`a,<b`:int>,struct<`k8s.io/app`:string>>",
]
NOON = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("name", TYPES)
def test_a_type_comes_back_from_arrow_as_it_was(name: str) -> None:
    assert spark_type(arrow_type(name)) == name


def test_a_schema_comes_back_from_arrow_as_it_was() -> None:
    schema = Schema.parse(", ".join(f"f{number} {name}" for number, name in enumerate(TYPES)))
    assert declared_schema(arrow_schema(schema)) == schema
    assert all(field.nullable for field in arrow_schema(schema))


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("ms", tz="Europe/Berlin"), "timestamp"),
        (pa.large_list(pa.int64()), "array<long>"),
    ],
)
def test_other_arrow_types_of_the_same_values(type_: pa.DataType, name: str) -> None:
    assert spark_type(type_) == name


@pytest.mark.parametrize("type_", [pa.uint64(), pa.time64("us"), pa.null(), pa.list_(pa.duration("s"))])
def test_an_arrow_type_without_counterpart_is_reported(type_: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"has no counterpart|the type is void"):
        spark_type(type_)


# --- rows ---------------------------------------------------------------------------------------------------------


def batch(fields: str, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    return batch_from_rows(rows, arrow_schema(Schema.parse(fields)), component="parse")


def test_rows_become_columns_and_come_back() -> None:
    rows = [
        ("cat", b"\0", True, 1, 1.5, NOON, NOON.date(), Decimal("1.10"), ["a", None], {"a": 1}),
        (None,) * 10,
    ]
    fields = "a string, b binary, c boolean, d long, e double, f timestamp, g date, h decimal(5,2), i array<string>"
    made = batch(f"{fields}, j struct<a:long>", *rows)
    assert made.to_pylist() == [dict(zip(made.schema.names, row, strict=True)) for row in rows]
    assert batch("word string").num_rows == 0


def test_a_map_is_given_as_a_dict_or_as_pairs() -> None:
    made = batch("m map<string,long>", ({"a": 1, "b": 2},), ([("a", 1), ("b", 2)],))
    assert made.column("m").to_pylist() == [[("a", 1), ("b", 2)]] * 2


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", 1),
        ("string", "\udc80"),
        ("string", b"\xff"),
        ("binary", 1),
        ("boolean", 1),
        ("byte", 200),
        ("int", 2**31),
        ("long", 2**63),
        ("long", "1"),
        ("long", True),
        ("long", 1.5),
        ("long", 1.0),
        ("int", Decimal(1)),
        ("double", "1.5"),
        ("date", "2013-01-01"),
        ("timestamp", "2013-01-01"),
        ("decimal(3,1)", Decimal("1.25")),
        ("decimal(3,1)", 1.5),
        ("array<string>", 3),
        ("map<string,long>", 3),
        ("struct<a:int>", 3),
        ("long", object()),
        ("float", 1e300),
        ("float", -3.5e38),
        ("date", NOON),
    ],
)
def test_a_value_of_another_type_is_reported_with_component_and_field(type_: str, value: object) -> None:
    told = (
        rf"^'parse' declares field 'second' as {type_.replace('(', '.').replace(')', '.')} and emitted something else: "
    )
    with pytest.raises(SchemaMismatch, match=told):
        batch(f"first string, second {type_}", ("a", None), ("b", value))


@pytest.mark.parametrize(
    ("type_", "value", "told"),
    [
        ("long", "12", "'12' is a value of type str, and a long takes an int$"),
        ("string", 7, "7 is a value of type int, and a string takes a str$"),
        (
            "timestamp",
            "2013-01-01",
            "'2013-01-01' is a value of type str, and a timestamp takes a datetime with a time",
        ),
        ("string", ["a"], r"\['a'\] is a value of type list, and a string takes a str; a list is one value: make it"),
        ("byte", 300, "Value 300 too large"),
    ],
)
def test_the_value_that_does_not_fit_is_named_and_what_would_fit(type_: str, value: object, told: str) -> None:
    with pytest.raises(SchemaMismatch, match=rf"emitted something else: {told}"):
        batch(f"first string, second {type_}", ("a", None), ("b", value))


NARROWED: list[tuple[str, Any, str]] = [
    ("array<int>", [1, 2.5], r"second\[\]: a float is not a whole number"),
    ("array<int>", {2.5}, r"second\[\]: a float"),
    ("array<long>", [Decimal("2.5")], r"second\[\]: a Decimal is not a whole number"),
    ("array<array<int>>", [[1], None, [2.0]], r"second\[\]\[\]: a float"),
    ("array<float>", [1e300], r"second\[\]: 1e\+300 would be infinite"),
    ("array<date>", [NOON], r"second\[\]: a datetime has a time"),
    ("array<string>", "ab", "second: a str is not a list"),
    ("map<string,int>", {"a": 1.5}, r"second\{\}: a float"),
    ("map<string,int>", [("a", 1.5)], r"second\{\}: a float"),
    ("map<int,string>", {1.5: "a"}, r"second\{\} \(keys\): a float"),
    ("struct<a:int>", {"b": 1}, "second: has the fields b; expected a"),
    ("struct<a:int>", {"a": 1, "b": 1}, "second: has the fields a, b; expected a"),
    ("struct<a:int,b:int>", {"a": 1}, "second: has the fields a; expected a, b"),
    ("struct<a:int,b:int>", (1,), "second: has the fields a; expected a, b"),
    ("struct<a:int>", {"a": 2.5}, "second.a: a float"),
    ("struct<a:int>", (2.5,), "second.a: a float"),
    ("array<struct<a:date>>", [{"a": NOON}], r"second\[\]\.a: a datetime"),
]


@pytest.mark.parametrize(("type_", "value", "told"), NARROWED)
def test_a_value_is_narrowed_on_no_level(type_: str, value: Any, told: str) -> None:
    with pytest.raises(SchemaMismatch, match=rf"'parse' declares field 'second' as .*: {told}"):
        batch(f"first string, second {type_}", ("a", None), ("b", value))


def test_what_is_not_narrowed_comes_through_on_every_level() -> None:
    fields = "a array<float>, b struct<x:int,y:array<date>>, c map<string,double>, d struct<x:int>"
    rows = [
        ([3.4028234e38, float("inf"), None], {"y": [NOON.date(), None], "x": 1}, {"a": 1e300, "b": None}, {"x": 5}),
        ([1, float("nan")], {"x": None, "y": None}, {}, None),
        (None, None, None, {"x": 1}),
    ]
    made = batch(fields, *rows)
    assert made.column("b").to_pylist() == [row[1] for row in rows]
    assert made.column("c").to_pylist() == [[("a", 1e300), ("b", None)], [], None]
    assert made.column("d").to_pylist() == [{"x": 5}, None, {"x": 1}]
    assert batch("d struct<x:int,y:int>", ((1, 2),)).to_pylist() == [{"d": {"x": 1, "y": 2}}]


CAST: list[tuple[str, pa.Array, str]] = [
    ("float", pa.array([1e300]), "v: casting double to float"),
    ("date", pa.array([NOON]), r"v: casting timestamp.* to date32"),
    ("boolean", pa.array([2]), "v: casting int64 to bool"),
    ("decimal(10,2)", pa.array([1.005]), "v: casting double to decimal"),
    ("array<float>", pa.array([[1.0], None, [1e300]]), r"v\[\]: casting double to float"),
    ("struct<a:int>", pa.array([{"b": 1}]), "v: has the fields b; expected a"),
    ("array<struct<a:int,b:int>>", pa.array([[{"a": 1}]]), r"v\[\]: has the fields a; expected a, b"),
    ("struct<a:date>", pa.array([{"a": NOON}]), "v.a: casting timestamp"),
    ("map<string,float>", pa.array([[("a", 1e300)]], pa.map_(pa.string(), pa.float64())), r"v\{\}: casting double"),
]


@pytest.mark.parametrize(("type_", "column", "told"), CAST)
def test_a_column_is_narrowed_on_no_level(type_: str, column: pa.Array, told: str) -> None:
    with pytest.raises(SchemaMismatch, match=rf"^'parse' declares .*can't be cast: {told}"):
        conform(pa.table({"v": column}), arrow_schema(Schema.parse(f"v {type_}")), component="parse")


def test_columns_that_keep_their_values_are_cast() -> None:
    fields = "a array<float>, b struct<x:int,y:date>, c map<string,double>, d decimal(10,2)"
    table = pa.table(
        {
            "a": pa.array([[1.5, float("inf"), None], None]),
            "b": pa.array([{"y": NOON.date(), "x": 1}, None]),
            "c": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
            "d": pa.array([1.25, None]),
        }
    )
    [made] = conform(table, arrow_schema(Schema.parse(fields)), component="parse")
    assert made.to_pylist() == [
        {"a": [1.5, float("inf"), None], "b": {"x": 1, "y": NOON.date()}, "c": [("a", 1.0)], "d": Decimal("1.25")},
        {"a": None, "b": None, "c": None, "d": None},
    ]


def test_batches_are_brought_into_their_declared_form() -> None:
    schema = arrow_schema(Schema.parse("word string, count long"))
    made = pa.RecordBatch.from_pydict({"word": pa.array(["a"], pa.large_string()), "count": pa.array([1], pa.int32())})
    [part] = conform(made, schema, component="parse")
    assert part.schema == schema
    assert part.to_pylist() == [{"word": "a", "count": 1}]
    table = pa.concat_tables([pa.Table.from_batches([part])] * 2)
    assert [each.num_rows for each in conform(table, schema, component="parse")] == [1, 1]
    assert conform(part, schema, component="parse") == [part]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pa.table({"word": ["a"]}), r"declares the fields \['word', 'count'\] and emitted \['word'\]"),
        (pa.table({"count": [1], "word": ["a"]}), r"emitted \['count', 'word'\]"),
        (
            pa.table({"word": ["a"], "count": ["b"]}),
            "declares 'word string, count long', what it emitted can't be cast: ",
        ),
        (pa.table({"word": ["a"], "count": [[1]]}), "what it emitted can't be cast: Unsupported cast"),
        (pa.table({"word": ["a"], "count": [1.5]}), "can't be cast: .*truncated"),
        (None, "must emit a RecordBatch or a Table, and emitted a NoneType"),
        ([("a", 1)], "must emit a RecordBatch or a Table, and emitted a list"),
    ],
)
def test_batches_of_another_schema_are_reported(made: Any, expected: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"^'parse' .*{expected}"):
        conform(made, arrow_schema(Schema.parse("word string, count long")), component="parse")


def test_what_can_not_be_cast_is_reported_for_nested_types_too() -> None:
    with pytest.raises(SchemaMismatch, match=r"declares 'm map<string,struct<a:int>>', what it emitted can't be cast"):
        conform(pa.table({"m": [1]}), arrow_schema(Schema.parse("m map<string,struct<a:int>>")), component="parse")


def test_ipc_brings_batches_back() -> None:
    parts = [batch("word string", ("a",), ("b",)), batch("word string", ("c",))]
    assert from_ipc(to_ipc(parts, parts[0].schema)) == parts
    assert from_ipc(to_ipc([], parts[0].schema)) == []


# --- digests ------------------------------------------------------------------------------------------------------

FIELDS = Schema.parse(
    "a string, b binary, c boolean, d long, e double, f date, g timestamp, h decimal(10,2), i array<string>, j short"
)
VALUES = st.tuples(
    st.none() | st.text(max_size=3),
    st.none() | st.binary(max_size=3),
    st.none() | st.booleans(),
    st.none() | st.integers(-3, 3),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.dates(datetime.date(1970, 1, 1), datetime.date(1970, 1, 3)),
    st.none() | st.integers(0, 3),
    st.none() | st.decimals(-1, 1, places=2),
    st.none() | st.lists(st.text(max_size=1), max_size=2),
    st.none() | st.integers(-3, 3),
)


def digest(parts: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    made = RecordDigest(with_checksum=True)
    for part in parts:
        made.add(part)
    return made.records, made.checksum


def pieces(whole: pa.RecordBatch, cuts: list[int], made_by: str) -> Iterator[pa.RecordBatch]:
    """The batch in pieces: slices of its buffers, or batches with buffers of their own."""
    bounds = [0, *sorted(cut % (whole.num_rows + 1) for cut in cuts), whole.num_rows]
    for start, until in pairwise(bounds):
        piece = whole.slice(start, until - start)
        yield piece if made_by == "slicing" else piece.take(pa.array(range(piece.num_rows), pa.int64()))


@settings(max_examples=examples(40))
@given(st.lists(VALUES, max_size=12), st.lists(st.integers(0, 12), max_size=4), st.sampled_from(["slicing", "copying"]))
def test_a_digest_is_independent_of_how_the_records_are_cut(
    rows: list[tuple[Any, ...]], cuts: list[int], made_by: str
) -> None:
    whole = batch_from_rows(rows, arrow_schema(FIELDS), component="spout")
    assert digest(list(pieces(whole, cuts, made_by))) == digest([whole])


@settings(max_examples=examples(40))
@given(st.lists(VALUES, min_size=1, max_size=6), st.lists(VALUES, min_size=1, max_size=6))
def test_other_records_have_another_digest(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> None:
    schema = arrow_schema(FIELDS)
    made, other = (batch_from_rows(each, schema, component="spout") for each in (rows, others))
    assert (digest([made]) == digest([other])) == (repr(made.to_pylist()) == repr(other.to_pylist()))


@pytest.mark.parametrize(
    ("rows", "others"),
    [
        ([("ab",), ("c",)], [("a",), ("bc",)]),
        ([("",)], [(None,)]),
        ([("a",), (None,)], [(None,), ("a",)]),
        ([("a",), ("b",)], [("b",), ("a",)]),
        ([("a",)], [("a",), ("",)]),
    ],
)
def test_digests_show_texts_apart_that_are_alike(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> None:
    assert digest([batch("word string", *rows)]) != digest([batch("word string", *others)])


@pytest.mark.parametrize("type_", ["long", "boolean", "double", "date", "timestamp", "decimal(10,2)"])
def test_a_null_is_not_a_zero(type_: str) -> None:
    zero = pa.array([False if type_ == "boolean" else 0], arrow_type(type_))
    assert digest([pa.RecordBatch.from_arrays([zero], names=["a"])]) != digest([batch(f"a {type_}", (None,))])


def test_what_a_null_leaves_in_its_place_does_not_count() -> None:
    offsets, values = pa.array([0, 2, 4], pa.int32()), pa.py_buffer(b"abcd")
    second_is_null = pa.py_buffer(b"\1")
    column = pa.StringArray.from_buffers(2, offsets.buffers()[1], values, second_is_null)
    made = pa.RecordBatch.from_arrays([column], names=["word"])
    assert made.to_pylist() == [{"word": "ab"}, {"word": None}]
    assert digest([made]) == digest([batch("word string", ("ab",), (None,))])


def test_without_a_checksum_records_are_counted_alone() -> None:
    made = RecordDigest(with_checksum=False)
    made.add(batch("word string", ("a",), ("b",)))
    assert (made.records, made.checksum) == (2, 0)
    assert digest([]) == digest([batch("word string")]) == (0, 0)


# --- tasks of rows --------------------------------------------------------------------------------------------------


def test_a_row_belongs_to_the_same_task_in_every_process() -> None:
    command = "from tests.unit.model.arrow.keys import tasks_of_keys; print(tasks_of_keys())"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == str(tasks_of_keys())


def test_equal_values_belong_to_the_same_task_wherever_they_stand() -> None:
    made = batch("word string", *[(None,), ("a",), ("b",), (None,), ("a",), ("b",), ("None",)])
    tasks = task_of_rows(made, ["word"], 1009).to_pylist()
    assert tasks[:3] == tasks[3:6]
    assert len(set(tasks)) == 4
    assert task_of_rows(made.slice(3), ["word"], 1009).to_pylist() == tasks[3:]
    zeros = task_of_rows(batch("number double", (0.0,), (-0.0,)), ["number"], 1009).to_pylist()
    assert zeros[0] == zeros[1]


def test_many_fields_do_not_overflow() -> None:
    names = [f"f{number}" for number in range(30)]
    made = batch(", ".join(f"{name} long" for name in names), *[tuple(range(row, row + 30)) for row in range(200)])
    tasks = task_of_rows(made, names, 7).to_pylist()
    assert set(tasks) == set(range(7))


def test_keys_are_spread_over_all_tasks() -> None:
    made = batch("word string", *[(f"word {number}",) for number in range(1_000)])
    tasks = task_of_rows(made, ["word"], 4)
    assert all(200 < len(rows) < 300 for _, rows in rows_by_task(tasks, 4))


@given(st.lists(st.integers(0, 4), max_size=20))
def test_rows_by_task_name_every_row_once_and_in_order(tasks: list[int]) -> None:
    found = {task: rows.to_pylist() for task, rows in rows_by_task(pa.array(tasks, pa.int64()), 5)}
    assert found == {task: [row for row, of in enumerate(tasks) if of == task] for task in sorted(set(tasks))}


def test_no_rows_belong_to_no_task() -> None:
    tasks = task_of_rows(batch("word string"), ["word"], 5)
    assert list(rows_by_task(tasks, 5)) == []
