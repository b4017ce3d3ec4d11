"""The entries of a table's log that this process writes itself, without delta-rs, by one compare-and-set.

delta-rs lists the log for each Delta commit, and reads again what came after the last checkpoint; a process that wrote
the newest Delta version knows all of it. As with delta-rs, an entry appears whole or not at all, and never takes the
place of another one: on a disk it is linked to its name, in an object store it is put there if there is none. An entry
comes right after the version that was read and checked, or it is refused. Its contents are what delta-rs and Spark
write, and read. Nothing is retried here: a conflict goes back to the state, which reads the version again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from state.delta.log.log import CHECKPOINT, LOG_FOLDER, LOG_KEPT_S, check_links, entry_name, entry_path
from state.delta.log.snapshot import DeltaSnapshot
from state.delta.tables.data_files import DataFile, Replacement
from state.delta.tables.storage import create_object, delete_files
from state.delta.write.loaded_table import LoadedTable
from state.fence import WriteRefused
from state.rows.expiring import ExpiryHorizons, app_transactions
from transactional.model.attempt import AttemptId, TransactionAttempt
from transactional.model.names import DIGEST_TAG, OWNER_NOTE
from transactional.model.plumbing.syncing import sync


def commit_attempt(
    table: LoadedTable,
    replacement: Replacement,
    attempt_id: AttemptId,
    attempt: TransactionAttempt | None,
    horizons: ExpiryHorizons | None,
) -> None:
    """Replace files, as `commit_replacement` does, by the Delta commit of an attempt, or of a fence without one."""
    app_versions, note = app_versions_of(table.owner, attempt_id, horizons), note_of(table.owner, attempt_id, attempt)
    commit_replacement(table, replacement, app_versions, note)


def commit_replacement(
    table: LoadedTable, replacement: Replacement, app_versions: Mapping[str, int], note: str
) -> None:
    """Replace the old files of a table by the new ones, which are in their final places.

    The Delta commit records the versions of app ids, the last one last: an entry that ends with one is not torn. `note`
    is what the table's history shows. Raises `WriteRefused`, after which the new files that no task has staged are
    deleted, or `OSError`, after which the commit may exist.
    """
    check_read_version(table)
    # Of the version that was read: the log may be another one once the entry is written.
    expected = {table.owner: table.version(), **app_versions}
    version, names = table.read_version + 1, [file.part.name for file in replacement.new if not file.is_staged]
    try:
        _write_version(table, version, _actions(table, replacement, app_versions, note), names)
    except FileExistsError:
        delete_files(table.storage, names)
        raise WriteRefused(f"Delta version {version} is another writer's", is_conflict=True) from None
    except OSError:
        check_links(table.location)
        raise
    is_late = may_be_late(table, version, table.read_at_s)
    table.move_past_write(app_versions, replacement)
    if is_late:
        check_late_commit(table, expected)
    else:
        table.disk.mark_written(version, names)


def check_read_version(table: LoadedTable) -> None:
    """Raise `WriteRefused` if the loaded version is not the one that was read and checked."""
    if table.delta_version != table.read_version:
        reason = f"the table was read at Delta version {table.read_version}, and loaded again at {table.delta_version}"
        raise WriteRefused(reason, is_conflict=True)


def _actions(
    table: LoadedTable, replacement: Replacement, app_versions: Mapping[str, int], note: str
) -> list[dict[str, Any]]:
    """Return the actions of the entry that replaces the old files by the new ones."""
    now_ms = _now_ms(table, [file.part.name for file in replacement.new])
    # `userMetadata` is what Spark's DESCRIBE HISTORY shows.
    commit = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
    commit |= {"readVersion": table.read_version, "isBlindAppend": False, "engineInfo": "transactional"}
    removed = {"dataChange": True, "deletionTimestamp": now_ms, "extendedFileMetadata": True}
    added = {"modificationTime": now_ms, "dataChange": True}
    tags = [{"tags": {DIGEST_TAG: file.digest}} if file.digest else {} for file in replacement.new]

    def described(part: DataFile) -> dict[str, Any]:
        partition = {} if part.txid is None else {table.columns.txid: str(part.txid)}
        return {"path": part.name, "partitionValues": partition, "size": part.size_bytes}

    return [
        {"commitInfo": {**commit, "userMetadata": note}},
        *({"remove": {**described(part), **removed}} for part in replacement.old),
        *(
            {"add": {**described(file.part), **added, "stats": file.statistics, **tag}}
            for file, tag in zip(replacement.new, tags, strict=True)
        ),
        *({"txn": {"appId": app_id, "version": version}} for app_id, version in app_versions.items()),
    ]


def app_versions_of(owner: str, attempt_id: AttemptId, horizons: ExpiryHorizons | None) -> dict[str, int]:
    """Return the app transactions of an attempt's Delta commit: its id last, and before it the horizons."""
    recorded = {} if horizons is None else dict(app_transactions(owner, horizons))
    return {**recorded, owner: int(attempt_id)}


