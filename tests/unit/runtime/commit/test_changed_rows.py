"""The rows that a state's update changes: with their old values, in the order of the update, in every kind of table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state import Count, DeltaMapState, Max, MemoryMapState, SqlMapState, Sum
from state.table_state import TableState
from state.updates import StateUpdate
from transactional.core.ports import Partials
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema
from transactional.runtime.commit.changed_rows import changed_rows

INPUT = Schema.parse("word string, day int, n long")
KINDS = ["memory", "delta", "sql"]


def state_of(kind: str, folder: Path) -> TableState[Any]:
    match kind:
        case "memory":
            return MemoryMapState()
        case "delta":
            return DeltaMapState(folder / "table")
        case _:
            return SqlMapState(f"sqlite:///{folder}/states.db", "words")


@contextmanager
def opened(kind: str, folder: Path, *key: str) -> Iterator[tuple[Any, StateUpdate]]:
    update = state_of(kind, folder).aggregate(n=Sum("n"), most=Max("n"), count=Count()).group_by(*key)
    update.bind_input(INPUT, used_by="test")
    state: Any = update.state
    state.open("words/count", TxId)
    state.version()
    state.fence(AttemptId(1))
    try:
        yield state, update
    finally:
        state.close()


def changed(state: Any, update: StateUpdate, attempt: TransactionAttempt, *rows: tuple[Any, ...]) -> list[Any]:
    """Merge some tuples; what that changes."""
    columns: dict[str, Any] = {name: [row[at] for row in rows] for at, name in enumerate(INPUT.names)}
    batch = pa.RecordBatch.from_pydict(columns, pa.schema({"word": pa.string(), "day": pa.int32(), "n": pa.int64()}))
    aggregator = update.aggregator()
    part = aggregator.partial([batch])
    found = changed_rows(state, partial(state.rows_before, attempt), part, aggregator)
    state.merge(attempt, Partials(aggregator.combine_kinds, part))
    return [tuple(row.values()) for row in found.to_pylist()]


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_transaction_changes_and_again_if_it_is_repeated(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path, "word", "day") as (state, update):
        first = changed(state, update, attempt(2, 2), ("a", 1, 5), (None, 1, 7), ("a", 2, 1))
        assert first == [
            ("a", 1, 5, 5, 1, None, None, None),
            (None, 1, 7, 7, 1, None, None, None),
            ("a", 2, 1, 1, 1, None, None, None),
        ]
        # A NULL in a key is a key; keys that share a part are others.
        more = [(None, 1, 1), ("b", 1, None), ("a", 2, 9), ("a", 2, 1)]
        expected = [(None, 1, 8, 7, 2, 7, 7, 1), ("b", 1, None, None, 1, None, None, None), ("a", 2, 11, 9, 3, 1, 1, 1)]
        assert changed(state, update, attempt(3, 3), *more) == expected
        # Another attempt at the same transaction reads what was before it, whatever it is given.
        assert changed(state, update, attempt(3, 4), ("a", 2, 1)) == [("a", 2, 2, 1, 2, 1, 1, 1)]
        assert changed(state, update, attempt(3, 5), *more) == expected
        assert changed(state, update, attempt(4, 6)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_row_of_a_state_without_a_key(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as (state, update):
        assert changed(state, update, attempt(2, 2), ("a", 1, 5)) == [(5, 5, 1, None, None, None)]
        assert changed(state, update, attempt(3, 3), ("b", 1, 2)) == [(7, 5, 2, 5, 5, 1)]
        assert changed(state, update, attempt(3, 4)) == []
