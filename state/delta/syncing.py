"""What of a Delta table on a disk has yet to be synced, as its log tells it, whoever has written it.

A Delta version is durable when its entry, the files that it adds and the names of both are. Each version is made
durable before the next one is written: so after a power cut at most the newest one is torn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import unquote

from transactional.syncing import sync, with_folders


class TableSyncs:
    """Keeps account of one table. `files` gives the paths of all files of the version that is asked about."""

    def __init__(self, folder: Path, files: Callable[[], Iterable[str]]) -> None:
        self.folder, self._files = folder, files
        self._log = folder / "_delta_log"
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

    def synced(self) -> None:
        """What `unsynced` gave is synced."""
        self._durable = self._asked
        self._own.clear()

    def make_durable(self, version: int) -> None:
        """Sync what this version lacks. Raises `OSError`."""
        if paths := self.unsynced(version):
            sync(paths)
        self.synced()

    def sync_checkpoints(self) -> None:
        """Sync what a clean-up of the log relies on: the checkpoints and the hint of the last one. Raises `OSError`."""
        files = [*self._log.glob("*.checkpoint*.parquet"), *self._log.glob("_last_checkpoint")]
        sync(with_folders(_with_checksums(files), self.folder))

    def _of_entry(self, version: int) -> set[Path]:
        entry = self._log / f"{version:020}.json"
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
