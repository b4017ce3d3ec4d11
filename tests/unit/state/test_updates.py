"""Aggregates: their columns and types, what they refuse when a topology is built, and how partial ones are combined."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.memory import MemoryMapState
from state.rows.python_rows import check_unique, table_of_rows
from state.table_state import TableState
from state.updates import StateUpdate
from transactional.errors import ConfigError, ProtocolError
from transactional.model.aggregates import Count, First, Last, Max, Min, Sum, TableAggregator
from transactional.model.aggregates.key_matching import has_unique_sorted_keys, is_strictly_ascending
from transactional.model.aggregates.sums import reduce_rows
from transactional.model.arrow import arrow_schema
from transactional.model.schema import Schema

FLIGHTS = Schema.parse("carrier string, delay int, miles double, price decimal(10,2), day date, tags array<string>")
Make = Callable[[TableState[Any]], StateUpdate]


def built(make: Make, key: Any = "carrier", input: Schema = FLIGHTS) -> tuple[MemoryMapState, TableAggregator]:
    """A state and its aggregator, as they are when the topology is built."""
    state = MemoryMapState(key)
    update = make(state)
    assert update.state is state
    update.bind_input(input, used_by="bolt 'per-carrier'")
    return state, update.aggregator()


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda s: s.count(), "count long"),
        (lambda s: s.count("flights"), "flights long"),
        (lambda s: s.sum("delay"), "sum_delay long"),
        (lambda s: s.sum("miles", "miles"), "miles double"),
        (lambda s: s.sum("price"), "sum_price decimal(20,2)"),
        (lambda s: s.min("day"), "min_day date"),
        (lambda s: s.max("carrier", name="last"), "last string"),
        (
            lambda s: s.aggregate(count=Count(), total=Sum("delay"), most=Max("delay")),
            "count long, total long, most int",
        ),
        (lambda s: s.aggregate({"t": Min("price")}), "t decimal(10,2)"),
    ],
)
def test_columns_follow_from_the_input(make: Make, values: str) -> None:
    state, aggregator = built(make)
    assert (str(state.key), str(state.values)) == ("carrier string", values)
    assert aggregator.partial([]).num_rows == 0
    assert aggregator.partial([]).schema.names == ["carrier", *Schema.parse(values).names]


@pytest.mark.parametrize(
    ("make", "key", "message"),
    [
        (lambda s: s.count(), "carier", "bolt 'per-carrier' uses field 'carier'.*did you mean 'carrier'"),
        (lambda s: s.sum("delays"), "carrier", "uses field 'delays'.*did you mean 'delay'"),
        (lambda s: s.sum("carrier"), "day", "bolt 'per-carrier': field 'carrier' is a string, which has no sum"),
        (lambda s: s.min("tags"), "carrier", "field 'tags' is a array<string>, which has no order"),
        (lambda s: s.count(), "miles", "key column 'miles' is a double.*use decimal"),
        (lambda s: s.count(), "tags", "key column 'tags' is nested"),
        (
            lambda s: s.count(),
            "carrier long",
            "declared with key 'carrier long', but the input makes it 'carrier string'",
        ),
    ],
)
def test_what_does_not_fit_the_input_is_reported_when_the_topology_is_built(make: Make, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(make, key)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.aggregate(), r"needs a column, for example aggregate\(count=Count\(\)\)"),
        (lambda s: s.count("Carrier"), "columns 'carrier' and 'Carrier' collide"),
        (lambda s: s.count("txid"), "columns 'txid' and 'txid' collide"),
        (lambda s: s.count("number of"), "column name 'number of' is empty, or contains a space"),
    ],
)
def test_names_are_checked_at_once(make: Make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(make)


def test_the_fields_that_are_needed_are_named_once() -> None:
    update = MemoryMapState(["carrier", "day"]).aggregate(count=Count(), total=Sum("delay"), last=Max("day"))
    assert update.input_fields == ("carrier", "day", "delay")


def test_a_state_without_types_says_how_to_write_them() -> None:
    with pytest.raises(ConfigError, match="the key columns have no types; write them like key='a string, b string'"):
        _ = MemoryMapState(["a", "b"], "count long").key
    with pytest.raises(ConfigError, match=r"has no value columns: pass values='count long', or use .count\(\)"):
        _ = MemoryMapState("a string").values


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_partial_aggregates_are_combined() -> None:
    _, aggregator = built(
        lambda s: s.aggregate(n=Count(), total=Sum("price"), low=Min("price"), late=Sum("delay"), most=Max("delay"))
    )
    prices = pa.array([Decimal("1.10"), None, Decimal("2.00")], pa.decimal128(10, 2))
    first = batch(carrier=["a", "a", None], price=prices, delay=pa.array([5, 7, None], pa.int32()), other=[1, 2, 3])
    second = batch(carrier=["b", "a"], price=prices.slice(0, 2), delay=pa.array([None, -1], pa.int32()), other=[1, 2])
    whole = aggregator.combine([aggregator.partial([first]), aggregator.partial([]), aggregator.partial([second])])
    rows = {row["carrier"]: tuple(row.values())[1:] for row in whole.to_pylist()}
    assert rows == {
        "a": (3, Decimal("1.10"), Decimal("1.10"), 11, 7),
        None: (1, Decimal("2.00"), Decimal("2.00"), None, None),
        "b": (1, Decimal("1.10"), Decimal("1.10"), None, None),
    }
    assert aggregator.combine_kinds == {"n": "sum", "total": "sum", "low": "min", "late": "sum", "most": "max"}


def test_without_a_key_there_is_one_row_or_none() -> None:
    _, aggregator = built(lambda s: s.count(), key=())
    tuples = batch(carrier=["a", "b"])
    assert aggregator.partial([tuples]).to_pydict() == {"count": [2]}
    assert aggregator.combine([aggregator.partial([tuples]), aggregator.partial([tuples])]).to_pydict() == {
        "count": [4]
    }
    assert aggregator.combine([aggregator.partial([])]).num_rows == 0


WORDS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(-5, 5))), max_size=12)


@given(st.lists(WORDS, max_size=4))
def test_steps_do_not_matter(parts: list[list[tuple[str | None, int | None]]]) -> None:
    schema = Schema.parse("word string, number long")
    _, aggregator = built(
        lambda s: s.aggregate(n=Count(), total=Sum("number"), low=Min("number"), top=Max("number")), "word", schema
    )
    batches = [each for part in parts for each in table_of_rows(part, schema).to_batches()]
    at_once = aggregator.partial(batches)
    in_steps = aggregator.combine([aggregator.combine([aggregator.partial([each])]) for each in batches])
    by_word = [{row["word"]: row for row in table.to_pylist()} for table in (at_once, in_steps)]
    assert by_word[0] == by_word[1]


NUMBERS = st.lists(st.sampled_from([None, float("nan"), float("inf"), -1.5, 0.5, float("-inf")]), max_size=4)


@given(st.lists(NUMBERS, max_size=4))
def test_the_smallest_and_largest_number_do_not_hang_on_how_batches_are_cut(parts: list[list[float | None]]) -> None:
    """NaN is greater than every other number, as in Spark."""
    schema = Schema.parse("word string, number double")
    _, aggregator = built(lambda s: s.aggregate(low=Min("number"), top=Max("number")), "word", schema)
    batches = [each for part in parts for each in table_of_rows([("a", n) for n in part], schema).to_batches()]
    numbers = sorted(
        (n for part in parts for n in part if n is not None), key=lambda number: (math.isnan(number), number)
    )
    expected = (numbers[0], numbers[-1]) if numbers else (None, None)
    for found in (
        aggregator.partial(batches),
        aggregator.combine([aggregator.combine([aggregator.partial([each])]) for each in batches]),
    ):
        assert [repr((row["low"], row["top"])) for row in found.to_pylist()] == [repr(expected)] * found.num_rows


def test_the_aggregator_travels_to_executors() -> None:
    _, aggregator = built(lambda s: s.aggregate(n=Count(), total=Sum("delay")))
    assert pickle.loads(pickle.dumps(aggregator)) == aggregator


def test_two_rows_for_one_key_are_refused() -> None:
    check_unique(pa.table({"k": ["a", None], "v": [1, 1]}), ("k",), "t")
    check_unique(pa.table({"v": [1]}), (), "t")
    check_unique(pa.table({"v": pa.array([], pa.int64())}), (), "t")
    with pytest.raises(ProtocolError, match="2 rows with 1 different keys were to be merged into state t"):
        check_unique(pa.table({"k": [None, None], "v": [1, 1]}), ("k",), "t")
    with pytest.raises(ProtocolError):
        check_unique(pa.table({"v": [1, 1]}), (), "t")


def test_the_last_value_of_a_table_without_a_key_may_be_null() -> None:
    """Arrow's own aggregate without a key forgets a NULL at the end."""
    table = pa.table({"x": pa.array([1, None], pa.int64()), "y": pa.array([None, 2], pa.int64())})
    steps = [("x", "last"), ("y", "last"), ("y", "first"), ("x", "count")]
    columns = Schema.parse("a long, b long, c long, d long")
    assert reduce_rows(table, [], steps, columns).to_pylist() == [{"a": None, "b": 2, "c": None, "d": 1}]


