"""The rules for one stored value: Storm's facts, seed 004's examples, and random histories against a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state.rows.combining import combine_value
from state.rows.opaque_columns import combine_columns
from state.rows.stored_value import StoredValue
from transactional.errors import ProtocolError, StoreMismatch
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId


def to(value: Any) -> Callable[[Any], Any]:
    """An update that sets a value."""
    return lambda before: value


def plus(number: int) -> Callable[[Any], Any]:
    """An update that adds to a value."""
    return lambda before: combine_value("sum", before, number)


STORED = StoredValue("v1", "v0", TxId(8), TxId(7))


class TestOpaqueValue:
    """Storm's own facts about a value of transaction 8."""

    @pytest.mark.parametrize(("txid", "value"), [(100, "v1"), (9, "v1"), (8, "v0")])
    def test_is_read_as_it_was_before_the_transaction(self, txid: TxId, value: str) -> None:
        assert STORED.value_before(txid) == value

    def test_knows_nothing_of_earlier_transactions(self) -> None:
        with pytest.raises(StoreMismatch, match="transaction 7 arrived for a value that transaction 8 has written"):
            STORED.value_before(TxId(7))
        with pytest.raises(StoreMismatch):
            STORED.apply(TxId(7), to("v2"))

    def test_a_replay_starts_again_from_the_previous_value(self) -> None:
        assert STORED.apply(TxId(8), to("v2")) == StoredValue("v2", "v0", TxId(8), TxId(7))

    def test_the_next_transaction_makes_the_value_the_previous_one(self) -> None:
        assert STORED.apply(TxId(9), to("v2")) == StoredValue("v2", "v1", TxId(9), TxId(8))

    @pytest.mark.parametrize(("txid", "value", "previous"), [(3, 6, 4), (2, 3, 1)])
    def test_four_and_two(self, txid: TxId, value: int, previous: int) -> None:
        after = StoredValue(4, 1, TxId(2), TxId(1)).apply(txid, plus(2))
        assert after is not None
        assert (after.value, after.prev_value) == (value, previous)

    def test_a_replay_of_the_first_transaction_of_a_key_starts_from_nothing(self) -> None:
        seen: list[Any] = []
        StoredValue.first(TxId(5), 1).apply(TxId(5), seen.append)
        assert seen == [ABSENT]

    def test_none_is_a_value_and_not_an_absent_key(self) -> None:
        after = StoredValue.first(TxId(1), None).apply(TxId(2), to("x"))
        assert after is not None
        assert after.value_before(TxId(2)) is None
        assert after.roll_back(TxId(2)) is not None


class TestRollBack:
    def test_undoes_its_own_transaction_only(self) -> None:
        assert STORED.roll_back(TxId(9)) is STORED
        after = STORED.roll_back(TxId(8))
        assert after is not None
        assert (after.value, after.txid) == ("v0", 7)

    def test_forgets_a_key_that_did_not_exist(self) -> None:
        assert StoredValue.first(TxId(8), "v1").roll_back(TxId(8)) is None

    def test_can_be_followed_by_the_same_transaction(self) -> None:
        after = STORED.roll_back(TxId(8))
        assert after is not None
        assert after.apply(TxId(8), to("v2")) == StoredValue("v2", "v0", TxId(8), TxId(7))


class TestVisibleAt:
    @pytest.mark.parametrize(("committed", "value"), [(7, "v0"), (8, "v1"), (9, "v1")])
    def test_hides_what_is_not_yet_committed(self, committed: TxId, value: str) -> None:
        assert STORED.value_for_reader(committed) == value

    def test_hides_a_key_that_is_not_yet_committed(self) -> None:
        assert StoredValue.first(TxId(8), None).value_for_reader(TxId(7)) is ABSENT
        assert StoredValue.first(TxId(8), None).value_for_reader(TxId(8)) is None


@pytest.mark.parametrize(
    ("how", "stored", "partial", "expected"),
    [
        ("sum", ABSENT, 2, 2), ("sum", None, 2, 2), ("sum", 3, None, 3), ("sum", None, None, None), ("sum", 3, 2, 5),
        ("min", ABSENT, 2, 2), ("min", 3, None, 3), ("min", 3, 2, 2), ("max", 3, 2, 3), ("max", None, 2, 2),
        ("last", 3, 2, 2), ("last", 3, None, None), ("last", ABSENT, None, None),
    ],
)  # fmt: skip
def test_null_counts_as_nothing_except_for_last(how: str, stored: Any, partial: Any, expected: Any) -> None:
    assert combine_value(how, stored, partial) == expected
    if stored is not ABSENT:
        assert in_columns(how, pa.int64(), stored, partial) == expected


def in_columns(how: str, type_: pa.DataType, stored: Any, partial: Any) -> Any:
    columns = (pa.chunked_array([pa.array([value], type_)]) for value in (stored, partial))
    return combine_columns(how, *columns)[0].as_py()


@pytest.mark.parametrize(("stored", "partial"), [(math.nan, 2.0), (2.0, math.nan)])
def test_nan_is_greater_than_any_number_in_whatever_order_they_come(stored: float, partial: float) -> None:
    assert combine_value("min", stored, partial) == in_columns("min", pa.float64(), stored, partial) == 2.0
    assert math.isnan(combine_value("max", stored, partial))
    assert math.isnan(in_columns("max", pa.float64(), stored, partial))


@pytest.mark.parametrize(
    ("type_", "value", "more"),
    [
        (pa.int8(), 127, 1),
        (pa.decimal128(3, 1), Decimal("99.9"), Decimal("0.1")),
        (pa.decimal128(38), Decimal(10**38 - 1), Decimal(1)),
    ],
)
def test_a_sum_of_columns_fits_its_type_or_is_refused(type_: pa.DataType, value: Any, more: Any) -> None:
    assert in_columns("sum", type_, value, 0) == value
    with pytest.raises(pa.ArrowInvalid):
        in_columns("sum", type_, value, more)


@pytest.mark.parametrize("stored", [ABSENT, None, 3])
def test_a_word_that_is_not_known_is_no_maximum(stored: Any) -> None:
    with pytest.raises(ProtocolError, match="'average' is not known"):
        combine_value("average", stored, 2)
    if stored is not ABSENT:
        with pytest.raises(ProtocolError, match="'average' is not known"):
            in_columns("average", pa.int64(), stored, 2)


def test_values_are_immutable() -> None:
    with pytest.raises(AttributeError):
        StoredValue(1, None, TxId(1), None).value = 2  # type: ignore[misc]
