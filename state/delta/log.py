"""The log layout on delta-rs: a transaction writes its own rows and touches no others, whatever the table's size.

The table is partitioned by txid. A transaction replaces the rows of its txid: those of a dead attempt go with it, and
nothing has to be read. Folds go by an app id of their own, `<owner>#fold`, whose version is the txid up to which the
table is folded. They replace rows of committed transactions only, by rows that say the same, in one Delta commit: so
readers see no difference, and a crash leaves the table as it was, or folded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from state.base import StateColumns, WriteRefused
from state.delta.delta_rs import VACUUM_INTERVAL, DeltaHandle, always
from state.delta.judged import once
from state.delta.loading import refused, unreadable
from state.delta.log_lookup import RunCopies
from state.delta.log_rows import newest_rows
from state.delta.log_table import (
    Fold,
    LogColumns,
    LogLayout,
    LogQuery,
    Run,
    check_same_combine,
    due_fold,
    join_settings,
    stored_combine,
    whole_fold,
)
from state.delta.sums import measured
from state.delta.table import DATA_FUSION, DeltaLocation, Dialect, delta_schema, with_keys
from state.delta.upkeep import NOTHING_AFTERWARDS
from state.sums import SumBounds
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.errors import OperatingError
from transactional.names import COMBINE_PROPERTY, OWNER_NOTE, fold_of
from transactional.schema import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)


class LogHandle(DeltaHandle):
    """A snapshot of a table in the log layout."""

    def __init__(
        self, location: DeltaLocation, owner: str, columns: StateColumns, layout: LogLayout | None = None
    ) -> None:
        super().__init__(location, owner, LogColumns(columns.key, columns.values, columns.names))
        self._layout = layout or LogLayout()
        self._copies = RunCopies(self._columns.key.names, self._load_run)
        self._came, self._folded_rows = 0, 0
        self._bounds: tuple[TxId, SumBounds] | None = None

    @property
    def folded_txid(self) -> TxId:
        """The transaction up to which the table was folded, 0: it never was."""
        return TxId(self._transaction_version(self._fold_id) or 0)

    def merge(self, attempt: TransactionAttempt, source: pa.Table, combine: Mapping[str, str]) -> None:
        """Replace the rows of the attempt's transaction by the source's, one per key. Raises `WriteRefused`."""
        self.settle_combine(combine)
        self._replace(attempt.txid, source, self._commit_properties(attempt.attempt_id, attempt))
        self._came += source.num_rows

    def admits(self, source: pa.Table, columns: Sequence[Field]) -> bool:
        """Whether all sums in these columns fit, whichever keys the source's rows meet; and take them in."""
        folded = self.folded_txid
        # Folds put parts together that cancel out.
        if self._bounds is None or (self._bounds[0] != folded and not self._bounds[1].admit(source, columns)):
            self._bounds = (folded, self._measured(columns))
        fits = self._bounds[1].admit(source, columns)
        self._bounds[1].add(source)
        return fits

    def _measured(self, columns: Sequence[Field]) -> SumBounds:
        files = pa.table(self._table.get_add_actions(flatten=True))
        return SumBounds(measured(files, self._columns.txid, columns, lambda sql: pa.concat_tables(self._parts(sql))))

    def settle_combine(self, combine: Mapping[str, str]) -> None:
        """Note in the table how its values meet, before the first row; it stays so. Raises `WriteRefused`."""
        stored = stored_combine(self._table.metadata().configuration)
        if stored is not None:
            check_same_combine(stored, combine, str(self._location))
            return
        version = self.version()
        # With the version it has read, so that the fence holds here, too.
        transactions = [] if version is None else [Transaction(self._owner, version)]
        with self.writing() as table:
            table.alter.set_table_properties(
                {COMBINE_PROPERTY: json.dumps(dict(combine))},
                raise_if_not_exists=False,
                commit_properties=self._noted(transactions),
            )
            # A change of properties may make a checkpoint, too.
            self._settle_checkpoint()

    def adopt_merged(self, version: AttemptId | None, newest: TxId) -> None:
        """Turn a table of the merge layout, which stands at a committed transaction, into the base of a log.

        Raises `WriteRefused` when the table is no longer the one of this version.
        """
        if self.version() != version:
            raise WriteRefused("another writer came between", is_conflict=True)
        txid = DATA_FUSION.name(self._columns.txid)
        names = ", ".join(map(DATA_FUSION.name, self._schema().names))
        reader = self._query(f"SELECT {names}, CAST({newest} AS BIGINT) AS {txid} FROM t")
        fence = [] if version is None else [Transaction(self._owner, version)]
        with self.writing() as table:
            write_deltalake(
                table,
                pa.RecordBatchReader.from_stream(reader).cast(delta_schema(self._columns)),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=[self._columns.txid],
                commit_properties=self._noted([*fence, Transaction(self._fold_id, newest)]),
                post_commithook_properties=NOTHING_AFTERWARDS,
            )
            self.make_durable()

    def rows(self, before: TxId | None, keep: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """Key and value columns, one row per key, as they were before transaction `before`, that `keep` leaves over."""
        self._check_not_folded(before)
        schema = self._schema()
        query, runs = self._log_query(), self.runs()
        if query is None or not runs or (before is not None and runs[0].txid >= before):
            return schema.empty_table()
        parts = self._parts(query.view_over_base(runs[0].txid, before), join_settings(runs))
        kept = [keep(part.cast(schema)) for part in parts]
        return pa.concat_tables(kept) if kept else schema.empty_table()

    def view(self, before: TxId | None, dialect: Dialect, source: str) -> str:
        """A query on the table, called `source`, for one row per key; right whatever is folded meanwhile."""
        self._check_not_folded(before)
        combine = stored_combine(self._table.metadata().configuration)
        if combine is None:
            raise OperatingError(
                f"Delta table {self._location} is empty: how its rows meet is known with the first one"
            )
        where = "" if before is None else f"{dialect.name(self._columns.txid)} < {before}"
        return LogQuery(self._columns, combine, dialect, source).view(where)

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """The rows of wanted keys: each run is searched, and only what is found is put together."""
        self._check_not_folded(before)
        query, schema = self._log_query(), delta_schema(self._columns)
        runs = {run.txid: (run.files, run.rows) for run in self.runs() if run.txid < before}
        if query is None or not runs:
            return self._schema().empty_table()
        if self._layout.local_copies:
            rows = self._copies.search(runs, wanted)
        else:
            found = [with_keys(part.cast(schema), wanted) for part in self._parts(query.rows(before))]
            rows = pa.concat_tables(found) if found else schema.empty_table()
        return newest_rows(rows, self._columns, query.combine).cast(self._schema())

    def _load_run(self, txid: TxId) -> pa.RecordBatchReader:
        query = self._log_query()
        assert query is not None, "a table with rows says how they are combined"
        return pa.RecordBatchReader.from_stream(self._query(query.sorted_run(txid))).cast(delta_schema(self._columns))

    def runs(self) -> list[Run]:
        """The runs of the snapshot, oldest first."""
        files = pa.table(self._table.get_add_actions(flatten=True))
        if not files.num_rows:
            return []
        txids = files.column(f"partition.{self._columns.txid}").cast(pa.int64())
        columns = {"txid": txids, "rows": files.column("num_records").cast(pa.int64()), "path": files.column("path")}
        steps = [("rows", "sum"), ("path", "list")]
        grouped = pa.table(columns).group_by("txid", use_threads=False).aggregate(steps).sort_by("txid")
        return [Run(TxId(each["txid"]), each["rows_sum"], frozenset(each["path_list"])) for each in grouped.to_pylist()]

    def maintain(self, newest: TxId, may_go_on: Callable[[], bool] = always) -> None:
        """Fold what is due, and now and then delete old files. Never fails."""
        self._writes += 1
        if self._layout.fold_after is not None and newest - 1 - self.folded_txid >= self._layout.fold_after:
            self._try_to_maintain(lambda: self._fold_due(newest), may_go_on)
        self._try_to_maintain(self._tend_log, may_go_on)
        if self._writes % VACUUM_INTERVAL == 0:
            self._try_to_maintain(self._vacuum, may_go_on)
        self._try_to_maintain(self.make_durable)

    def fold_whole(self, newest: TxId) -> None:
        """Fold every transaction before `newest` into the base. Raises `WriteRefused`."""
        fold = whole_fold(self.runs(), newest)
        try:
            if fold is not None:
                self.fold(fold)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise refused(self._location, error) from None

    def fold(self, fold: Fold) -> None:
        """Make the runs of a fold one, in one Delta commit. Raises `WriteRefused`."""
        self.make_durable()
        query, runs = self._log_query(), self.runs()
        assert query is not None, "a table with rows says how they are combined"
        txid = DATA_FUSION.name(self._columns.txid)
        sql = f"SELECT f.*, CAST({fold.until} AS BIGINT) AS {txid} FROM ({query.fold(fold, runs[0].txid)}) f"
        with self.writing() as table:
            rows = pa.RecordBatchReader.from_stream(self._query(sql, join_settings(runs)))
            write_deltalake(
                table,
                rows.cast(delta_schema(self._columns)),
                mode="overwrite",
                predicate=f"{txid} > {fold.after} AND {txid} <= {fold.until}",
                commit_properties=self._noted([Transaction(self._fold_id, fold.until)]),
                post_commithook_properties=NOTHING_AFTERWARDS,
            )
        self._tell(fold)

    def _vacuum(self) -> None:
        self._delete_old_files()
        if self._location.scheme == "file":
            # A folder per transaction: on a disk they stay, and listing them would take longer and longer.
            remove_empty_folders(Path(self._location.uri), self._columns.txid, self.folded_txid)

    def _fold_due(self, newest: TxId) -> None:
        fold = due_fold(self.runs(), self.folded_txid, newest, self._layout)
        if fold is not None:
            self.fold(fold)

    def _tell(self, fold: Fold) -> None:
        written = next(run.rows for run in self.runs() if run.txid == fold.until)
        self._folded_rows += written
        _log.info(
            "Delta table %s: %d runs with %d rows up to transaction %d folded into %d rows; %s",
            *(self._location, fold.runs, fold.rows, fold.until, written, self.write_amplification()),
        )

    def write_amplification(self) -> str:
        """How many rows folds have written, per row that came, since the table was opened."""
        return f"{self._folded_rows} rows written by folds for {self._came} that came" + (
            f", {self._folded_rows / self._came:.1f} each" if self._came else ""
        )

    @property
    def _fold_id(self) -> str:
        return fold_of(self._owner)

    def _replace(self, txid: TxId, rows: pa.Table, properties: CommitProperties) -> None:
        """Replace the rows of one txid."""
        schema = delta_schema(self._columns)
        if rows.column_names != schema.names:
            rows = rows.append_column(self._columns.txid, pa.repeat(pa.scalar(int(txid), pa.int64()), rows.num_rows))
        with self.writing() as table:
            write_deltalake(
                table,
                rows.select(schema.names).cast(schema),
                mode="overwrite",
                predicate=f"{DATA_FUSION.name(self._columns.txid)} = {txid}",
                commit_properties=properties,
                post_commithook_properties=NOTHING_AFTERWARDS,
            )

    def _noted(self, transactions: list[Transaction]) -> CommitProperties:
        """With whose it is, in the table's history; what ends with an app transaction can be told from what is torn."""
        note = {"userMetadata": json.dumps({OWNER_NOTE: self._owner})} if transactions else {}
        return once(transactions, note)

    def _log_query(self) -> LogQuery | None:
        combine = stored_combine(self._table.metadata().configuration)
        return None if combine is None else LogQuery(self._columns, combine, DATA_FUSION)

    def _parts(self, sql: str, settings: Mapping[str, str] | None = None) -> Iterator[pa.Table]:
        try:
            for batch in pa.RecordBatchReader.from_stream(self._query(sql, settings)):
                yield pa.Table.from_batches([batch])
        except (DeltaError, OSError, pa.ArrowException) as error:  # of Arrow: a sum that does not fit
            raise unreadable(self._location, error) from None

    def _schema(self) -> pa.Schema:
        schema = delta_schema(self._columns)
        return pa.schema([schema.field(name) for name in (*self._columns.key.names, *self._columns.values.names)])

    def _check_not_folded(self, before: TxId | None) -> None:
        if before is not None and before <= self.folded_txid:
            raise OperatingError(
                f"Delta table {self._location} is folded up to transaction {self.folded_txid}; what was before "
                f"transaction {before} can't be told any more"
            )


def remove_empty_folders(table: Path, column: str, before: TxId) -> None:
    """Remove the folders of transactions before `before` that hold no file any more. Nobody writes there again."""
    for folder in table.glob(f"{column}=*"):
        text = folder.name.removeprefix(f"{column}=")
        if text.isdigit() and int(text) < before and not any(folder.iterdir()):
            folder.rmdir()
