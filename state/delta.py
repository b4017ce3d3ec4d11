"""`DeltaMapState`: a state in a Delta table, exactly once, fenced against coordinators that were taken over.

The fence is the table's app transaction `<topology>/<component>`: its version is the attempt id that wrote the table
last. Attempt ids only grow, every attempt writes every table, and a version is written only through the snapshot on
which a lower one was read. A writer that comes too late finds a higher version, or is refused: its snapshot is old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from state.base import Verdict, check_combine
from state.combine import AggregatingState, check_unique, table_of_rows
from state.delta_rs import DeltaHandle
from state.delta_table import DEFAULT_PROPERTIES, DeltaLocation, WriteRefused, check_properties
from transactional.arrow import arrow_schema
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.errors import (
    ConfigError,
    OperatingError,
    ProtocolError,
    SchemaMismatch,
    StoreMismatch,
    TableConflict,
)
from transactional.ports import Partials, StateKind
from transactional.schema import Schema

if TYPE_CHECKING:
    from state.delta_spark import SparkMerge

ENGINES = ("auto", "delta-rs", "spark")
DELTA_RS_ROWS_MAX = 500_000
"""A merge of more rows goes to Spark, with engine `auto`."""
CACHED_ROWS_MAX = 100_000
"""The rows of a table of this size are kept between two reads of one attempt."""


class DeltaMapState(AggregatingState):
    """Key → values in a Delta table: one row per key, with the transaction that wrote it and what was there before.

    `table` is a path or URI, or `catalog_table(name)`. `key` is a name, several names, or a DDL string with types
    (`carrier string`); names alone take their types from the input. () is a state of one row. `values` is a DDL string;
    it is left out when the state is updated by `.count()`, `.sum(…)` and so on. `columns` renames `txid`, `prev_txid`
    and `prev_<value>`. `engine` is `delta-rs` (in the driver), `spark` (one MERGE job), or `auto`: by size.
    `storage_options` are delta-rs' own; `properties` are Delta table properties for the table's creation.

    Raises `ConfigError` for columns, engines and storages that can't hold a state.
    """

    def __init__(
        self,
        table: str | Path | DeltaLocation,
        key: str | Sequence[str],
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        engine: str = "auto",
        columns: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.location = DeltaLocation.of(table, storage_options)
        super().__init__(repr(str(self.location)), key, values, kind=kind, columns=columns)
        self._engine = _checked_engine(engine, self.location)
        self._properties = dict(properties or {})
        check_properties(self._properties, self.table)
        self._opened: DeltaHandle | None = None
        self._spark: SparkMerge | None = None
        self._read_by: tuple[TransactionAttempt, AttemptId | None] | None = None
        self._cache: tuple[int, TxId, pa.Table] | None = None

    def identity(self) -> Mapping[str, str]:
        """Location, key, values, kind."""
        return {"delta": str(self.location), "key": str(self.key), "values": str(self.values), "kind": self.kind.value}

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the one that is there (see the port).

        Raises `SchemaMismatch` for a table of another shape, `StoreMismatch` for one with rows of another owner,
        `ConfigError` when Spark is needed and not set up.
        """
        self._own(owner, txid_of)
        location = self.location
        if location.is_catalog_name or self._engine == "spark":
            # Spark is asked here, not at the first transaction that needs it: what is missing shows at the start.
            from state.delta_spark import SparkMerge, resolve

            if location.is_catalog_name:
                location = resolve(location, self.columns, {**DEFAULT_PROPERTIES, **self._properties})
            self._spark = SparkMerge(location, owner, self.columns)
        self._opened = self._open_handle(location, owner)
        self._check_first_owner()

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that it was last written by."""
        self._handle.refresh()
        return self._handle.version()

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the version, through the snapshot that `version()` has loaded, changing no row.

        Raises `Fenced` when the version is higher, `TableConflict` when the table has moved. A version that is
        `attempt_id` already is an own earlier write.
        """
        self._check_fence(self._handle.version(), attempt_id)
        if self._handle.version() != attempt_id:
            self._confirm(attempt_id, lambda: self._handle.write_version(attempt_id))

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before this transaction of those keys that exist. Raises `OperatingError`."""
        self._handle.refresh()
        self._read_by = (attempt, self._handle.version())
        wanted = self._fitting(keys, self.key)
        # As Arrow gives them back: a time of another zone, or without one, is found under the key that was asked for.
        given = dict(zip(_rows(wanted) if self.key_names else keys, keys, strict=True))
        rows = _rows(self._rows_before(attempt.txid, wanted))
        width = len(self.key)
        return {given[row[:width]]: row[width:] for row in rows if row[:width] in given}

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...]]) -> None:
        """Set the values of the given keys (see the port). Raises `SchemaMismatch` for values of another type."""
        source = self._fitting([(*key, *values) for key, values in rows.items()], Schema((*self.key, *self.values)))
        self._write(attempt, source, dict.fromkeys(self.values.names, "last"))

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction (see the port).

        Raises `ConfigError` for partial aggregates in files when Spark may not be used.
        """
        check_combine(partials.combine, self.values.names, self.table)
        if partials.table is None:
            self._write(attempt, partials.parquet_files, partials.combine)
            return
        columns = Schema((*self.key, *self.values))
        self._write(attempt, partials.table.select(list(columns.names)).cast(arrow_schema(columns)), partials.combine)

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows of the newest snapshot. The state need not be open.

        With `committed_txid` what a reader may see who must not see what comes after that transaction: a crash between
        the table and the coordinator's store leaves the table one transaction ahead.
        """
        handle = self._opened or DeltaHandle(self.location, self._owner, self.columns)
        handle.refresh()
        return handle.rows(None if committed_txid is None else TxId(committed_txid + 1), _all)

    def close(self) -> None:
        """Let go of the handle."""
        self._opened, self._cache, self._read_by = None, None, None

    @property
    def _handle(self) -> DeltaHandle:
        if self._opened is None:
            raise ProtocolError(f"state {self.table} was used before open()")
        return self._opened

    def _open_handle(self, location: DeltaLocation, owner: str) -> DeltaHandle:
        return DeltaHandle.open(location, owner, self.columns, self._properties)

    def _check_first_owner(self) -> None:
        if self._handle.version() is not None:
            return
        newest = self._handle.newest_txid()
        if newest:
            raise StoreMismatch(
                f"state {self.table} has rows of transaction {newest}, none written by {self._owner}: it is another "
                "topology's table; give each topology its own, or start with an empty one"
            )

    def _write(
        self, attempt: TransactionAttempt, source: pa.Table | tuple[str, ...], combine: Mapping[str, str]
    ) -> None:
        handle = self._handle
        handle.refresh()
        version = handle.version()
        verdict = self._judge(version, attempt)
        self._check_unchanged_since_read(attempt, version)
        has_rows = isinstance(source, tuple) or source.num_rows > 0
        is_replay = version is not None and self._txid_at(version) == attempt.txid
        if verdict is Verdict.WRITE and (has_rows or is_replay):
            self._confirm(attempt.attempt_id, lambda: self._merge_rows(attempt, source, combine))
        elif verdict is not Verdict.NOTHING:
            self._confirm(attempt.attempt_id, lambda: handle.write_version(attempt.attempt_id, attempt))
        self._wrote(attempt)
        handle.maintain()

    def _check_unchanged_since_read(self, attempt: TransactionAttempt, version: AttemptId | None) -> None:
        read_by, read_at = self._read_by or (None, None)
        if read_by == attempt and version not in (read_at, attempt.attempt_id):
            raise TableConflict(
                f"state {self.table} of {self._owner} was at version {read_at} when {attempt} read it and "
                f"is at {version} now; nothing was written, the attempt has to be repeated"
            )

    def _confirm(self, attempt_id: AttemptId, write: Callable[[], None]) -> None:
        """Write, and see that the table's version is the writer's. Raises `Fenced` or `TableConflict`."""
        refused: WriteRefused | None = None
        try:
            write()
        except WriteRefused as error:
            refused = error
            self._handle.refresh()
        version = self._handle.version()
        if version == attempt_id:
            # Also after an error: the write had gone through, only its outcome was not known.
            return
        self._check_fence(version, attempt_id)
        if refused is None:
            raise ProtocolError(
                f"state {self.table} of {self._owner}: attempt {attempt_id} was written without an error, and yet the "
                f"table's version is {version}; something else writes this app transaction"
            )
        kind = TableConflict if refused.is_conflict else OperatingError
        raise kind(
            f"state {self.table} of {self._owner} is at version {version}; attempt {attempt_id} was not written "
            f"over it: {refused}"
        ) from refused

    def _merge_rows(
        self, attempt: TransactionAttempt, source: pa.Table | tuple[str, ...], combine: Mapping[str, str]
    ) -> None:
        if isinstance(source, tuple):
            self._spark_engine().merge_files(attempt, source, combine)
        else:
            check_unique(source, self.key.names, self.table)
            if not self._goes_to_spark(source.num_rows):
                self._handle.merge(attempt, source, combine)
                return
            self._spark_engine().merge_table(attempt, source, combine)
        self._handle.refresh()

    def _goes_to_spark(self, rows: int) -> bool:
        if self._engine == "auto":
            return rows > DELTA_RS_ROWS_MAX and self.location.is_writable_by_spark
        # A merge without rows only rolls back; not worth a Spark job.
        return self._engine == "spark" and rows > 0

    def _spark_engine(self) -> SparkMerge:
        if self._engine == "delta-rs" or not self.location.is_writable_by_spark:
            raise ConfigError(
                f"state {self.table} gets more rows than the driver may hold, and may not be merged by Spark (engine="
                f"{self._engine!r}); use smaller batches, or engine='auto' and a table that Spark can write"
            )
        if self._spark is None:
            from state.delta_spark import SparkMerge

            self._spark = SparkMerge(self.location, self._owner, self.columns)
        return self._spark

    def _rows_before(self, txid: TxId, wanted: pa.Table) -> pa.Table:
        """The rows as they were before a transaction; of a large table only those that may have a wanted key."""
        handle = self._handle
        if self._cache is not None and self._cache[:2] == (handle.delta_version, txid):
            return _with_keys(self._cache[2], wanted)
        if handle.row_count() > CACHED_ROWS_MAX:
            return handle.rows(txid, lambda rows: _with_keys(rows, wanted))
        # A bolt may ask key by key.
        self._cache = (handle.delta_version, txid, handle.rows(txid, _all))
        return _with_keys(self._cache[2], wanted)

    def _fitting(self, rows: Sequence[tuple[Any, ...]], columns: Schema) -> pa.Table:
        try:
            return table_of_rows(rows, columns)
        except (SchemaMismatch, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(
                f"state {self.table} has the columns '{columns}'; what was given does not fit: {error}"
            ) from error


def _checked_engine(engine: str, location: DeltaLocation) -> str:
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r} of state {location} is not known; there are {', '.join(ENGINES)}")
    if engine == "spark" and not location.is_writable_by_spark:
        raise ConfigError(
            f"state {location} is on S3, where Spark's Delta commits are not guarded against another writer's, nor "
            "against the fence; use engine='delta-rs'"
        )
    return engine


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _with_keys(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    # Column by column: with composite keys some rows are left over that nobody wants.
    for name in wanted.column_names:
        rows = rows.filter(pc.is_in(rows.column(name), value_set=wanted.column(name).combine_chunks()))
    return rows
