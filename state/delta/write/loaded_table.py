"""`LoadedTable`: a state's table at a Delta version, which it leaves for another one only when a method says so.

It has one frozen snapshot at a time (`state/delta/log/snapshot.py`), and delta-rs' own table, which may be behind: that
is brought to the version when a query or a look at the log needs it. Every Delta commit follows the version that was
read and checked (`state/delta/write/entry.py`). A loaded table is never shared with readers: each loads its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from state.delta.log.entries import (
    check_not_foreign,
    entries_between,
    entries_since_own,
    entries_until_newest,
    is_foreign,
)
from state.delta.log.following import PartitionFiles
from state.delta.log.log import EntryMark, LogUpkeep, check_no_entry_is_empty
from state.delta.log.snapshot import DeltaSnapshot
from state.delta.tables.data_files import DataFile, Replacement
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.storage import can_create_exclusively
from state.delta.tables.table import (
    DeltaLocation,
    can_be_written_without_engine,
    check_protocol,
    check_table_fits,
    list_protocol_features,
    list_replaceable_files,
    load_table,
    open_storage,
    unreadable_table_error,
)
from state.delta.write.durable import TableDisk
from state.rows.columns import StateColumns
from state.rows.expiring import ExpiryHorizons, read_app_transactions
from transactional.model.attempt import AttemptId
from transactional.model.errors import ConfigError, StoreMismatch, TableUnfit

FOLLOWED_MAX = 100
"""Largest number of new entries that are followed. Beyond it, loading the newest version takes no longer."""


class TableReplaced(Exception):
    """The table that a reader has loaded was replaced by another one, which the reader has to open."""


class LoadedTable:
    """A state's table at a Delta version, for the one thread that writes the table, or for one reader."""

    def __init__(
        self, location: DeltaLocation, owner: str, columns: StateColumns, engine: DeltaTable | None = None
    ) -> None:
        """Load the newest version, unless delta-rs has loaded one already."""
        self.location, self.owner, self.columns = location, owner, columns
        self._engine = load_table(location) if engine is None else engine
        self.current = self._snapshot_of_engine()
        self.follows = False
        """True for a partitioned table whose files are followed without loading every version by delta-rs."""
        self.read_version, self.read_at_s = self.delta_version, time.monotonic()
        """The Delta version that the next commit follows, and when it was read."""
        self.opened_at = self.read_version
        """The version that was loaded first: the entries after it were read, or written, by this process."""
        self.storage = open_storage(location)
        self.folder = Path(location.uri) if location.scheme == "file" else None
        """The table's folder on a disk of this machine or a mounted one; None for an object store."""
        self.log = LogUpkeep(location, self._engine)
        self._entry: tuple[int, EntryMark | None] | None = None
        """The log entry of the loaded version, by which a reader notices another table; None for a writer."""
        self._mismatch: StoreMismatch | None = None
        self._is_unfit = False
        """True if another program has changed the table's columns or properties so that the state can't use it."""
        self.says_expiry = False
        """True if the table was seen to say by which column its rows expire."""
        self.disk = TableDisk(location)

    # --- the version ------------------------------------------------------------------------------------------------

    @property
    def delta_version(self) -> int:
        return self.current.version

    @property
    def is_ahead(self) -> bool:
        """True if delta-rs has loaded an older version, so that a query has to load this one first."""
        return bool(self._engine.version() != self.current.version)

    @property
    def engine(self) -> DeltaTable:
        """The table as delta-rs loads it, at this Delta version. Raises `DeltaError`, `OSError`, `OperatingError`."""
        if self.is_ahead:
            self._load_by_engine()
        return self._engine

    def _load_by_engine(self) -> None:
        try:
            self._engine.update_incremental()
        except (DeltaError, OSError):
            # The log files of the version that delta-rs has loaded may have been cleaned up.
            self._engine = load_table(self.location)
        if self._engine.version() != self.delta_version:
            # `refresh` handles a later version, which is another writer's.
            self._engine.load_as_version(self.delta_version)

    @property
    def engine_in_memory(self) -> DeltaTable:
        """The table as delta-rs has loaded it, maybe at an earlier version. It reads nothing of the log."""
        return self._engine

    def move_to_engine(self) -> None:
        """Move to the version at which delta-rs is, about which nothing else is known."""
        if self.is_ahead:
            self.current = self._snapshot_of_engine()

    def _snapshot_of_engine(self) -> DeltaSnapshot:
        return DeltaSnapshot(self._engine.version(), pa.schema(self._engine.schema()).names)

    def move_past_write(self, app_versions: Mapping[str, int], replacement: Replacement) -> None:
        """Move to the next Delta version, which this process has written without delta-rs, with these app versions."""
        self.read_version += 1
        current, new, files = self.current, replacement.new, replacement.unchanged
        self.current = replace(
            current,
            version=self.read_version,
            app_versions={**current.app_versions, **app_versions},
            files=None if files is None else {**files, **{file.part: file.rows for file in new}},
            partitions=current.partitions and current.partitions.replaced(replacement.old, new),
            rows=replacement.rows,
            row_count=None,
        )

    @property
    def properties(self) -> Mapping[str, str]:
        if self.current.properties is None:
            configuration = self.engine.metadata().configuration
            properties = {key: str(text) for key, text in configuration.items()}
            self.current = replace(self.current, properties=properties)
            return properties
        return self.current.properties

    @property
    def missing_columns(self) -> pa.Schema:
        """The columns that the state has gained and this Delta version does not have."""
        names = set(self.current.column_names)
        return pa.schema([field_ for field_ in self.columns.table_schema if field_.name not in names])

    def version(self) -> AttemptId | None:
        """Return the id of the attempt that wrote this Delta version."""
        version = self.version_of(self.owner)
        return None if version is None else AttemptId(version)

    def version_of(self, app_id: str) -> int | None:
        """Return the version of an app id. delta-rs reads the log for it, so it is called once per version.

        Raises `OperatingError`.
        """
        app_versions = self.current.app_versions
        if app_id not in app_versions:
            app_versions = {**app_versions, app_id: self._read_version_of(app_id)}
            self.current = replace(self.current, app_versions=app_versions)
        return app_versions[app_id]

    def _read_version_of(self, app_id: str) -> int | None:
        try:
            return self.engine.transaction_version(app_id)
        except (DeltaError, OSError):
            # The log files of this version may have been cleaned up, which makes no other Delta version.
            try:
                self._load_by_engine()
                return self._engine.transaction_version(app_id)
            except (DeltaError, OSError) as error:
                raise unreadable_table_error(self.location, error) from None

    def horizons(self) -> ExpiryHorizons:
        """Return the expiry horizons of this Delta version."""
        return read_app_transactions(self.owner, self.version_of)

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
            self._entry = self.log.read_mark(self.delta_version)
        except OSError as error:
            raise unreadable_table_error(self.location, error) from None

    def _reload_same(self, loaded_version: int) -> None:
        """Load the table again whose entry was cleaned out of the log. Raises `TableReplaced` if it is another one."""
        table_id = self._engine.metadata().id
        if self.log.newest_mark[1] is not None:
            raise TableReplaced
        self.reload()
        if self._engine.metadata().id != table_id or self.delta_version <= loaded_version:
            raise TableReplaced

    def refresh(self) -> None:
        """Move to the newest version. Raises as `read_and_check_version`, and `TableReplaced` to a reader that expects
        it."""
        loaded = self.current
        if self._mismatch is not None:
            if self._entry is not None and self._entry != self.log.read_mark(loaded.version):
                raise TableReplaced
            raise self._mismatch
        try:
            is_newest = self.log.is_newest(loaded.version)
            if self._entry is not None and self._entry != self.log.newest_mark:
                self._reload_same(loaded.version)
            elif is_newest:
                if self._is_unfit:
                    self._check_again()
                return
            elif self._has_followed(loaded):
                return
            else:
                self._engine.update_incremental()
                self.move_to_engine()
        except (DeltaError, OSError):
            # The log files of the loaded version may have been cleaned up. The last checkpoint can be loaded instead.
            self.reload()
        if self._entry is not None:
            self.watch_for_replacement()
        self.check_others(loaded)

    def reload(self) -> None:
        """Load the newest version from the log again, since log files of the loaded one may be deleted.

        Raises `OperatingError`, and `StoreMismatch` for an empty entry.
        """
        check_no_entry_is_empty(self.location)
        self._engine, self.says_expiry = load_table(self.location), False
        self.current = self._snapshot_of_engine()

    def move_to(self, delta_version: int) -> None:
        """Move to a Delta version, for a reader of exactly this one. Raises `OperatingError`."""
        if self.delta_version == delta_version:
            return
        try:
            if self._engine.version() < delta_version:
                self._engine.update_incremental()
            if self._engine.version() != delta_version:
                self._engine.load_as_version(delta_version)
        except (DeltaError, OSError) as error:
            raise unreadable_table_error(self.location, error) from None
        self.current = self._snapshot_of_engine()

    def check_others(self, since: DeltaSnapshot) -> None:
        """Raise `StoreMismatch` if another program has changed rows since a snapshot.

        Raises `TableUnfit` if the table no longer fits the state.
        """
        entries = entries_between(self.location, since.version, self.delta_version)
        if len(entries) == self.delta_version - since.version:
            self.current = replace(since.after_entries(entries), column_names=self.current.column_names)
        try:
            check_not_foreign(self.location, self.owner, entries)
        except StoreMismatch as error:
            self._mismatch = error
            raise
        if any(entry.changes_table for entry in entries):
            self.says_expiry, self._is_unfit = False, True
            self._check_again()
            self._is_unfit = False

    def _has_followed(self, loaded: DeltaSnapshot) -> bool:
        """Move to the newest version by the text of the new entries.

        False, and nothing is changed, if an entry is more than a transaction, a compaction or a fence, or is missing.
        """
        if loaded.partitions is None or not loaded.app_versions:
            return False
        entries = entries_until_newest(self.location, loaded.version, self.log, FOLLOWED_MAX)
        if entries is None or any(is_foreign(entry, self.owner) for entry in entries):
            return False
        partitions = loaded.partitions.followed(entries)
        if partitions is None:
            return False
        self._entry = self.log.newest_mark if self._entry is not None else None
        self.current = replace(loaded.after_entries(entries), partitions=partitions)
        return True

    def check_unchanged(self) -> None:
        """Raise `StoreMismatch` if another program has changed rows since the owner's last Delta commit.

        Later entries are checked when they are loaded (`refresh`).
        """
        if self.version() is not None:
            entries = entries_since_own(self.location, self.owner, self.delta_version)
            check_not_foreign(self.location, self.owner, entries)

    def check(self) -> None:
        """Raise `SchemaMismatch` if the table does not fit the state."""
        protocol, name = self.engine.protocol(), str(self.location)
        features = list_protocol_features(protocol)
        check_protocol(protocol.min_reader_version, protocol.min_writer_version, features, name)
        check_table_fits(self.columns, pa.schema(self.engine.schema()), self.properties, name)

    def _check_again(self) -> None:
        try:
            self.check()
        except ConfigError as error:
            raise TableUnfit(f"{error}. Another program has altered the table since this run opened it") from None

    # --- rows and files ---------------------------------------------------------------------------------------------

    def rewritable_files(self) -> Sequence[DataFile] | None:
        """Return the files of a table in the merge layout, or None if only delta-rs may replace them."""
        if self.current.files is not None:
            return list(self.current.files)
        return list_replaceable_files(self.engine) if can_create_exclusively(self.storage) else None

    def query(self, sql: str, settings: Mapping[str, str] | None = None) -> pa.RecordBatchReader:
        """Run a query on the table, whose name in it is `t`. The reader raises `pa.ArrowException`.

        Value columns that this version does not have are NULL.
        """
        # `to_pyarrow_table` of this release aborts the process at its exit.
        builder = QueryBuilder(dict(settings or {})).register("t", self.engine)
        if missing := self.missing_columns.names:
            types = self.columns.all_columns
            nulls = ", ".join(f"{DATA_FUSION.null(types[name].type)} AS {DATA_FUSION.name(name)}" for name in missing)
            sql = f"WITH t AS (SELECT *, {nulls} FROM t) {sql}"
        # Arrow's reader lets other threads run while it waits for a store; that of `execute` does not.
        return pa.RecordBatchReader.from_stream(builder.execute(sql))

    def follow_files(self, column: str) -> PartitionFiles | None:
        """Return the files of this version of a table that is partitioned by `column`, if its files are followed.

        Raises `DeltaError`.
        """
        if self.follows and self.current.partitions is None:
            is_plain = can_be_written_without_engine(self.engine)
            partitions = PartitionFiles.from_snapshot(self.engine, column) if is_plain else None
            self.current = replace(self.current, partitions=partitions)
            self.follows = partitions is not None
        return self.current.partitions

    def row_count(self) -> int:
        """Return the number of stored rows. Raises `OperatingError`."""
        if self.current.row_count is None:
            try:
                self.current = replace(self.current, row_count=self._count_rows())
            except (DeltaError, OSError) as error:
                raise unreadable_table_error(self.location, error) from None
        assert self.current.row_count is not None
        return self.current.row_count

    def _count_rows(self) -> int:
        if self.current.rows is not None:
            return int(self.current.rows.num_rows)
        if self.current.partitions is not None:
            return self.current.partitions.rows
        return int(self.engine.count())

    def keep_durable(self) -> None:
        """Sync all later writes, if the table is on a disk of this machine."""
        self.disk.keep(lambda: self.delta_version, self._file_paths)

    def _file_paths(self) -> list[str]:
        paths: list[str] = pa.table(self.engine.get_add_actions())["path"].to_pylist()
        return paths
