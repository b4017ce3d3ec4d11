"""Rows that are counted: each transaction has made as many as it has read, and no other has made any."""

from __future__ import annotations

from collections import Counter

from verifier.evidence.findings import Findings, Kind
from verifier.evidence.store import CommittedBatch, StoreHistory
from verifier.rows import RowColumns, Sums, check_count

COMMITTED = tuple(CommittedBatch(txid, txid, {("words", 0): (0, 2, 2)}, 2) for txid in (3, 4))
HISTORY = StoreHistory("words", 4, 4, 4, COMMITTED, {3: 3, 4: 4})
"""The store no longer has the first two transactions."""


def wrong(**rows: int) -> list[str]:
    """What is found wrong of a table with so many rows of each transaction."""
    findings, per_txid = Findings(), Counter({int(name[1:]): times for name, times in rows.items()})
    check_count("log", Sums(per_txid=per_txid), "*", 4, HISTORY, findings, RowColumns((), (), {}, prev_txid=None))
    report = findings.report()
    assert set(report.counts) <= {Kind.WRONG_COUNT}
    return [each.where.rpartition(", ")[2] for each in report.findings]


def test_rows_of_a_transaction_that_never_was_are_found() -> None:
    assert wrong(t3=2, t4=2, t5=1) == ["transaction 5"]


def test_rows_of_what_the_store_has_forgotten_are_not_counted() -> None:
    assert wrong(t1=7, t3=2, t4=2) == []
