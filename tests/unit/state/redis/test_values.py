"""Keys and rows in Redis: the values of a state whose table has its columns in another order."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from state.redis.values import RowCodec
from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEY, VALUES = Schema.parse("word string, at timestamp, n long"), Schema.parse("share double, first date, m long")
THERE = Schema.parse("at timestamp, n long, word string"), Schema.parse("first date, m long, share double")


def both(*parts: Schema) -> Schema:
    return Schema(tuple(field for part in parts for field in part))


def test_values_stand_in_the_order_of_the_table() -> None:
    there, here = RowCodec(*THERE, "words"), RowCodec(KEY, VALUES, "words")
    assert here.arrange(THERE[0], both(*THERE))
    key = there.key_bytes((AT, 1, "cat"))
    assert here.key_bytes(("cat", AT, 1)) == key
    assert here.key_of(key) == ("cat", AT, 1)
    old, new = (date(2026, 1, 2), 5, 0.5), (date(2026, 1, 3), None, None)
    stored = there.row_bytes(StoredValue(new, old, TxId(2), TxId(1)))
    row = StoredValue((None, new[0], None), (0.5, old[0], 5), TxId(2), TxId(1))
    assert here.row_of(stored) == row
    assert here.row_bytes(row) == stored
    gone = StoredValue(ABSENT, None, TxId(3), None)
    assert here.row_of(here.row_bytes(gone)) == gone


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        (THERE[0], both(THERE[0])),
        (THERE[0], both(*THERE, Schema.parse("more long"))),
        (
            Schema.parse("at timestamp, n int, word string"),
            both(Schema.parse("at timestamp, n int, word string"), VALUES),
        ),
        (Schema.parse("word string, at timestamp"), both(KEY, VALUES)),
    ],
)
def test_a_table_with_other_columns_changes_nothing(key: Schema, columns: Schema) -> None:
    codec = RowCodec(KEY, VALUES, "words")
    assert not codec.arrange(key, columns)
    assert codec.key_bytes(("cat", None, 1)) == b'["cat",null,1]'
