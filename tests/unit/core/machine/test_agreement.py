"""When a table and the store agree, and what is said when they do not."""

from __future__ import annotations

import pytest

from transactional.core.machine.agreement import compare_with_store, removal_hint
from transactional.core.ports.examining import Problem
from transactional.model.attempt import AttemptId, TxId

COMMITTED = 5


@pytest.mark.parametrize(
    ("version", "txid", "has_joined", "expected"),
    [
        (9, 5, True, None),
        (9, 6, True, None),
        (9, 4, True, Problem.TABLE_BEHIND),
        (9, 7, True, Problem.TABLE_AHEAD),
        (9, 4, False, Problem.TABLE_BEHIND),
        (9, None, True, Problem.STORE_WIPED),
        (9, None, False, Problem.STORE_WIPED),
        (None, None, True, Problem.TABLE_MISSING),
        (None, None, False, None),
    ],
)
def test_a_table_is_at_the_committed_transaction_or_one_ahead(
    version: int | None, txid: int | None, *, has_joined: bool, expected: Problem | None
) -> None:
    at = None if version is None else AttemptId(version)
    found = compare_with_store(at, None if txid is None else TxId(txid), TxId(COMMITTED), has_joined=has_joined)
    assert (found and found.problem) == expected
    if found is not None:
        assert found.can_repair is (found.problem in (Problem.STORE_WIPED, Problem.TABLE_AHEAD))


def test_before_the_first_commit_an_empty_table_is_right() -> None:
    assert compare_with_store(None, None, TxId(0), has_joined=True) is None


@pytest.mark.parametrize(
    ("store", "tables", "command"),
    [
        ("words.db", ["tables/words"], "`rm -r words.db tables/words`"),
        ("a b.db", ["tables/words", "tables/lines"], "`rm -r 'a b.db' tables/words tables/lines`"),
        ("words.db", ["tables/words", None], None),
        ("words.db", ["s3://bucket/words"], None),
        (None, ["tables/words"], None),
        ("words.db", [], None),
    ],
)
def test_the_store_is_removed_with_all_tables(store: str | None, tables: list[str | None], command: str | None) -> None:
    text = removal_hint(store, tables)
    assert text == "" if command is None else f"{command} deletes the store and the tables together" in text
