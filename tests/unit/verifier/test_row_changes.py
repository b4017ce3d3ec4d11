"""What a transaction may do to a row, and what not: rule by rule."""

from __future__ import annotations

import pytest

from verifier.evidence.findings import Kind
from verifier.row_changes import Row, find_violation

BEFORE = Row((3,), 6, 5, (2,))
"""Of transaction 6, onto what transaction 5 has left; transaction 8 is the next that changes it."""


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (Row((4,), 8, 6, (3,)), None),
        (Row((4,), 8, 7, (3,)), Kind.BROKEN_ROW),
        (Row((4,), 8, None, (3,)), Kind.BROKEN_ROW),
        (Row((4,), 8, 6, (2,)), Kind.BROKEN_ROW),
        (Row((4,), 7, 6, (3,)), Kind.PARTLY_VISIBLE),
        (None, Kind.PARTLY_VISIBLE),
    ],
)
def test_a_row_of_an_earlier_transaction_keeps_what_it_was(after: Row | None, kind: Kind | None) -> None:
    found = find_violation(8, BEFORE, after)
    assert (found and found[0]) == kind


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (Row((9,), 6, 5, (2,)), None),
        (Row((2,), 5, None, (None,)), None),
        (Row((9,), 6, 4, (2,)), Kind.BROKEN_ROW),
        (Row((9,), 6, 5, (3,)), Kind.BROKEN_ROW),
        (Row((1,), 5, None, (None,)), Kind.PARTLY_VISIBLE),
    ],
)
def test_a_replay_starts_from_what_was_before_or_goes_back_to_it(after: Row, kind: Kind | None) -> None:
    found = find_violation(6, BEFORE, after)
    assert (found and found[0]) == kind
