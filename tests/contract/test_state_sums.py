"""What every state promises of its sums: exact, at the limits of each type, or refused before anything is written."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.states import AnyState, Place, content
from tests.examples import examples
from transactional.core.ports import Partials
from transactional.errors import SumOverflow
from transactional.model.aggregates import Count, Sum, TableAggregator
from transactional.model.arrow import arrow_schema, arrow_type
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

pytestmark = pytest.mark.sampled(6)
"""Tests are rows, engines columns: every test meets half of the engines, every engine half of the tests."""

LARGEST = {
    "byte": 2**7 - 1,
    "short": 2**15 - 1,
    "int": 2**31 - 1,
    "long": 2**63 - 1,
    "decimal(5,2)": 10**5 - 1,
    "decimal(20,2)": 10**20 - 1,
    "decimal(30,30)": 10**30 - 1,
    "decimal(38,0)": 10**38 - 1,
    "decimal(38,18)": 10**38 - 1,
}
"""The largest number of each type, in units of its last digit."""


def scale_of(type_: str) -> int:
    return int(type_[:-1].split(",")[1]) if type_.startswith("decimal") else 0


def value_of(units: int, type_: str) -> Any:
    """A value of so many units of the type's last digit."""
    if not type_.startswith("decimal"):
        return units
    digits = tuple(map(int, str(abs(units))))
    return Decimal((int(units < 0), digits, -scale_of(type_)))


def sums(rows: dict[str, int | None], type_: str) -> Partials:
    """Partial sums per word, in units of the type's last digit."""
    values = [None if units is None else value_of(units, type_) for units in rows.values()]
    table = pa.table({"word": pa.array(list(rows), pa.string()), "total": pa.array(values, arrow_type(type_))})
    return Partials({"total": "sum"}, table)


def totals(state: AnyState, type_: str, committed_txid: int | None = None) -> dict[str, int]:
    """The stored sums, in units of the type's last digit."""
    found = content(state, committed_txid)
    units = {word: Fraction(value) * 10 ** scale_of(type_) for word, value in found.items() if value is not None}
    assert all(each.denominator == 1 for each in units.values())
    return {word: int(each) for word, each in units.items()}


SIGNED = [(type_, (-1) ** number) for number, type_ in enumerate(LARGEST)]
"""Each type with one of its two limits."""


@pytest.mark.parametrize("type_", ["long", "decimal(38,18)"])
def test_many_rows_of_large_numbers_that_cancel_out(place: Place, type_: str) -> None:
    """Sums over transactions, compactions and readers, in whatever order they are added up."""
    state, large = place.state(values=f"total {type_}"), LARGEST[type_] // 2
    expected = {"cat": 0, "dog": 0}
    for txid, sign in enumerate([1, 1, -1, -1, -1, 1, 1], start=1):
        parts = {"cat": sign * large, "dog": -sign * (large - txid)}
        state.merge(place.attempt(txid, txid), sums(dict(parts), type_))
        expected = {word: expected[word] + parts[word] for word in parts}
        assert totals(state, type_) == expected
        found = state.get(place.attempt(txid + 1, 100 + txid), [("cat",), ("dog",)])
        assert {key[0]: Fraction(value[0]) * 10 ** scale_of(type_) for key, value in found.items()} == expected


TYPES = ["short", "long", "decimal(38,0)", "decimal(38,18)"]


