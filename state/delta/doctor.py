"""The doctor's examination and repairs of a state's Delta table, by its log: the state itself is not opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from state.delta.left_over import describe_unused_files
from state.delta.log.entries import (
    Entry,
    LogFiles,
    describe_commit,
    healed_by_others,
    is_foreign,
    log_files,
    read_entry,
)
from state.delta.log.live_files import damaged_files, wrong_files
from state.delta.log.log import CHECKPOINT, ENTRY, LOG_FOLDER, MALFORMED_ENTRY_ERRORS, entry_name, table_exists
from state.delta.log.torn import TornFile, describe_without, find_torn_files, set_aside
from state.delta.tables.table import (
    DeltaLocation,
    check_expiry,
    check_layout_version,
    is_writable_protocol,
    open_storage,
)
from state.delta.write.entry import write_entry
from transactional.core.ports.examining import Diagnosis, Problem, in_words
from transactional.model.attempt import AttemptId
from transactional.model.errors import OperatingError, SchemaMismatch
from transactional.model.names import STORE_PROPERTY, owner_of, repair_of

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


class _Broken(Exception):
    """The log has a hole, or can't be read."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The protocol that a table declares: its versions and features."""

    reader_version: int
    writer_version: int
    features: frozenset[str]

    @property
    def is_known(self) -> bool:
        """True if both Spark and delta-rs can read and write the table."""
        return is_writable_protocol(self.reader_version, self.writer_version, self.features)


