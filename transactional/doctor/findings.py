"""What the doctor says: problems by name, and what is to be done about each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Problem(StrEnum):
    """What the doctor can find."""

    STORE_WIPED = "store-wiped"
    """The tables hold transactions that the store knows nothing of."""
    TABLE_BEHIND = "table-behind"
    """A table lacks committed transactions: it was put back to an older state, or is another one."""
    TABLE_AHEAD = "table-ahead"
    """A table is further than the store: the store was put back to an older state."""
    TABLE_MISSING = "table-missing"
    """Transactions are committed, and there is no table with them."""
    TABLE_UNREADABLE = "table-unreadable"
    """The log of a table has a hole, or can't be read."""
    TABLE_TORN = "table-torn"
    """The newest files of a table's log were not durable when the power went."""
    TABLE_RESTORED = "table-restored"
    """Delta's RESTORE has put the rows back, but not the version that tells how far the table is."""
    FOREIGN_WRITER = "foreign-writer"
    """Something else has changed rows."""
    FILE_CHANGED = "file-changed"
    """A data file of a table is not the one that was written."""
    STORE_BROKEN = "store-broken"
    """The store contradicts itself."""
    RETENTION_SET = "retention-set"
    """The table forgets which attempt wrote it."""
    FEATURE_UNREADABLE = "feature-unreadable"
    """The table has a feature that Spark or delta-rs can't read or write."""
    TOPOLOGY_CHANGED = "topology-changed"
    """The topology is not the one whose progress is stored."""
    SOURCE_RECREATED = "source-recreated"
    """A topic was deleted, and maybe made anew."""
    SOURCE_LOST = "source-lost"
    """The source no longer holds what was to be read next."""
    SOURCE_CUT_OFF = "source-cut-off"
    """The source ends before what was read."""
    SOURCE_UNAVAILABLE = "source-unavailable"
    """The source does not answer, or can't be opened."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong: its name, where it is, what it is, and what is to be done.

    `can_repair`: `--repair` does it; else `remedy` says what a person has to do. `is_harmless`: nothing has to be done.
    `target` is for the repair: the Delta version that a table is to have again, or the transaction that it holds.
    `seen` is the Delta version of the table in which this was found.
    """

    problem: Problem
    where: str
    what: str
    remedy: str
    component: str = ""
    can_repair: bool = False
    is_harmless: bool = False
    target: int | None = None
    seen: int | None = None
