"""Facts about the table of a sink for an operator: rows that others have changed, overdue and torn files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from deltalake.exceptions import DeltaError

from sinks.delta.append_log import AppendLog, unavailable
from sinks.delta.sweeping import find_due_files, list_files
from state.delta.log.entries import describe_commit, entries_between, is_foreign
from state.delta.log.log import ENTRY, LOG_FOLDER
from state.delta.tables.table import open_storage
from transactional.model.attempt import AttemptId
from transactional.model.names import SINK_FENCE

ENTRIES_MAX: Final = 1_000
"""Number of the newest entries of the log that are read."""


def read_risks(log: AppendLog) -> Iterator[str]:
    """Yield such facts in words, nothing if there is no table.

    Changes nothing. Raises `TableUnfit`, `OperatingError`, `StoreMismatch`.
    """
    try:
        if torn := log.find_torn_checkpoints():
            reasons = "; ".join(f"{file.path.name}: {file.reason}" for file in torn)
            yield f"Delta table {log.location}: files of its log are torn, and the next run sets them aside: {reasons}"
            return
        if (snapshot := log.read()) is None:
            return
        names = [file.base_name for file in list_files(open_storage(log.location), LOG_FOLDER)]
        oldest_version = min((int(match[1]) for match in map(ENTRY.fullmatch, names) if match), default=0)
        due_files = find_due_files(log, AttemptId(snapshot.attempt_id or 0))
    except (DeltaError, OSError) as error:
        raise unavailable(log.location, "it can't be examined", error) from None
    first_version = max(oldest_version, snapshot.version - ENTRIES_MAX)
    for commit in entries_between(log.location, first_version - 1, snapshot.version):
        if is_foreign(commit, SINK_FENCE):
            change = "removed rows from" if commit.removed else "added rows to"
            yield f"{describe_commit(commit)} is not the sink's, and has {change} Delta table {log.location}"
    if due_files:
        yield (
            f"Delta table {log.location}: {len(due_files)} files that were removed longer ago than the table's "
            f"retention still have their rows on the disk, such as {due_files[0]}; the next run deletes them after its "
            "first publication"
        )
