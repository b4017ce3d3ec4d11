"""`DeltaSnapshot`: one Delta version of a table, as far as this process knows it without delta-rs.

delta-rs takes milliseconds to load a version. A snapshot is derived from the previous one where this process has
written the version, or where its entry is no more than a transaction, a compaction or a fence. It never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from state.delta.log.entries import Entry
from state.delta.log.following import PartitionFiles
from state.delta.tables.data_files import DataFile


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """A Delta version, as far as this process knows it without delta-rs. None: it does not know.

    `column_names` are those of the table, in its own order. `app_versions` are the versions of the app ids that were
    looked up; an id with None is not in the table. `files` are the files of a table in the merge layout with their
    numbers of rows, `partitions` the files of a table in the log layout. `rows` are all rows of a small table, with all
    columns.
    """

    version: int
    column_names: Sequence[str]
    app_versions: Mapping[str, int | None] = field(default_factory=dict)
    properties: Mapping[str, str] | None = None
    files: Mapping[DataFile, int] | None = None
    partitions: PartitionFiles | None = None
    rows: pa.Table | None = None
    row_count: int | None = None

    def after_entries(self, entries: Sequence[Entry]) -> DeltaSnapshot:
        """Return the snapshot after later entries, by what it knows of columns, app ids and properties."""
        app_versions = dict(self.app_versions)
        for entry in entries:
            app_versions.update(entry.app_versions)
        declares = any(entry.changes_table for entry in entries)
        properties = None if declares else self.properties
        return DeltaSnapshot(self.version + len(entries), self.column_names, app_versions, properties)
