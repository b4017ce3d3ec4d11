"""What has to be synced before a loaded Delta version is durable, where its table lies on a disk of this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from deltalake.exceptions import DeltaError

from state.delta.tables.durability import TableSyncs
from state.delta.tables.table import DeltaLocation, unreadable
from state.fence import WriteRefused
from transactional.plumbing.syncing import sync


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

    def synced(self) -> None:
        """Note that what `unsynced` gave is synced."""
        if self._syncs is not None:
            self._syncs.synced()

    def make_durable(self) -> None:
        """Sync what was written. Raises `OSError`, `OperatingError`."""
        if self._syncs is not None:
            sync(self.unsynced())
            self._syncs.synced()

    def settle(self) -> None:
        """Sync what was written, since what comes next builds on it. Raises `WriteRefused`, `OperatingError`."""
        try:
            self.make_durable()
        except OSError as error:
            raise WriteRefused(self._location.reason(error), is_conflict=False) from error

    def settle_checkpoint(self) -> None:
        """What a clean-up deletes is replaced by what may not be lost."""
        if self._syncs is not None:
            self.make_durable()
            self._syncs.sync_checkpoints()
