"""Staged files enter the write path here: the driver checks the files that tasks have written, and commits them.

A Delta commit of staged files is metadata only, in a table in the log layout. For a table in the merge layout the
driver reads their rows. Orphaned staged files are deleted elsewhere (`state/delta/upkeep/staged_orphans.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from state.delta.log.log import commit_path
from state.delta.tables.staging import attempt_of
from state.delta.tables.table import DeltaLocation
from state.delta.write.entry import as_attempt, commit_files
from state.delta.write.snapshot import LoadedTable
from state.fence import TableWrite
from state.rows.columns import StateColumns
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import Step, reduce_rows
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.errors import OperatingError, ProtocolError


def check_staged(location: DeltaLocation, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
    """Raise `OperatingError` for a file that is not there as it was reported: the attempt has to be repeated.

    Raises `ProtocolError` for one that no task of this attempt can have reported.
    """
    for file in staged:
        if attempt_of(file.path) != attempt or not file.is_synced:
            fault = f"of another attempt than {attempt}" if file.is_synced else "not synced"
            raise ProtocolError(f"Delta table {location}: staged file {file.path} was reported, which is {fault}")
    check_there(location, staged)


def check_there(location: DeltaLocation, staged: Sequence[StagedFile]) -> None:
    """Raise `OperatingError` for a file that is not there as it was reported."""
    for file in staged:
        path = Path(location.uri, file.path)
        try:
            size = path.stat().st_size
        except OSError as error:
            task = f"a task on {file.host}" if file.host else "a task"
            raise OperatingError(
                f"Delta table {location}: {task} has reported {file.path}, and the driver does not find it: "
                f"{error.strerror}; every executor and the driver must see the same folder, also one that joins later"
            ) from None
        if size != file.size_bytes:
            raise OperatingError(
                f"Delta table {location}: {file.path} has {size} bytes, {file.size_bytes} were reported; the attempt "
                "has to be repeated"
            )


def read_staged(location: DeltaLocation, staged: Sequence[StagedFile], schema: pa.Schema) -> pa.Table:
    """Return key and value columns of all rows of some staged files. Raises `OperatingError`."""
    try:
        tables = [parquet.read_table(Path(location.uri, file.path)) for file in staged]
    except (OSError, pa.ArrowException) as error:
        raise OperatingError(f"Delta table {location}: a staged file can't be read: {location.reason(error)}") from None
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])


def read_by_driver(location: DeltaLocation, columns: StateColumns, write: TableWrite, state: str) -> TableWrite:
    """Return a write with the rows of its staged files among its own. Raises `OperatingError`, `SumOverflow`."""
    check_staged(location, write.attempt, write.staged)
    schema = arrow_schema(columns.written_columns)
    all_rows = pa.concat_tables([write.rows.select(schema.names), read_staged(location, write.staged, schema)])
    steps: list[Step] = [(name, write.combine[name]) for name in columns.values.names]
    steps += [(columns.deleted, "last")] if columns.deletes else []
    return replace(
        write, rows=reduce_rows(all_rows, columns.key.names, steps, columns.written_columns, state=state), staged=()
    )


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
