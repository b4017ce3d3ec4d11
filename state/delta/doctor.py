"""The doctor's examination of a state's Delta table, and its repairs: based on the log, not on the state."""

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

from state.delta.left_over import left_over
from state.delta.log.entries import Entry, LogFiles, healed_by_others, is_foreign, log_files, named, read_entry
from state.delta.log.live_files import damaged_files, wrong_files
from state.delta.log.log import CHECKPOINT, ENTRY, LOG_FOLDER, UNREADABLE, entry_name, is_there
from state.delta.log.torn import Torn, set_aside, torn_files, without
from state.delta.tables.table import DeltaLocation, check_expiry, check_version, is_known_protocol, storage_of
from state.delta.writing.commit import write_entry
from transactional.core.ports.examining import Diagnosis, Problem, in_words
from transactional.model.attempt import AttemptId
from transactional.model.errors import OperatingError, SchemaMismatch
from transactional.model.names import STORE_PROPERTY, owner_of, repair_of

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


class _Broken(Exception):
    """The log has a gap, or can't be read."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's declaration."""

    reader_version: int
    writer_version: int
    features: frozenset[str]

    @property
    def is_known(self) -> bool:
        """Whether Spark and delta-rs can both read and write that."""
        return is_known_protocol(self.reader_version, self.writer_version, self.features)