def test_the_first_and_the_last_value_may_be_nested() -> None:
    """Arrow's own aggregates do not know lists and maps."""
    maps = pa.array([[("m", 1)], [("m", 2)], [], None], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"k": ["a", "b", "a", "a"], "x": [[1], None, [2, 3], None], "y": maps})
    steps = [("x", "first"), ("x", "last"), ("y", "first"), ("y", "last")]
    columns = Schema.parse("k string, a array<long>, b array<long>, c map<string,long>, d map<string,long>")
    found = [tuple(row.values()) for row in reduce_rows(table, ["k"], steps, columns).to_pylist()]
    assert found == [("a", [1], None, [("m", 1)], None), ("b", None, None, [("m", 2)], [("m", 2)])]


@pytest.mark.parametrize("key", ["long", "date", "timestamp", "string"])
@pytest.mark.parametrize("second", [[5, None, 4], [4, 2, None], [None, 2, 1], [3, 1, None, 2]])
def test_many_rows_in_order_are_what_grouping_them_leaves(
    monkeypatch: pytest.MonkeyPatch, key: str, second: list[int | None]
) -> None:
    """Tasks send their rows by key; what has no key in common is not grouped, and equal keys keep their order."""
    steps = (("n", Count()), ("m", Max("m")), ("f", First("m")), ("l", Last("m")))
    aggregator = TableAggregator(Schema.parse(f"k {key}"), Schema.parse("n long, m long, f long, l long"), steps)
    batches = [of_keys([3, 1, 2, 1], key, 10), of_keys(second, key, 20)]
    grouped = aggregator.combine([aggregator.partial([batch]) for batch in batches])
    monkeypatch.setattr("transactional.model.aggregates.key_matching.ROWS_MIN", 0)
    parts = [aggregator.partial([batch]) for batch in batches]
    found = aggregator.combine(parts)
    assert sorted(found.to_pylist(), key=str) == sorted(grouped.to_pylist(), key=str)
    if key != "string":
        for rows in (*parts, found):
            assert rows.equals(rows.sort_by("k"))
            assert has_unique_sorted_keys(rows, ("k",))


