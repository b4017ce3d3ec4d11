"""Syncs files and folders of this machine to disk: what was written but not synced is lost in a power failure."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from transactional.model.plumbing.pools import DaemonPool

AT_ONCE_MAX = 8
"""How many syncs run at once: a file system combines concurrent requests."""


def sync(paths: Collection[Path]) -> None:
    """Sync files and folders: of a folder its names, not the contents of its files. Raises `OSError`.

    Paths that no longer exist need no sync.
    """
    if len(paths) < 2:
        for path in paths:
            _sync_one(path)
    else:
        for synced in [_threads().submit(_sync_one, path) for path in paths]:
            synced.result()


def with_folders(files: Iterable[Path], top: Path) -> set[Path]:
    """Return the files and their folders up to `top`, all of which must be synced to make the files durable."""
    paths = set[Path]()
    for file in files:
        paths.add(file)
        for folder in file.parents:
            paths.add(folder)
            if folder == top:
                break
    return paths


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
            return  # a folder that is not even readable was not created by this process
        raise
    try:
        (os.fsync if path.is_dir() else _sync_data)(descriptor)
    finally:
        os.close(descriptor)


def _sync_data(descriptor: int) -> None:
    """Sync the contents and the size of a file, without its times."""
    getattr(os, "fdatasync", os.fsync)(descriptor)
