"""`DeltaMapState`: a state in a Delta table, exactly once, fenced against coordinators that were taken over.

The fence is the table's app transaction `<topology>/<component>`: its version is the attempt id that wrote the table
last. Attempt ids only grow, every attempt writes every table, and a version is written only through the snapshot on
which a lower one was read. A writer that comes too late finds a higher version, or is refused: its snapshot is old.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from state.base import StateColumns, WriteRefused
from state.delta.delta_rs import DeltaHandle
from state.delta.log import LogHandle
from state.delta.log_table import LAYOUTS, LogColumns, LogLayout
from state.delta.opening import columns_of, mend_torn_log, open_table, reading_handle
from state.delta.owner import claim, with_owner
from state.delta.sums import check_sums, in_memory
from state.delta.table import DEFAULT_PROPERTIES, DIALECTS, DeltaLocation, check_properties, with_keys
from state.fenced import WRITE_TRIES, FencedState, Source
from state.sums import SumCheck
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.errors import ConfigError, OperatingError, ProtocolError
from transactional.examining import TableAddress
from transactional.ports import StateKind

if TYPE_CHECKING:
    from state.delta.doctor import ExaminedDelta
    from state.delta.spark import SparkMerge

_log = logging.getLogger(__name__)
HandleT = TypeVar("HandleT", bound=DeltaHandle)
ENGINES = ("auto", "delta-rs", "spark")
DELTA_RS_ROWS_MAX = 500_000
"""A merge of more rows goes to Spark, with engine `auto`."""
MERGED_ROWS_WISHED = 1_000_000
"""A table of more rows is better off with the log layout."""
CACHED_ROWS_MAX = 100_000
"""The rows of a table of this size are kept between two reads of one attempt."""


class DeltaMapState(FencedState):
    """Key → values in a Delta table: one row per key, with the transaction that wrote it and what was there before.

    `table` is a path or URI, or `catalog_table(name)`. `key` is a name, several names, or a DDL string with types
    (`carrier string`); names alone take their types from the input. () is a state of one row. `values` is a DDL string;
    it is left out when the state is updated by `.count()`, `.sum(…)` and so on. `columns` renames `txid`, `prev_txid`
    and `prev_<value>`. `engine` is `delta-rs` (in the driver), `spark` (one MERGE job), or `auto`: by size, where a
    Spark session with Delta runs in this process, else delta-rs.
    `layout` is `merge` (one row per key, written again when the key changes), `log` (each transaction adds rows, which
    are put together on reading and folded now and then), a `LogLayout`, or `auto`: `merge`, or what the table has.
    `storage_options` are delta-rs' own; `properties` are Delta table properties for the table's creation:
    `transactional.logCommits` is how many Delta commits its log keeps (500).

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
        layout: str | LogLayout = "auto",
        columns: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.location = DeltaLocation.of(table, storage_options)
        super().__init__(repr(str(self.location)), key, values, kind=kind, columns=columns)
        self._engine = _checked_engine(engine, self.location)
        self._layout = _checked_layout(layout, self.location)
        self._properties = dict(properties or {})
        check_properties(self._properties, self.table)
        self._opened: DeltaHandle | None = None
        self._resolved = self.location
        self._spark: SparkMerge | None = None
        self._cache: tuple[int, TxId, pa.Table] | None = None
        self._is_durable = True

    owns_folder = True
    """Nothing else may lie in the table's folder."""

    @property
    def place(self) -> str | None:
        """The path or URI of the table; None for a name in a catalog."""
        return None if self.location.is_catalog_name else self.location.uri

    def address(self) -> TableAddress:
        """Where the table is, for whoever reads it without the state."""
        uri = None if self.location.is_catalog_name else self.location.uri
        return TableAddress.of("delta", uri, self.columns, self.location.name, self.location.storage_options)

    def examine(self, topology_id: str, component_id: str) -> ExaminedDelta | None:
        """The table as the doctor sees it; None for a name in a catalog. Raises `OperatingError`."""
        from state.delta.doctor import ExaminedDelta  # nobody else needs it

        return None if self.location.is_catalog_name else ExaminedDelta(self.location, topology_id, component_id)

    def identity(self) -> Mapping[str, str]:
        """Location, key, values, kind."""
        return {"delta": str(self.location), "key": str(self.key), "values": str(self.values), "kind": self.kind.value}

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the one that is there (see the port).

        Raises `SchemaMismatch` for a table of another shape, `StoreMismatch` for one of another owner,
        `ConfigError` when Spark is needed and not set up.
        """
        self._own(owner, txid_of)
        location = self.location
        mend_torn_log(location)
        if location.is_catalog_name or self._engine == "spark":
            # Spark is asked here, not at the first transaction that needs it: what is missing shows at the start.
            from state.delta.spark import delta_session, resolve

            delta_session()
            if location.is_catalog_name:
                columns, partition_by = self._shape()
                properties = with_owner({**DEFAULT_PROPERTIES, **self._properties}, owner)
                location = resolve(location, columns, properties, partition_by)
        self._opened, self._resolved, self._spark = self._open_handle(location, owner), location, None
        claim(self._handle)
        self._tell_when_large()

    def set_durability(self, durability: str) -> None:
        """Whether what is written has to outlive a power cut (see the port)."""
        self._is_durable = durability == "disk"

    def unsynced(self) -> Collection[Path]:
        """What has to be synced before all that was written is durable. Raises `OperatingError`."""
        return self._handle.unsynced()

    def synced(self) -> None:
        """Told when what `unsynced` gave is synced."""
        self._handle.synced()

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that it was last written by.

        Raises `StoreMismatch` when something else has changed its rows since it was opened, `OperatingError`.
        """
        return self._handle.judge()

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows of the newest snapshot. The state need not be open, and types that were not
        declared are the table's: `DeltaMapState("tables/words", key="word").read()`.

        With `committed_txid` what a reader may see who must not see what comes after that transaction: a crash between
        the table and the coordinator's store leaves the table one transaction ahead.
        """
        handle = self._reading_handle()
        return handle.rows(None if committed_txid is None else TxId(committed_txid + 1), _all)

    def view(self, source: str, *, dialect: str = "spark", committed_txid: TxId | None = None) -> str:
        """The query of a view with one row per key, key and value columns, in SQL of `spark` or `datafusion`.

        `source` is the table as the query is to name it, for example "delta.`/tables/words`". The state need not be
        open. `committed_txid` is as in `read`. The text of a log stays right while the table is written and folded.
        Raises `ConfigError` for another dialect, `OperatingError` when the table can't be read.
        """
        if dialect not in DIALECTS:
            raise ConfigError(f"dialect {dialect!r} is not known; there are {', '.join(DIALECTS)}")
        handle = self._reading_handle()
        return handle.view(None if committed_txid is None else TxId(committed_txid + 1), DIALECTS[dialect], source)

    def _reading_handle(self) -> DeltaHandle:
        """Never the one that is written through: whoever reads in another thread would move it on."""
        is_declared = self._key is not None and self._values is not None
        columns = self.columns if is_declared else columns_of(self._resolved, self.key_names, self._names)
        return reading_handle(self._resolved, self._owner, columns)

    def fold(self) -> None:
        """Fold a table in the log layout: all but its newest transaction becomes one row per key. Call it between
        transactions. Does nothing to a table in the merge layout. Raises `OperatingError` when it does not work.
        """
        for tried in range(1, WRITE_TRIES + 1):
            version = self.version()
            if not isinstance(self._handle, LogHandle) or version is None:
                return
            try:
                self._handle.fold_whole(self._txid_at(version))
            except WriteRefused as error:
                if tried == WRITE_TRIES or not error.is_conflict:
                    raise OperatingError(f"Delta table {self._resolved} could not be folded: {error}") from None
            else:
                return

    def fence(self, attempt_id: AttemptId) -> None:
        """Raise the table's version (see the port). Whoever takes the lead builds on the rows that are there.

        So it raises `StoreMismatch` when something else has changed them since the topology's last Delta commit.
        """
        self._handle.check_as_left()
        super().fence(attempt_id)

    def tidy(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Put small files together or fold, keep the log short, and delete old files, as far as it is due."""
        self._handle.maintain(committed_txid, may_go_on)

    def close(self) -> None:
        """Let go of the handle."""
        self._opened, self._cache, self._read_by = None, None, None

    def _loaded_version(self) -> AttemptId | None:
        return self._handle.version()

    def _write_version(self, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> None:
        self._settle()
        self._handle.write_version(attempt_id, attempt)

    def _settle(self) -> None:
        """Whatever is written next builds on what is there."""
        try:
            self._handle.make_durable()
        except OSError as error:
            raise WriteRefused(self.location.reason(error), is_conflict=False) from error

    @property
    def _handle(self) -> DeltaHandle:
        if self._opened is None:
            raise ProtocolError(f"state {self.table} was used before open()")
        return self._opened

    def _open_handle(self, location: DeltaLocation, owner: str) -> DeltaHandle:
        properties = with_owner(self._properties, owner)
        return self._kept(open_table(location, owner, self.columns, properties, self._layout))

    def _kept(self, handle: HandleT) -> HandleT:
        if self._is_durable:
            handle.keep_durable()
        return handle

    def _tell_when_large(self) -> None:
        if self._layout != "auto" or isinstance(self._handle, LogHandle) or self._engine == "spark":
            return
        if (rows := self._handle.row_count()) > MERGED_ROWS_WISHED:
            _log.warning(
                "state %s has %d rows, and a merge rewrites every file that has a key of the batch; layout='log' "
                "writes what changes only, and shows readers one row per key through a view",
                *(self.table, rows),
            )

    def _merge_rows(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        self._settle()
        handle = self._handle
        if isinstance(self._layout, LogLayout) and not isinstance(handle, LogHandle):
            handle = self._turned_to_log(self._layout, attempt, combine)
        check = SumCheck(self.table, self.values, [combine[name] for name in self.values.names])
        if isinstance(handle, LogHandle):
            handle.settle_combine(combine)
            self._check_log(handle, attempt, source, combine, check)
        try:
            self._hand_over(handle, attempt, source, combine)
        except WriteRefused as refused:
            if check.columns and not refused.is_conflict:
                # An engine tells that a sum does not fit, but not whose.
                self._check_sums(attempt, source, combine, check)
            raise

    def _hand_over(
        self, handle: DeltaHandle, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]
    ) -> None:
        if isinstance(source, tuple):
            self._spark_engine().merge_files(attempt, source, combine)
        elif not self._goes_to_spark(source.num_rows):
            handle.merge(attempt, source, combine)
        else:
            self._spark_engine().merge_table(attempt, source, combine)

    def _check_log(
        self,
        handle: LogHandle,
        attempt: TransactionAttempt,
        source: Source,
        combine: Mapping[str, str],
        check: SumCheck,
    ) -> None:
        """Raise `SumOverflow`, since a log is written without a look at what is stored."""
        if isinstance(source, tuple):
            self._spark_engine()
        if not check.columns:
            return
        rows = in_memory(source, combine, self.key, self.values, self.table)
        if not handle.admits(rows, [field for _, field in check.columns]):
            self._check_sums(attempt, rows, combine, check)

    def _check_sums(
        self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str], check: SumCheck
    ) -> None:
        rows = in_memory(source, combine, self.key, self.values, self.table)
        wanted = rows.select(list(self.key.names))
        check_sums(self._rows_before(attempt.txid, wanted), rows, len(self.key), check)

    def _turned_to_log(self, layout: LogLayout, attempt: TransactionAttempt, combine: Mapping[str, str]) -> DeltaHandle:
        """The table in the log layout; as it was, while its newest transaction may still have to be rolled back."""
        version = self._loaded_version()
        if self._is_replay(version, attempt):
            return self._handle
        log = self._kept(LogHandle(self._resolved, self._owner, self.columns, layout))
        if log.delta_version != self._handle.delta_version:
            raise WriteRefused("the table has moved since it was judged", is_conflict=True)
        # Before the rows are a log: whoever reads them has to know how they meet.
        log.settle_combine(combine)
        log.adopt_merged(version, TxId(attempt.txid - 1))
        self._opened, self._cache, self._spark = log, None, None
        return log

    def _goes_to_spark(self, rows: int) -> bool:
        if self._engine == "auto" and isinstance(self._handle, LogHandle):
            # Rows that are in memory are written at once, however many.
            return False
        if self._engine == "auto":
            return rows > DELTA_RS_ROWS_MAX and self.location.is_writable_by_spark and _delta_runs_on_spark()
        # A merge without rows only rolls back; not worth a Spark job.
        return self._engine == "spark" and rows > 0

    def _spark_engine(self) -> SparkMerge:
        if self._engine == "delta-rs" or not self.location.is_writable_by_spark:
            raise ConfigError(
                f"state {self.table} gets more rows than the driver may hold, and may not be merged by Spark (engine="
                f"{self._engine!r}); use smaller batches, or engine='auto' and a table that Spark can write"
            )
        if self._spark is None:
            from state.delta.spark import SparkLog, SparkMerge

            kind = SparkLog if isinstance(self._handle, LogHandle) else SparkMerge
            self._spark = kind(self._resolved, self.columns, self._handle)
        return self._spark

    def _shape(self) -> tuple[StateColumns, str]:
        """The columns of a new table, and the one by which it is partitioned."""
        if isinstance(self._layout, LogLayout):
            return LogColumns(self.key, self.values, self._names), self.columns.txid
        return self.columns, ""

    def _rows_before(self, txid: TxId, wanted: pa.Table) -> pa.Table:
        """The rows as they were before a transaction; of a large table only those that may have a wanted key."""
        handle = self._handle
        if self._cache is not None and self._cache[:2] == (handle.delta_version, txid):
            return with_keys(self._cache[2], wanted)
        if handle.row_count() > CACHED_ROWS_MAX:
            return handle.lookup(txid, wanted)
        # A bolt may ask key by key.
        self._cache = (handle.delta_version, txid, handle.rows(txid, _all))
        return with_keys(self._cache[2], wanted)


def _delta_runs_on_spark() -> bool:
    # Nobody has a session who has not imported this; to import it takes long.
    if "pyspark.sql" not in sys.modules:
        return False
    from state.delta.spark import is_delta_running

    return is_delta_running()


def _checked_engine(engine: str, location: DeltaLocation) -> str:
    if engine not in ENGINES:
        raise ConfigError(f"engine {engine!r} of state {location} is not known; there are {', '.join(ENGINES)}")
    if engine == "spark" and not location.is_writable_by_spark:
        raise ConfigError(
            f"state {location} is on S3, where Spark's Delta commits are not guarded against another writer's, nor "
            "against the fence; use engine='delta-rs'"
        )
    return engine


def _checked_layout(layout: str | LogLayout, location: DeltaLocation) -> str | LogLayout:
    if isinstance(layout, str) and layout not in LAYOUTS:
        raise ConfigError(
            f"layout {layout!r} of state {location} is not known; there are {', '.join(LAYOUTS)}, and LogLayout(…)"
        )
    return LogLayout() if layout == "log" else layout


def _all(rows: pa.Table) -> pa.Table:
    return rows
