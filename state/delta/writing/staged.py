"""Staged files in the driver: they are checked and committed, and those that nobody commits any more are deleted.

A Delta commit of staged files is metadata only. Nobody but the table's owner deletes staged files, in two passes that
are a retention apart: see `StagedOrphans`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from state.delta.log.files import retention_s
from state.delta.log.log import commit_path
from state.delta.log.version import TableVersion
from state.delta.tables.staging import STAGED_FOLDER, attempt_of
from state.delta.tables.table import DeltaLocation
from state.delta.writing.commit import as_attempt, commit_files
from state.fence import TableWrite
from state.orphans import NotedOrphans
from state.rows.columns import StateColumns
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import Step, reduce_rows
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import OperatingError, ProtocolError

_OF_DRIVERS = (f"{STAGED_FOLDER}/mark-", f"{STAGED_FOLDER}/job-")
_NOBODY = AttemptId(0)


def check_staged(location: DeltaLocation, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
    """Raise `OperatingError` for a file that is not there as it was reported: the attempt has to be repeated.

    Raises `ProtocolError` for one that no task of this attempt can have reported.
    """
    for file in staged:
        if attempt_of(file.path) != attempt or not file.is_synced:
            why = f"of another attempt than {attempt}" if file.is_synced else "not synced"
            raise ProtocolError(f"Delta table {location}: staged file {file.path} was reported, which is {why}")
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
    """Key and value columns of all rows of some staged files. Raises `OperatingError`."""
    try:
        tables = [parquet.read_table(Path(location.uri, file.path)) for file in staged]
    except (OSError, pa.ArrowException) as error:
        raise OperatingError(f"Delta table {location}: a staged file can't be read: {location.reason(error)}") from None
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])


def read_by_driver(location: DeltaLocation, columns: StateColumns, write: TableWrite, state: str) -> TableWrite:
    """The same write, with the rows of its staged files among its own. Raises `OperatingError`, `SumOverflow`."""
    check_staged(location, write.attempt, write.staged)
    schema = arrow_schema(columns.written_columns)
    every = pa.concat_tables([write.rows.select(schema.names), read_staged(location, write.staged, schema)])
    steps: list[Step] = [(name, write.combine[name]) for name in columns.values.names]
    steps += [(columns.deleted, "last")] if columns.deletes else []
    return replace(
        write, rows=reduce_rows(every, columns.key.names, steps, columns.written_columns, state=state), staged=()
    )


def commit_staged(table: TableVersion, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
    """Let the transaction's segment be these files, in place of what an earlier attempt has committed.

    What is replaced are all live files of the transaction, as the version that was read and checked has them: somebody
    may have compacted them. Raises `WriteRefused`.
    """
    txid = table.columns.txid
    own = [file for file in table.files() if str(file["partition"][txid]) == str(attempt.txid)]
    commit_files(table, replaced(table, own, staged, attempt.txid), as_attempt(table, attempt.attempt_id, attempt))


def replaced(
    table: TableVersion, gone: Sequence[Mapping[str, Any]], staged: Sequence[StagedFile], txid: TxId
) -> list[AddAction | RemoveAction]:
    """The actions that put staged files in place of others, as rows of a transaction.

    One without rows is left out: no compaction would remove it, since an engine rewrites the files that have rows.
    """
    column, uri = table.columns.txid, table.location.uri
    newest = Path(uri, commit_path(table.delta_version))  # by the storage's own clock
    at_ms = max(int(path.stat().st_mtime * 1000) for path in (newest, *(Path(uri, file.path) for file in staged)))
    values: dict[str, str | None] = {column: str(int(txid))}
    added = [AddAction(file.path, file.size_bytes, values, at_ms, True, file.stats) for file in staged if file.rows]
    return [*(_removed(table, file, at_ms) for file in gone), *added]


def _removed(table: TableVersion, file: Mapping[str, Any], at_ms: int) -> RemoveAction:
    values: dict[str, str | None] = {name: str(value) for name, value in file["partition"].items()}
    return RemoveAction(_plain(table.location, file), True, at_ms, file["size_bytes"], values)


def _plain(location: DeltaLocation, file: Mapping[str, Any]) -> str:
    path = str(file["path"])
    if not path.isascii() or any(sign in path for sign in "% :"):
        raise OperatingError(f"Delta table {location} has a file {path!r}, which the state has not named")
    return path


class StagedOrphans:
    """Deletes staged files that are no part of the table any more, or never were, in two passes a retention apart.

    Each pass lists them, and loads the newest version after that; `NotedOrphans` decides what is deleted. Time is
    the storage's own.
    """

    def __init__(self, location: DeltaLocation) -> None:
        self.location, self._noted = location, NotedOrphans()

    def sweep(
        self,
        load: Callable[[], DeltaTable | None],
        version: Callable[[], AttemptId | None],
        held: Collection[str] = (),
    ) -> int:
        """Both passes. `load` gives the newest snapshot, None when it is another's; then `version` is its attempt.
        Files that are `held` stay.

        Returns how many files are gone. Raises `OSError`.
        """
        listed = self._listed()
        table = load() if listed else None
        written = version()
        if table is None or written is None:
            return 0
        live = {*pa.table(table.get_add_actions())["path"].to_pylist(), *held}
        kept_s = retention_s(str(table.metadata().configuration.get("delta.deletedFileRetentionDuration", "")))
        now_s = Path(self.location.uri, commit_path(table.version())).stat().st_mtime
        due = self._noted.due(listed, live, written, now_s=now_s, retention_s=kept_s)
        for path in due:
            self.delete(path)
        return len(due)

    def delete(self, path: str) -> None:
        """Delete one."""
        place = Path(self.location.uri, path)
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)

    def _listed(self) -> dict[str, AttemptId]:
        folder = Path(self.location.uri, STAGED_FOLDER)
        names = os.listdir(folder) if folder.is_dir() else []
        found = {f"{STAGED_FOLDER}/{name}": attempt_of(f"{STAGED_FOLDER}/{name}") for name in names}
        # Marks of a start and the folder of a compaction are of no attempt: one that is a retention old is of a dead
        # driver.
        own = {path: _NOBODY for path in found if path.startswith(_OF_DRIVERS)}
        return {**own, **{path: attempt.attempt_id for path, attempt in found.items() if attempt is not None}}
