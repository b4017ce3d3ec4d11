"""Bringing files and folders of this machine onto its disk: what was written and not synced is lost in a power cut."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from transactional.pools import DaemonPool

AT_ONCE_MAX = 8
"""So many syncs are waited for at once: a file system carries out together what is asked of it together."""


def sync(paths: Collection[Path]) -> None:
    """Sync files and folders. Of a folder that is the names in it, and nothing of the files. Raises `OSError`.

    What is not there any more needs no sync.
    """
    if len(paths) < 2:
        for path in paths:
            _sync_one(path)
    else:
        for synced in [_threads().submit(_sync_one, path) for path in paths]:
            synced.result()


def with_folders(files: Iterable[Path], top: Path) -> set[Path]:
    """The files, and the folders that hold them, up to `top`: what is synced before the files are there to stay."""
    found = set[Path]()
    for file in files:
        found.add(file)
        for folder in file.parents:
            found.add(folder)
            if folder == top:
                break
    return found


@cache
def _threads() -> DaemonPool:
    return DaemonPool(AT_ONCE_MAX, "sync")


def _sync_one(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    except PermissionError:
        if path.is_dir():
            return  # a folder that may not even be read was not made by this process
        raise
    try:
        (os.fsync if path.is_dir() else _sync_data)(descriptor)
    finally:
        os.close(descriptor)


def _sync_data(descriptor: int) -> None:
    """The content and the size, without the times."""
    getattr(os, "fdatasync", os.fsync)(descriptor)
