"""Long histories are checked in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.verifier.long_histories import measure

TRANSACTIONS = 2_000


@pytest.mark.parametrize("kind", ["logs", "checkpoint"])
def test_a_long_history_is_checked_whole(tmp_path: Path, kind: str) -> None:
    _, report = measure(kind, TRANSACTIONS, tmp_path)
    assert report.findings == ()
    assert report.checked["transactions"] == TRANSACTIONS
    # All but the creation and the fence are transactions.
    expected = {"logs": {"Delta commits": TRANSACTIONS + 2, "rows": 1}, "checkpoint": {"rows": TRANSACTIONS}}[kind]
    assert expected.items() <= report.checked.items()