def near_limits(type_: str) -> st.SearchStrategy[int]:
    limit = LARGEST[type_]
    close = [0, 1, limit // 2, limit // 2 + 1, limit - 1, limit]
    return st.one_of(st.sampled_from([sign * each for each in close for sign in (1, -1)]), st.integers(-limit, limit))


def test_it_is_measured_again_after_a_transaction_without_rows(place: Place) -> None:
    state, limit = place.state(values="total decimal(38,0)"), LARGEST["decimal(38,0)"]
    for txid, batch in enumerate([{"a": limit - 1}, {}], start=1):
        state.merge(place.attempt(txid, txid), sums(dict(batch), "decimal(38,0)"))
    with pytest.raises(SumOverflow):
        state.merge(place.attempt(3, 3), sums({"a": limit // 2}, "decimal(38,0)"))
    state.merge(place.attempt(3, 4), sums({"a": 1}, "decimal(38,0)"))
    assert totals(state, "decimal(38,0)") == {"a": limit}


@given(data=st.data())
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_sums_are_those_of_python(
    data: st.DataObject, place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Per transaction a few rows; each is written or refused just as Python's own numbers fit or not."""
    type_ = data.draw(st.sampled_from(TYPES))
    folder = tmp_path_factory.mktemp("sums")
    here = Place(place.engine, folder, url=place.url, table=folder.name)
    low = -LARGEST[type_] - (0 if type_.startswith("decimal") else 1)
    word = st.sampled_from(["a", "b", "c"])
    batches = data.draw(st.lists(st.dictionaries(word, near_limits(type_), max_size=3), min_size=1, max_size=6))
    state, expected, attempt_id, txid = here.state(values=f"total {type_}"), dict[str, int](), 0, 1
    try:
        for batch in batches:
            attempt_id += 1
            sum_of = {word: expected.get(word, 0) + units for word, units in batch.items()}
            parts = sums(dict(batch), type_)
            if all(low <= units <= LARGEST[type_] for units in sum_of.values()):
                state.merge(here.attempt(txid, attempt_id), parts)
                expected, txid = {**expected, **sum_of}, txid + 1
            else:
                with pytest.raises(SumOverflow):
                    state.merge(here.attempt(txid, attempt_id), parts)
            assert totals(state, type_) == expected
    finally:
        here.close()


class TestPartialAggregates:
    """In tasks, and where the driver puts them together."""

    @given(data=st.data())
    @settings(max_examples=examples(40))
    def test_random_sums_are_those_of_python(self, data: st.DataObject) -> None:
        type_ = data.draw(st.sampled_from(["byte", "int", "long", "decimal(10,2)", "decimal(28,3)", "decimal(38,0)"]))
        limit = LARGEST.get(type_) or 10 ** int(type_[8:10]) - 1
        units = st.sampled_from([0, 1, limit // 2 + 1, limit])
        numbers = st.lists(st.tuples(units, st.sampled_from([1, -1])).map(lambda each: each[0] * each[1]), max_size=5)
        parts = data.draw(st.lists(numbers, max_size=3))
        out = Sum("x").type_for(type_)
        aggregator = TableAggregator(
            Schema.parse("word string"),
            Schema.parse(f"total {out}, rows long"),
            (("total", Sum("x")), ("rows", Count())),
            "'words'",
        )
        schema = arrow_schema(Schema.parse(f"word string, x {type_}"))
        largest = 2**63 - 1 if out == "long" else 10 ** int(out[8:10]) - 1
        low = -largest - (1 if out == "long" else 0)

        def run() -> pa.Table:
            arrays = [pa.array([value_of(n, type_) for n in part], arrow_type(type_)) for part in parts]
            words = [pa.array(["cat"] * len(part), pa.string()) for part in parts]
            batches = [pa.record_batch(list(each), schema=schema) for each in zip(words, arrays, strict=True)]
            return aggregator.combine([aggregator.partial([batch]) for batch in batches])

        steps = [sum(part) for part in parts]
        if all(low <= each <= largest for each in [*steps, sum(steps)]):
            expected = [sum(steps)] if any(parts) else []
            found = [Fraction(each) * 10 ** scale_of(out) for each in run().column("total").to_pylist()]
            assert found == expected
        else:
            with pytest.raises(SumOverflow, match=r"state 'words': the sum for key \('cat',\) in column 'total'"):
                run()


def test_of_no_key(place: Place) -> None:
    state = place.state((), "total long")
    rows = Partials({"total": "sum"}, pa.table({"total": pa.array([2**62])}))
    state.merge(place.attempt(1, 1), rows)
    with pytest.raises(SumOverflow, match=r"key \(\) in column 'total'"):
        state.merge(place.attempt(2, 2), rows)
    assert (state.version(), state.read(TxId(1)).to_pydict()) == (1, {"total": [2**62]})
