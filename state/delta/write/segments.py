"""The change of a table in the log layout: the rows of a transaction replace its own segment, and no other row.

A dead attempt at the same transaction has written the same segment, so nothing has to be read. Files that tasks have
staged become the segment as they are. Sums are checked by the largest values of columns, since no stored row is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import Transaction
from deltalake.transaction import AddAction, RemoveAction

from state.delta.log.log import commit_path
from state.delta.segments.log_layout import check_same_combine, stored_combine
from state.delta.segments.restarts import check_expiry
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staged_files import check_staged
from state.delta.tables.staging import FileStager
from state.delta.tables.table import DeltaLocation
from state.delta.write.engine_commits import (
    as_attempt,
    commit_files,
    commit_overwrite,
    commit_properties,
    settle_feature,
    under_fence,
)
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.table_writer import Lookup, TableWriter
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import TIME, time_scalar
from state.rows.sums import SumBounds, SumCheck
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import max_magnitude
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.names import COMBINE_PROPERTY, STAGED_FEATURE, compaction_of
from transactional.model.schema import Field

BoundsReader = Callable[[Sequence[Field]], SumBounds]
"""Measures the bounds of the stored sums of some columns."""


@dataclass(slots=True)
class WriteCounts:
    """Numbers of rows that transactions have written, and of files that tasks have staged since the last compaction."""

    rows: int = 0
    staged_files: int = 0


class LogWriter(TableWriter):
    """Writes a table in the log layout. `read_bounds` measures the sums that are stored."""

    def __init__(self, table: LoadedTable, state: str, lookup: Lookup, read_bounds: BoundsReader) -> None:
        super().__init__(table, state, lookup)
        self._read_bounds, self.counts = read_bounds, WriteCounts()
        self._bounds: tuple[TxId, SumBounds] | None = None

    @property
    def compacted_txid(self) -> TxId:
        """The transaction up to which the table is compacted, or 0 if it never was."""
        return TxId(self.table.version_of(compaction_of(self.table.owner)) or 0)

    def _prepare(self, write: TableWrite) -> None:
        """Record how rows are combined, and the features that a write uses, before the rows come. Check the sums."""
        if write.staged:
            check_staged(self.table.location, write.attempt, write.staged)
        self.settle_combine(write.combine)
        if write.staged:
            settle_feature(self.table, STAGED_FEATURE)
        check = self.sum_check(write)
        if check.columns and not self.admits(check, _largest_of(write, check)):
            self.check_sums(write)

    def commit(self, write: TableWrite) -> None:
        self._prepare(write)
        if write.staged:
            self._commit_staged(write)
            return
        attempt, schema = write.attempt, self.columns.table_schema
        rows = self._with_horizon(write)
        rows = rows.append_column(self.columns.txid, pa.repeat(pa.scalar(int(attempt.txid), pa.int64()), len(rows)))
        predicate = f"{DATA_FUSION.name(self.columns.txid)} = {attempt.txid}"
        properties = as_attempt(self.table, attempt.attempt_id, attempt)
        commit_overwrite(self.table, rows.select(schema.names).cast(schema), properties, predicate=predicate)
        self.counts.rows += len(rows)

    def _commit_staged(self, write: TableWrite) -> None:
        """Commit staged files as the segment, and a further file for the rows. The commit has metadata only."""
        staged = list(write.staged)
        if write.rows.num_rows:
            stager = FileStager(Path(self.table.location.uri), self.table.owner, self.columns.written_columns)
            staged.append(stager.stage(write.attempt, write.rows))
        commit_staged(self.table, write.attempt, staged)
        self.counts.rows += sum(file.rows for file in staged)
        self.counts.staged_files += len(staged)

    def _with_horizon(self, write: TableWrite) -> pa.Table:
        """Add the horizon of the transaction to its rows, if the table has a column for it."""
        rows, horizons = write.rows, write.horizons
        if self.columns.horizon is None:
            return rows
        horizon = None if horizons is None or horizons.current is None else time_scalar(horizons.current)
        column = pa.nulls(rows.num_rows, TIME) if horizon is None else pa.repeat(horizon, rows.num_rows)
        return rows.append_column(self.columns.horizon, column)

    def settle_combine(self, combine: Mapping[str, str]) -> None:
        """Record in the table how its values are combined, for good, before its first row. Raises `WriteRefused`."""
        stored = stored_combine(self.table.properties)
        if stored is not None:
            check_same_combine(stored, combine, self.table.location)
        if stored == combine:
            return
        check_expiry(self.columns, combine, str(self.table.location))
        commit_properties(self.table, {COMBINE_PROPERTY: json.dumps(dict(combine))}, under_fence(self.table))

    def adopt_merged(self, version: AttemptId | None, newest: TxId) -> None:
        """Make the rows of a table in the merge layout, as of a committed transaction, the first segment.

        Raises `WriteRefused` if the table is no longer at this version.
        """
        if self.table.version() != version:
            raise WriteRefused("another writer came between", is_conflict=True)
        txid = DATA_FUSION.name(self.columns.txid)
        names = [DATA_FUSION.name(name) for name in self.columns.row_schema.names]
        alive = ""
        horizon = () if self.columns.horizon is None else (self.columns.horizon,)
        if self.columns.deletes:
            deleted = DATA_FUSION.name(self.columns.deleted)
            names, alive = [*names, deleted], f" WHERE NOT COALESCE({deleted}, false)"
        names += [f"{DATA_FUSION.no_time} AS {DATA_FUSION.name(column)}" for column in horizon]
        sql = f"SELECT {', '.join(names)}, CAST({newest} AS BIGINT) AS {txid} FROM t{alive}"
        reader = self.table.query(sql).cast(self.columns.table_schema)
        properties = under_fence(self.table, Transaction(compaction_of(self.table.owner), newest))
        partition_by = [self.columns.txid]
        commit_overwrite(self.table, reader, properties, schema_mode="overwrite", partition_by=partition_by)
        self.table.disk.settle()

    def admits(self, check: SumCheck, largest: Mapping[str, int]) -> bool:
        """Count in the largest values of a write. True if all sums fit, whichever keys the rows have."""
        columns = [field for _, field in check.columns]
        compacted = self.compacted_txid
        # Compactions put parts together that cancel out.
        if self._bounds is None or (self._bounds[0] != compacted and not self._bounds[1].admit(largest, columns)):
            self._bounds = (compacted, self._read_bounds(columns))
        fits = self._bounds[1].admit(largest, columns)
        self._bounds[1].add(largest)
        return fits


def _largest_of(write: TableWrite, check: SumCheck) -> dict[str, int]:
    """Return the largest sum of each column that one key can have. Each file has one row of a key at most."""
    names = [field.name for _, field in check.columns]
    return {name: max_magnitude(write.rows[name]) + sum(file.largest[name] for file in write.staged) for name in names}


def commit_staged(table: LoadedTable, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
    """Replace the transaction's segment, which an earlier attempt may have committed, by these files.

    All live files of the transaction are replaced, as the version that was read and checked has them: another program
    may have compacted them. Raises `WriteRefused`.
    """
    txid = table.columns.txid
    old = [file for file in table.files() if str(file["partition"][txid]) == str(attempt.txid)]
    commit_files(table, replacing(table, old, staged, attempt.txid), as_attempt(table, attempt.attempt_id, attempt))


def replacing(
    table: LoadedTable, old: Sequence[Mapping[str, Any]], staged: Sequence[StagedFile], txid: TxId
) -> list[AddAction | RemoveAction]:
    """Return the actions that put staged files in place of `old` ones, as rows of a transaction.

    A file without rows is left out: no compaction would remove it, since an engine rewrites the files that have rows.
    """
    column, uri = table.columns.txid, table.location.uri
    newest = Path(uri, commit_path(table.delta_version))  # by the storage's own clock
    at_ms = max(int(path.stat().st_mtime * 1000) for path in (newest, *(Path(uri, file.path) for file in staged)))
    values: dict[str, str | None] = {column: str(int(txid))}
    added = [AddAction(file.path, file.size_bytes, values, at_ms, True, file.stats) for file in staged if file.rows]
    return [*(_removed(table, file, at_ms) for file in old), *added]


def _removed(table: LoadedTable, file: Mapping[str, Any], at_ms: int) -> RemoveAction:
    values: dict[str, str | None] = {name: str(partition) for name, partition in file["partition"].items()}
    return RemoveAction(_plain(table.location, file), True, at_ms, file["size_bytes"], values)


def _plain(location: DeltaLocation, file: Mapping[str, Any]) -> str:
    path = str(file["path"])
    if not path.isascii() or any(sign in path for sign in "% :"):
        raise OperatingError(f"Delta table {location} has a file {path!r}, which the state has not named")
    return path
