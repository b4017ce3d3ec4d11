"""The port through which the doctor and the checker examine states and spouts: locations, contents, problems.

Diagnoses name a problem, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from transactional.core.ports.expiry import Expiry
from transactional.model.attempt import AttemptId
from transactional.model.schema import Schema


class Problem(StrEnum):
    """What the doctor can find."""

    STORE_WIPED = "store-wiped"
    """The tables contain transactions that the store does not know, or were created for another store."""
    TABLE_BEHIND = "table-behind"
    """A table lacks committed transactions: it was restored to an older state, or is a different one."""
    TABLE_AHEAD = "table-ahead"
    """A table is ahead of the store: the store was restored to an older state."""
    TABLE_MISSING = "table-missing"
    """Transactions are committed, but there is no table with them."""
    TABLE_UNREADABLE = "table-unreadable"
    """The log of a table has a gap, or can't be read."""
    TABLE_FOREIGN = "table-foreign"
    """A table is not the one that its state created: it belongs to another, or was changed."""
    TABLE_TORN = "table-torn"
    """The newest files of a table's log were not durable at a power failure."""
    TABLE_RESTORED = "table-restored"
    """Delta's RESTORE has restored the rows, but not the version that records how far the table is."""
    TABLE_REWOUND = "table-rewound"
    """`transactional rewind` has taken a table back; nothing is wrong with that."""
    FOREIGN_WRITER = "foreign-writer"
    """Another writer has changed rows."""
    FILE_CHANGED = "file-changed"
    """A data file of a table is not the one that was written."""
    FILE_MISSING = "file-missing"
    """A data file of a table is not there."""
    FILES_LEFT_OVER = "files-left-over"
    """Staged files are no part of their table: they are deleted in time; nothing is wrong with that."""
    STORE_BROKEN = "store-broken"
    """The store contradicts itself."""
    RETENTION_SET = "retention-set"
    """The table forgets which attempt wrote it."""
    FEATURE_UNREADABLE = "feature-unreadable"
    """The table has a feature that Spark or delta-rs can't read or write."""
    TOPOLOGY_CHANGED = "topology-changed"
    """The topology is not the one whose progress is stored."""
    SOURCE_RECREATED = "source-recreated"
    """A topic was deleted, and possibly recreated."""
    SOURCE_LOST = "source-lost"
    """The source no longer holds what would be read next."""
    SOURCE_CUT_OFF = "source-cut-off"
    """The source ends before what was read."""
    SOURCE_UNAVAILABLE = "source-unavailable"
    """The source does not respond, or can't be opened."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that is wrong: its name, where it is, what it is, and the remedy.

    `can_repair`: `--repair` does it; otherwise `remedy` says what an operator has to do. `is_harmless`: nothing has to
    be done. `target` is for the repair: the Delta version to restore, or the transaction that the table contains.
    `seen` is the Delta version of the table in which this was found. `attempt_id` is the attempt before which the table
    did without what is missing.
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
    attempt_id: AttemptId | None = None


# --- states -----------------------------------------------------------------------------------------------------


class Columns(Protocol):
    """The columns of a state's table (see `state.rows.columns.StateColumns`)."""

    @property
    def key(self) -> Schema:
        """The key columns."""

    @property
    def values(self) -> Schema:
        """The value columns."""

    @property
    def txid(self) -> str:
        """The column with the transaction that wrote a row."""

    @property
    def prev_txid(self) -> str:
        """The column with the previous transaction."""

    @property
    def deletes(self) -> bool:
        """Whether keys may be deleted."""

    @property
    def deleted(self) -> str:
        """The column that is then true for a tombstone."""

    def prev(self, value: str, /) -> str:
        """The column with a value's previous one."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a state's table is, and the names of its columns: for readers without the state."""

    format: str
    """`delta` or `sql`."""
    uri: str | None = field(repr=False)
    """The path or URI of a Delta table, the URL of a database with its password; None if only a catalog knows it."""
    key: tuple[str, ...]
    values: tuple[str, ...]
    previous: Mapping[str, str]
    """The column of each value's previous one."""
    txid: str
    prev_txid: str
    table: str = ""
    """The table's name in a database or a catalog."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What opens the storage; it may contain secrets."""
    deleted: str | None = None
    """The column that is true for a tombstone; None: keys are never deleted."""
    expiry: Expiry | None = None
    """When its rows expire; None: never."""

    @classmethod
    def of(
        cls,
        format: str,
        uri: str | None,
        columns: Columns,
        table: str = "",
        options: Mapping[str, str] | None = None,
        expiry: Expiry | None = None,
    ) -> TableAddress:
        """The address of a table with these columns."""
        key, values = columns.key.names, columns.values.names
        previous = {name: columns.prev(name) for name in values}
        deleted = columns.deleted if columns.deletes else None
        history = (columns.txid, columns.prev_txid)
        return cls(format, uri, key, values, previous, *history, table, dict(options or {}), deleted, expiry)


@dataclass(frozen=True, slots=True)
class TornFiles:
    """Newest files of a table that are not there, or not whole: `what` says which. `version` is the one that the table
    has without them, None if that is none; `lost` is the one that it has lost then, None if that can't be read."""

    what: str
    version: AttemptId | None
    lost: AttemptId | None


class Examined(Protocol):
    """The table of a state, as found by an examination."""

    @property
    def where(self) -> str:
        """The table in words (see `in_words`)."""

    @property
    def torn(self) -> TornFiles | None:
        """What is torn of it (`Problem.TABLE_TORN`)."""

    @property
    def version(self) -> AttemptId | None:
        """The attempt that has written the table last; None if none has, or if the table can't be read."""

    @property
    def store_id(self) -> str | None:
        """The id of the coordinator's store that it was created for; None: none was recorded."""

    @property
    def versions(self) -> Sequence[AttemptId]:
        """The attempts and fences that have written it, oldest first, as far back as the table's history goes."""

    @property
    def has_full_history(self) -> bool:
        """Whether `versions` begin with the first one ever."""

    def diagnoses(self) -> Iterator[Diagnosis]:
        """What is wrong with the table itself, in the order in which it should be repaired. Changes nothing.

        Does not check whether it is at the transaction that the store expects. Raises `OperatingError`.
        """

    def repair(self, diagnosis: Diagnosis) -> str:
        """Carry out the repair promised by one of these diagnoses, and report it. Nobody else writes meanwhile.

        Raises `OperatingError`, also if the table has changed since it was examined.
        """


def in_words(component_id: str, location: object) -> str:
    """The name of a committer's table in messages."""
    return f"table of {component_id!r} ({location})"


# --- spouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """How a spout's source is reached: for readers without the spout.

    `format` is `"kafka"`, with the brokers' addresses as `uri` and librdkafka's `options`, or another source's. With
    `skips_records` a record may make no tuple.
    """

    format: str
    uri: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    timeout_ms: int = 10_000
    skips_records: bool = False