class ExaminedDelta:
    """A state's Delta table as its log was at one moment. `expires` is the column by which the state's rows expire."""

    def __init__(
        self, location: DeltaLocation, topology_id: str, component_id: str, expires: str | None = None
    ) -> None:
        self.location, self.owner, self._expires = location, owner_of(topology_id, component_id), expires
        self.where, self._component = in_words(component_id, location), component_id
        self._commits: Sequence[Entry] = ()
        self._torn: Sequence[TornFile] = ()
        self._broken, self._shape = "", Shape(1, 2, frozenset())
        self._table: DeltaTable | None = None
        with self._reporting_errors():
            self._torn = find_torn_files(Path(location.uri)) if location.scheme == "file" else ()
            self.torn = describe_without(self._torn, Path(location.uri), self.owner) if self._torn else None
            if not self._torn and table_exists(location):
                try:
                    self._read()
                except _Broken as error:
                    self._broken = str(error)

    @property
    def version(self) -> AttemptId | None:
        """The attempt that wrote the table last, or None if none did."""
        if self.versions:
            return self.versions[-1]
        version = self._table.transaction_version(self.owner) if self._table is not None else None
        return None if version is None else AttemptId(version)

    @property
    def store_id(self) -> str | None:
        """The id of the store that the table was created for, or None if it has none."""
        return None if self._table is None else self._table.metadata().configuration.get(STORE_PROPERTY)

    @property
    def versions(self) -> Sequence[AttemptId]:
        """The attempts and fences that have written the table, oldest first, as far back as the log goes."""
        own_commits = [commit for commit in self._commits if self.owner in commit.app_versions]
        return [AttemptId(commit.app_versions[self.owner]) for commit in own_commits]

    @property
    def has_full_history(self) -> bool:
        """True if the log is complete from its first entry."""
        return bool(self._commits) and self._commits[0].version == 0

    def diagnoses(self) -> Iterator[Diagnosis]:
        """Yield the problems of the table itself."""
        if self.torn is not None:
            remedy = "the torn files are set aside; none of their content is committed, and it is written again"
            yield self._diagnosis(Problem.TABLE_TORN, self.torn.what, remedy, can_repair=True)
        elif self._broken:
            remedy = (
                "restore the missing files from a backup, or the whole table together with the store; or take the "
                "topology back to a transaction before them: `transactional rewind`"
            )
            yield self._diagnosis(Problem.TABLE_UNREADABLE, self._broken, remedy)
        else:
            yield from self._diagnose_shape()
            with self._reporting_errors():
                yield from self._diagnose_files()
            yield from self._diagnose_foreign_writes()
            yield from self._diagnose_rewinds()

    def repair(self, diagnosis: Diagnosis) -> str:
        """Set torn files aside, remove the property that forgets, or restore rows. Raises `OperatingError`."""
        match diagnosis.problem:
            case Problem.TABLE_TORN:
                return self._set_torn_aside()
            case Problem.RETENTION_SET:
                return self._unset_retention()
            case _:
                return put_back(self.location, self.owner, diagnosis)

    # --- what is wrong ------------------------------------------------------------------------------------------

    def _diagnosis(self, problem: Problem, finding: str, remedy: str, **more: Any) -> Diagnosis:
        return Diagnosis(problem, self.where, finding, remedy, self._component, **more)

    def _diagnose_shape(self) -> Iterator[Diagnosis]:
        try:
            if self._table is not None:
                properties = self._table.metadata().configuration
                check_layout_version(properties, str(self.location))
                check_expiry(self._expires, properties, str(self.location))
        except SchemaMismatch as refusal:
            yield self._diagnosis(Problem.TABLE_FOREIGN, str(refusal), "as it says")
        retention = self._table.metadata().configuration.get(RETENTION_PROPERTY, "false") if self._table else "false"
        if retention != "false":
            finding = f"it has {RETENTION_PROPERTY}={retention}: it forgets which attempt wrote it"
            is_local, unset = self.location.scheme == "file", f"UNSET TBLPROPERTIES ('{RETENTION_PROPERTY}')"
            remedy = "the property is removed" if is_local else self._in_spark(unset)
            yield self._diagnosis(Problem.RETENTION_SET, finding, remedy, can_repair=is_local)
        shape = self._shape
        if not shape.is_known:
            finding = (
                f"its protocol is reader {shape.reader_version}, writer {shape.writer_version}, features "
                f"{', '.join(sorted(shape.features)) or '(none)'}: Spark and delta-rs can't both read and write that"
            )
            remedy = (
                f"drop what was added, {self._in_spark('DROP FEATURE … TRUNCATE HISTORY')}, while nothing runs; a "
                "feature can't be dropped without rewriting the table, so the doctor does not"
            )
            yield self._diagnosis(Problem.FEATURE_UNREADABLE, finding, remedy)

    def _in_spark(self, clause: str) -> str:
        return f"in Spark: ALTER TABLE delta.`{self.location.uri}` {clause}"

    def _diagnose_files(self) -> Iterator[Diagnosis]:
        """Yield data files that are missing, changed or damaged, and orphaned staged files."""
        if self._table is None:
            return
        remedy = "restore the file, or the table and the store together, from a backup"
        for wrong in wrong_files(self.location, self._table):
            if wrong.size_bytes is None:
                attempt_id = self._attempt_of(wrong.path)
                yield self._diagnosis(Problem.FILE_MISSING, str(wrong), remedy, attempt_id=attempt_id)
            else:
                yield self._diagnosis(Problem.FILE_CHANGED, str(wrong), remedy)
        for wrong in damaged_files(self.location, self._table):
            yield self._diagnosis(Problem.FILE_CHANGED, str(wrong), remedy)
        paths = pa.table(self._table.get_add_actions())["path"].to_pylist()
        if self.location.scheme == "file":
            for files in describe_unused_files(Path(self.location.uri), set(paths), self.version):
                yield self._diagnosis(Problem.FILES_LEFT_OVER, files.description, files.remedy, is_harmless=True)

    def _attempt_of(self, path: str) -> AttemptId | None:
        """Return the attempt that added a file to the table, or the last one before that.

        None if the log no longer has its entry.
        """
        newest_attempt, adding_attempt = None, None
        for commit in self._commits:
            newest_attempt = commit.app_versions.get(self.owner, newest_attempt)
            adding_attempt = newest_attempt if path in commit.added else adding_attempt
        return None if adding_attempt is None else AttemptId(adding_attempt)

    def _diagnose_foreign_writes(self) -> Iterator[Diagnosis]:
        """Yield the changes of rows by other programs."""
        commits = self._commits
        last_own = max((n for n, commit in enumerate(commits) if self.owner in commit.app_versions), default=None)
        if last_own is None:
            return
        healed = healed_by_others(commits, self.owner)
        changes = [is_foreign(commit, self.owner) and commit.version not in healed for commit in commits]
        built_on = [commit for commit, is_change in zip(commits[:last_own], changes, strict=False) if is_change]
        later = [commit for commit, is_change in zip(commits, changes, strict=True) if is_change][len(built_on) :]
        for commit in built_on:
            finding = (
                f"{describe_commit(commit)} has changed rows, and the topology has built on that: its values are "
                "uncertain"
            )
            remedy = (
                "no repair can restore the right values. Restore table and store from an earlier backup, or start a "
                "topology with a new id and an empty table, from the beginning of the source"
            )
            yield self._diagnosis(Problem.FOREIGN_WRITER, finding, remedy)
        if later:
            problem = Problem.TABLE_RESTORED if later[-1].operation == "RESTORE" else Problem.FOREIGN_WRITER
            target, newest, changes_text = (
                commits[last_own].version,
                commits[-1].version,
                ", ".join(map(describe_commit, later)),
            )
            finding = f"{changes_text} changed rows after the topology's last Delta commit, version {target}"
            remedy = (
                "see what was changed before"
                if built_on
                else f"the rows are restored to what they were at Delta version {target}, as a new Delta commit"
            )
            yield self._diagnosis(problem, finding, remedy, can_repair=not built_on, target=target, seen=newest)

    def _diagnose_rewinds(self) -> Iterator[Diagnosis]:
        """Yield the newest rewind in the log."""
        for commit in reversed(self._commits):
            if commit.rewound_to is not None and self.owner in commit.app_versions:
                finding = f"Delta version {commit.version} has taken it back to transaction {commit.rewound_to}"
                remedy = "nothing: it went back with its topology; `transactional txns` shows what was taken back"
                yield self._diagnosis(Problem.TABLE_REWOUND, finding, remedy, is_harmless=True)
                return

    # --- the log ------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the entries of the log that exist. Raises `_Broken`."""
        file_infos = open_storage(self.location).get_file_info(pafs.FileSelector(LOG_FOLDER))
        files, names = log_files(self.location), [file.base_name for file in file_infos if file.is_file]
        versions = sorted((int(match[1]) for match in map(ENTRY.fullmatch, names) if match), reverse=True)
        checkpoints = {int(match[1]) for match in map(CHECKPOINT.fullmatch, names) if match}
        contiguous = [version for n, version in enumerate(versions) if version == versions[0] - n]
        if contiguous and contiguous[-1] > 0 and max(checkpoints, default=-1) < contiguous[-1] - 1:
            raise _Broken(f"the log has a hole: Delta version {contiguous[-1] - 1} is missing")
        self._commits = [commit for version in contiguous[::-1] if (commit := _entry(files, version)) is not None]
        declared = next((entry.protocol for entry in reversed(self._commits) if entry.protocol is not None), None)
        if declared is not None:
            self._shape = _shape_of(declared)
        if not self._shape.is_known:
            return  # delta-rs may not be able to open it at all
        try:
            self._table = DeltaTable(self.location.uri, storage_options=dict(self.location.storage_options))
        except DeltaError as error:
            raise _Broken(self.location.describe_error(error)) from None
        protocol = self._table.protocol()
        self._shape = Shape(
            protocol.min_reader_version,
            protocol.min_writer_version,
            frozenset([*(protocol.reader_features or ()), *(protocol.writer_features or ())]),
        )

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DeltaError) as error:
            reason = self.location.describe_error(error)
            raise OperatingError(f"Delta table {self.location} can't be examined: {reason}") from None

    # --- repairs ------------------------------------------------------------------------------------------------

    def _set_torn_aside(self) -> str:
        try:
            if find_torn_files(Path(self.location.uri)) != self._torn:
                raise OperatingError(
                    f"{self.where} has changed since it was examined: nothing was set aside; try again"
                )
            set_aside(self._torn)
        except OSError as error:
            raise OperatingError(f"{self.where} can't be repaired: {error}") from error
        return f"{self.where}: {len(self._torn)} torn files of its log are set aside"

    def _unset_retention(self) -> str:
        """Remove the property in a Delta commit of its own.

        Only for a table in a folder: neither delta-rs nor Delta's protocol can do it everywhere.
        """
        handle = DeltaTable(self.location.uri)
        metadata = handle.metadata()
        action = {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": handle.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": {n: text for n, text in metadata.configuration.items() if n != RETENTION_PROPERTY},
            "createdTime": metadata.created_time,
        }
        entry = Path(self.location.uri, LOG_FOLDER, entry_name(handle.version() + 1))
        # The last change of the log folder, which is about now by the storage's clock.
        at_ms = entry.parent.stat().st_mtime_ns // 1_000_000
        note = {"timestamp": at_ms, "operation": "UNSET TBLPROPERTIES", "operationParameters": {}}
        try:
            write_entry(entry, [{"commitInfo": note}, {"metaData": action}], [])
        except FileExistsError as error:
            raise OperatingError(f"{self.where} was written by someone else meanwhile; try again") from error
        return f"{self.where}: the property {RETENTION_PROPERTY} is removed"


