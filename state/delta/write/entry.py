"""Every Delta commit of a state's table: it comes right after the version that was read and checked, or it is refused.

Left to itself, delta-rs would rebase a Delta commit onto what others have written meanwhile; it takes a rewrite of the
same rows for no conflict. It does not compare the versions of an app id either: it would write a lower one.

The files of a table in the merge layout are replaced without delta-rs, by the next entry of the log. delta-rs lists the
log for each Delta commit, and reads again what came after the last checkpoint; whoever wrote the newest Delta version
knows all of it. As with delta-rs, an entry of the log appears whole or not at all and never takes the place of another
one: on a disk it is linked to its name, in an object store it is put there if there is none. What is written is what
delta-rs and Spark write, and read.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from state.delta.log.log import (
    CHECKPOINT,
    LOG_FOLDER,
    LOG_KEPT_S,
    NOTHING_AFTERWARDS,
    check_links,
    commit_path,
    entry_name,
)
from state.delta.tables.data_files import DataFile, WrittenFile
from state.delta.tables.storage import create, delete
from state.delta.tables.table import features_used, properties_with, refused
from state.delta.write.snapshot import LoadedTable, OwnVersion
from state.fence import WriteRefused
from transactional.model.attempt import AttemptId, TransactionAttempt
from transactional.model.names import DELETES_FEATURE, DIGEST_TAG, EXPIRES_PROPERTY, OWNER_NOTE
from transactional.model.plumbing.syncing import sync

# --- whose a Delta commit is ------------------------------------------------------------------------------------------


def single_try(transactions: list[Transaction], metadata: dict[str, str] | None = None) -> CommitProperties:
    """Return properties by which delta-rs refuses a Delta commit if its version exists, and tries no later one."""
    return CommitProperties(app_transactions=transactions, custom_metadata=metadata, max_commit_retries=0)


def as_attempt(table: LoadedTable, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> CommitProperties:
    """Return commit properties that make the attempt id the table's version, and record the attempt's horizons."""
    # `userMetadata` is what Spark's DESCRIBE HISTORY shows, and the only thing that Spark lets one write there.
    metadata = {"userMetadata": _note(table.owner, attempt_id, attempt)}
    horizons = [Transaction(app_id, version) for app_id, version in table.recorded_by(attempt_id)]
    return single_try([Transaction(table.owner, attempt_id), *horizons], metadata)


def under_fence(table: LoadedTable, *more: Transaction) -> CommitProperties:
    """Return commit properties that repeat the table's version, so that the fence holds, with more app transactions."""
    version = table.version()
    return owned_properties(table, *([] if version is None else [Transaction(table.owner, version)]), *more)


def owned_properties(table: LoadedTable, *transactions: Transaction) -> CommitProperties:
    """Return commit properties that record the owner. An entry that ends with an app transaction is not torn."""
    note = {"userMetadata": json.dumps({OWNER_NOTE: table.owner})} if transactions else {}
    return single_try(list(transactions), note)


