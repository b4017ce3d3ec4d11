"""What has to be synced before a loaded Delta version is durable, where its table lies on a disk of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from state.delta.log.log import LOG_FOLDER, entry_name
from state.delta.tables.table import DeltaLocation, unreadable
from state.fence import WriteRefused
from transactional.model.plumbing.syncing import sync, with_folders


class TableDisk:
    """The disk under a table that is written. Before `keep`, and wherever there is no disk, nothing is to be synced."""

    def __init__(self, location: DeltaLocation) -> None:
        self._location = location
        self._version: Callable[[], int] = lambda: -1
        self._syncs: TableSyncs | None = None

    @property
    def is_kept(self) -> bool:
        """Whether what is written has to outlive a power cut, and lies on a disk of this machine."""
        return self._syncs is not None

    def keep(self, version: Callable[[], int], files: Callable[[], Iterable[str]]) -> None:
        """Sync what is written from now on, where the table lies on a disk of this machine.

        `version` returns the Delta version that the table is at, `files` the paths of its files.
        """
        if self._location.scheme == "file":
            self._version, self._syncs = version, TableSyncs(Path(self._location.uri), files)

    def wrote(self, version: int) -> None:
        """Note that entry and files of a version that was written without delta-rs are synced."""
        if self._syncs is not None:
            self._syncs.wrote(version)

    def unsynced(self) -> Collection[Path]:
        """What has to be synced before the Delta version is durable. Raises `OperatingError`."""
        try:
            return () if self._syncs is None else self._syncs.unsynced(self._version())
        except (DeltaError, OSError, ValueError) as error:
            raise unreadable(self._location, error) from None

    def mark_synced(self) -> None:
        """Note that what `unsynced` gave is synced."""
        if self._syncs is not None:
            self._syncs.mark_synced()

    def make_durable(self) -> None:
        """Sync what was written. Raises `OSError`, `OperatingError`."""
        if self._syncs is not None:
            sync(self.unsynced())
            self._syncs.mark_synced()

    def settle(self) -> None:
        """Sync what was written, since what comes next builds on it. Raises `WriteRefused`, `OperatingError`."""
        try:
            self.make_durable()
        except OSError as error:
            raise WriteRefused(self._location.reason(error), is_conflict=False) from error

    def sync_checkpoints(self) -> None:
        """What a clean-up deletes is replaced by what may not be lost. Raises `OSError`."""
        if self._syncs is not None:
            self._syncs.sync_checkpoints()

    def settle_checkpoint(self) -> None:
        """The same, and what the checkpoints stand for. Raises `OSError`, `OperatingError`."""
        self.make_durable()
        self.sync_checkpoints()


class TableSyncs:
    """What of a table on a disk has yet to be synced, according to its log, whoever has written it.

    A Delta version is durable when its entry, the files that it adds and the names of both are. Each version is made
    durable before the next one is written: so after a power cut at most the newest one is torn. `files` returns the
    paths of all files of a version.
    """

    def __init__(self, folder: Path, files: Callable[[], Iterable[str]]) -> None:
        self.folder, self._files = folder, files
        self._log = folder / LOG_FOLDER
        self._durable: int | None = None
        self._asked = -1
        self._own = dict[int, set[Path]]()

    def wrote(self, version: int) -> None:
        """A version was written whose entry and files are synced, and whose names are not."""
        self._own[version] = {self.folder, self._log}

    def unsynced(self, version: int) -> Collection[Path]:
        """What has to be synced before this Delta version is durable; nothing when it is."""
        self._asked = version
        if self._durable is None:
            # What a process before this one has written may be waiting for its sync, too.
            return self._whole()
        found = set[Path]()
        for each in range(self._durable + 1, version + 1):
            try:
                found |= self._own.get(each) or self._of_entry(each)
            except FileNotFoundError:
                # Somebody has made a checkpoint of it, and cleaned up.
                return self._whole()
        return found

    def mark_synced(self) -> None:
        """What `unsynced` gave is synced."""
        self._durable = self._asked
        self._own.clear()

    def sync_checkpoints(self) -> None:
        """Sync what a clean-up of the log relies on: the checkpoints and the hint of the last one. Raises `OSError`."""
        files = [*self._log.glob("*.checkpoint*.parquet"), *self._log.glob("_last_checkpoint")]
        sync(with_folders(_with_checksums(files), self.folder))

    def _of_entry(self, version: int) -> set[Path]:
        entry = self._log / entry_name(version)
        actions = map(json.loads, entry.read_bytes().splitlines())
        added = [self._path(action["add"]["path"]) for action in actions if "add" in action]
        names = [entry, self._log / f"{version:020}.crc"]
        return with_folders(_with_checksums([*added, *names]), self.folder)

    def _whole(self) -> set[Path]:
        files = [path for path in self._log.iterdir() if path.is_file()]
        found = with_folders([*files, *_with_checksums(map(self._path, self._files()))], self.folder)
        # A table that was just created may lie in folders that were, too.
        return found | set(self.folder.parents)

    def _path(self, path: str) -> Path:
        # In a log a name is escaped; delta-rs' lists are not.
        given = self.folder / path.removeprefix("file://")
        return given if given.exists() else self.folder / unquote(path.removeprefix("file://"))


def _with_checksums(files: Iterable[Path]) -> Iterable[Path]:
    """The files, and what Spark's file system notes beside them."""
    for file in files:
        yield file
        checksum = file.with_name(f".{file.name}.crc")
        if checksum.exists():
            yield checksum
