"""`LogWriter`: the write path of the log layout, where the rows of a transaction replace its own segment alone.

A dead attempt at the same transaction has written the same segment, so nothing has to be read. The rows go to a file in
the segment's folder. Files that tasks have staged become part of the segment as they are, by the same entry of the log.
Sums are checked by the largest values of columns, since no stored row is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import DeltaError

from state.delta.segments.log_layout import check_same_combine, stored_combine
from state.delta.segments.restarts import check_expiry
from state.delta.tables.data_files import DataFile, Replacement, WrittenFile, write_file
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staged_files import check_staged, read_by_driver
from state.delta.tables.staging import is_unescaped_column
from state.delta.tables.table import unreadable_table_error
from state.delta.write.change import Change
from state.delta.write.engine_commits import (
    as_attempt,
    commit_overwrite,
    commit_properties,
    settle_feature,
    under_fence,
)
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.table_writer import Lookup, TableWriter
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import NO_HORIZONS
from state.rows.sums import SumBounds, SumCheck
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import max_magnitude
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TxId
from transactional.model.names import COMBINE_PROPERTY, STAGED_FEATURE, compaction_of
from transactional.model.schema import Field

BoundsReader = Callable[[Sequence[Field]], SumBounds]
"""Measures the bounds of the stored sums of some columns."""


class LogWriter(TableWriter):
    """Writes a table in the log layout. `read_bounds` measures the sums that are stored."""

    def __init__(self, table: LoadedTable, state: str, lookup: Lookup, read_bounds: BoundsReader) -> None:
        super().__init__(table, state, lookup)
        self._read_bounds = read_bounds
        self._schema, self._compaction_id = arrow_schema(self.columns.written_columns), compaction_of(table.owner)
        self._has_folders = is_unescaped_column(self.columns.txid)
        """True if each segment has a folder. The names of other txid columns have more than one form in a log."""
        self._combine_rule: tuple[Mapping[str, str], Mapping[str, str], SumCheck] | None = None
        """The properties that were read last, how values are combined by them, and the check of their sums."""
        self._bounds: tuple[TxId, SumBounds] | None = None

    @property
    def compacted_txid(self) -> TxId:
        """The transaction up to which the table is compacted, or 0 if it never was."""
        return TxId(self.table.version_of(self._compaction_id) or 0)

    def prepare(self, write: TableWrite) -> TableWrite:
        """Record how rows are combined, and the features that a write uses, before the rows come. Check the sums."""
        if write.staged:
            check_staged(self.table.location, write.attempt, write.staged)
        check = self.settle_combine(write.combine)
        if write.staged:
            settle_feature(self.table, STAGED_FEATURE)
        if check.columns and not self.admits(check, write):
            self.check_sums(write)
        return write

    def replace_files(self, write: TableWrite) -> Replacement | None:
        """Write the rows to a file. It becomes the transaction's segment, together with the staged files.

        All live files of the segment are replaced, as the version that was read and checked has them: an earlier
        attempt may have committed them, and another program may have compacted them.
        """
        txid, column = write.attempt.txid, self.columns.txid
        staged, rows = as_segment(write.staged, txid), self._segment_rows(write)
        if (partitions := self.table.follow_files(column)) is None:
            return None
        old_files = partitions.files_between(txid - 1, txid)
        folder = f"{column}={txid}/" if self._has_folders else ""
        if self.table.folder is not None and rows.num_rows:
            (self.table.folder / folder).mkdir(exist_ok=True)
        return Replacement(old_files, [*write_file(self.table.storage, rows, self._schema, folder, txid), *staged])

    def overwrite(self, write: TableWrite) -> None:
        if write.staged:
            write = read_by_driver(self.table.location, self.columns, write, self.state)
        attempt, schema, rows = write.attempt, self.columns.table_schema, self._segment_rows(write)
        rows = rows.append_column(self.columns.txid, pa.repeat(pa.scalar(int(attempt.txid), pa.int64()), len(rows)))
        predicate = f"{DATA_FUSION.name(self.columns.txid)} = {attempt.txid}"
        properties = as_attempt(self.table, attempt.attempt_id, attempt, write.horizons)
        commit_overwrite(self.table, rows.select(schema.names).cast(schema), properties, predicate=predicate)

    def _segment_rows(self, write: TableWrite) -> pa.Table:
        horizons = write.horizons or NO_HORIZONS
        return Change(self.columns, write.attempt.txid, write.rows, write.combine, horizons).segment_rows()

    def settle_combine(self, combine: Mapping[str, str]) -> SumCheck:
        """Record in the table how its values are combined, for good, before its first row. Return the check of sums.

        Raises `WriteRefused`.
        """
        rule = self._combine_rule
        if rule is not None and rule[0] is self.table.current.properties and rule[1] == combine:
            return rule[2]
        properties = self.table.properties
        stored, values = stored_combine(properties), self.columns.values
        if stored is not None:
            check_same_combine(stored, combine, self.table.location)
        check = SumCheck(self.state, values, [combine[name] for name in values.names])
        if stored == combine:
            self._combine_rule = properties, dict(combine), check
            return check
        check_expiry(self.columns, combine, str(self.table.location))
        commit_properties(self.table, {COMBINE_PROPERTY: json.dumps(dict(combine))}, under_fence(self.table))
        return check

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

    def admits(self, check: SumCheck, write: TableWrite) -> bool:
        """Count in the largest values of a write. True if all sums fit, whichever keys the rows have."""
        compacted, columns = self.compacted_txid, [field for _, field in check.columns]
        # Each file has one row of a key at most.
        largest = {
            field.name: max_magnitude(write.rows[field.name]) + sum(file.largest[field.name] for file in write.staged)
            for field in columns
        }
        # Compactions put parts together that cancel out.
        if self._bounds is None or (self._bounds[0] != compacted and not self._bounds[1].admit(largest, columns)):
            self._bounds = (compacted, self._read_bounds(columns))
        fits = self._bounds[1].admit(largest, columns)
        self._bounds[1].add(largest)
        return fits


def segment_files(table: LoadedTable, start: int, end: int) -> list[DataFile]:
    """Return the files of the transactions with `start < txid <= end`. Raises `OperatingError`."""
    column = table.columns.txid
    if (partitions := table.follow_files(column)) is not None:
        return partitions.files_between(start, end)
    try:
        actions = pa.table(table.engine.get_add_actions()).to_pylist()
    except (DeltaError, OSError) as error:
        raise unreadable_table_error(table.location, error) from None
    files = [(int(file["partition"][column]), file) for file in actions]
    return [DataFile(file["path"], file["size_bytes"], txid) for txid, file in files if start < txid <= end]


def as_segment(staged: Sequence[StagedFile], txid: TxId) -> list[WrittenFile]:
    """Return staged files as files of a segment, without those that have no row.

    No compaction would remove a file without rows, since an engine rewrites the files that have some.
    """
    return [
        WrittenFile(DataFile(file.path, file.size_bytes, txid), file.rows, file.stats, is_staged=True)
        for file in staged
        if file.rows
    ]
