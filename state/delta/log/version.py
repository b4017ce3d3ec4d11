"""`TableVersion`: one loaded Delta version of a state's table, which moves on only when a method of it says so.

It is never shared with readers: whoever reads in another thread has one of its own. Every Delta commit names the
version that was read and checked (`state/delta/writing/commit.py`).
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

from state.delta.log.disk import TableDisk
from state.delta.log.entries import (
    Entry,
    check_not_foreign,
    entries_between,
    entries_since_own,
    entries_until_newest,
    is_foreign,
)
from state.delta.log.following import KnownFiles
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
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, app_transactions, read_app_transactions
from transactional.model.attempt import AttemptId
from transactional.model.errors import ConfigError, StoreMismatch, TableUnfit

FOLLOWED_MAX = 100
"""After so many Delta commits at once, loading the newest version takes no longer."""


class TableReplaced(Exception):
    """The table that a reader has loaded is not there any more: it has to open the one that is there now."""


@dataclass(frozen=True, slots=True)
class OwnVersion:
    """A Delta version that was written without delta-rs, by this attempt; delta-rs' snapshot is older."""

    delta_version: int
    attempt_id: AttemptId


class TableVersion:
    """A Delta version of a state's table, for the one thread that writes the table, or for one reader."""

    def __init__(
        self, location: DeltaLocation, owner: str, columns: StateColumns, snapshot: DeltaTable | None = None
    ) -> None:
        """The newest one, unless a snapshot is given."""
        self.location, self.owner, self.columns = location, owner, columns
        self._snapshot = load_table(location) if snapshot is None else snapshot
        self._own: OwnVersion | None = None
        self._ahead: int | None = None
        self.follows = False
        """Whether it is a reader of a partitioned table, which need not load each version to know its files."""
        self._files: tuple[int, KnownFiles] | None = None
        self.read_version, self.read_at_s = self._snapshot.version(), time.monotonic()
        """The Delta version over which is written, and since when."""
        self.opened_at = self.read_version
        """The version that was loaded first: the entries after it were read, or written, by this process."""
        self.storage = storage_of(location)
        self.folder = Path(location.uri) if location.scheme == "file" else None
        """Where it lies on a disk of this machine, or one that is mounted; None: in an object store."""
        self.log = LogUpkeep(location, self._snapshot)
        self._entry: tuple[int, EntryMark | None] | None = None
        """The entry of the loaded version, for a reader; None: others do not replace what is written through."""
        self._mismatch: StoreMismatch | None = None
        self._is_unfit = False
        """Whether somebody has given it another shape than the state's, as far as it was looked at."""
        self._versions_at, self._versions = -1, dict[str, int | None]()
        self._properties = (-1, dict[str, str]())
        self._counted: tuple[int, int] | None = None
        self._horizons: tuple[AttemptId | None, ExpiryHorizons] | None = None
        self.says_expiry = False
        """Whether this table is known to say by which column its rows expire."""
        self.disk = TableDisk(location)

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> DeltaTable:
        """delta-rs' snapshot of this Delta version."""
        if self._own is not None:
            self._snapshot.update_incremental()
            if self._snapshot.version() != self._own.delta_version:
                # Another writer's is for `refresh` to find.
                self._snapshot.load_as_version(self._own.delta_version)
            self._own = None
        if self._ahead is not None:
            self._catch_up(self._ahead)
            self._ahead = None
        return self._snapshot

    def _catch_up(self, delta_version: int) -> None:
        try:
            self._snapshot.update_incremental()
        except (DeltaError, OSError):
            # What was loaded may have gone with an old log.
            self._snapshot = load_table(self.location)
        if self._snapshot.version() != delta_version:
            self._snapshot.load_as_version(delta_version)

    @property
    def is_ahead(self) -> bool:
        """Whether delta-rs' snapshot is older: then a query of it takes a while."""
        return self._own is not None or self._ahead is not None

    @property
    def delta_version(self) -> int:
        """The Delta version."""
        if self._own is not None:
            return self._own.delta_version
        return self._snapshot.version() if self._ahead is None else self._ahead

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        at = self.delta_version
        if self._properties[0] != at:
            found = self.snapshot.metadata().configuration
            self._properties = (at, {key: str(value) for key, value in found.items()})
        return self._properties[1]

    @property
    def column_names(self) -> list[str]:
        """The table's columns, in its own order."""
        names: list[str] = pa.schema(self._snapshot.schema()).names
        return names

    @property
    def lacking(self) -> pa.Schema:
        """The columns that the state has gained and this Delta version does not have."""
        there = set(self.column_names)
        return pa.schema([each for each in self.columns.table_schema if each.name not in there])

    def version(self) -> AttemptId | None:
        """The attempt id that this Delta version was written by."""
        if self._own is not None:
            return self._own.attempt_id
        version = self.version_of(self.owner)
        return None if version is None else AttemptId(version)

    def version_of(self, app_id: str) -> int | None:
        """The version of an app id. delta-rs reads the log each time; it is called once per snapshot.

        Raises `OperatingError`.
        """
        delta_version = self.delta_version
        if self._versions_at != delta_version:
            self._versions_at, self._versions = delta_version, {}
        if app_id not in self._versions:
            self._versions[app_id] = self._read_version_of(app_id)
        return self._versions[app_id]

    def _read_version_of(self, app_id: str) -> int | None:
        at = self.delta_version
        try:
            return self.snapshot.transaction_version(app_id)
        except (DeltaError, OSError):
            # Somebody has cleaned the log that the snapshot was loaded from; no other Delta version came of that.
            try:
                self._catch_up(at)
                return self._snapshot.transaction_version(app_id)
            except (DeltaError, OSError) as error:
                raise unreadable(self.location, error) from None

    # --- what it has recorded of horizons -----------------------------------------------------------------------------

    def horizons(self) -> ExpiryHorizons:
        """What this Delta version has recorded. Only attempts change it, so it is read once for each."""
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
        """Move to the newest snapshot, over which is written from now on; the attempt id that it was written by.

        Raises `OperatingError`, and `StoreMismatch` when something else has changed rows.
        """
        self.read_at_s = time.monotonic()
        self.refresh()
        self.read_version = self.delta_version
        return self.version()

    def expect_replacement(self) -> None:
        """Let a reader notice when another table is created at its place. Raises `OperatingError`."""
        try:
            self._entry = self.log.look_at(self.delta_version)
        except OSError as error:
            raise unreadable(self.location, error) from None

    def _reload_same(self, known: int) -> None:
        """Load the table again whose entry was cleaned out of the log. Raises `TableReplaced` if it is another one."""
        table_id = self._snapshot.metadata().id
        if self.log.seen[1] is not None:
            raise TableReplaced
        self.reload()
        if self._snapshot.metadata().id != table_id or self.delta_version <= known:
            raise TableReplaced

    def refresh(self) -> None:
        """Move to the newest snapshot. Raises as `read_and_check_version`, and `TableReplaced` to a reader that expects
        it."""
        known = self.delta_version
        if self._mismatch is not None:
            if self._entry is not None and self._entry != self.log.look_at(known):
                raise TableReplaced
            raise self._mismatch
        try:
            is_newest = self.log.is_newest(known)
            if self._entry is not None and self._entry != self.log.seen:
                self._reload_same(known)
            elif is_newest:
                if self._is_unfit:
                    self._check_again()
                return
            elif self._has_followed(known):
                return
            else:
                self._own = self._ahead = None
                self._snapshot.update_incremental()
        except (DeltaError, OSError):
            # What was loaded may have gone with an old log; from the last checkpoint it can be read again.
            self.reload()
        if self._entry is not None:
            self.expect_replacement()
        self.look_at_others(known)

    def reload(self) -> None:
        """Load the newest snapshot again, without relying on log files that may be gone. Raises `OperatingError`, and
        `StoreMismatch` for an entry without a byte."""
        check_entries(self.location)
        self._snapshot, self._own, self.says_expiry = load_table(self.location), None, False
        self._ahead = self._files = None

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

    def look_at_others(self, after: int) -> None:
        """Raise `StoreMismatch` when something else has changed rows since a Delta version, `TableUnfit` when the table
        is not one for this state any more."""
        entries = entries_between(self.location, after, self.delta_version)
        self._follow(after, entries)
        try:
            check_not_foreign(self.location, self.owner, entries)
        except StoreMismatch as error:
            self._mismatch = error
            raise
        if any(entry.changes_table for entry in entries):
            self.says_expiry, self._is_unfit = False, True
            self._check_again()
            self._is_unfit = False

    def _has_followed(self, after: int) -> bool:
        """Move to the newest version by what the log's entries say. False, and nothing is done: one of them is more
        than a transaction's, a compaction's or a fence's, or is gone."""
        known = self._known_now
        if known is None or self._own is not None or self._versions_at != after:
            return False
        entries = entries_until_newest(self.location, after, self.log, FOLLOWED_MAX)
        if entries is None or any(is_foreign(entry, self.owner) for entry in entries):
            return False
        files = known.after(entries)
        if files is None:
            return False
        self._ahead = after + len(entries)
        self._entry = self.log.seen if self._entry is not None else None
        self._files = (self._ahead, files)
        self._follow(after, entries)
        return True

    def _follow(self, after: int, entries: Sequence[Entry]) -> None:
        """Carry on what changes rarely, for which delta-rs would read the log once more."""
        if len(entries) != self.delta_version - after:
            return
        if self._versions_at == after:
            self._versions_at = self.delta_version
            for entry in entries:
                self._versions.update(entry.app_versions)
        if self._properties[0] == after and not any(entry.changes_table for entry in entries):
            self._properties = (self.delta_version, self._properties[1])

    def check_as_left(self) -> None:
        """Raise `StoreMismatch` when something else has changed rows since the owner's last Delta commit.

        What comes after the next one of the owner is looked at as it comes (`refresh`).
        """
        if self.version() is not None:
            since = entries_since_own(self.location, self.owner, self.delta_version)
            check_not_foreign(self.location, self.owner, since)

    def check(self) -> None:
        """Raise `SchemaMismatch` when the table is not one for this state."""
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
        """Raise `WriteRefused` when this is not the version that was read and checked."""
        if self.delta_version != self.read_version:
            reason = (
                f"the table was read at Delta version {self.read_version}, and loaded again at {self.delta_version}"
            )
            raise WriteRefused(reason, is_conflict=True)

    def has_moved(self) -> bool:
        """Whether there is a later version than the one that was read, or its log is gone: then any error may come of
        it."""
        try:
            return not self.log.is_newest(self.read_version)
        except OSError:
            return False

    def wrote(self, own: OwnVersion) -> None:
        """Note a Delta version that was written without delta-rs."""
        self._own, self.read_version = own, own.delta_version

    # --- what is in it ----------------------------------------------------------------------------------------------

    def query(self, sql: str, settings: Mapping[str, str] | None = None) -> pa.RecordBatchReader:
        """Run a query on the table, which it names `t`. Value columns that it does not have yet, or that this version
        did not have, are NULL. What the reader raises is a `pa.ArrowException`."""
        # `to_pyarrow_table` of this release aborts the process at its exit.
        builder = QueryBuilder(dict(settings or {})).register("t", self.snapshot)
        if lacking := self.lacking.names:
            types = self.columns.all
            nulls = ", ".join(f"{DATA_FUSION.null(types[each].type)} AS {DATA_FUSION.name(each)}" for each in lacking)
            sql = f"WITH t AS (SELECT *, {nulls} FROM t) {sql}"
        # Arrow's reader lets other threads run while a store keeps it waiting; that of `execute` does not.
        return pa.RecordBatchReader.from_stream(builder.execute(sql))

    def newest_txid(self) -> int:
        """The highest transaction of any row, 0 without rows."""
        query = f"SELECT max({DATA_FUSION.name(self.columns.txid)}) AS txid FROM t"
        try:
            rows = self.query(query).read_all()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.location, error) from None
        return rows.column(0)[0].as_py() or 0

    def known_files(self, column: str) -> KnownFiles | None:
        """The files of this Delta version of a table that is partitioned by a column, if it is followed. Raises
        `DeltaError`."""
        if self.follows and self._known_now is None:
            found = KnownFiles.of(self.snapshot, column)
            self._files = None if found is None else (self.delta_version, found)
            self.follows = found is not None
        return self._known_now

    @property
    def _known_now(self) -> KnownFiles | None:
        """The files, if those of this Delta version are known: another one has others."""
        return self._files[1] if self._files is not None and self._files[0] == self.delta_version else None

    def row_count(self) -> int:
        """The number of rows as they are stored. Raises `OperatingError`."""
        at = self.delta_version
        if self._counted is None or self._counted[0] != at:
            if (known := self._known_now) is not None:
                self._counted = (at, known.rows)
                return self._counted[1]
            try:
                self._counted = (at, self.snapshot.count())
            except (DeltaError, OSError) as error:
                raise unreadable(self.location, error) from None
        return self._counted[1]

    @property
    def remembered(self) -> DeltaTable:
        """The snapshot that is in memory, which may be of an earlier version. It reads nothing of the log."""
        return self._snapshot

    def remembered_app_versions(self) -> dict[str, int]:
        """The app transactions of this version that are known without the log."""
        seen = self._versions if self._versions_at == self.delta_version else {}
        found = {app_id: version for app_id, version in seen.items() if version is not None}
        if (version := found.get(self.owner) if self._own is None else self._own.attempt_id) is not None:
            found = {**found, self.owner: int(version), **dict(self.recorded_by(AttemptId(version)))}
        return found

    @property
    def recorded_app_ids(self) -> set[str]:
        """The app ids that attempts record: the owner's, and those of horizons."""
        horizons = app_transactions(self.owner, NO_HORIZONS) if self.columns.expires is not None else []
        return {self.owner, *dict(horizons)}

    def files(self) -> list[dict[str, Any]]:
        """The files of this Delta version, as its add actions describe them. Raises `OperatingError`."""
        try:
            found: list[dict[str, Any]] = pa.table(self.snapshot.get_add_actions()).to_pylist()
            return found
        except (DeltaError, OSError) as error:
            raise unreadable(self.location, error) from None

    def keep_durable(self) -> None:
        """Sync what is written from now on, where the table lies on a disk of this machine."""
        self.disk.keep(lambda: self.delta_version, self._file_paths)

    def _file_paths(self) -> list[str]:
        paths: list[str] = pa.table(self.snapshot.get_add_actions())["path"].to_pylist()
        return paths
