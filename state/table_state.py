"""`TableState`: what all states share: the read path and the write path.

A state has its columns (`state.updates`), its fence, and, once it is opened, its table: reading, checking the version
and writing go through the table that was loaded for the check, in that order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from state.declared import DeclaredTable
from state.fence import WRITE_TRIES, Fence, FencedTable, TableWrite, Verdict, WriteRefused
from state.rows.columns import check_time_column
from state.rows.expiring import ExpiryHorizons, select_unexpired
from state.rows.python_rows import PutRows, check_unique, rows_of
from state.rows.value_limits import ValueLimits
from state.updates import Updatable
from transactional.core.ports import Partials, StateKind
from transactional.core.ports.split import WrittenPart
from transactional.core.ports.staged import StagedFile
from transactional.core.ports.state_parts import Reading, RowLookup, StateParts, StoreRecord
from transactional.model.absent import Absent
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.durations import Duration
from transactional.model.errors import ProtocolError, StoreMismatch
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

TableT = TypeVar("TableT", bound=FencedTable)


class TableState(Updatable, RowLookup, Reading, Generic[TableT]):
    """Key → values in a table that only the newest coordinator may write, and that is updated from a stream with or
    without user code.

    `key` is a name, several names, or a DDL string with types; () is a state of one row; None leaves it to the update.
    `values` is a DDL string.
    """

    _writes_in_parts: ClassVar[bool] = False
    """Whether a write may end after some of its rows, before its version: then an attempt without rows has some to roll
    back, too."""

    def __init__(
        self,
        table: str,
        key: str | Sequence[str] | None,
        values: str,
        *,
        kind: StateKind = StateKind.OPAQUE,
        columns: Mapping[str, str] | None = None,
        deletes: bool = False,
        expires: str | None = None,
        after: Duration | None = None,
        value_limits: ValueLimits | None = None,
        check_types: Callable[[DeclaredTable], None] | None = None,
    ) -> None:
        self.declared = DeclaredTable(
            self,
            table,
            key,
            values,
            kind=kind,
            columns=columns,
            deletes=deletes,
            expires=expires,
            age=after,
            value_limits=value_limits,
            check_types=check_types,
        )
        self._fence = Fence(table, "", kind, _refuse_unopened(table))
        self.owner = ""
        self.store_id: str | None = None
        self._opened: TableT | None = None
        self._cached_rows: PutRows | None = None

    @property
    def parts(self) -> StateParts:
        """The parts of every state in a table: it can be read, and records its store."""
        return StateParts(self.declared, self, store_record=RecordedStore(self), reading=self)

    @property
    def key(self) -> Schema:
        """The key columns. Raises `ConfigError` as long as their types are not known."""
        return self.declared.key

    @property
    def values(self) -> Schema:
        """The value columns. Raises `ConfigError` as long as they are not known."""
        return self.declared.values

    # --- read from outside ----------------------------------------------------------------------------------------

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Return key and value columns of all rows, computed columns last. The state need not be open.

        With `committed_txid` the rows are those as of that transaction: a crash between the table and the coordinator's
        store leaves the table one transaction ahead.
        """
        return self.declared.computed.append_to(self.all_rows(committed_txid))

    @abstractmethod
    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        """Return the rows of `read` with the columns that are stored."""

    # --- the port -------------------------------------------------------------------------------------------------

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the existing one (see the port). Raises as `load_table` does."""
        self.declared.columns.check(self.declared.table)
        self.owner, self._cached_rows = owner, None
        self._fence = Fence(self.declared.table, owner, self.declared.kind, txid_of)
        self._opened = self.load_table()

    @abstractmethod
    def load_table(self) -> TableT:
        """Create the table of `owner`, which records `store_id`, or check the existing one, and return it open.

        Raises `SchemaMismatch` for a table of another shape, `StoreMismatch` for one of another owner, `ConfigError` if
        the storage refuses.
        """

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that it was last written by."""
        return self.open_table.read_and_check_version()

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the version, over the one that `version()` has loaded, changing no row.

        Raises `Fenced` when the version is higher, `TableConflict` when the table has moved. A version that is
        `attempt_id` already is an own earlier write.
        """
        loaded = self.open_table.version()
        self._fence.check(loaded, attempt_id)
        if loaded != attempt_id:
            self._confirm(attempt_id, lambda table: table.write_version(attempt_id, None))

    def rewind_by(self, fence_id: AttemptId, write: Callable[[TableT], None]) -> None:
        """Take the table back by `write`, which also writes the fence. Do nothing if the fence is there already."""
        loaded = self.version()
        self._fence.check(loaded, fence_id)
        if loaded != fence_id:
            self._confirm(fence_id, write)

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values of existing keys before this transaction. Raises `Fenced` or `OperatingError`."""
        key_table = self._rows.key_table(keys)
        return self._rows.values_by_key(keys, key_table, self.rows_before(attempt, key_table))

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """Return, as `get` does, the rows with these keys, in Arrow (see the port)."""
        self.check_version_to_read(attempt)
        try:
            return self._select_unexpired(attempt, self.open_table.lookup(attempt.txid, keys))
        except StoreMismatch:
            # Rows of a later transaction may have come since the version was read: then by another coordinator.
            self._fence.check(self.version(), attempt.attempt_id)
            raise

    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys as this attempt has written them (see the port)."""
        self._fence.check(self.version(), attempt.attempt_id)
        return self._select_unexpired(attempt, self.open_table.lookup(TxId(attempt.txid + 1), keys))

    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """Return the rows before this transaction whose column is in a range (see the port). Raises `Fenced`."""
        check_time_column(self.declared.columns.visible, column, self.declared.table, "rows_between")
        self.check_version_to_read(attempt)
        rows = self.open_table.rows_between(attempt.txid, column, after, until)
        horizons = self.expiry_horizons(attempt)
        return rows if horizons is None else select_unexpired(rows, self.declared.expiring_column, horizons.previous)

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """Return all keys with their values before this transaction. Raises `Fenced` or `OperatingError`."""
        self.check_version_to_read(attempt)
        width = len(self.key)
        rows = rows_of(self._select_unexpired(attempt, self.open_table.rows(attempt.txid)))
        return ((row[:width], row[width:]) for row in rows)

    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Return whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""
        version = self.version()
        self._fence.check(version, attempt.attempt_id)
        return version != attempt.attempt_id and self._fence.is_replay(version, attempt)

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Set the values of the given keys, or delete them (see the port).

        Raises `SchemaMismatch` for values of another type, `ConfigError` if keys of this state can't be deleted.
        """
        self._put_rows(attempt, self._rows.table(rows))

    def put_parts(self, attempt: TransactionAttempt, parts: Sequence[WrittenPart]) -> None:
        """Put the rows that the tasks of a step have kept (see the port)."""
        empty = self._rows.table({})
        tables = [part.rows.cast(empty.schema) for part in parts if part.rows is not None]
        self._put_rows(attempt, pa.concat_tables([empty, *tables]), [part.file for part in parts if part.file])

    def _put_rows(self, attempt: TransactionAttempt, rows: pa.Table, staged: Sequence[StagedFile] = ()) -> None:
        """Write new values, one row per key, and those in files."""
        check_unique(rows, self.key.names, self.declared.table)
        self._write(attempt, rows, dict.fromkeys(self.values.names, "last"), staged)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction (see the port)."""
        self._write(attempt, self._rows.from_partials(partials), partials.combine, partials.staged)

    def close(self) -> None:
        """Forget the open table."""
        self._opened = self._fence.read_by = None

    # --- the write path -------------------------------------------------------------------------------------------

    def _write(
        self,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        staged: Sequence[StagedFile] = (),
    ) -> None:
        """Read and check the version, write over it, and check that the table is at the new one."""
        version = self.version()
        verdict = self._fence.decide(version, attempt)
        is_replay = verdict is Verdict.WRITE and self._fence.is_replay(version, attempt)
        self._fence.check_unchanged(attempt, version)
        attempt_id, horizons = attempt.attempt_id, self.expiry_horizons(attempt)
        if verdict is Verdict.WRITE and (rows.num_rows or staged or is_replay or self._writes_in_parts):
            write = TableWrite(attempt, rows, combine, staged, is_replay, horizons)
            self._confirm(attempt_id, lambda table: table.apply(write))
        elif verdict is not Verdict.NOTHING:
            self._confirm(attempt_id, lambda table: table.write_version(attempt_id, attempt, horizons))
        self._fence.record_write(attempt)

    def _confirm(self, attempt_id: AttemptId, write: Callable[[TableT], None]) -> None:
        """Write, and check that the table has the writer's version. Raises `Fenced`, or another `OperatingError`."""
        read_version = self.open_table.version()
        for tries_left in reversed(range(WRITE_TRIES)):
            refused: WriteRefused | None = None
            try:
                write(self.open_table)
            except WriteRefused as error:
                refused = error
                self.version()
            current_version = self.open_table.version()
            if self._fence.confirm(attempt_id, read_version, current_version, refused, may_try_again=tries_left > 0):
                return

    def check_version_to_read(self, attempt: TransactionAttempt) -> None:
        """Load the table; what this attempt writes is refused if another has come since."""
        version = self.version()
        self._fence.check(version, attempt.attempt_id)
        self._fence.read_by = attempt, version

    def expiry_horizons(self, attempt: TransactionAttempt) -> ExpiryHorizons | None:
        """Return the horizons that this attempt records over the loaded version. None if rows do not expire."""
        if self.declared.expiry is None:
            return None
        return self.open_table.horizons().advance(attempt.txid, self.declared.horizon_of_batch(attempt))

    def _select_unexpired(self, attempt: TransactionAttempt, rows: pa.Table) -> pa.Table:
        """Drop the rows that have expired for this transaction."""
        horizons = self.expiry_horizons(attempt)
        return rows if horizons is None else select_unexpired(rows, self.declared.expiring_column, horizons.current)

    @property
    def _rows(self) -> PutRows:
        """The converter of rows for the owner of this state. `open` drops that of an earlier owner."""
        if self._cached_rows is None:
            self._cached_rows = self.declared.rows(self.owner)
        return self._cached_rows

    @property
    def open_table(self) -> TableT:
        """The table that `load_table` returned. Raises `ProtocolError` before `open`."""
        if self._opened is None:
            raise ProtocolError(f"state {self.declared.table} was used before open()")
        return self._opened


@dataclass(frozen=True, slots=True)
class RecordedStore(StoreRecord):
    """The id of the coordinator's store that the table of a state records."""

    state: TableState[Any]

    def set_store_id(self, store_id: str | None) -> None:
        self.state.store_id = store_id

    def created_for(self) -> str | None:
        table: FencedTable = self.state.open_table
        return table.created_for()


def _refuse_unopened(table: str) -> Callable[[AttemptId], TxId]:
    def refuse(attempt_id: AttemptId) -> TxId:
        raise ProtocolError(f"state {table} was used before open()")

    return refuse