def put_back(location: DeltaLocation, owner: str, diagnosis: Diagnosis) -> str:
    """Restore the rows that the topology has written, in the Delta commit after the examined version.

    Raises `OperatingError`, also if the table has changed since.
    """
    assert diagnosis.target is not None
    repair = Transaction(repair_of(owner), diagnosis.target)
    properties = CommitProperties(app_transactions=[repair], max_commit_retries=0)
    moved = OperatingError(
        f"{diagnosis.where} was written by someone else since it was examined, at Delta version {diagnosis.seen}: "
        "nothing was restored; try again"
    )
    try:
        handle = DeltaTable(location.uri, storage_options=dict(location.storage_options))
        if handle.version() != diagnosis.seen:
            raise moved
        handle.restore(diagnosis.target, commit_properties=properties)
    except CommitFailedError:
        raise moved from None
    except (DeltaError, OSError) as error:
        raise OperatingError(
            f"{diagnosis.where} can't be restored to Delta version {diagnosis.target}: "
            f"{location.describe_error(error)}. If "
            "its files are already deleted, restore the table and the store from one backup"
        ) from None
    return f"{diagnosis.where}: its rows are again those of Delta version {diagnosis.target}"


def _shape_of(protocol: Mapping[str, Any]) -> Shape:
    features = [*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())]
    return Shape(protocol["minReaderVersion"], protocol["minWriterVersion"], frozenset(features))


def _entry(files: LogFiles, version: int) -> Entry | None:
    """Return an entry of the log, or None if it was deleted meanwhile. Raises `_Broken`."""
    try:
        entry = read_entry(files, version)
    except FileNotFoundError:
        return None
    except MALFORMED_ENTRY_ERRORS as error:
        raise _Broken(f"Delta version {version} is not readable: {error!r}") from error
    if not entry.actions:
        raise _Broken(f"entry {entry_name(version)} of the log has no byte")
    return entry
