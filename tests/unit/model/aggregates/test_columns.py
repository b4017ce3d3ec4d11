"""What aggregates store, and what is refused of those of a user's own before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state import Avg, Count, MemoryMapState, Min, Sum
from transactional.errors import ConfigError, ProtocolError
from transactional.model.aggregates import Aggregate, CountOf, StoredColumns
from transactional.model.aggregates.sums import reduce_rows
from transactional.model.schema import Schema
from transactional.trident import field


class Own(Aggregate):
    """An aggregate of a user's own, of one column."""

    def __init__(self, combine: str, partial: str = "") -> None:
        self.field, self.combine, self.partial = "n", combine, partial  # type: ignore[misc]

    def __repr__(self) -> str:
        return "Own()"


class Half(Aggregate):
    """One that is made of a sum."""

    def columns(self, name: str) -> Mapping[str, Aggregate]:
        return {"whole": Sum("n")}

    def finish(self) -> Any:
        return field("whole") / 2


class LooksLikeOne:
    """Has all that an aggregate of one column has."""

    combine, field = "sum", "n"

    def type_for(self, input_type: str) -> str:
        return input_type


def test_what_is_made_of_others_comes_last_and_shares_what_is_stored() -> None:
    columns = StoredColumns.from_aggregates({"mean": Avg("n"), "least": Min("n"), "half": Half(), "sum_n": Sum("n")})
    stored = {"least": Min("n"), "sum_n": Sum("n"), "count_n": CountOf("n"), "whole": Sum("n")}
    assert list(columns.aggregates.items()) == list(stored.items())
    fields = columns.computed.fields(Schema.parse("least long, sum_n long, count_n long, whole long"))
    assert str(fields).endswith("whole long, mean double, half long")


@pytest.mark.parametrize(
    ("aggregates", "says"),
    [
        ({"n": Own("average")}, r"n=Own\(\) combines its values by 'average'; there are sum, min, max, first, last"),
        ({"n": Own("")}, "combines its values by ''"),
        ({"n": Own("sum", "mean")}, "makes values by 'mean' and combines them by 'sum'; only a count has two words"),
        ({"n": Own("max", "count")}, "makes values by 'count' and combines them by 'max'"),
        ({"mean": Avg("n"), "sum_n": Min("n")}, r"mean=Avg\(field='n'\) needs the column 'sum_n'; give yours another"),
        ({"whole": Half()}, "needs the column 'whole'; give yours another name"),
    ],
)
def test_what_would_be_another_number_is_refused(aggregates: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MemoryMapState("word").aggregate(aggregates)


@pytest.mark.parametrize("aggregate", [LooksLikeOne(), len, Count])
def test_what_only_looks_like_an_aggregate_is_refused(aggregate: Any) -> None:
    with pytest.raises(ConfigError, match=r"n=.* is no aggregate such as Count\(\).*extends state.Aggregate"):
        MemoryMapState("word").aggregate(n=aggregate)


def test_values_do_not_become_one_by_a_word_that_arrow_alone_knows() -> None:
    with pytest.raises(ProtocolError, match="'mean' is not known"):
        reduce_rows(pa.table({"n": [1, 2]}), (), [("n", "mean")], Schema.parse("n double"))


def test_an_average_is_null_of_nothing_and_near_to_a_large_sum() -> None:
    columns = StoredColumns.from_aggregates({"mean": Avg("n")})
    rows = pa.table({"sum_n": pa.array([2**53 + 2, None, 3], pa.int64()), "count_n": pa.array([2, 0, 2], pa.int64())})
    assert columns.computed.append_to(rows)["mean"].to_pylist() == [2**52 + 1, None, 1.5]


@pytest.mark.parametrize(
    ("input_type", "mean_type"),
    [("decimal(10,2)", "decimal(14,6)"), ("decimal(27,27)", "decimal(31,31)"), ("int", "double")],
)
def test_an_average_of_decimals_has_four_digits_more_as_in_spark(input_type: str, mean_type: str) -> None:
    stored = Schema.parse(f"sum_n {Sum('n').type_for(input_type)}, count_n long")
    assert StoredColumns.from_aggregates({"mean": Avg("n")}).computed.fields(stored)["mean"].type == mean_type


@pytest.mark.parametrize(
    ("total", "count", "mean"),
    [
        ("2", 3, "0.6667"),
        ("-2", 3, "-0.6667"),
        ("1", 32, "0.0313"),
        ("-1", 32, "-0.0313"),
        ("2" + "9" * 26 + "7", 3, "9" * 27),
    ],
)
def test_an_average_of_decimals_is_rounded_half_up(total: str, count: int, mean: str) -> None:
    sums = pa.array([Decimal(total), None], pa.decimal128(37, 0))
    rows = pa.table({"sum_n": sums, "count_n": pa.array([count, 0], pa.int64())})
    computed = StoredColumns.from_aggregates({"mean": Avg("n")}).computed
    assert computed.append_to(rows)["mean"].to_pylist() == [Decimal(mean), None]


def test_what_a_decimal_can_not_hold_has_no_average() -> None:
    stored = Schema.parse(f"sum_n {Sum('n').type_for('decimal(38,18)')}, count_n long")
    with pytest.raises(
        ConfigError, match=r"field 'n' has no average: .* more than 27 digits; cast it to decimal\(27,18\)"
    ):
        StoredColumns.from_aggregates({"mean": Avg("n")}).computed.fields(stored)


def test_a_table_with_averages_as_doubles_is_refused() -> None:
    averages = MemoryMapState("word string", "max_mean double")
    with pytest.raises(
        ConfigError, match="declared with values 'max_mean double', but the input makes it 'max_mean dec"
    ):
        averages.max("mean").bind_input(Schema.parse("word string, mean decimal(14,6)"), used_by="the test")
