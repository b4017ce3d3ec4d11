"""Rows as records of all columns, and back."""

from __future__ import annotations

import pytest

from state.rows.columns import StateColumns
from state.rows.records import Records
from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

KEY, VALUES = Schema.parse("word string, n int"), Schema.parse("count long, by string")
FIRST = StoredValue.first(TxId(1), (1, "a"))
ROWS = {
    ("cat", 1): FIRST,
    ("dog", None): StoredValue((2, None), (1, "a"), TxId(5), TxId(4)),
    (None, None): StoredValue(ABSENT, (3, "c"), TxId(5), TxId(2)),
}


@pytest.mark.parametrize("deletes", [True, False])
def test_a_record_has_a_value_for_each_column(*, deletes: bool) -> None:
    columns = StateColumns(KEY, VALUES, deletes=deletes)
    records, rows = Records(columns), {key: row for key, row in ROWS.items() if deletes or row.value is not ABSENT}
    made = [records.record(key, row) for key, row in rows.items()]
    assert {len(each) for each in made} == {len(columns.all_columns)}
    named = dict(zip(columns.all_columns.names, made[1], strict=True))
    assert (named["count"], named["prev_by"], named["txid"], named["prev_txid"]) == (2, "a", 5, 4)
    assert records.rows(made) == rows | {("cat", 1): StoredValue((1, "a"), (None, None), TxId(1), None)}


def test_a_table_without_a_key_has_records_too() -> None:
    records = Records(StateColumns(Schema(()), Schema.parse("count long")))
    assert records.record((), StoredValue.first(TxId(3), (7,))) == (7, 3, None, None)
    assert records.rows([(7, 3, None, None)]) == {(): StoredValue((7,), (None,), TxId(3), None)}