class ExaminedDelta:
    """A state's Delta table, as recorded in its log at one moment. `expires` is the column by which the state declares
    that its rows expire."""

    def __init__(
        self, location: DeltaLocation, topology_id: str, component_id: str, expires: str | None = None
    ) -> None:
        self.location, self.owner, self._expires = location, owner_of(topology_id, component_id), expires
        self.where, self._component = in_words(component_id, location), component_id
        self._commits: Sequence[Entry] = ()
        self._torn: Sequence[Torn] = ()
        self._broken, self._shape = "", Shape(1, 2, frozenset())
        self._table: DeltaTable | None = None
        with self._answering():
            self._torn = torn_files(Path(location.uri)) if location.scheme == "file" else ()
            self.torn = without(self._torn, Path(location.uri), self.owner) if self._torn else None
            if not self._torn and is_there(location):
                try:
                    self._read()
                except _Broken as error:
                    self._broken = str(error)

    @property
    def version(self) -> AttemptId | None:
        """The attempt that has written the table last."""
        if self.versions:
            return self.versions[-1]
        found = self._table.transaction_version(self.owner) if self._table is not None else None
        return None if found is None else AttemptId(found)

    @property
    def store_id(self) -> str | None:
        """The id of the store that it was created for."""
        return None if self._table is None else self._table.metadata().configuration.get(STORE_PROPERTY)

    @property
    def versions(self) -> Sequence[AttemptId]:
        """The attempts and fences that have written it, oldest first, as far back as the log goes."""
        return [AttemptId(each.app_versions[self.owner]) for each in self._commits if self.owner in each.app_versions]

    @property
    def has_full_history(self) -> bool:
        """Whether the log is complete from its beginning."""
        return bool(self._commits) and self._commits[0].version == 0

    def diagnoses(self) -> Iterator[Diagnosis]:
        """What is wrong with the table itself."""
        if self.torn is not None:
            remedy = "the torn files are set aside; nothing of what they hold is committed, and it is done again"
            yield self._diagnosis(Problem.TABLE_TORN, self.torn.what, remedy, can_repair=True)
        elif self._broken:
            remedy = (
                "restore the missing files from a backup, or the whole table together with the store; or take the "
                "topology back to a transaction before them: `transactional rewind`"
            )
            yield self._diagnosis(Problem.TABLE_UNREADABLE, self._broken, remedy)
        else:
            yield from self._of_shape()
            with self._answering():
                yield from self._of_files()
            yield from self._of_others()
            yield from self._of_rewinds()

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

    def _diagnosis(self, problem: Problem, what: str, remedy: str, **more: Any) -> Diagnosis:
        return Diagnosis(problem, self.where, what, remedy, self._component, **more)

    def _of_shape(self) -> Iterator[Diagnosis]:
        try:
            if self._table is not None:
                properties = self._table.metadata().configuration
                check_version(properties, str(self.location))
                check_expiry(self._expires, properties, str(self.location))
        except SchemaMismatch as refusal:
            yield self._diagnosis(Problem.TABLE_FOREIGN, str(refusal), "as it says")
        kept = self._table.metadata().configuration.get(RETENTION_PROPERTY, "false") if self._table else "false"
        if kept != "false":
            what = f"it has {RETENTION_PROPERTY}={kept}: it forgets which attempt wrote it"
            is_local, unset = self.location.scheme == "file", f"UNSET TBLPROPERTIES ('{RETENTION_PROPERTY}')"
            remedy = "the property is removed" if is_local else self._in_spark(unset)
            yield self._diagnosis(Problem.RETENTION_SET, what, remedy, can_repair=is_local)
        shape = self._shape
        if not shape.is_known:
            what = (
                f"its protocol is reader {shape.reader_version}, writer {shape.writer_version}, features "
                f"{', '.join(sorted(shape.features)) or '(none)'}: Spark and delta-rs can't both read and write that"
            )
            remedy = (
                f"drop what was added, {self._in_spark('DROP FEATURE … TRUNCATE HISTORY')}, while nothing runs; a "
                "feature can't be dropped without rewriting the table, so the doctor does not"
            )
            yield self._diagnosis(Problem.FEATURE_UNREADABLE, what, remedy)

    def _in_spark(self, what: str) -> str:
        return f"in Spark: ALTER TABLE delta.`{self.location.uri}` {what}"

    def _of_files(self) -> Iterator[Diagnosis]:
        """Data files that are missing, or do not have the size that was written; and staged files beside them."""
        if self._table is None:
            return
        remedy = "restore the file, or the table and the store together, from a backup"
        for wrong in wrong_files(self.location, self._table):
            if wrong.size_bytes is None:
                by = self._attempt_of(wrong.path)
                yield self._diagnosis(Problem.FILE_MISSING, str(wrong), remedy, attempt_id=by)
            else:
                yield self._diagnosis(Problem.FILE_CHANGED, str(wrong), remedy)
        for wrong in damaged_files(self.location, self._table):
            yield self._diagnosis(Problem.FILE_CHANGED, str(wrong), remedy)
        paths = pa.table(self._table.get_add_actions())["path"].to_pylist()
        if self.location.scheme == "file":
            for found in left_over(Path(self.location.uri), set(paths), self.version):
                yield self._diagnosis(Problem.FILES_LEFT_OVER, found.what, found.remedy, is_harmless=True)

    def _attempt_of(self, path: str) -> AttemptId | None:
        """The attempt by which a file became a part of the table, or the last one before it; None: the log is cleaned
        of that."""
        last, found = None, None
        for commit in self._commits:
            last = commit.app_versions.get(self.owner, last)
            found = last if path in commit.added else found
        return None if found is None else AttemptId(found)

    def _of_others(self) -> Iterator[Diagnosis]:
        """What others have done to the rows."""
        commits = self._commits
        last_own = max((n for n, commit in enumerate(commits) if self.owner in commit.app_versions), default=None)
        if last_own is None:
            return
        healed = healed_by_others(commits, self.owner)
        changes = [is_foreign(each, self.owner) and each.version not in healed for each in commits]
        built_on = [each for each, is_change in zip(commits[:last_own], changes, strict=False) if is_change]
        since = [each for each, is_change in zip(commits, changes, strict=True) if is_change][len(built_on) :]
        for commit in built_on:
            what = f"{named(commit)} has changed rows, and the topology has built on that: its values are uncertain"
            remedy = (
                "no repair can restore the right values. Restore table and store from an earlier backup, or start a "
                "topology with a new id and an empty table, from the beginning of the source"
            )
            yield self._diagnosis(Problem.FOREIGN_WRITER, what, remedy)
        if since:
            problem = Problem.TABLE_RESTORED if since[-1].operation == "RESTORE" else Problem.FOREIGN_WRITER
            target, seen, changed = commits[last_own].version, commits[-1].version, ", ".join(map(named, since))
            what = f"{changed} changed rows after the topology's last Delta commit, version {target}"
            remedy = (
                "see what was changed before"
                if built_on
                else f"the rows are restored to what they were at Delta version {target}, as a new Delta commit"
            )
            yield self._diagnosis(problem, what, remedy, can_repair=not built_on, target=target, seen=seen)

    def _of_rewinds(self) -> Iterator[Diagnosis]:
        """The newest one that the log has."""
        for commit in reversed(self._commits):
            if commit.rewound_to is not None and self.owner in commit.app_versions:
                what = f"Delta version {commit.version} has taken it back to transaction {commit.rewound_to}"
                remedy = "nothing: it went back with its topology; `transactional txns` shows what was taken back"
                yield self._diagnosis(Problem.TABLE_REWOUND, what, remedy, is_harmless=True)
                return

    # --- the log ------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read as much of the log as is there. Raises `_Broken`."""
        there = storage_of(self.location).get_file_info(pafs.FileSelector(LOG_FOLDER))
        files, names = log_files(self.location), [info.base_name for info in there if info.is_file]
        versions = sorted((int(match[1]) for match in map(ENTRY.fullmatch, names) if match), reverse=True)
        checkpoints = {int(match[1]) for match in map(CHECKPOINT.fullmatch, names) if match}
        whole = [version for n, version in enumerate(versions) if version == versions[0] - n]
        if whole and whole[-1] > 0 and max(checkpoints, default=-1) < whole[-1] - 1:
            raise _Broken(f"the log has a hole: Delta version {whole[-1] - 1} is missing")
        self._commits = [commit for version in whole[::-1] if (commit := _entry(files, version)) is not None]
        declared = next((each.protocol for each in reversed(self._commits) if each.protocol is not None), None)
        if declared is not None:
            self._shape = _shape_of(declared)
        if not self._shape.is_known:
            return  # delta-rs may not be able to open it at all
        try:
            self._table = DeltaTable(self.location.uri, storage_options=dict(self.location.storage_options))
        except DeltaError as error:
            raise _Broken(self.location.reason(error)) from None
        protocol = self._table.protocol()
        self._shape = Shape(
            protocol.min_reader_version,
            protocol.min_writer_version,
            frozenset([*(protocol.reader_features or ()), *(protocol.writer_features or ())]),
        )

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DeltaError) as error:
            reason = self.location.reason(error)
            raise OperatingError(f"Delta table {self.location} can't be examined: {reason}") from None

    # --- repairs ------------------------------------------------------------------------------------------------

    def _set_torn_aside(self) -> str:
        try:
            if torn_files(Path(self.location.uri)) != self._torn:
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
        # About now: when the log was last written.
        at_ms = entry.parent.stat().st_mtime_ns // 1_000_000
        note = {"timestamp": at_ms, "operation": "UNSET TBLPROPERTIES", "operationParameters": {}}
        try:
            write_entry(entry, [{"commitInfo": note}, {"metaData": action}], [])
        except FileExistsError as error:
            raise OperatingError(f"{self.where} was written by someone else meanwhile; try again") from error
        return f"{self.where}: the property {RETENTION_PROPERTY} is removed"


def put_back(location: DeltaLocation, owner: str, diagnosis: Diagnosis) -> str:
    """Restore a table's rows to what the topology has written, as the Delta commit after the examined version.

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
            f"{diagnosis.where} can't be restored to Delta version {diagnosis.target}: {location.reason(error)}. If "
            "its files are already deleted, restore the table and the store from one backup"
        ) from None
    return f"{diagnosis.where}: its rows are again those of Delta version {diagnosis.target}"


def _shape_of(protocol: Mapping[str, Any]) -> Shape:
    features = [*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())]
    return Shape(protocol["minReaderVersion"], protocol["minWriterVersion"], frozenset(features))


def _entry(files: LogFiles, version: int) -> Entry | None:
    """One entry of the log; None when it has been cleaned out by now. Raises `_Broken`."""
    try:
        entry = read_entry(files, version)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise _Broken(f"Delta version {version} is not readable: {error!r}") from error
    if not entry.actions:
        raise _Broken(f"entry {entry_name(version)} of the log has no byte")
    return entry