def _note(owner: str, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> str:
    """Return the note of a Delta commit in the table's history, as JSON."""
    transaction = {"txid": attempt.txid} if attempt is not None else {}
    return json.dumps({OWNER_NOTE: owner, **transaction, "attempt_id": int(attempt_id)})


# --- by delta-rs ------------------------------------------------------------------------------------------------------


@contextmanager
def by_delta_rs(table: LoadedTable) -> Iterator[DeltaTable]:
    """Let delta-rs commit once and without retries, right after the version that was read and checked.

    Raises `WriteRefused`.
    """
    began_s = time.monotonic()
    try:
        snapshot = table.snapshot
        table.check_read_version()
        yield snapshot
        _has_written(table, snapshot, began_s)
    except Exception as error:
        if not _is_of_libraries(error):
            raise
        if isinstance(error, CommitFailedError) or table.has_moved():
            came = f"another writer's Delta commit came between: {table.location.reason(error)}"
            raise WriteRefused(came, is_conflict=True) from None
        check_links(table.location)
        raise refused(table.location, error) from None


def _is_of_libraries(error: Exception) -> bool:
    """True for an error of delta-rs or Arrow, as for a sum that does not fit.

    With one processor the errors of a query have no class of their own: some are a `ValueError`, those of a stream of
    rows an `Exception`.
    """
    if isinstance(error, DeltaError | OSError | pa.ArrowException) or type(error) is Exception:
        return True
    *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
    return str(raised_in.f_globals.get("__name__")).startswith("deltalake.")


def _has_written(table: LoadedTable, snapshot: DeltaTable, began_s: float) -> None:
    if snapshot.version() == table.read_version:
        return  # nothing had to be written
    table.read_version += 1
    if snapshot.version() != table.read_version:
        # `refresh` handles the versions after it.
        snapshot.load_as_version(table.read_version)
    if _may_be_late(table, table.read_version, began_s):
        _check_late_commit(table)


def _check_late_commit(table: LoadedTable) -> None:
    """Raise `WriteRefused` if the written version was another writer's before, whose entry was deleted from the log."""
    written_version, attempt_id = table.read_version, table.version()
    table.reload()
    if table.version() != attempt_id:
        table.log.withdraw(written_version)
        reason = f"another writer's Delta version {written_version} was cleaned out of the log"
        raise WriteRefused(reason, is_conflict=True)
    table.check_others(written_version)
    table.read_version = table.delta_version


def commit_files(table: LoadedTable, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties) -> None:
    """Commit added and removed files, which are in their final places. Raises `WriteRefused`."""
    with by_delta_rs(table) as snapshot:
        snapshot.create_write_transaction(
            list(actions),
            mode="append",
            schema=snapshot.schema(),
            partition_by=snapshot.metadata().partition_columns,
            commit_properties=properties,
            post_commithook_properties=NOTHING_AFTERWARDS,
        )
        # This call, unlike others, does not move the snapshot.
        snapshot.update_incremental()
        if snapshot.version() != table.read_version + 1:
            snapshot.load_as_version(table.read_version + 1)


def commit_properties(table: LoadedTable, values: Mapping[str, str], properties: CommitProperties) -> None:
    """Set properties of the table. Raises `WriteRefused`."""
    with by_delta_rs(table) as snapshot:
        snapshot.alter.set_table_properties(dict(values), raise_if_not_exists=False, commit_properties=properties)
        # A change of properties may make a checkpoint, too.
        table.disk.settle_checkpoint()


def settle_columns(table: LoadedTable) -> None:
    """Add the columns that the state has gained, NULL in the rows that are there. Raises `WriteRefused`.

    A crash between the two Delta commits leaves columns that nobody writes to; the next start makes the second one.
    """
    if table.missing_columns.names:
        with by_delta_rs(table) as snapshot:
            fields = DeltaSchema.from_arrow(table.missing_columns).fields
            snapshot.alter.add_columns(fields, commit_properties=under_fence(table))
            # As a change of properties may make a checkpoint.
            table.disk.settle_checkpoint()
    if table.columns.deletes:
        settle_feature(table, DELETES_FEATURE)


def settle_feature(table: LoadedTable, feature: str) -> None:
    """Record in the table a feature before its first use, since readers depend on it. Raises `WriteRefused`."""
    if feature not in features_used(table.properties):
        commit_properties(table, properties_with(table.properties, feature), under_fence(table))


def settle_expiry(table: LoadedTable) -> None:
    """Note by which column rows expire, before the first horizon is recorded. Raises `WriteRefused`."""
    if (expires := table.columns.expires) is None or table.says_expiry:
        # Reading the properties means that delta-rs has to load the version.
        return
    if EXPIRES_PROPERTY not in table.properties:
        commit_properties(table, {EXPIRES_PROPERTY: expires}, under_fence(table))
    table.says_expiry = True


def commit_overwrite(table: LoadedTable, rows: Any, properties: CommitProperties, **more: Any) -> None:
    """Replace all rows, or those of a `predicate`, by a table or a reader of rows. Raises `WriteRefused`."""
    with by_delta_rs(table) as snapshot:
        write_deltalake(
            snapshot,
            rows,
            mode="overwrite",
            commit_properties=properties,
            post_commithook_properties=NOTHING_AFTERWARDS,
            **more,
        )


# --- without delta-rs -------------------------------------------------------------------------------------------------


def commit_replaced(
    table: LoadedTable, attempt: TransactionAttempt, new: Sequence[WrittenFile], old: Sequence[DataFile]
) -> None:
    """Replace the `old` files of a table by `new` ones, which are in their final places, as this attempt.

    Raises `WriteRefused`, after which the new files are deleted, or `OSError`, after which the commit may exist.
    """
    table.check_read_version()
    version = table.read_version + 1
    try:
        _write_version(table, version, _replacing(table, version, attempt, new, old), [file.name for file in new])
    except FileExistsError:
        delete(table.storage, [file.name for file in new])
        raise WriteRefused(f"Delta version {version} is another writer's", is_conflict=True) from None
    except OSError:
        check_links(table.location)
        raise
    table.mark_written(OwnVersion(version, attempt.attempt_id))
    if _may_be_late(table, version, table.read_at_s):
        _check_late_commit(table)
    else:
        table.disk.mark_written(table.read_version)


def _replacing(
    table: LoadedTable,
    version: int,
    attempt: TransactionAttempt,
    new: Sequence[WrittenFile],
    old: Sequence[DataFile],
) -> list[dict[str, Any]]:
    """Return the log entry that replaces the `old` files by the `new` ones."""
    now_ms = _now_ms(table, new)
    note = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
    note |= {"readVersion": version - 1, "isBlindAppend": False, "engineInfo": "transactional"}
    transactions = [*table.recorded_by(attempt.attempt_id), (table.owner, int(attempt.attempt_id))]
    removed = {"dataChange": True, "deletionTimestamp": now_ms, "extendedFileMetadata": True, "partitionValues": {}}
    added = {"partitionValues": {}, "modificationTime": now_ms, "dataChange": True}
    tags = [{"tags": {DIGEST_TAG: file.digest}} if file.digest else {} for file in new]
    return [
        {"commitInfo": {**note, "userMetadata": _note(table.owner, attempt.attempt_id, attempt)}},
        *({"remove": {"path": file.name, "size": file.size_bytes, **removed}} for file in old),
        *(
            {"add": {"path": file.name, "size": file.size_bytes, **added, "stats": file.statistics, **tag}}
            for file, tag in zip(new, tags, strict=True)
        ),
        *({"txn": {"appId": app_id, "version": version}} for app_id, version in transactions),
    ]


def _now_ms(table: LoadedTable, new: Sequence[WrittenFile]) -> int:
    """Return the time in milliseconds, by the storage's own clock if that takes no request."""
    if table.folder is None:
        return time.time_ns() // 1_000_000
    names = [file.name for file in new] or [LOG_FOLDER]
    return max((table.folder / name).stat().st_mtime_ns for name in names) // 1_000_000


def _write_version(table: LoadedTable, version: int, actions: Sequence[Mapping[str, Any]], needed: list[str]) -> None:
    """Write the entry of a Delta version. Raises `FileExistsError` if the version exists, `OSError`."""
    if table.folder is None:
        create(table.storage, commit_path(version), _lines(actions).encode())
        return
    files = [table.folder / name for name in needed] if table.disk.is_kept else None
    write_entry(table.folder / commit_path(version), actions, files)


def _may_be_late(table: LoadedTable, version: int, since_s: float) -> bool:
    """Whether another writer may have written a version before, over a version that was read at a time of this
    process."""
    if table.folder is not None:
        return may_have_been_written(table.folder, version)
    # A request to a remote storage costs time, and entries are kept for longer than a write takes.
    return time.monotonic() - since_s > LOG_KEPT_S / 2


def may_have_been_written(folder: Path, version: int) -> bool:
    """True if another writer may have written this Delta version before, whose entry was deleted from the log.

    An entry is deleted only once there is a later checkpoint, oldest first. The checkpoint says who wrote it.
    """
    log = folder / LOG_FOLDER
    if not (log / entry_name(version - 1)).exists():
        return True
    hinted_version = _hint(log)
    return (hinted_version is None or hinted_version >= version) and _newest_checkpoint(log) >= version


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