def note_of(owner: str, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> str:
    """Return the note of an attempt's Delta commit in the table's history, as JSON. A fence has no transaction."""
    transaction = {"txid": attempt.txid} if attempt is not None else {}
    return json.dumps({OWNER_NOTE: owner, **transaction, "attempt_id": int(attempt_id)})


def _now_ms(table: LoadedTable, names: Sequence[str]) -> int:
    """Return the time in milliseconds. On a disk it is when the newest of these files was written, by its own clock."""
    if table.folder is None:
        return time.time_ns() // 1_000_000
    return max((table.folder / name).stat().st_mtime_ns for name in (*names, LOG_FOLDER)) // 1_000_000


def _write_version(table: LoadedTable, version: int, actions: Sequence[Mapping[str, Any]], needed: list[str]) -> None:
    """Write the entry of a Delta version. Raises `FileExistsError` if the version exists, `OSError`."""
    if table.folder is None:
        create_object(table.storage, entry_path(version), _lines(actions).encode())
        return
    files = [table.folder / name for name in needed] if table.disk.is_kept else None
    write_entry(table.folder / entry_path(version), actions, files)


def write_entry(path: Path, actions: Sequence[Mapping[str, Any]], needed: Sequence[Path] | None) -> None:
    """Write an entry of a log. It is synced first, together with the files that it needs, unless these are None.

    Raises `FileExistsError` if there is such an entry.
    """
    # Readers ignore this name, which delta-rs uses as well.
    temporary = path.with_name(f"_commit_{uuid4()}.json.tmp")
    try:
        temporary.write_text(_lines(actions), "utf-8")
        if needed is not None:
            sync([*needed, temporary])
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _lines(actions: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)


# --- an entry that comes too late -------------------------------------------------------------------------------------


def may_be_late(table: LoadedTable, version: int, since_s: float) -> bool:
    """True if another writer may have written a version before, over a version that was read at a time of this
    process."""
    if table.folder is not None:
        return may_have_been_written(table.folder, version)
    # A request to a remote storage costs time, and entries are kept for longer than a write takes.
    return time.monotonic() - since_s > LOG_KEPT_S / 2


def check_late_commit(table: LoadedTable, expected: Mapping[str, int | None]) -> None:
    """Raise `WriteRefused` if the written version was another writer's before, whose entry was deleted from the log.

    `expected` are the versions of app ids after the written entry. The table has other ones then.
    """
    written_version = table.read_version
    table.reload()
    if any(table.version_of(app_id) != version for app_id, version in expected.items()):
        table.log.delete_late_entry(written_version)
        reason = f"another writer's Delta version {written_version} was cleaned out of the log"
        raise WriteRefused(reason, is_conflict=True)
    table.check_others(DeltaSnapshot(written_version, table.current.column_names))
    table.read_version = table.delta_version


def may_have_been_written(folder: Path, version: int) -> bool:
    """True if another writer may have written this Delta version before, whose entry was deleted from the log.

    An entry is deleted only once there is a later checkpoint, oldest first. The checkpoint says who wrote it.
    """
    log = folder / LOG_FOLDER
    if not (log / entry_name(version - 1)).exists():
        return True
    hinted_version = _hint(log)
    return (hinted_version is None or hinted_version >= version) and _newest_checkpoint(log) >= version


def _hint(log: Path) -> int | None:
    """Return the version in `_last_checkpoint`: -1 if there is no such file, None if it is torn."""
    try:
        return int(json.loads((log / "_last_checkpoint").read_bytes())["version"])
    except FileNotFoundError:
        return -1
    except (ValueError, LookupError, TypeError):
        return None


def _newest_checkpoint(log: Path) -> int:
    names = map(CHECKPOINT.fullmatch, os.listdir(log))
    return max((int(name[1]) for name in names if name is not None), default=-1)
