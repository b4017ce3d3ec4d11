"""Which files and folders have been synced since they were last written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


class SyncedDisk:
    """Notes what is synced from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced = dict[int, frozenset[str] | int]()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name)))

    def _noting(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            held = self._held(descriptor)
            sync(descriptor)
            self.synced[os.fstat(descriptor).st_ino] = held

        return noted

    def unsynced(self, folder: Path) -> list[str]:
        """What a power cut could take."""
        return [str(path) for path in [folder, *folder.rglob("*")] if not self._is_synced(path)]

    def _is_synced(self, path: Path) -> bool:
        held, synced = self._held(path), self.synced.get(path.stat().st_ino)
        # A name that has gone may come back.
        return held <= synced if isinstance(held, frozenset) and isinstance(synced, frozenset) else held == synced

    @staticmethod
    def _held(file: int | Path) -> frozenset[str] | int:
        """The names in a folder; of a file the time at which it was written."""
        found = os.stat(file)
        return frozenset(os.listdir(file)) if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns
