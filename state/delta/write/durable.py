"""Durability of a Delta table on a disk of this machine: the files to sync before its Delta version is durable.

A Delta version is durable once its entry, the files that it adds and the names of both are synced, whoever has written
them. Every version is made durable before the next one is written, so that a power cut can only tear the newest one.
Nothing else in the write path knows of disks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from state.delta.log.log import LOG_FOLDER, entry_name
from state.delta.tables.table import DeltaLocation, unreadable_table_error
from state.fence import WriteRefused
from transactional.model.plumbing.syncing import sync, with_folders


class TableDisk:
    """Syncs the writes to a table on a disk. Before `keep`, and in an object store, it syncs nothing."""

    def __init__(self, location: DeltaLocation) -> None:
        self._location, self._folder = location, Path(location.uri)
        self._log = self._folder / LOG_FOLDER
        self.is_kept = False
        """True if writes have to survive a power cut, and go to a disk of this machine."""
        self._version: Callable[[], int] = lambda: -1
        self._files: Callable[[], Iterable[str]] = tuple
        self._durable: int | None = None
        self._examined_version = -1
        self._written_names = dict[int, set[Path]]()

    def keep(self, version: Callable[[], int], files: Callable[[], Iterable[str]]) -> None:
        """Sync all later writes, if the table is on a disk of this machine.

        `version` returns the Delta version that the table is at, `files` the paths of its files.
        """
        self.is_kept, self._version, self._files = self._location.scheme == "file", version, files

    def mark_written(self, version: int, names: Iterable[str]) -> None:
        """Record that a version was written with its entry and the files of these names synced, but not the names."""
        if self.is_kept:
            self._written_names[version] = {self._folder, self._log, *((self._folder / name).parent for name in names)}

    def unsynced(self) -> Collection[Path]:
        """Return the paths to sync before the Delta version is durable, none if it is. Raises `OperatingError`."""
        if not self.is_kept:
            return ()
        try:
            self._examined_version = version = self._version()
            # Writes of an earlier process may not be synced either.
            return self._all_paths() if self._durable is None else self._paths_since(self._durable, version)
        except (DeltaError, OSError, ValueError) as error:
            raise unreadable_table_error(self._location, error) from None

    def _paths_since(self, durable_version: int, version: int) -> Collection[Path]:
        paths = set[Path]()
        for later_version in range(durable_version + 1, version + 1):
            try:
                paths |= self._written_names.get(later_version) or self._paths_of_entry(later_version)
            except FileNotFoundError:
                # Another program has made a checkpoint and deleted the entry.
                return self._all_paths()
        return paths

    def mark_synced(self) -> None:
        """Record that the paths returned by `unsynced` are on disk."""
        if self.is_kept:
            self._durable = self._examined_version
            self._written_names.clear()

    def make_durable(self) -> None:
        """Sync all earlier writes. Raises `OSError`, `OperatingError`."""
        if paths := self.unsynced():
            sync(paths)
            self.mark_synced()

    def settle(self) -> None:
        """Sync all earlier writes, on which the next one builds. Raises `WriteRefused`, `OperatingError`."""
        try:
            self.make_durable()
        except OSError as error:
            raise WriteRefused(self._location.describe_error(error), is_conflict=False) from error

    def sync_checkpoints(self) -> None:
        """Sync the checkpoints, and the hint of the last one, that replace the log entries about to be deleted.

        Raises `OSError`.
        """
        if self.is_kept:
            files = [*self._log.glob("*.checkpoint*.parquet"), *self._log.glob("_last_checkpoint")]
            sync(with_folders(_with_checksums(files), self._folder))

    def settle_checkpoint(self) -> None:
        """Sync all earlier writes and the checkpoints made of them. Raises `OSError`, `OperatingError`."""
        self.make_durable()
        self.sync_checkpoints()

    def _paths_of_entry(self, version: int) -> set[Path]:
        entry = self._log / entry_name(version)
        actions = map(json.loads, entry.read_bytes().splitlines())
        added = [self._path(action["add"]["path"]) for action in actions if "add" in action]
        names = [entry, self._log / f"{version:020}.crc"]
        return with_folders(_with_checksums([*added, *names]), self._folder)

    def _all_paths(self) -> set[Path]:
        files = [path for path in self._log.iterdir() if path.is_file()]
        paths = with_folders([*files, *_with_checksums(map(self._path, self._files()))], self._folder)
        # The folders above a table that was just created may be new as well.
        return paths | set(self._folder.parents)

    def _path(self, path: str) -> Path:
        # A log escapes names; the lists of delta-rs do not.
        literal = self._folder / path.removeprefix("file://")
        return literal if literal.exists() else self._folder / unquote(path.removeprefix("file://"))


def _with_checksums(files: Iterable[Path]) -> Iterable[Path]:
    """Yield the files, and the checksum files that Spark's file system keeps beside them."""
    for file in files:
        yield file
        checksum = file.with_name(f".{file.name}.crc")
        if checksum.exists():
            yield checksum
