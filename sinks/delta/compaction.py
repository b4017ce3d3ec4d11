"""Compaction: small files of a sink's table become larger ones, so that readers open few files.

Only files that the sink itself has written are merged, and only those of transactions that the store has settled: the
outbox names files that may have to be published once more. Files of about the same size become one file, so a row is
rewritten once for each eightfold size. The new files lie in the table's folder, where vacuums of others list them. A
merge changes no rows. It becomes part of the table by a Delta commit that the publisher writes, under its fence.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import parquet

from sinks.delta.run_files import RunFiles, attempt_of
from state.delta.log.entries import entries_between
from state.delta.tables.data_files import footer_statistics, table_writer, with_all
from state.delta.tables.storage import delete_files, open_parquet
from state.delta.tables.table import DeltaLocation, open_storage
from transactional.model.attempt import AttemptId, TxId

FILES_MIN: Final = 8
"""The smallest number of files that are merged, unless they fill one of the target size."""
_CLASS_BITS: Final = 3
"""Files are of one class if their sizes differ by less than a factor of two to the power of this."""
_PLAIN_PATH: Final = re.compile(r"[\w=./-]+", re.ASCII)
_FOREIGN: Final = AttemptId(0)
_GROUP_ROWS: Final = 100_000
_GROUP_BYTES: Final = 32 * 2**20
"""A row group of a new file ends after so many rows, or bytes in memory."""
_NAME: Final = re.compile(r"compacted-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table. `attempt_id` is the newest attempt with rows in it, `partition` as the log has it."""

    path: str
    size_bytes: int
    attempt_id: AttemptId
    partition: Mapping[str, str | None]

    @property
    def is_plain(self) -> bool:
        """True if the log has the path as it is. Other paths are escaped there, by each writer in its own way."""
        return _PLAIN_PATH.fullmatch(self.path) is not None

    @property
    def size_class(self) -> int:
        """The class of files with about the same size."""
        return self.size_bytes.bit_length() // _CLASS_BITS


@dataclass(frozen=True, slots=True)
class NewFile(TableFile):
    """A merged file, which is not yet part of its table."""

    statistics: str
    modified_ms: int


@dataclass(slots=True)
class Merge:
    """Files of a Delta version, and the files with the same rows that replace them."""

    version: int
    old: list[TableFile]
    new: list[NewFile]

    def follow(self, location: DeltaLocation, version: int) -> bool:
        """Advance to a later version of the table. False if an entry in between is missing, has removed an old file, or
        has changed the columns. Raises `OperatingError`."""
        paths = {file.path for file in self.old}
        for entry in entries_between(location, self.version, version):
            if entry.version != self.version + 1 or entry.changes_table or entry.removed & paths:
                return False
            self.version = entry.version
        return self.version == version


def compacted_attempt(path: str) -> AttemptId | None:
    """The newest attempt with rows in a merged file, or None for any other file."""
    match = _NAME.fullmatch(path)
    return None if match is None else AttemptId(int(match[1]))


def read_files(table: DeltaTable) -> list[TableFile]:
    """Return all files of a table, in the order of attempts. Files of other writers have the attempt 0."""
    files = list[TableFile]()
    for action in pa.table(table.get_add_actions()).to_pylist():
        path: str = action["path"]
        attempt = attempt_of(path)
        attempt_id = compacted_attempt(path) if attempt is None else attempt.attempt_id
        partition = {name: _partition_text(typed) for name, typed in (action.get("partition") or {}).items()}
        files.append(TableFile(path, action["size_bytes"], attempt_id or _FOREIGN, partition))
    return sorted(files, key=lambda file: file.attempt_id)


def settled_files(table: DeltaTable, first_unsettled: AttemptId) -> list[TableFile]:
    """Return the files that the sink has written for attempts before `first_unsettled`, in the order of attempts."""
    return [file for file in read_files(table) if _FOREIGN < file.attempt_id < first_unsettled]


def choose_groups(files: Iterable[TableFile], target_bytes: int) -> list[list[TableFile]]:
    """Return groups of small files, each of which becomes one file of about the target size at most."""
    classes = defaultdict[Any, list[TableFile]](list)
    for file in files:
        if file.size_bytes < target_bytes // 2:
            classes[tuple(file.partition.items()), file.size_class].append(file)
    return [group for small in classes.values() for group in _groups(small, target_bytes)]


