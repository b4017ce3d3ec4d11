"""What the checker reports: findings, which prove that a history is not exact, and notes on what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SHOWN_PER_KIND = 20
"""How many findings of one kind are kept; the others are only counted."""


class CheckImpossible(Exception):
    """A table, store or source can't be checked, for the reason in the text."""


class Kind(StrEnum):
    """What can be wrong with a history."""

    TRANSACTION_LOST = "transaction-lost"
    """A transaction is missing, in the store or in a table that holds a later one."""
    TRANSACTION_TWICE = "transaction-twice"
    """A transaction, or an attempt at one, was written a second time."""
    OUT_OF_ORDER = "out-of-order"
    """A later transaction or attempt was written before an earlier one."""
    WRONG_ATTEMPT = "wrong-attempt"
    """A table contains a transaction as written by an attempt other than the one that the store has committed."""
    UNKNOWN_ATTEMPT = "unknown-attempt"
    """A table was written by an attempt that the store does not know."""
    FOREIGN_WRITER = "foreign-writer"
    """Rows were changed by a Delta commit that is not the topology's."""
    PARTLY_VISIBLE = "partly-visible"
    """Some rows of a transaction are there, and others are not."""
    BROKEN_ROW = "broken-row"
    """A row that no sequence of transactions can have produced."""
    RANGE_GAP = "range-gap"
    """Offsets between two transactions are in neither."""
    RANGE_OVERLAP = "range-overlap"
    """Offsets are in two transactions."""
    TABLE_BEHIND = "table-behind"
    """A table lacks transactions that the store says are committed."""
    TABLE_AHEAD = "table-ahead"
    """A table contains transactions that the store does not know."""
    WRONG_TABLE = "wrong-table"
    """A table is not the one that the state has created: it belongs to another, or has different columns."""
    WRONG_COUNT = "wrong-count"
    """A column that counts records does not add up to the records that were read."""
    WRONG_WINDOW = "wrong-window"
    """A window is not what is computed of the source's tuples again."""
    WRONG_RECORDS = "wrong-records"
    """The source holds a different number of records in a range than were read from it."""
    WRONG_PUBLICATION = "wrong-publication"
    """A topic has other records of a transaction than its sink has encoded."""
    SOURCE_CHANGED = "source-changed"
    """The source is not the one that was read: a topic was recreated, or truncated."""
    BROKEN_STORE = "broken-store"
    """The store contradicts itself."""
    FILE_CHANGED = "file-changed"
    """A data file is not the one that was written: its size differs."""
    FILE_MISSING = "file-missing"
    """A data file of a table is gone: somebody has deleted it."""
    BROKEN_LOG = "broken-log"
    """The log of a table has a gap, or can't be read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the place, what was expected there, and what is there."""

    kind: Kind
    where: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: expected {self.expected}; found {self.found}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `counts` has the number of findings of each kind, also of those that `findings` leaves out.

    `checked` has the number of things checked by subject; `notes` name what could not be checked, or is surprising.
    """

    findings: tuple[Finding, ...]
    counts: Mapping[Kind, int]
    checked: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether there is no finding. What the notes name was not checked."""
        return not self.counts


class Findings:
    """Collects findings and notes, and counts what was checked."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._counts: Counter[Kind] = Counter()
        self._checked: Counter[str] = Counter()
        self._notes: dict[str, None] = {}

    def add(self, kind: Kind, where: str, expected: object, found: object) -> None:
        """Add a finding. Only the first `SHOWN_PER_KIND` of a kind are reported in full; all are counted."""
        self._counts[kind] += 1
        if self._counts[kind] <= SHOWN_PER_KIND:
            self._findings.append(Finding(kind, where, str(expected), str(found)))

    def note(self, text: str) -> None:
        """Add a note on something that was not checked, or is worth knowing. A repeated text is added once."""
        self._notes[text] = None

    def add_checked(self, subject: str, number: int) -> None:
        """Count things that were checked, by a subject such as `rows`."""
        self._checked[subject] += number

    def report(self) -> Report:
        """Return the report of everything that was added."""
        return Report(tuple(self._findings), dict(self._counts), dict(self._checked), tuple(self._notes))
