"""The port through which the doctor and the checker examine states and spouts: locations, contents, problems.

A state returns an `Examined` of its table, which reports what is wrong as `Diagnosis` objects, each with a remedy, and
can carry out the repairs that it offers. Addresses are for readers that know the format of a table or a source, without
the state or the spout. An examination changes nothing.
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
    """The kinds of problem that the doctor reports."""

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
    """`transactional rewind` has taken a table back, which is no fault."""
    FOREIGN_WRITER = "foreign-writer"
    """Another writer has changed rows."""
    FILE_CHANGED = "file-changed"
    """A data file of a table is not the one that was written."""
    FILE_MISSING = "file-missing"
    """A data file of a table does not exist."""
    FILES_LEFT_OVER = "files-left-over"
    """Staged files are no part of their table. Maintenance deletes them, so this is no fault."""
    STORE_BROKEN = "store-broken"
    """The records of the store contradict one another."""
    RETENTION_SET = "retention-set"
    """A retention of the table's log deletes the record of which attempt wrote it."""
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
    SINK_UNREADABLE = "sink-unreadable"
    """The target of a sink does not respond, can't be read, or is not what the sink can publish to."""
    SINK_AT_RISK = "sink-at-risk"
    """The settings of a sink's target allow it to lose what is published, which is no fault yet."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A problem: its kind, the place in words (`where`), a description (`what`), and the remedy.

    If `can_repair`, `--repair` carries out the remedy; otherwise an operator has to. If `is_harmless`, nothing has to
    be done. `target` is for the repair: the Delta version to restore, or the transaction that the table contains.
    `seen` is the Delta version that was examined. `attempt_id` is the first attempt that wrote a missing file.
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
        """The key columns, in order."""

    @property
    def values(self) -> Schema:
        """The value columns, in order."""

    @property
    def txid(self) -> str:
        """The column with the transaction that wrote a row."""

    @property
    def prev_txid(self) -> str:
        """The column with the previous transaction."""

    @property
    def deletes(self) -> bool:
        """True if keys may be deleted."""

    @property
    def deleted(self) -> str:
        """The column that is true for a deleted key, if keys may be deleted."""

    @property
    def prev(self) -> Mapping[str, str]:
        """The names of the columns with previous values, by value column."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """The location of a state's table, and the names of its columns, for readers without the state."""

    format: str
    """The format of the table, `delta`, `sql` or `redis`."""
    uri: str | None = field(repr=False)
    """The path or URI of a Delta table, the URL of a database with its password; None if only a catalog knows it."""
    key: tuple[str, ...]
    values: tuple[str, ...]
    previous: Mapping[str, str]
    """The column with the previous values, by value column."""
    txid: str
    prev_txid: str
    table: str = ""
    """The table's name in a database or a catalog."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options that open the storage. They may contain secrets."""
    deleted: str | None = None
    """The column that is true for a deleted key. None if keys are never deleted."""
    expiry: Expiry | None = None
    """The rule by which rows expire. None if they never do."""

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
        """Return the address of a table with these columns."""
        key, values = columns.key.names, columns.values.names
        previous = {name: columns.prev[name] for name in values}
        deleted = columns.deleted if columns.deletes else None
        history = (columns.txid, columns.prev_txid)
        return cls(format, uri, key, values, previous, *history, table, dict(options or {}), deleted, expiry)


@dataclass(frozen=True, slots=True)
class TornFiles:
    """The newest files of a table, which are missing or incomplete; `what` names them.

    `version` is the table's version without these files, or None without any. `lost` is the version that they recorded,
    or None if that can't be read.
    """

    what: str
    version: AttemptId | None
    lost: AttemptId | None


class Examined(Protocol):
    """The table of a state, as it was read by an examination."""

    @property
    def where(self) -> str:
        """The name of the table in messages (see `in_words`)."""

    @property
    def torn(self) -> TornFiles | None:
        """The torn files of the table (`Problem.TABLE_TORN`), or None."""

    @property
    def version(self) -> AttemptId | None:
        """The attempt that wrote the table last. None if no attempt has, or if the table can't be read."""

    @property
    def store_id(self) -> str | None:
        """The id of the coordinator's store that the table was created for, or None if none was recorded."""

    @property
    def versions(self) -> Sequence[AttemptId]:
        """The attempts and fences that have written the table, oldest first, as far back as its history goes."""

    @property
    def has_full_history(self) -> bool:
        """True if `versions` goes back to the first write of the table."""

    def diagnoses(self) -> Iterator[Diagnosis]:
        """Yield the problems of the table itself, in the order in which they should be repaired. Changes nothing.

        Does not check whether the table is at the transaction that the store expects. Raises `OperatingError`.
        """

    def repair(self, diagnosis: Diagnosis) -> str:
        """Carry out the repair that one of these diagnoses offers, and describe it. Nobody else may write meanwhile.

        Raises `OperatingError`, also if the table has changed since it was examined.
        """


def in_words(component_id: str, location: object) -> str:
    """Return the name of a committer's table in messages."""
    return f"table of {component_id!r} ({location})"


# --- spouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """The address of a spout's source, for readers without the spout.

    `format` is `"kafka"`, with the brokers' addresses as `uri` and librdkafka's `options`, or that of another source.
    If `skips_records`, a record may yield no tuple.
    """

    format: str
    uri: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    timeout_ms: int = 10_000
    skips_records: bool = False
