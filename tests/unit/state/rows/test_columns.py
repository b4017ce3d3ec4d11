"""The columns of a state, and of its table before it has all of them."""

from __future__ import annotations

from state.rows.columns import StateColumns
from transactional.model.schema import Schema


def test_a_table_that_deletes_are_new_to_has_no_column_of_them() -> None:
    columns = StateColumns(Schema.parse("word string"), Schema.parse("count long, size long"), deletes=True)
    before = columns.without_columns({"deleted", "size"})
    assert before.all_columns.names == ("word", "count", "txid", "prev_txid", "prev_count")
    assert columns.without_columns(()) == columns
