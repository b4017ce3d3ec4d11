"""The port of states: what the engine needs from the tables that a topology writes, and what else they may offer.

Each port has several implementations, and one contract suite (`tests/contract`) that all of them pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from transactional.absent import Absent
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.facts import BatchFacts
from transactional.ports.partials import Partials
from transactional.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


class StateKind(Enum):
    """How a state protects itself against a replay. `value` is the word used in messages."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class TransactionState(Protocol):
    """A table that one committer keeps: key → values, each row with `txid`, `prev_txid` and the previous values.

    Only used from the driver's commit thread. Every writing method checks and writes through one handle of the table;
    a table whose fence is above the caller's attempt id is not touched: `Fenced` is raised.
    """

    @property
    def kind(self) -> StateKind:
        """Transactional or opaque."""

    @property
    def key(self) -> Schema:
        """The key columns."""

    @property
    def values(self) -> Schema:
        """The value columns."""

    def identity(self) -> Mapping[str, str]:
        """What must stay the same across restarts: location, key, values, kind."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the existing one. `owner` is `<topology id>/<component id>`.

        `txid_of` returns the txid of an attempt id (or a fence) of this table. Raises `SchemaMismatch` if a table of
        another shape exists there.
        """

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that was last written to it, or None if there is none."""

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the table's version, through the handle that `version()` loaded, changing no row.

        Raises `TableConflict` if the table has changed since `version()`, `Fenced` if its version is higher; an equal
        one is this fence's own earlier write, whose outcome was unknown. Raises `StoreMismatch` if another writer has
        changed rows since the owner's last write, where the table can detect it: a start would build on that.
        """

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before `attempt.txid` of the existing keys (for this transaction's own row, the previous
        value)."""

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before `attempt.txid`, in any order."""

    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow: key and value columns of the rows with these keys that exist; maybe of more rows."""

    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `rows_before`, as the rows are once this attempt has written them."""

    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """Key and value columns of the rows with `after < column <= until`: a timestamp column, in microseconds since
        1970; `after` None: from the beginning.

        The rows are those that a reader of the transaction before sees: also those that expire only now.
        """

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Set new values for the given keys as transaction `attempt.txid`, even if `rows` is empty; `ABSENT` deletes a
        key.

        Rows that an earlier attempt at this txid has changed, and that are not given, are rolled back. A transactional
        state that already is at this txid changes no row. Either way the table's version is `attempt.attempt_id`
        afterwards. Raises `Fenced`, or `TableConflict` if another writer got in between (nothing was written then).
        """

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """As `put`, for partial aggregates that are combined with the values before this transaction."""

    def tidy(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Maintain the table between two transactions: compact, fold, delete old files. Often does nothing.

        Called in the commit thread, once `committed_txid`, the last transaction written, is committed in the
        coordinator's store. Neither readers nor a replay see a difference. Calls `may_go_on` between two long steps.
        Failures are logged, and retried some later time.
        """

    def close(self) -> None:
        """Release what `open` acquired."""


@runtime_checkable
class CheckingState(Protocol):
    """A state that can say whether it takes what a bolt has put: then the tuples can be found that it refuses."""

    def check_put(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Raise what `put` would raise for these rows, and write nothing."""


@runtime_checkable
class DiskState(Protocol):
    """A state that may be on a disk of this machine, where a power failure loses what was written and not synced.

    A state in a database or an object store is durable once written, and need not be one.
    """

    def set_durability(self, durability: str) -> None:
        """Called before `open`: `disk`, or `process`, with which nothing needs to be synced."""

    def unsynced(self) -> Collection[Path]:
        """The files and folders to sync so that everything written is durable. Called before the transaction commit,
        for all states at once. Raises `OperatingError`."""

    def synced(self) -> None:
        """Called once everything that `unsynced` returned is synced."""


@dataclass(frozen=True, slots=True)
class TornFiles:
    """Newest files of a table that are not there, or not whole: `what` says which. `version` is the one that the table
    has without them, None if that is none; `lost` is the one that it has lost then, None if that can't be read."""

    what: str
    version: AttemptId | None
    lost: AttemptId | None


@runtime_checkable
class MendableState(Protocol):
    """A state whose table a power failure may leave with files that are half written, so that nobody can open it."""

    def mend(self, owner: str, check: Callable[[TornFiles], None]) -> None:
        """Set such files aside. Called before `open`, with the same owner, by a process that leads.

        `check` is called before anything is set aside; what it raises is raised. Raises `OperatingError`.
        """


@runtime_checkable
class FinishingState(Protocol):
    """A state with maintenance that takes long and is done beside the commit thread, to be committed by a later
    `tidy`."""

    def finish_tidying(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for it and commit it, as long as `may_go_on` says so: a run that has nothing else to do is ending.

        Called in the commit thread after the last `tidy`. Failures are logged. What is not finished is begun again by
        the next run.
        """


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What a state's last write to its table made, for the history: the table's `version`, the bytes of the files that
    it added, and the transaction up to which the table is folded. None: not known, or there is none."""

    version: int | None = None
    size_bytes: int | None = None
    folded_txid: TxId | None = None


@runtime_checkable
class TellingState(Protocol):
    """A state that can say what its last write was."""

    def last_commit(self) -> CommitFacts | None:
        """Called in the commit thread after all states are written; has to be cheap. Raises `OSError`,
        `OperatingError` if that can't be determined, which matters to nobody but the history."""


@runtime_checkable
class ExpiringState(Protocol):
    """A state whose rows may expire: each transaction has a floor, a time at or below which rows do not exist for it.

    The floor follows from the batch's facts, is recorded in the same write as the rows, and never goes back from one
    transaction to the next.
    """

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:
        """Called before anything is read or written for an attempt, with the facts of its batch."""
