"""The port of states: what the engine needs from the tables that a topology writes, and what else they may offer.

Each state passes one contract suite: `check_state` in `transactional/testing/`, for those of users, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from transactional.core.ports.expiry import Expiry
from transactional.model.absent import Absent
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import ConfigError
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from transactional.core.ports.examining import Examined, TableAddress, TornFiles
    from transactional.core.ports.partials import Partials
    from transactional.core.ports.rewinding import RewindTarget
    from transactional.core.ports.split import TaskState, WrittenPart
    from transactional.core.ports.staged import Scratch, Stager
    from transactional.model.reading import StateReader


class StateKind(Enum):
    """How a state protects itself against a replay. `value` is the word used in messages."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What a state's last write to its table made, for the history: the table's `version`, the bytes of the files that
    it added, and the transaction up to which the table is compacted. None: not known, or there is none."""

    version: int | None = None
    size_bytes: int | None = None
    compacted_txid: TxId | None = None


class State(ABC):
    """A table that one committer keeps: key → values, each row with `txid`, `prev_txid` and the previous values.

    What is abstract, every state has. The other methods are abilities, and what they do here is true of a state without
    them. `state.table_state.TableState` has most of it, and the aggregates that update a state.

    Only used from the driver's commit thread. Every writing method checks and writes through one handle of the table;
    a table whose fence is above the caller's attempt id is not touched: `Fenced` is raised.
    """

    @property
    @abstractmethod
    def kind(self) -> StateKind:
        """Transactional or opaque."""

    @property
    @abstractmethod
    def key(self) -> Schema:
        """The key columns."""

    @property
    @abstractmethod
    def values(self) -> Schema:
        """The value columns."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """What must stay the same across restarts: location, key, values, kind."""

    @abstractmethod
    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the existing one. `owner` is `<topology id>/<component id>`.

        `txid_of` returns the txid of an attempt id (or a fence) of this table. Raises `SchemaMismatch` if a table of
        another shape exists there.
        """

    @abstractmethod
    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that was last written to it, or None if there is none."""

    @abstractmethod
    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the table's version, through the handle that `version()` loaded, changing no row.

        Raises `TableConflict` if the table has changed since `version()`, `Fenced` if its version is higher; an equal
        one is this fence's own earlier write, whose outcome was unknown. Raises `StoreMismatch` if another writer has
        changed rows since the owner's last write, where the table can detect it: a start would build on that.
        """

    @abstractmethod
    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before `attempt.txid` of the existing keys (for this transaction's own row, the previous
        value)."""

    @abstractmethod
    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before `attempt.txid`, in any order."""

    @abstractmethod
    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""

    @abstractmethod
    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow: key and value columns of the rows with these keys that exist; maybe of more rows."""

    @abstractmethod
    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `rows_before`, as the rows are once this attempt has written them."""

    @abstractmethod
    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """Key and value columns of the rows with `after < column <= until`: a timestamp column, in microseconds since
        1970; `after` None: from the beginning.

        The rows are those that a reader of the transaction before sees: also those that expire only now.
        """

    @abstractmethod
    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Set new values for the given keys as transaction `attempt.txid`, even if `rows` is empty; `ABSENT` deletes a
        key.

        Rows that an earlier attempt at this txid has changed, and that are not given, are rolled back. A transactional
        state that already is at this txid changes no row. Either way the table's version is `attempt.attempt_id`
        afterwards. Raises `Fenced`, or `TableConflict` if another writer got in between (nothing was written then).
        """

    @abstractmethod
    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """As `put`, for partial aggregates that are combined with the values before this transaction."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release what `open` acquired."""

    # --- columns, before it is opened -----------------------------------------------------------------------------

    @property
    def table(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def bind(self, key: Schema, values: Schema) -> None:
        """Fix the columns, once the schema of the input is known. Raises `ConfigError` where others are declared; here
        all are."""
        if (self.key, self.values) != (key, values):
            raise ConfigError(
                f"state {self.table} has the columns '{self.key} -> {self.values}'; what updates it needs "
                f"'{key} -> {values}'"
            )

    def allow_deletes(self) -> None:
        """Let keys be deleted. Raises `ConfigError` if they can't be, as here."""
        raise ConfigError(f"a {type(self).__name__} can't delete rows")

    def expire(self, expiry: Expiry) -> None:
        """Let rows expire so. Raises `ConfigError` if they can't, as here."""
        raise ConfigError(f"rows of a {type(self).__name__} can't expire")

    def aggregate(self, aggregates: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """The update that keeps these aggregates, each in its column. Raises `ConfigError` if there is none, as here:
        bolts have `put`."""
        raise ConfigError(f"a {type(self).__name__} has no aggregates; derive it from state.table_state.TableState")

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:  # noqa: B027 - optional
        """Called before anything is read or written for an attempt, with the facts of its batch.

        Where rows expire, each transaction has an expiry horizon: rows whose expiry is at or before this time do not
        exist for it. The horizon follows from these facts, is recorded in the same write as the rows, and never goes
        back from one transaction to the next. Here no row expires.
        """

    def check_put(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:  # noqa: B027 - optional
        """Raise what `put` would raise for these rows, and write nothing: then the tuples can be found that led to
        what is refused. Here nothing is known of that before it is written."""

    def last_commit(self) -> CommitFacts | None:
        """What the last write was; None: nothing is known of it.

        Called in the commit thread after all states are written; has to be cheap. Raises `OSError`, `OperatingError` if
        that can't be determined, which matters to nobody but the history.
        """
        return None

    def check_files(self) -> None:  # noqa: B027 - optional
        """Raise `StoreMismatch` if the open table lacks files of its newest version. Called by a start before it raises
        the version, not by a rewind, which may restore what is missing. Raises `OperatingError`. Here it does nothing.
        """

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:  # noqa: B027 - optional
        """Maintain the table between two transactions: compact, delete old files. Often does nothing.

        Called in the commit thread, once `committed_txid`, the last transaction written, is committed in the
        coordinator's store. Neither readers nor a replay see a difference. Calls `may_go_on` between two long steps.
        Failures are logged, and retried some later time.
        """

    @property
    def upkeep_failure(self) -> str:
        """Which maintenance has failed several times in a row, and why; empty while it goes well. Shown by the status,
        the metrics and the console. Read in the commit thread."""
        return ""

    def finish_maintenance(self, may_go_on: Callable[[], bool]) -> None:  # noqa: B027 - optional
        """Wait for maintenance that is done beside the commit thread, and commit it, as long as `may_go_on` says so: a
        run that has nothing else to do is ending.

        Called in the commit thread after the last `maintain`. Failures are logged. The next run begins unfinished
        maintenance again. Here there is none.
        """

    # --- disks of this machine, where a power failure loses what was written and not synced -------------------------

    def set_durability(self, durability: str) -> None:  # noqa: B027 - optional
        """Called before `open`: `disk`, or `process`, with which nothing needs to be synced."""

    def unsynced(self) -> Collection[Path]:
        """The files and folders to sync so that everything written is durable. Called before the transaction commit,
        for all states at once. Raises `OperatingError`. Here, as in a database, what is written is durable."""
        return ()

    def mark_synced(self) -> None:  # noqa: B027 - optional
        """Called once everything that `unsynced` returned is synced."""

    def set_aside_torn(self, owner: str, check: Callable[[TornFiles], None]) -> None:  # noqa: B027 - optional
        """Set aside files that a power failure has left half written, so that nobody can open the table. Called before
        `open`, with the same owner, by a process that leads.

        `check` is called before anything is set aside; what it raises is raised. Raises `OperatingError`. Here there
        are none.
        """

    def set_store_id(self, store_id: str | None) -> None:  # noqa: B027 - optional
        """What a table has to record that `open` creates: the coordinator's store that it is for. Called before it."""

    def created_for(self) -> str | None:
        """What the open table has recorded of that, None for nothing: a start refuses the table of another store."""
        return None

    # --- tasks that read and write it -----------------------------------------------------------------------------

    @property
    def serves_tasks(self) -> bool:
        """Whether tasks of a step can read and write it: whether there are `for_tasks` and `put_parts`. The same keys
        in two tasks are the caller's mistake."""
        return False

    def for_tasks(self, attempt: TransactionAttempt) -> TaskState | None:
        """Read and check the table's version, and return what tasks read of that version; None: only the driver can.

        Raises `Fenced` or `OperatingError`.
        """
        return None

    def count_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> int:
        """About how many rows `rows_between` gives, not fewer; reads little, unless as here nothing better is known.
        Raises `Fenced` or `OperatingError`."""
        return int(self.rows_between(attempt, column, after, until).num_rows)

    def put_parts(self, attempt: TransactionAttempt, parts: Sequence[WrittenPart]) -> None:
        """As `put`, with what tasks have kept. Raises `TableConflict` if another writer came since `for_tasks`,
        `ConfigError` unless it `serves_tasks`."""
        raise ConfigError(f"tasks can't write a {type(self).__name__}")

    def stager(self, owner: str) -> Stager | None:
        """What tasks write files with that can be committed into the table; None: all partial aggregates go through the
        driver.

        `owner` is `<topology id>/<component id>`. The state need not be open.
        """
        return None

    def scratch(self, owner: str) -> Scratch | None:
        """Where tasks leave something for later steps, beside the table; None: nowhere. The state need not be open."""
        return None

    # --- where it lies, and who else reads it -----------------------------------------------------------------------

    @property
    def storage_path(self) -> str | None:
        """The path or URI of the state's table, or None if the state has no files of its own."""
        return None

    @property
    def owns_folder(self) -> bool:
        """Whether its location is a folder in which nothing else may be stored."""
        return False

    def address(self) -> TableAddress | None:
        """Where the table can be found, without opening it, by readers that know its format, such as the checker. Reads
        nothing. None: nowhere; what has an address has `examine`, too."""
        return None

    def examine(self, topology_id: str, component_id: str) -> Examined | None:
        """Read the table of this committer as it is now, for the doctor. None if it can't be found from here: nothing
        of it is kept, or only a catalog knows it.

        Raises `OperatingError` if the storage does not respond.
        """
        return None

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows; with `committed_txid`, nothing from after that transaction. The state need
        not be open. Raises `ConfigError` if it can't be read as a whole, as here."""
        raise ConfigError(f"state {self.table} can't be read as a whole")

    def reader(self, owner: str) -> StateReader:
        """A reader of its table, which is that of `<topology id>/<component id>`. Raises `ConfigError` if there can't
        be one."""
        raise ConfigError(f"the state of {owner}, a {type(self).__name__}, can't be read from outside")

    # --- going back -------------------------------------------------------------------------------------------------

    @property
    def rewind_obstacle(self) -> str:
        """The reason why the table can't be rewound to an earlier transaction; empty if `rewind` can do it."""
        return f"a {type(self).__name__} keeps nothing of earlier transactions"

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        """What going back would mean for the table of this committer, in words. Changes nothing; it need not be open.

        Raises `BeyondKept` if something that it takes is gone, `OperatingError` if the storage does not respond,
        `ConfigError` where there is `rewind_obstacle`.
        """
        raise ConfigError(f"state {self.table} can't be taken back: {self.rewind_obstacle}")

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Take the open table back, and write `fence_id` as its version, in one write; called after `fence`.

        What it does is the same however often it is repeated, also by another process with a higher fence id, and
        whatever the table is at by then. Raises `Fenced` when the version is higher, `BeyondKept`, `OperatingError`,
        `ConfigError` where there is `rewind_obstacle`.
        """
        raise ConfigError(f"state {self.table} can't be taken back: {self.rewind_obstacle}")

    def retain(self, targets: Sequence[RewindTarget]) -> None:  # noqa: B027 - optional
        """Keep from now on what going back to any of these takes, and no longer what was held for others.

        Called in the commit thread, for the open table. What is gone already can't be held: it is logged. Raises
        `OperatingError`, after which it is called again. Here maintenance deletes nothing that going back takes.
        """
