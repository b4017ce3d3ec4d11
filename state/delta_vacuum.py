"""Deletes the files that a Delta table does not need any more, whatever else happens to the table meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from state.delta_table import DeltaLocation

LISTED_WITHIN_S = 60
"""A list that took longer is not used. Less than the time for which files are kept, which is minutes at least."""


def delete_old_files(location: DeltaLocation, load: Callable[[], DeltaTable | None]) -> int:
    """Delete the files that are older than the table's `delta.deletedFileRetentionDuration` and no part of it.

    `load` brings the table up to date, and gives None when somebody else has written to it. A vacuum looks for files
    that its snapshot does not name: on one from before a pause, those of whoever took over meanwhile are among them.
    So files are listed on a fresh snapshot and in a short time, and nothing but those is deleted: what was old then
    and no part of the table never becomes one. Returns how many files are gone.
    """
    began_s = time.monotonic()
    table = load()
    if table is None:
        return 0
    listed = table.vacuum(dry_run=True, full=True)
    if time.monotonic() - began_s > LISTED_WITHIN_S:
        return 0
    files = DeltaStorageHandler(location.uri, dict(location.storage_options))
    for path in listed:
        files.delete_file(path)
    return len(listed)