def _groups(files: Sequence[TableFile], target_bytes: int) -> Iterator[list[TableFile]]:
    group, size_bytes = list[TableFile](), 0
    for file in files:
        group.append(file)
        size_bytes += file.size_bytes
        if size_bytes >= target_bytes:
            yield group
            group, size_bytes = [], 0
    if len(group) >= FILES_MIN:
        yield group


class FileMerger:
    """Writes merged files of one table."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files

    def merges(self, table: DeltaTable, first_unsettled: AttemptId) -> Iterator[Merge]:
        """Yield merges of a table's small files with rows of settled attempts, of about the target size each.

        Raises `OSError`, `ArrowException`.
        """
        schema = _file_schema(table)
        merge = Merge(version := table.version(), [], [])
        for group in choose_groups(settled_files(table, first_unsettled), self._files.target_bytes):
            try:
                merge.new.append(self._merge(group, schema))
            except BaseException:
                self.discard(merge)
                raise
            merge.old += group
            if sum(file.size_bytes for file in merge.new) >= self._files.target_bytes:
                yield merge
                merge = Merge(version, [], [])
        if merge.new:
            yield merge

    def divide(self, table: DeltaTable, txid_column: str, txid: TxId) -> Merge | None:
        """Return the files with rows of later transactions than `txid`, and new files with their other rows.

        None if the path of a file is not plain, so that the file can't be replaced. Raises `OSError`, `ArrowException`.
        """
        schema, merge = _file_schema(table), Merge(table.version(), [], [])
        storage = open_storage(self._files.location)
        files = read_files(table)
        if not all(file.is_plain for file in files):
            return None
        for file in files:
            with open_parquet(storage, file.path, file.size_bytes) as source:
                txids = pc.min_max(source.read([txid_column], use_threads=False)[txid_column]).as_py()
            if txids["max"] is None or txids["max"] <= txid:
                continue
            merge.old.append(file)
            if txids["min"] <= txid:
                merge.new.append(self._merge([file], schema, pc.field(txid_column) <= int(txid)))
        return merge

    def discard(self, merge: Merge) -> None:
        """Delete the new files of a merge that has not become part of the table. Raises `OSError`."""
        delete_files(open_storage(self._files.location), [file.path for file in merge.new])

    def _merge(self, group: Sequence[TableFile], schema: pa.Schema, condition: pc.Expression | None = None) -> NewFile:
        """Write the rows of files, which meet a condition if there is one, to a new file."""
        footers = list[parquet.FileMetaData]()

        def write(file: BinaryIO | pa.NativeFile) -> None:
            with table_writer(file, schema, dictionaries=True, footers=footers) as writer:
                for rows in self._row_groups(group, schema):
                    writer.write_table(rows if condition is None else rows.filter(condition))

        attempt_id = group[-1].attempt_id
        path = f"compacted-{int(attempt_id)}-{uuid.uuid4()}.parquet"
        size_bytes, _ = self._files.write_file(path, write)
        statistics = footer_statistics(footers[0])
        modified_ms = self._files.modified_ms(path)
        return NewFile(path, size_bytes, attempt_id, group[0].partition, statistics, modified_ms)

    def _row_groups(self, group: Sequence[TableFile], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of files, in their order, with NULL in columns that a file lacks."""
        storage = open_storage(self._files.location)
        waiting, rows, size_bytes = list[pa.Table](), 0, 0
        for file in group:
            with open_parquet(storage, file.path, file.size_bytes) as source:
                for number in range(source.num_row_groups):
                    part = with_all(source.read_row_group(number, use_threads=False), schema)
                    waiting.append(part)
                    rows, size_bytes = rows + part.num_rows, size_bytes + part.nbytes
                    if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
                        yield pa.concat_tables(waiting)
                        waiting, rows, size_bytes = [], 0, 0
        if waiting:
            yield pa.concat_tables(waiting)


def _file_schema(table: DeltaTable) -> pa.Schema:
    """Return the columns of a table that its files have."""
    partition_columns = table.metadata().partition_columns
    columns = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(column.name, column.type) for column in columns if column.name not in partition_columns])


def _partition_text(partition_value: object) -> str | None:
    """Return the value of a partition column as the log has it."""
    if partition_value is None:
        return None
    if isinstance(partition_value, bool):
        return str(partition_value).lower()
    return partition_value.isoformat() if isinstance(partition_value, date) else str(partition_value)
