"""`TableState`: what all states share: the read path and the write path.

A state has its columns (`state.updates`), its fence, and, once it is opened, its table: reading, checking the version
and writing go through the table that was loaded for the check, in that order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from state.fence import WRITE_TRIES, Fence, FencedTable, TableWrite, Verdict, WriteRefused
from state.rows.columns import DeclaredColumns, check_time_column
from state.rows.expiring import ExpiryHorizons, select_unexpired
from state.rows.python_rows import PutRows, check_unique, rows_of
from state.updates import Updatable
from transactional.core.ports import Partials, StateKind
from transactional.core.ports.expiry import Expiry
from transactional.core.ports.split import WrittenPart
from transactional.core.ports.staged import StagedFile
from transactional.model.absent import Absent
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.durations import Duration, parse_microseconds
from transactional.model.errors import ConfigError, ProtocolError, StoreMismatch, TableConflict
from transactional.model.facts import BatchFacts
from transactional.model.user_code.tuples import Key

TableT = TypeVar("TableT", bound=FencedTable)


class TableState(Updatable, Generic[TableT]):
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
        kind: StateKind,
        columns: Mapping[str, str] | None,
        deletes: bool = False,
        expires: str | None = None,
        after: Duration | None = None,
    ) -> None:
        if kind is StateKind.NON_TRANSACTIONAL:
            raise ConfigError(
                f"state {table} can be StateKind.OPAQUE or StateKind.TRANSACTIONAL; only these survive a replay"
            )
        super().__init__(DeclaredColumns(table, key, values, columns, deletes=deletes))
        self._fence = Fence(table, "", kind, self._unopened)
        self._store_id: str | None = None
        self._opened: TableT | None = None
        self._read_by: tuple[TransactionAttempt, AttemptId | None] | None = None
        self._expiry: Expiry | None = None
        self._begun: tuple[TransactionAttempt, int | None] | None = None
        self._expire_after(expires, after)

    @property
    def kind(self) -> StateKind:
        """Transactional or opaque."""
        return self._fence.kind

    def set_expiry(self, expiry: Expiry) -> None:
        """Let rows expire so, from before it is opened. Raises `ConfigError` if its user has declared otherwise, or the
        column is no timestamp."""
        if self._expiry not in (None, expiry):
            raise ConfigError(
                f"state {self.table} is declared with expires=, but its update decides when its rows go; leave it out"
            )
        self._declared.set_expiry_column(expiry.column)
        self._expiry = expiry

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:
        """The facts that the horizon of an attempt follows from (see the port)."""
        if self._expiry is not None:
            self._begun = attempt, self._expiry.horizon(facts)

    # --- read from outside ----------------------------------------------------------------------------------------

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows, those that are computed last. The state need not be open.

        With `committed_txid` what a reader may see who must not see what comes after that transaction: a crash between
        the table and the coordinator's store leaves the table one transaction ahead.
        """
        return self.computed.append_to(self._all_rows(committed_txid))

    @abstractmethod
    def _all_rows(self, committed_txid: TxId | None) -> pa.Table:
        """As `read`, with the columns that are stored."""

    # --- the port -------------------------------------------------------------------------------------------------

    def set_store_id(self, store_id: str | None) -> None:
        """What a table records that `open` creates (see the port)."""
        self._store_id = store_id

    def created_for(self) -> str | None:
        """What the open table has recorded (see the port)."""
        return self._open_table.created_for()

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that it was last written by."""
        return self._open_table.read_and_check_version()

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the version, over the one that `version()` has loaded, changing no row.

        Raises `Fenced` when the version is higher, `TableConflict` when the table has moved. A version that is
        `attempt_id` already is an own earlier write.
        """
        loaded = self._open_table.version()
        self._fence.check(loaded, attempt_id)
        if loaded != attempt_id:
            self._confirm(attempt_id, lambda table: table.write_version(attempt_id, None))

    def _rewind_by(self, fence_id: AttemptId, write: Callable[[TableT], None]) -> None:
        """Take the table back by `write`, which writes the fence as well; nothing, if the fence is there already."""
        loaded = self.version()
        self._fence.check(loaded, fence_id)
        if loaded != fence_id:
            self._confirm(fence_id, write)

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before this transaction of those keys that exist. Raises `Fenced` or `OperatingError`."""
        rows = self._rows
        wanted = rows.wanted(keys)
        return rows.found(keys, wanted, self.rows_before(attempt, wanted))

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow (see the port)."""
        self._check_version_to_read(attempt)
        try:
            return self._alive(attempt, self._open_table.lookup(attempt.txid, keys))
        except StoreMismatch:
            # Rows of a later transaction may have come since the version was read: then by another coordinator.
            self._fence.check(self.version(), attempt.attempt_id)
            raise

    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `rows_before`, of what this attempt has written (see the port)."""
        self._fence.check(self.version(), attempt.attempt_id)
        return self._alive(attempt, self._open_table.lookup(TxId(attempt.txid + 1), keys))

    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """The rows before this transaction whose column lies in a range (see the port). Raises `Fenced`."""
        check_time_column(self.columns.shown, column, self.table, "rows_between")
        self._check_version_to_read(attempt)
        found = self._open_table.rows_between(attempt.txid, column, after, until)
        horizons = self._horizons(attempt)
        return found if horizons is None else select_unexpired(found, self._expiring_column, horizons.previous)

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before this transaction. Raises `Fenced` or `OperatingError`."""
        self._check_version_to_read(attempt)
        width = len(self.key)
        rows = rows_of(self._alive(attempt, self._open_table.rows(attempt.txid)))
        return ((row[:width], row[width:]) for row in rows)

    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""
        version = self.version()
        self._fence.check(version, attempt.attempt_id)
        return version != attempt.attempt_id and self._fence.is_replay(version, attempt)

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Set the values of the given keys, or delete them (see the port).

        Raises `SchemaMismatch` for values of another type, `ConfigError` if keys of this state can't be deleted.
        """
        self._put_rows(attempt, self._rows.table(rows))

    def check_put(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Raise `SchemaMismatch` for rows that `put` would refuse; write nothing."""
        table = self._rows.table(rows)
        if self.value_limits is not None:
            self.value_limits.check(table, len(self.key))

    def put_parts(self, attempt: TransactionAttempt, parts: Sequence[WrittenPart]) -> None:
        """As `put`, with what the tasks of a step have kept (see the port)."""
        empty = self._rows.table({})
        kept = [part.rows.cast(empty.schema) for part in parts if part.rows is not None]
        self._put_rows(attempt, pa.concat_tables([empty, *kept]), [part.file for part in parts if part.file])

    def _put_rows(self, attempt: TransactionAttempt, rows: pa.Table, staged: Sequence[StagedFile] = ()) -> None:
        """Write new values, one row per key, and those in files."""
        self._write(attempt, rows, dict.fromkeys(self.values.names, "last"), staged)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction (see the port)."""
        self._write(attempt, self._rows.of_partials(partials), partials.combine, partials.staged)

    def close(self) -> None:
        """Let go of the table."""
        self._opened, self._read_by = None, None

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
        self._check_unchanged_since_read(attempt, version)
        attempt_id, horizons = attempt.attempt_id, self._horizons(attempt)
        if verdict is Verdict.WRITE and (rows.num_rows or staged or is_replay or self._writes_in_parts):
            check_unique(rows, self._declared.key_names, self._declared.table)
            write = TableWrite(attempt, rows, combine, staged, is_replay, horizons)
            self._confirm(attempt_id, lambda table: table.apply(write))
        elif verdict is not Verdict.NOTHING:
            self._confirm(attempt_id, lambda table: table.write_version(attempt_id, attempt, horizons))
        self._fence.wrote(attempt)

    def _confirm(self, attempt_id: AttemptId, write: Callable[[TableT], None]) -> None:
        """Write, and see that the table's version is the writer's. Raises `Fenced`, or another `OperatingError`."""
        read_version = self._open_table.version()
        for tries_left in reversed(range(WRITE_TRIES)):
            refused: WriteRefused | None = None
            try:
                write(self._open_table)
            except WriteRefused as error:
                refused = error
                self.version()
            current_version = self._open_table.version()
            if self._fence.confirm(attempt_id, read_version, current_version, refused, may_try_again=tries_left > 0):
                return

    def _check_version_to_read(self, attempt: TransactionAttempt) -> None:
        """Load the table; what this attempt writes is refused if another has come since."""
        version = self.version()
        self._fence.check(version, attempt.attempt_id)
        self._read_by = (attempt, version)

    def _horizons(self, attempt: TransactionAttempt) -> ExpiryHorizons | None:
        """What this attempt records of horizons, over the version that was loaded; None: rows do not expire."""
        if self._expiry is None:
            return None
        return self._open_table.horizons().advance(attempt.txid, self._horizon_of_batch(attempt))

    def _horizon_of_batch(self, attempt: TransactionAttempt) -> int | None:
        begun, horizon = self._begun or (None, None)
        if begun != attempt:
            raise ProtocolError(f"state {self.table}, whose rows expire, was used by {attempt} before begin()")
        return horizon

    def _alive(self, attempt: TransactionAttempt, rows: pa.Table) -> pa.Table:
        """Of rows as they were before this transaction those that exist for it."""
        horizons = self._horizons(attempt)
        return rows if horizons is None else select_unexpired(rows, self._expiring_column, horizons.current)

    @property
    def _expiring_column(self) -> str:
        assert self._expiry is not None
        return self._expiry.column

    def _expire_after(self, expires: str | None, after: Duration | None) -> None:
        if (expires is None) is not (after is None):
            raise ConfigError(
                f"state {self.table}: expires= and after= go together: the column that a row's age is counted from, "
                "and the age at which it goes, like expires='seen', after='30 days'"
            )
        if expires is not None and after is not None:
            self.set_expiry(Expiry(expires, parse_microseconds(after, f"state {self.table}: after=")))

    def _check_unchanged_since_read(self, attempt: TransactionAttempt, version: AttemptId | None) -> None:
        read_by, read_at = self._read_by or (None, None)
        if read_by == attempt and version not in (read_at, attempt.attempt_id):
            raise TableConflict(
                f"state {self.table} of {self._fence.owner} was at version {read_at} when {attempt} read it and "
                f"is at {version} now; nothing was written, the attempt has to be repeated"
            )

    def _own(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """What comes first in `open`."""
        self.columns.check(self.table)
        self._fence = Fence(self.table, owner, self.kind, txid_of)

    def _unopened(self, attempt_id: AttemptId) -> TxId:
        raise ProtocolError(f"state {self.table} was used before open()")

    @property
    def _open_table(self) -> TableT:
        if self._opened is None:
            raise ProtocolError(f"state {self.table} was used before open()")
        return self._opened

    @property
    def _rows(self) -> PutRows:
        declared = self._declared
        return PutRows(declared.all, declared.table, self._fence.owner)
