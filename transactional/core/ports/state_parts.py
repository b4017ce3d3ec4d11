"""The parts of a state: what its user has declared, and what it can do besides holding the rows of a committer.

Every state has a `DeclaredState` and a `RowLookup`. Each other part is a class of a few methods, whose defaults are
those of a state without the ability, so the engine never has to look for a method. A state that has an ability
overrides its part, as a class of its own or as one of its bases, and names it in `State.parts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
    from transactional.core.ports.split import TaskState, WrittenPart
    from transactional.core.ports.staged import Scratch, Stager
    from transactional.model.aggregates.columns import ValueCheck
    from transactional.model.arrow.computed import ComputedColumns
    from transactional.model.reading import StateReader


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """The transaction that a table is taken back to, and the attempt that committed it.

    `attempt_id` is None if `txid` is 0, the beginning. `txid_of` returns the transaction of an attempt that has written
    the table, or None if the store does not know the attempt. The table of a committer that joined after `txid` goes
    back to its contents before its first transaction.
    """

    txid: TxId
    attempt_id: AttemptId | None
    txid_of: Callable[[AttemptId], TxId | None]


class StateKind(Enum):
    """How a state protects itself against a replay. `value` is the word used in messages."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class DeclaredState(ABC):
    """The declaration of a state by its user, with what an update of the state adds, before the state is opened.

    `computed` are the columns that are computed of the stored ones when rows are read. `value_limits` finds values that
    the state refuses although Arrow can represent them; None if there are none.
    """

    kind: StateKind
    table: str
    """The name of the table in messages."""
    known_key_names: tuple[str, ...] | None
    """The names of the key columns, or None as long as nobody has named them."""
    computed: ComputedColumns
    value_limits: ValueCheck | None

    @abstractmethod
    def bind(self, key: Schema, values: Schema) -> None:
        """Set the columns, once the schema of the input is known. Raises `ConfigError` if others are declared."""

    @abstractmethod
    def allow_deletes(self) -> None:
        """Allow that keys are deleted. Raises `ConfigError` if they can't be."""

    @abstractmethod
    def set_expiry(self, expiry: Expiry) -> None:
        """Let rows expire by this rule. Raises `ConfigError` if rows can't expire, or do by another rule."""

    @abstractmethod
    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:
        """Take the facts of the batch of an attempt, before anything is read or written for it.

        Where rows expire, each transaction has an expiry horizon: rows whose expiry is at or before this time do not
        exist for it. The horizon follows from these facts, is recorded in the same write as the rows, and never goes
        back from one transaction to the next.
        """

    @abstractmethod
    def check_rows(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Raise the error that `State.put` would raise for these rows, so that the tuples that led to refused values
        can be identified."""

    @abstractmethod
    def aggregate(self, aggregates: Mapping[str, Any]) -> Any:
        """Return the update that stores these aggregates, each in its column: a `PersistentAggregate`.

        Raises `ConfigError`.
        """


class RowLookup(ABC):
    """The rows of given keys as an attempt sees them, in Arrow."""

    @abstractmethod
    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """Return the rows that `State.get` returns: key and value columns. There may be further rows."""

    @abstractmethod
    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys as they are once this attempt has written, like `rows_before`."""

    @abstractmethod
    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Return whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""


class Durability:
    """The durability of writes on disks of this machine. By default, as in a database, writes are durable at once."""

    def set_durability(self, durability: str) -> None:
        """Set how durable writes are: `disk`, or `process`, with which nothing is synced. Called before `open`."""

    def unsynced(self) -> Collection[Path]:
        """Return the files and folders to sync so that all writes are durable.

        Called before the transaction commit, for all states at once. Raises `OperatingError`.
        """
        return ()

    def mark_synced(self) -> None:
        """Record that the paths returned by `unsynced` are on disk."""

    def set_aside_torn(self, owner: str, check: Callable[[TornFiles], None]) -> None:
        """Set aside files that a power failure left half written, because of which nobody can open the table.

        Called before `open`, with the same owner, by a process that leads. `check` is called before anything is set
        aside, and may refuse that with an error. Raises `OperatingError`.
        """

    def check_files(self) -> None:
        """Raise `StoreMismatch` if the open table lacks files of its newest version. Raises `OperatingError`.

        Called by a start before it raises the version; not by a rewind, which may restore missing files.
        """


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """The outcome of a state's last write to its table, for the history. None for a figure that is unknown.

    `version` is that of the table's format, such as a Delta version, and `size_bytes` the size of the added files. Up
    to `compacted_txid` the table is compacted.
    """

    version: int | None = None
    size_bytes: int | None = None
    compacted_txid: TxId | None = None


class TableMaintenance:
    """The maintenance of a table between transactions, and the figures of its last write. By default there is none.

    Called in the commit thread.
    """

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Compact the table, and delete old files. Often does nothing.

        Called once `committed_txid`, the last transaction written, is committed in the coordinator's store. Neither
        readers nor a replay see a difference. Calls `may_go_on` between two long steps. Failures are logged, and
        retried some later time.
        """

    @property
    def lasting_failure(self) -> str:
        """The maintenance that has failed several times in a row, with the reason; empty if none has.

        Shown by the status, the metrics and the console.
        """
        return ""

    def finish(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for maintenance that is done beside the commit thread, and commit it, as long as `may_go_on` says so: a
        run that has nothing else to do is ending.

        Called after the last `maintain`. Failures are logged. The next run begins unfinished maintenance again.
        """

    def last_commit(self) -> CommitFacts | None:
        """Return the figures of the last write, or None if nothing is known of it.

        Called after all states are written, so it has to be cheap. May raise `OSError` or `OperatingError`: only the
        history then lacks the figures.
        """
        return None


class Rewind:
    """The way back to an earlier transaction. By default there is none."""

    @property
    def rewind_obstacle(self) -> str:
        """The reason why a table can't be rewound to an earlier transaction, said of its state; empty if `rewind` can
        do it."""
        return "keeps nothing of earlier transactions"

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        """Describe in words what `rewind` would do to the table of this committer. Changes nothing; it need not be
        open.

        Raises `BeyondKept` if files that the rewind needs were deleted, `OperatingError` if the storage does not
        respond, `ConfigError` if there is a `rewind_obstacle`.
        """
        raise ConfigError(f"the state {self.rewind_obstacle}: it can't be taken back")

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Take the open table back, and write `fence_id` as its version, in one write; called after `fence`.

        Idempotent, also if another process with a higher fence id repeats it, whatever the table then contains. Raises
        `Fenced` if the version is higher, `BeyondKept`, `OperatingError`, or `ConfigError` if there is a
        `rewind_obstacle`.
        """
        raise ConfigError(f"the state {self.rewind_obstacle}: it can't be taken back")

    def retain(self, targets: Sequence[RewindTarget]) -> None:
        """Keep the files that rewinding to any of these targets needs, and release those of earlier targets.

        Called in the commit thread, for the open table. Files that are already deleted are logged. Raises
        `OperatingError`, after which it is called again. By default maintenance deletes nothing that a rewind needs.
        """


class StoreRecord:
    """The id of the coordinator's store that a table records, so that a start refuses the table of another store.

    By default a table records none.
    """

    def set_store_id(self, store_id: str | None) -> None:
        """Set the id that a table records if `open` creates it. Called before `open`."""

    def created_for(self) -> str | None:
        """Return the id of the store that the open table was created for, or None if the table recorded none."""
        return None


class Reading:
    """The reading of the committed rows from outside a transaction. By default it is refused."""

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Return key and value columns of all rows; with `committed_txid`, as they were after that transaction.

        The state need not be open. Raises `ConfigError` if it can't be read as a whole.
        """
        raise ConfigError("the state can't be read as a whole")

    def reader(self, owner: str) -> StateReader:
        """Return a reader of the table of this owner, `<topology id>/<component id>`.

        Raises `ConfigError` if it can't be read from outside.
        """
        raise ConfigError(f"the state of {owner}, a {type(self).__name__}, can't be read from outside")


class TaskAccess:
    """The reading and writing of a table by tasks of a step. By default only the driver can do that."""

    @property
    def serves_tasks(self) -> bool:
        """True if tasks of a step can read and write the table, by `for_tasks` and `put_parts`.

        The caller has to see to it that no key is in two tasks.
        """
        return False

    def for_tasks(self, attempt: TransactionAttempt) -> TaskState | None:
        """Read and check the table's version, and return what tasks read of that version; None: only the driver can.

        Raises `Fenced` or `OperatingError`.
        """
        return None

    def count_between(self, attempt: TransactionAttempt, column: str, start: int | None, end: int) -> int | None:
        """Estimate the number of rows that `rows_between` returns, never too low, or return None.

        It should read little. Raises `Fenced` or `OperatingError`.
        """
        return None

    def put_parts(self, attempt: TransactionAttempt, parts: Sequence[WrittenPart]) -> None:
        """Write as `put` does, the parts that tasks have written.

        Raises `TableConflict` if another writer wrote since `for_tasks`, and `ConfigError` unless it `serves_tasks`.
        """
        raise ConfigError("tasks can't write this state")


class Staging:
    """Files beside the table, with which tasks pass data on. By default all data pass through the driver.

    `owner` is `<topology id>/<component id>`. The state need not be open.
    """

    def stager(self, owner: str) -> Stager | None:
        """Return an object with which tasks write files that can be committed into the table.

        None if all partial aggregates pass through the driver.
        """
        return None

    def scratch(self, owner: str) -> Scratch | None:
        """Return an object with which tasks store data for later steps, beside the table, or None if there is none."""
        return None


class TableExamination:
    """The place of the table, and who else reads it. By default the table can't be read from outside."""

    @property
    def storage_path(self) -> str | None:
        """The path or URI of the state's table, or None if the state has no files of its own."""
        return None

    @property
    def owns_folder(self) -> bool:
        """Whether its location is a folder in which nothing else may be stored."""
        return False

    def address(self) -> TableAddress | None:
        """Return the address of the table, for readers that know its format, such as the checker. Reads nothing.

        None if it can't be read from outside. A state with an address has `examine`, too.
        """
        return None

    def examine(self, topology_id: str, component_id: str) -> Examined | None:
        """Read the current table of this committer, for the doctor.

        None if this process can't reach the table: another process has it in memory, or only a catalog knows it. Raises
        `OperatingError` if the storage does not respond.
        """
        return None


@dataclass(frozen=True, slots=True)
class StateParts:
    """The parts of a state. Each optional part that is not given is that of a state without the ability."""

    declared: DeclaredState
    lookup: RowLookup
    durability: Durability = field(default_factory=Durability)
    store_record: StoreRecord = field(default_factory=StoreRecord)
    reading: Reading = field(default_factory=Reading)
    tasks: TaskAccess = field(default_factory=TaskAccess)
    staging: Staging = field(default_factory=Staging)
    examination: TableExamination = field(default_factory=TableExamination)
    maintenance: TableMaintenance = field(default_factory=TableMaintenance)
    rewind: Rewind = field(default_factory=Rewind)
