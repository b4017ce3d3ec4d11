"""`LoadedTable`: one loaded Delta version of a state's table, which moves on only when a method says so.

It is never shared with readers: a reader in another thread loads one of its own. Every Delta commit names the version
that was read and checked (`state/delta/write/entry.py`). Entries that do no more than a transaction, a compaction or
a fence are followed from the log's text, since delta-rs takes milliseconds to load a version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from state.delta.log.entries import (
    Entry,
    check_not_foreign,
    entries_between,
    entries_since_own,
    entries_until_newest,
    is_foreign,
)
from state.delta.log.following import PartitionFiles
from state.delta.log.log import EntryMark, LogUpkeep, check_entries
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.table import (
    DeltaLocation,
    check_protocol,
    check_table,
    features_of,
    load_table,
    storage_of,
    unreadable,
)
from state.delta.write.durable import TableDisk
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, app_transactions, read_app_transactions
from transactional.model.attempt import AttemptId
from transactional.model.errors import ConfigError, StoreMismatch, TableUnfit

FOLLOWED_MAX = 100
"""Largest number of new entries that are followed. Beyond it, loading the newest version takes no longer."""


class TableReplaced(Exception):
    """The table that a reader has loaded was replaced by another one, which the reader has to open."""


@dataclass(frozen=True, slots=True)
class OwnVersion:
    """A Delta version that an attempt of this process wrote without delta-rs, whose snapshot is older."""

    delta_version: int
    attempt_id: AttemptId


class LoadedTable:
    """A Delta version of a state's table, for the one thread that writes the table, or for one reader."""

    def __init__(
        self, location: DeltaLocation, owner: str, columns: StateColumns, snapshot: DeltaTable | None = None
    ) -> None:
        """Load the newest version, unless a snapshot is given."""
        self.location, self.owner, self.columns = location, owner, columns
        self._snapshot = load_table(location) if snapshot is None else snapshot
        self._own_version: OwnVersion | None = None
        self._followed_version: int | None = None
        self.follows = False
        """True for a reader of a partitioned table, which follows the files without loading every version."""
        self._files: tuple[int, PartitionFiles] | None = None
        self.read_version, self.read_at_s = self._snapshot.version(), time.monotonic()
        """The Delta version that the next commit follows, and when it was read."""
        self.opened_at = self.read_version
        """The version that was loaded first: the entries after it were read, or written, by this process."""
        self.storage = storage_of(location)
        self.folder = Path(location.uri) if location.scheme == "file" else None
        """The table's folder on a disk of this machine or a mounted one; None for an object store."""
        self.log = LogUpkeep(location, self._snapshot)
        self._entry: tuple[int, EntryMark | None] | None = None
        """The log entry of the loaded version, by which a reader notices another table; None for a writer."""
        self._mismatch: StoreMismatch | None = None
        self._is_unfit = False
        """True if another program has changed the table's columns or properties so that the state can't use it."""
        self._versions_at, self._versions = -1, dict[str, int | None]()
        self._properties = (-1, dict[str, str]())
        self._counted: tuple[int, int] | None = None
        self._horizons: tuple[AttemptId | None, ExpiryHorizons] | None = None
        self.says_expiry = False
        """True if the table was seen to say by which column its rows expire."""
        self.disk = TableDisk(location)

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> DeltaTable:
        """delta-rs' snapshot of this Delta version."""
        if self._own_version is not None:
            self._snapshot.update_incremental()
            if self._snapshot.version() != self._own_version.delta_version:
                # `refresh` handles a later version, which is another writer's.
                self._snapshot.load_as_version(self._own_version.delta_version)
            self._own_version = None
        if self._followed_version is not None:
            self._catch_up(self._followed_version)
            self._followed_version = None
        return self._snapshot

    def _catch_up(self, delta_version: int) -> None:
        try:
            self._snapshot.update_incremental()
        except (DeltaError, OSError):
            # The log files of the loaded version may have been cleaned up.
            self._snapshot = load_table(self.location)
        if self._snapshot.version() != delta_version:
            self._snapshot.load_as_version(delta_version)

    @property
    def is_ahead(self) -> bool:
        """True if delta-rs' snapshot is older, so that a query has to load a version first."""
        return self._own_version is not None or self._followed_version is not None

    @property
    def delta_version(self) -> int:
        if self._own_version is not None:
            return self._own_version.delta_version
        return self._snapshot.version() if self._followed_version is None else self._followed_version

    @property
    def properties(self) -> Mapping[str, str]:
        delta_version = self.delta_version
        if self._properties[0] != delta_version:
            configuration = self.snapshot.metadata().configuration
            self._properties = (delta_version, {key: str(text) for key, text in configuration.items()})
        return self._properties[1]

    @property
    def column_names(self) -> list[str]:
        """The names of the table's columns, in its own order."""
        names: list[str] = pa.schema(self._snapshot.schema()).names
        return names

    @property
    def missing_columns(self) -> pa.Schema:
        """The columns that the state has gained and this Delta version does not have."""
        names = set(self.column_names)
        return pa.schema([field for field in self.columns.table_schema if field.name not in names])

    def version(self) -> AttemptId | None:
        """Return the id of the attempt that wrote this Delta version."""
        if self._own_version is not None:
            return self._own_version.attempt_id
        version = self.version_of(self.owner)
        return None if version is None else AttemptId(version)

    def version_of(self, app_id: str) -> int | None:
        """Return the version of an app id. delta-rs reads the log for it, so it is called once per version.

        Raises `OperatingError`.
        """
        delta_version = self.delta_version
        if self._versions_at != delta_version:
            self._versions_at, self._versions = delta_version, {}
        if app_id not in self._versions:
            self._versions[app_id] = self._read_version_of(app_id)
        return self._versions[app_id]

    def _read_version_of(self, app_id: str) -> int | None:
        delta_version = self.delta_version
        try:
            return self.snapshot.transaction_version(app_id)
        except (DeltaError, OSError):
            # The log files of the snapshot may have been cleaned up, which makes no other Delta version.
            try:
                self._catch_up(delta_version)
                return self._snapshot.transaction_version(app_id)
            except (DeltaError, OSError) as error:
                raise unreadable(self.location, error) from None

    # --- what it has recorded of horizons -----------------------------------------------------------------------------

    def horizons(self) -> ExpiryHorizons:
        """Return the expiry horizons of this Delta version. They are read once for each attempt."""
        version = self.version()
        if self._horizons is None or self._horizons[0] != version:
            self._horizons = (version, read_app_transactions(self.owner, self.version_of))
        return self._horizons[1]

    def will_record(self, attempt_id: AttemptId, horizons: ExpiryHorizons) -> None:
        """Let the Delta commit of an attempt record its horizons, too."""
        self._horizons = (attempt_id, horizons)

    def recorded_by(self, attempt_id: AttemptId) -> list[tuple[str, int]]:
        """The app transactions with which the Delta commit of an attempt records horizons, if it does."""
        if self._horizons is None or self._horizons[0] != attempt_id or self.columns.expires is None:
            return []
        return app_transactions(self.owner, self._horizons[1])

    # --- moving on --------------------------------------------------------------------------------------------------

    def read_and_check_version(self) -> AttemptId | None:
        """Move to the newest version, which the next commit follows. Return the id of the attempt that wrote it.

        Raises `OperatingError`, and `StoreMismatch` if another program has changed rows.
        """
        self.read_at_s = time.monotonic()
        self.refresh()
        self.read_version = self.delta_version
        return self.version()

    def watch_for_replacement(self) -> None:
        """Let a reader notice if another table is created in the same place. Raises `OperatingError`."""
        try:
            self._entry = self.log.look_at(self.delta_version)
        except OSError as error:
            raise unreadable(self.location, error) from None

    def _reload_same(self, loaded_version: int) -> None:
        """Load the table again whose entry was cleaned out of the log. Raises `TableReplaced` if it is another one."""
        table_id = self._snapshot.metadata().id
        if self.log.seen[1] is not None:
            raise TableReplaced
        self.reload()
        if self._snapshot.metadata().id != table_id or self.delta_version <= loaded_version:
            raise TableReplaced

    def refresh(self) -> None:
        """Move to the newest version. Raises as `read_and_check_version`, and `TableReplaced` to a reader that expects
        it."""
        loaded_version = self.delta_version
        if self._mismatch is not None:
            if self._entry is not None and self._entry != self.log.look_at(loaded_version):
                raise TableReplaced
            raise self._mismatch
        try:
            is_newest = self.log.is_newest(loaded_version)
            if self._entry is not None and self._entry != self.log.seen:
                self._reload_same(loaded_version)
            elif is_newest:
                if self._is_unfit:
                    self._check_again()
                return
            elif self._has_followed(loaded_version):
                return
            else:
                self._own_version = self._followed_version = None
                self._snapshot.update_incremental()
        except (DeltaError, OSError):
            # The log files of the loaded version may have been cleaned up. The last checkpoint can be loaded instead.
            self.reload()
        if self._entry is not None:
            self.watch_for_replacement()
        self.check_others(loaded_version)

    def reload(self) -> None:
        """Load the newest version from the log again, since log files of the loaded one may be deleted.

        Raises `OperatingError`, and `StoreMismatch` for an empty entry.
        """
        check_entries(self.location)
        self._snapshot, self._own_version, self.says_expiry = load_table(self.location), None, False
        self._followed_version = self._files = None

    def move_to(self, delta_version: int) -> None:
        """Move to a Delta version, for a reader of exactly this one. Raises `OperatingError`."""
        try:
            if self.delta_version == delta_version:
                return
            if self.delta_version < delta_version:
                self.snapshot.update_incremental()
            if self.delta_version != delta_version:
                self.snapshot.load_as_version(delta_version)
        except (DeltaError, OSError) as error:
            raise unreadable(self.location, error) from None

    def check_others(self, since_version: int) -> None:
        """Raise `StoreMismatch` if another program has changed rows since a Delta version.

        Raises `TableUnfit` if the table no longer fits the state.
        """
        entries = entries_between(self.location, since_version, self.delta_version)
        self._follow(since_version, entries)
        try:
            check_not_foreign(self.location, self.owner, entries)
        except StoreMismatch as error:
            self._mismatch = error
            raise
        if any(entry.changes_table for entry in entries):
            self.says_expiry, self._is_unfit = False, True
            self._check_again()
            self._is_unfit = False

    def _has_followed(self, loaded_version: int) -> bool:
        """Move to the newest version by the text of the new entries.

        False, and nothing is changed, if an entry is more than a transaction, a compaction or a fence, or is missing.
        """
        loaded_files = self._current_files
        if loaded_files is None or self._own_version is not None or self._versions_at != loaded_version:
            return False
        entries = entries_until_newest(self.location, loaded_version, self.log, FOLLOWED_MAX)
        if entries is None or any(is_foreign(entry, self.owner) for entry in entries):
            return False
        files = loaded_files.followed(entries)
        if files is None:
            return False
        self._followed_version = loaded_version + len(entries)
        self._entry = self.log.seen if self._entry is not None else None
        self._files = (self._followed_version, files)
        self._follow(loaded_version, entries)
        return True

    def _follow(self, since_version: int, entries: Sequence[Entry]) -> None:
        """Apply entries to the cached app versions and properties, for which delta-rs would read the log once more."""
        if len(entries) != self.delta_version - since_version:
            return
        if self._versions_at == since_version:
            self._versions_at = self.delta_version
            for entry in entries:
                self._versions.update(entry.app_versions)
        if self._properties[0] == since_version and not any(entry.changes_table for entry in entries):
            self._properties = (self.delta_version, self._properties[1])

    def check_unchanged(self) -> None:
        """Raise `StoreMismatch` if another program has changed rows since the owner's last Delta commit.

        Later entries are checked when they are loaded (`refresh`).
        """
        if self.version() is not None:
            entries = entries_since_own(self.location, self.owner, self.delta_version)
            check_not_foreign(self.location, self.owner, entries)

    def check(self) -> None:
        """Raise `SchemaMismatch` if the table does not fit the state."""
        protocol, name = self.snapshot.protocol(), str(self.location)
        features = features_of(protocol)
        check_protocol(protocol.min_reader_version, protocol.min_writer_version, features, name)
        check_table(self.columns, pa.schema(self.snapshot.schema()), self.properties, name)

    def _check_again(self) -> None:
        try:
            self.check()
        except ConfigError as error:
            raise TableUnfit(f"{error}. Another program has altered the table since this run opened it") from None

    # --- what Delta commits note ------------------------------------------------------------------------------------

    def check_read_version(self) -> None:
        """Raise `WriteRefused` if the loaded version is not the one that was read and checked."""
        if self.delta_version != self.read_version:
            reason = (
                f"the table was read at Delta version {self.read_version}, and loaded again at {self.delta_version}"
            )
            raise WriteRefused(reason, is_conflict=True)

    def has_moved(self) -> bool:
        """True if there is a later version than the one that was read, which may be the cause of any error."""
        try:
            return not self.log.is_newest(self.read_version)
        except OSError:
            return False

    def mark_written(self, version: OwnVersion) -> None:
        """Move to a Delta version that this process has written without delta-rs."""
        self._own_version, self.read_version = version, version.delta_version

    # --- what is in it ----------------------------------------------------------------------------------------------

    def query(self, sql: str, settings: Mapping[str, str] | None = None) -> pa.RecordBatchReader:
        """Run a query on the table, whose name in it is `t`. The reader raises `pa.ArrowException`.

        Value columns that this version does not have are NULL.
        """
        # `to_pyarrow_table` of this release aborts the process at its exit.
        builder = QueryBuilder(dict(settings or {})).register("t", self.snapshot)
        if missing := self.missing_columns.names:
            types = self.columns.all_columns
            nulls = ", ".join(f"{DATA_FUSION.null(types[name].type)} AS {DATA_FUSION.name(name)}" for name in missing)
            sql = f"WITH t AS (SELECT *, {nulls} FROM t) {sql}"
        # Arrow's reader lets other threads run while it waits for a store; that of `execute` does not.
        return pa.RecordBatchReader.from_stream(builder.execute(sql))

    def newest_txid(self) -> int:
        """Return the highest txid of a row, or 0 without rows."""
        query = f"SELECT max({DATA_FUSION.name(self.columns.txid)}) AS txid FROM t"
        try:
            rows = self.query(query).read_all()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.location, error) from None
        return rows.column(0)[0].as_py() or 0

    def follow_files(self, column: str) -> PartitionFiles | None:
        """Return the files of this version of a table that is partitioned by `column`, if its files are followed.

        Raises `DeltaError`.
        """
        if self.follows and self._current_files is None:
            files = PartitionFiles.from_snapshot(self.snapshot, column)
            self._files = None if files is None else (self.delta_version, files)
            self.follows = files is not None
        return self._current_files

    @property
    def _current_files(self) -> PartitionFiles | None:
        """The followed files, if they are those of this Delta version."""
        return self._files[1] if self._files is not None and self._files[0] == self.delta_version else None

    def row_count(self) -> int:
        """Return the number of stored rows. Raises `OperatingError`."""
        delta_version = self.delta_version
        if self._counted is None or self._counted[0] != delta_version:
            if (files := self._current_files) is not None:
                self._counted = (delta_version, files.rows)
                return self._counted[1]
            try:
                self._counted = (delta_version, self.snapshot.count())
            except (DeltaError, OSError) as error:
                raise unreadable(self.location, error) from None
        return self._counted[1]

    @property
    def remembered(self) -> DeltaTable:
        """The snapshot that is in memory, which may be of an earlier version. It reads nothing of the log."""
        return self._snapshot

    def remembered_app_versions(self) -> dict[str, int]:
        """Return the app transactions of this version that are in memory, without reading the log."""
        cached = self._versions if self._versions_at == self.delta_version else {}
        versions = {app_id: version for app_id, version in cached.items() if version is not None}
        attempt_id = versions.get(self.owner) if self._own_version is None else self._own_version.attempt_id
        if attempt_id is not None:
            versions = {**versions, self.owner: int(attempt_id), **dict(self.recorded_by(AttemptId(attempt_id)))}
        return versions

    @property
    def expected_app_ids(self) -> set[str]:
        """The app ids with which each commit of an attempt is recorded: the owner's, and those of the horizons if rows
        expire. This version of the table may lack some of them."""
        horizons = app_transactions(self.owner, NO_HORIZONS) if self.columns.expires is not None else []
        return {self.owner, *dict(horizons)}

    def files(self) -> list[dict[str, Any]]:
        """Return the files of this Delta version as its add actions describe them. Raises `OperatingError`."""
        try:
            files: list[dict[str, Any]] = pa.table(self.snapshot.get_add_actions()).to_pylist()
            return files
        except (DeltaError, OSError) as error:
            raise unreadable(self.location, error) from None

    def keep_durable(self) -> None:
        """Sync all later writes, if the table is on a disk of this machine."""
        self.disk.keep(lambda: self.delta_version, self._file_paths)

    def _file_paths(self) -> list[str]:
        paths: list[str] = pa.table(self.snapshot.get_add_actions())["path"].to_pylist()
        return paths