def of_keys(keys: list[int | None], type_: str, first: int) -> pa.RecordBatch:
    """A row for each key, made of a number, with numbers from `first` on."""
    schema = arrow_schema(Schema.parse(f"k {type_}, m long"))
    column = pa.array(keys, pa.int32() if type_ == "date" else pa.int64()).cast(schema.field("k").type)
    return pa.RecordBatch.from_arrays([column, pa.arange(first, first + len(keys))], schema=schema)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[], []], True),
        ([[1]], True),
        ([[None]], True),
        ([[1, 2], [3, None]], True),
        ([[1, 2], [2, 3]], False),
        ([[2, 1]], False),
        ([[1, None, 1]], False),
        ([[None, 1]], False),
        ([[1, None], [None]], False),
    ],
)
def test_whether_keys_are_in_order_and_none_is_there_twice(parts: list[list[int | None]], expected: bool) -> None:  # noqa: FBT001
    assert is_strictly_ascending(pa.chunked_array(parts, pa.int64())) is expected


def test_two_rows_for_one_key_are_refused_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transactional.model.aggregates.key_matching.ROWS_MIN", 0)
    check_unique(pa.table({"k": [1, 2, None]}), ("k",), "t")
    check_unique(pa.table({"k": [2, 1, None]}), ("k",), "t")
    for keys in ([1, 1, 2], [1, 2, 1], [1, None, None], [None, 1, None]):
        with pytest.raises(ProtocolError):
            check_unique(pa.table({"k": keys}), ("k",), "t")
