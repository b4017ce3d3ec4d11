"""A table in memory goes by the names of its columns, as tables elsewhere do."""

from __future__ import annotations

from typing import Any

import pytest

from state.memory import MemoryMapState, MemoryTable
from transactional.errors import SchemaMismatch
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId


def attempt(number: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(number), AttemptId(number))


def opened(table: MemoryTable, key: str, values: str) -> MemoryMapState:
    state = MemoryMapState(key, values, table=table, deletes=True)
    state.open("t/c", TxId)
    return state


def fenced(table: MemoryTable, key: str, values: str, by: int) -> MemoryMapState:
    state = opened(table, key, values)
    state.version()
    state.fence(AttemptId(by))
    return state


def written() -> MemoryTable:
    """Two keys, of which the second transaction has changed one and deleted the other."""
    table = MemoryTable("t")
    state = fenced(table, "k string, q long", "a long, b string", 0)
    state.put(attempt(1), {("x", 1): (1, "one"), ("y", 2): (2, "two")})
    state.put(attempt(2), {("x", 1): (3, "three"), ("y", 2): ABSENT})
    return table


def content(state: MemoryMapState, txid: int | None = None) -> list[Any]:
    return sorted(state.read(None if txid is None else TxId(txid)).to_pylist(), key=str)


NOW = [{"k": "x", "q": 1, "a": 3, "b": "three"}]
BEFORE = [{"k": "x", "q": 1, "a": 1, "b": "one"}, {"k": "y", "q": 2, "a": 2, "b": "two"}]


@pytest.mark.parametrize(
    ("key", "values"), [("k string, q long", "b string, a long"), ("q long, k string", "a long, b string")]
)
def test_columns_in_another_order_keep_their_values(key: str, values: str) -> None:
    table = written()
    state = fenced(table, key, values, 3)
    assert (content(state), content(state, 1)) == (sorted(NOW, key=str), BEFORE)
    names = [*state.key.names, *state.values.names]
    assert [*content(state)[0]] == names
    row = dict(zip(names, (*next(iter(table.rows)), *next(iter(table.rows.values())).value), strict=True))
    assert row == NOW[0]
    reader = state.reader("")
    reader.pin()
    assert reader.rows(TxId(2)).to_pylist() == content(state)
    state.put(TransactionAttempt(TxId(3), AttemptId(4)), {})
    assert content(state) == NOW


def test_a_column_that_has_joined_is_none_in_what_was_there() -> None:
    state = fenced(written(), "k string, q long", "a long, c long, b string", 3)
    assert content(state) == [{**NOW[0], "c": None}]


def test_until_the_fence_the_table_is_as_it_was() -> None:
    table = written()
    rows = table.rows
    state = opened(table, "k string, q long", "b string, a long")
    assert content(state) == NOW
    assert table.rows is rows
    assert content(MemoryMapState("k string, q long", "a long, b string", table=table)) == NOW


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("k string, q long", "a long"),
        ("k string, q long", "a long, c string"),
        ("k string, q long", "a long, b long"),
        ("k string", "a long, b string"),
        ("k string, q string", "a long, b string"),
    ],
)
def test_other_columns_are_refused(key: str, values: str) -> None:
    table = written()
    with pytest.raises(SchemaMismatch, match="value columns can be added, but nothing else can change"):
        opened(table, key, values)
    assert opened(MemoryTable("t"), key, values).read().num_rows == 0
