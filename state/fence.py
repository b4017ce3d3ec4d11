"""The fence of a state's table: who may write, and whether a write has gone through.

A table's version is the attempt id that wrote it last. Each write goes over the version that was read and checked, as a
compare-and-set; a write whose outcome is not known is decided by the version that the table has afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import pyarrow as pa

from state.rows.expiring import ExpiryHorizons
from transactional.core.ports import StateKind
from transactional.core.ports.staged import StagedFile
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import Fenced, OperatingError, StoreMismatch, TableConflict

WRITE_TRIES = 20
"""How often a write is tried while other writers' maintenance disturbs it, before its attempt fails."""


class Verdict(Enum):
    """What a writer has to do, depending on the table's version."""

    WRITE = "write the rows and the version"
    WRITE_VERSION_ONLY = "write the version and no row"
    NOTHING = "nothing: it is written"


class WriteRefused(Exception):
    """A write did not go through, or its outcome is not known: the table has to be read again.

    Between a table and its state only; users get `Fenced`, `TableConflict`, or another `OperatingError`.
    """

    def __init__(self, reason: str, *, is_conflict: bool) -> None:
        self.is_conflict = is_conflict
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class TableWrite:
    """What a transaction writes to a table: rows, one per key, to be combined with the stored ones by `combine`.

    `staged` are files with more of them, whose keys may repeat. `is_replay`: an earlier attempt may have written.
    `horizons` are recorded with it, and rows below them are as absent as `state.rows.expiring` says; None: rows stay.
    """

    attempt: TransactionAttempt
    rows: pa.Table
    combine: Mapping[str, str]
    staged: Sequence[StagedFile] = ()
    is_replay: bool = False
    horizons: ExpiryHorizons | None = None


class FencedTable(Protocol):
    """The open table of a state, for the one thread that writes it."""

    def read_and_check_version(self) -> AttemptId | None:
        """Load the table that later writes build on. Return the attempt id of its last write."""

    def created_for(self) -> str | None:
        """Return the `store_id` that the table was created with."""

    def version(self) -> AttemptId | None:
        """Return the version that was loaded last, or written since."""

    def horizons(self) -> ExpiryHorizons:
        """Return the expiry horizons of that version."""

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return key and value columns of the rows with these keys before transaction `txid`; maybe of more rows.

        Expired rows are among them, as in the methods below.
        """

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows before transaction `txid`."""

    def rows_between(self, txid: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """Return, as `rows` does, the rows with `after < column <= until`."""

    def apply(self, write: TableWrite) -> None:
        """Write rows and the version, over the version that was read and checked. Raises `WriteRefused`.

        Only rows that an earlier attempt of the transaction has written are rolled back first (row T60).
        """

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None = None
    ) -> None:
        """Write the version, over the one that was read and checked, and no row. Raises `WriteRefused`."""


@dataclass(slots=True)
class Fence:
    """The fence of one table: `state` is what messages call it, `owner` is `<topology>/<component>`.

    `txid_of` returns the transaction of an attempt id, from the coordinator's store.
    """

    state: str
    owner: str
    kind: StateKind
    txid_of: Callable[[AttemptId], TxId]
    read_by: tuple[TransactionAttempt, AttemptId | None] | None = field(default=None, init=False)
    """The attempt that read the table last, and the version that it read."""
    _last_known: tuple[AttemptId, TxId] | None = field(default=None, init=False, repr=False, compare=False)

    def decide(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
        """Decide how `attempt` writes a table of this version. Raises `Fenced`, `StoreMismatch`."""
        if version == attempt.attempt_id:
            # Its own earlier write, whose outcome was not known.
            return Verdict.NOTHING
        if version is None:
            return Verdict.WRITE
        self.check(version, attempt.attempt_id)
        txid = self.txid_at(version)
        if txid not in (attempt.txid - 1, attempt.txid):
            raise StoreMismatch(
                f"state {self.state} of {self.owner} is at transaction {txid}, but transaction {attempt.txid} "
                "arrived: store and table do not belong together; restore whichever is too old"
            )
        if self.kind is StateKind.TRANSACTIONAL and txid == attempt.txid:
            return Verdict.WRITE_VERSION_ONLY
        return Verdict.WRITE

    def check(self, version: AttemptId | None, attempt_id: AttemptId) -> None:
        """Raise `Fenced` when a table of this version was written after that attempt."""
        if version is not None and version > attempt_id:
            raise Fenced(
                f"state {self.state} of {self.owner} was written by attempt {version}, after {attempt_id}: another "
                "coordinator has taken over, this one has to stop"
            )

    def check_unchanged(self, attempt: TransactionAttempt, version: AttemptId | None) -> None:
        """Raise `TableConflict` if another writer has come since this attempt read the table."""
        reader, read_version = self.read_by or (None, None)
        if reader == attempt and version not in (read_version, attempt.attempt_id):
            raise TableConflict(
                f"state {self.state} of {self.owner} was at version {read_version} when {attempt} read it and is at "
                f"{version} now; nothing was written, the attempt has to be repeated"
            )

    def txid_at(self, version: AttemptId) -> TxId:
        """Return the transaction of the attempt that wrote a version. The newest answer of the store is cached."""
        if self._last_known is None or self._last_known[0] != version:
            self._last_known = (version, self.txid_of(version))
        return self._last_known[1]

    def is_replay(self, version: AttemptId | None, attempt: TransactionAttempt) -> bool:
        """Return whether the table may hold rows of an earlier attempt at the same transaction."""
        return version is not None and self.txid_at(version) == attempt.txid

    def record_write(self, attempt: TransactionAttempt) -> None:
        """Cache the transaction of the attempt that has just been written."""
        self._last_known = (attempt.attempt_id, attempt.txid)

    def confirm(
        self,
        attempt_id: AttemptId,
        read_version: AttemptId | None,
        current_version: AttemptId | None,
        refused: WriteRefused | None,
        *,
        may_try_again: bool,
    ) -> bool:
        """Return whether a write over `read_version` went through, as the table's `current_version` shows.

        If not, it may be tried again. A write that is refused although the version is still the one that was read and
        checked was disturbed by somebody's maintenance: the rows are the same, so the check still holds, and it is
        written over the table as it is now. Raises `Fenced`, `TableConflict`, or another `OperatingError`.
        """
        if current_version == attempt_id:
            # Also after an error: the write had gone through, only its outcome was not known.
            return True
        self.check(current_version, attempt_id)
        if refused is None:
            raise OperatingError(
                f"state {self.state} of {self.owner}: attempt {attempt_id} was written without an error, but "
                f"the table's version is {current_version}: the storage has confirmed the write and lost it, as "
                "after a failover to a copy that was behind, or something else writes the table's version"
            )
        if current_version != read_version or not refused.is_conflict or not may_try_again:
            kind = TableConflict if refused.is_conflict else OperatingError
            raise kind(
                f"state {self.state} of {self.owner} is at version {current_version}; attempt {attempt_id} was not "
                f"written over it: {refused}"
            ) from refused
        return False
