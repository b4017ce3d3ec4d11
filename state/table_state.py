"""`TableState`: what all states share: their columns, their aggregates, and the walk of a read and of a write.

A state has its columns, its fence, and, once it is opened, its table: reading, judging and writing go through the
table that was loaded when it was judged, in that order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from state.fence import WRITE_TRIES, Fence, Verdict, WriteRefused
from state.put_rows import PutRows
from state.rows.columns import DeclaredColumns, StateColumns, check_combine, check_names, check_time_column
from state.rows.expiring import Floors, alive
from state.updates import StateUpdate, Updatable, check_unique, rows_of
from transactional.absent import Absent
from transactional.aggregates import Aggregate, Avg, Count, Max, Min, Sum
from transactional.arrow import arrow_schema
from transactional.arrow.computed import ComputedColumns
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.durations import Duration, microseconds
from transactional.errors import ConfigError, ProtocolError, StoreMismatch, TableConflict
from transactional.expiry import Expiry
from transactional.facts import BatchFacts
from transactional.ports import Partials, StateKind
from transactional.ports.split import WrittenPart
from transactional.ports.staged import StagedFile
from transactional.schema import Schema


class FencedTable(Protocol):
    """The open table of a state, for the one thread that writes it."""

    def judge(self) -> AttemptId | None:
        """Load the table, over which is written from now on; the attempt id that it was last written by."""

    def created_for(self) -> str | None:
        """The `store_id` that it was created with."""

    def version(self) -> AttemptId | None:
        """The version that was loaded last, or written since."""

    def floors(self) -> Floors:
        """What the version that was loaded has recorded of floors."""

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns as they were before a transaction, of all rows with a wanted key; maybe of more.

        Also of expired ones, here and below.
        """

    def rows(self, before: TxId) -> pa.Table:
        """Key and value columns of all rows as they were before a transaction."""

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those with `after < column <= until`."""

    def apply(
        self,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        *,
        is_replay: bool,
        floors: Floors | None = None,
    ) -> None:
        """Write rows, one per key, and the version, over the version that was judged. Raises `WriteRefused`.

        What an earlier attempt of the transaction has written, and only it, goes back to what was before (row T60).
        `floors` are recorded with it, and rows below them are as absent as `state.rows.expiring` says; None: rows stay.
        """

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, floors: Floors | None = None
    ) -> None:
        """Write the version, over the one that was judged, and no row. Raises `WriteRefused`."""


TableT = TypeVar("TableT", bound=FencedTable)
Apply = Callable[[TableT, bool], None]
"""Writes a transaction to a table that was judged, informed whether it is a replay. Raises `WriteRefused`."""


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
        self._name = table
        self._kind = kind
        self._declared = DeclaredColumns(table, key, values, columns, deletes=deletes)
        self._fence = Fence(table, "", kind, self._unopened)
        self._store_id: str | None = None
        self._opened: TableT | None = None
        self._read_by: tuple[TransactionAttempt, AttemptId | None] | None = None
        self._expiry: Expiry | None = None
        self._begun: tuple[TransactionAttempt, int | None] | None = None
        self._expire_after(expires, after)
        self.computed = ComputedColumns()
        """What is computed of the stored columns when rows are read; its update says so."""

    @property
    def table(self) -> str:
        """What messages call it: where it lies."""
        return self._name

    @property
    def kind(self) -> StateKind:
        """Transactional or opaque."""
        return self._kind

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns. Raises `ConfigError` as long as nobody has named them."""
        return self._declared.key_names

    @property
    def known_key_names(self) -> tuple[str, ...] | None:
        """The names of the key columns, None as long as nobody has named them."""
        return self._declared.known_key_names

    @property
    def key(self) -> Schema:
        """The key columns. Raises `ConfigError` as long as their types are not known."""
        return self._declared.key

    @property
    def values(self) -> Schema:
        """The value columns. Raises `ConfigError` as long as they are not known."""
        return self._declared.values

    @property
    def columns(self) -> StateColumns:
        """All columns."""
        return self._declared.all

    def bind(self, key: Schema, values: Schema) -> None:
        """Fix the columns, once the schema of the input is known. Raises `ConfigError` where others are declared."""
        self._declared.bind(key, values)

    def expire(self, expiry: Expiry) -> None:
        """Let rows expire so, from before it is opened. Raises `ConfigError` if its user has declared otherwise, or the
        column is no timestamp."""
        if self._expiry not in (None, expiry):
            raise ConfigError(
                f"state {self.table} is declared with expires=, but its update decides when its rows go; leave it out"
            )
        self._declared.expire(expiry.column)
        self._expiry = expiry

    def allow_deletes(self) -> None:
        """Let keys be deleted, from before it is opened."""
        self._declared.deletes = True

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:
        """The facts that the floor of an attempt follows from (see the port)."""
        if self._expiry is not None:
            self._begun = attempt, self._expiry.floor(facts)

    # --- updates without user code --------------------------------------------------------------------------------

    def count(self, name: str = "count") -> StateUpdate:
        """Count the tuples per key, in column `name`."""
        return self.aggregate({name: Count()})

    def sum(self, field: str, name: str | None = None) -> StateUpdate:
        """Sum up a field per key, in column `name` (default `sum_<field>`)."""
        return self.aggregate({name or f"sum_{field}": Sum(field)})

    def min(self, field: str, name: str | None = None) -> StateUpdate:
        """Keep the smallest value of a field per key, in column `name` (default `min_<field>`)."""
        return self.aggregate({name or f"min_{field}": Min(field)})

    def max(self, field: str, name: str | None = None) -> StateUpdate:
        """Keep the largest value of a field per key, in column `name` (default `max_<field>`)."""
        return self.aggregate({name or f"max_{field}": Max(field)})

    def mean(self, field: str, name: str | None = None) -> StateUpdate:
        """Keep the mean of a field per key, as a sum and a count of it, of which column `name` (default
        `mean_<field>`) is computed when rows are read."""
        return self.aggregate({name or f"mean_{field}": Avg(field)})

    def aggregate(self, aggregates: Mapping[str, Aggregate] | None = None, /, **named: Aggregate) -> StateUpdate:
        """Several aggregates at once, each in its column: `aggregate(count=Count(), total=Sum("amount"))`."""
        columns = {**(aggregates or {}), **named}
        if not columns:
            raise ConfigError(f"state {self.table}: aggregate() needs a column, for example aggregate(count=Count())")
        for name, each in columns.items():
            if not isinstance(each, Aggregate):
                raise ConfigError(
                    f"state {self.table}: {name}={each!r} is no aggregate such as Count() or Sum('amount'); one of "
                    "your own extends transactional.aggregates.Aggregate"
                )
        check_names([*(self.known_key_names or ()), *columns], self.table)
        return StateUpdate(self, columns)

    # --- read from outside ----------------------------------------------------------------------------------------

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows, those that are computed last. The state need not be open.

        With `committed_txid` what a reader may see who must not see what comes after that transaction: a crash between
        the table and the coordinator's store leaves the table one transaction ahead.
        """
        return self.computed.appended(self._all_rows(committed_txid))

    @abstractmethod
    def _all_rows(self, committed_txid: TxId | None) -> pa.Table:
        """As `read`, with the columns that are stored."""

    # --- the port -------------------------------------------------------------------------------------------------

    def create_for(self, store_id: str | None) -> None:
        """What a table records that `open` creates (see the port)."""
        self._store_id = store_id

    def created_for(self) -> str | None:
        """What the open table has recorded (see the port)."""
        return self._open_table.created_for()

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that it was last written by."""
        return self._open_table.judge()

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the version, over the one that `version()` has loaded, changing no row.

        Raises `Fenced` when the version is higher, `TableConflict` when the table has moved. A version that is
        `attempt_id` already is an own earlier write.
        """
        loaded = self._open_table.version()
        self._fence.check(loaded, attempt_id)
        if loaded != attempt_id:
            self._confirm(attempt_id, lambda table: table.write_version(attempt_id, None))

    def _go_back(self, fence_id: AttemptId, write: Callable[[TableT], None]) -> None:
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
        self._judge_to_read(attempt)
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
        check_time_column(Schema((*self.key, *self.values)), column, self.table, "rows_between")
        self._judge_to_read(attempt)
        found = self._open_table.rows_between(attempt.txid, column, after, until)
        floors = self._floors(attempt)
        return found if floors is None else alive(found, self._expiring_column, floors.before)

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before this transaction. Raises `Fenced` or `OperatingError`."""
        self._judge_to_read(attempt)
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
        """Write new values, one row per key; no state but those that stage files is given any."""
        assert not staged, f"state {self.table} stages no files"
        self._write(attempt, rows, dict.fromkeys(self.values.names, "last"))

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction (see the port)."""
        self._write(attempt, self._rows_of(partials), partials.combine)

    def _rows_of(self, partials: Partials) -> pa.Table:
        """What came through the driver."""
        check_combine(partials.combine, self.values.names, self.table)
        columns = Schema((*self.key, *self.values))
        source = partials.table.select(list(columns.names)).cast(arrow_schema(columns))
        return self._rows.marked(source, [False] * source.num_rows)

    def close(self) -> None:
        """Let go of the table."""
        self._opened, self._read_by = None, None

    # --- the walk of a write --------------------------------------------------------------------------------------

    def _write(
        self,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        apply: Apply[TableT] | None = None,
    ) -> None:
        """Judge the table, write over what was judged, and see that it is written. `apply` writes more than rows."""
        version = self.version()
        verdict = self._fence.judge(version, attempt)
        self._check_unchanged_since_read(attempt, version)
        is_replay = verdict is Verdict.WRITE and self._fence.is_replay(version, attempt)
        floors = self._floors(attempt)
        has_rows = bool(rows.num_rows) or apply is not None
        if verdict is Verdict.WRITE and (has_rows or is_replay or self._writes_in_parts):
            check_unique(rows, self.key.names, self.table)
            self._confirm(
                attempt.attempt_id,
                lambda table: (
                    table.apply(attempt, rows, combine, is_replay=is_replay, floors=floors)
                    if apply is None
                    else apply(table, is_replay)
                ),
            )
        elif verdict is not Verdict.NOTHING:
            self._confirm(attempt.attempt_id, lambda table: table.write_version(attempt.attempt_id, attempt, floors))
        self._fence.wrote(attempt)

    def _confirm(self, attempt_id: AttemptId, write: Callable[[TableT], None]) -> None:
        """Write, and see that the table's version is the writer's. Raises `Fenced`, or another `OperatingError`."""
        judged = self._open_table.version()
        for tries_left in reversed(range(WRITE_TRIES)):
            refused: WriteRefused | None = None
            try:
                write(self._open_table)
            except WriteRefused as error:
                refused = error
                self.version()
            found = self._open_table.version()
            if self._fence.confirm(attempt_id, judged, found, refused, may_try_again=tries_left > 0):
                return

    def _judge_to_read(self, attempt: TransactionAttempt) -> None:
        """Load the table; what this attempt writes is refused if another has come since."""
        version = self.version()
        self._fence.check(version, attempt.attempt_id)
        self._read_by = (attempt, version)

    def _floors(self, attempt: TransactionAttempt) -> Floors | None:
        """What this attempt records of floors, over the version that was loaded; None: rows do not expire."""
        if self._expiry is None:
            return None
        return self._open_table.floors().of(attempt.txid, self._floor_wanted(attempt))

    def _floor_wanted(self, attempt: TransactionAttempt) -> int | None:
        begun, floor = self._begun or (None, None)
        if begun != attempt:
            raise ProtocolError(f"state {self.table}, whose rows expire, was used by {attempt} before begin()")
        return floor

    def _alive(self, attempt: TransactionAttempt, rows: pa.Table) -> pa.Table:
        """Of rows as they were before this transaction those that exist for it."""
        floors = self._floors(attempt)
        return rows if floors is None else alive(rows, self._expiring_column, floors.floor)

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
            self.expire(Expiry(expires, microseconds(after, f"state {self.table}: after=")))

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
        self._fence = Fence(self.table, owner, self._kind, txid_of)

    def _unopened(self, attempt_id: AttemptId) -> TxId:
        raise ProtocolError(f"state {self.table} was used before open()")

    @property
    def _open_table(self) -> TableT:
        if self._opened is None:
            raise ProtocolError(f"state {self.table} was used before open()")
        return self._opened

    @property
    def _rows(self) -> PutRows:
        deleted = self.columns.deleted if self._declared.deletes else None
        return PutRows(self.key, self.values, deleted, self.table, self._fence.owner)
