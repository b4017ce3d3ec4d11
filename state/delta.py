"""`DeltaMapState`: a state in a Delta table, exactly once, fenced against coordinators that were taken over.

The fence is the table's app transaction `<topology>/<component>`: its version is the attempt id that wrote the table
last. Attempt ids only grow, every attempt writes every table, and a version is written only through the snapshot on
which a lower one was read. A writer that comes too late finds a higher version, or is refused: its snapshot is old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from state.delta_rs import DeltaHandle
from state.delta_table import DEFAULT_PROPERTIES, DeltaLocation, check_properties
from state.fenced import FencedState, Source
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.errors import ConfigError, ProtocolError, StoreMismatch
from transactional.ports import StateKind

if TYPE_CHECKING:
    from state.delta_spark import SparkMerge

ENGINES = ("auto", "delta-rs", "spark")
DELTA_RS_ROWS_MAX = 500_000
"""A merge of more rows goes to Spark, with engine `auto`."""
CACHED_ROWS_MAX = 100_000
"""The rows of a table of this size are kept between two reads of one attempt."""


class DeltaMapState(FencedState):
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

    def _loaded_version(self) -> AttemptId | None:
        return self._handle.version()

    def _write_version(self, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> None:
        self._handle.write_version(attempt_id, attempt)

    def _write(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        super()._write(attempt, source, combine)
        self._handle.maintain()

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

    def _merge_rows(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        if isinstance(source, tuple):
            self._spark_engine().merge_files(attempt, source, combine)
        elif not self._goes_to_spark(source.num_rows):
            self._handle.merge(attempt, source, combine)
            return
        else:
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


def _checked_engine(engine: str, location: DeltaLocation) -> str:
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r} of state {location} is not known; there are {', '.join(ENGINES)}")
    if engine == "spark" and not location.is_writable_by_spark:
        raise ConfigError(
            f"state {location} is on S3, where Spark's Delta commits are not guarded against another writer's, nor "
            "against the fence; use engine='delta-rs'"
        )
    return engine


def _all(rows: pa.Table) -> pa.Table:
    return rows


def _with_keys(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    # Column by column: with composite keys some rows are left over that nobody wants.
    for name in wanted.column_names:
        rows = rows.filter(pc.is_in(rows.column(name), value_set=wanted.column(name).combine_chunks()))
    return rows
