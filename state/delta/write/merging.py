"""`MergeWriter`: the write path of the merge layout, where new rows are combined with the stored ones of their keys.

A small table is one file, which is computed from memory and written as a whole. Of a larger table the files that the
change touches are rewritten (`rewriting.py`). A table whose files only delta-rs can replace is overwritten by delta-rs,
one part at a time. What becomes of a row is decided in `change.py` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from state.delta.tables.data_files import DataFile, Replacement, write_file
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staged_files import read_by_driver
from state.delta.write.change import Change
from state.delta.write.engine_commits import as_attempt, commit_overwrite
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.rewriting import rewrite_files, rewritten_parts
from state.delta.write.table_writer import Lookup, TableWriter
from state.delta.write.touched_files import Footers
from state.fence import TableWrite
from state.rows.expiring import NO_HORIZONS

REMOVAL_INTERVAL = 50
"""Transactions between two that remove what has expired: files that have such a row are written again."""


class MergeWriter(TableWriter):
    """Writes a table in the merge layout. `footers` are the bounds of its files, which its reader shares."""

    def __init__(self, table: LoadedTable, state: str, lookup: Lookup, footers: Footers) -> None:
        super().__init__(table, state, lookup)
        self.footers = footers

    def prepare(self, write: TableWrite) -> TableWrite:
        return read_by_driver(self.table.location, self.columns, write, self.state) if write.staged else write

    def replace_files(self, write: TableWrite) -> Replacement | None:
        change = self._change_of(write)
        if (files := self.table.rewritable_files()) is None:
            return None
        return self.rewrite_small(change, files) or self.rewrite_touched(change, files)

    def overwrite(self, write: TableWrite) -> None:
        table, attempt, stored = self.table, write.attempt, self.table.query("SELECT * FROM t")
        parts = rewritten_parts(stored, table.current.column_names, self._change_of(write))
        commit_overwrite(table, parts, as_attempt(table, attempt.attempt_id, attempt, write.horizons))

    def _change_of(self, write: TableWrite) -> Change:
        removes, horizons = self.transactions % REMOVAL_INTERVAL == 0, write.horizons or NO_HORIZONS
        return Change(self.columns, write.attempt.txid, write.rows, write.combine, horizons, removes)

    def rewrite_small(self, change: Change, files: Sequence[DataFile]) -> Replacement | None:
        """Write all rows to one file. None if the table is not small."""
        if not change.is_small(stored_rows(self.table), sum(file.size_bytes for file in files)):
            return None
        current = self.table.current
        rows = change.merged_rows(self._load_rows() if current.rows is None else current.rows)
        return Replacement(files, write_file(self.table.storage, rows, change.schema(current.column_names)), {}, rows)

    def _load_rows(self) -> pa.Table:
        """Return all columns of all rows."""
        schema = self.columns.table_schema
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        return self.table.query(f"SELECT {names} FROM t").read_all().cast(schema)

    def rewrite_touched(self, change: Change, files: Sequence[DataFile]) -> Replacement:
        """Rewrite the files that a change concerns."""
        selection, names = self.footers.select(files, change), self.table.current.column_names
        replacement = rewrite_files(self.table.storage, selection.changed, names, change, selection.aging)
        self.footers.add(replacement.new)
        old = [*replacement.old, *selection.expired]
        unchanged = {file: rows for file, rows in selection.rows.items() if file not in old}
        return Replacement(old, replacement.new, unchanged)


def stored_rows(table: LoadedTable) -> int | None:
    """Return the number of rows in the files, or None if the log does not say."""
    if table.current.files is not None:
        return sum(table.current.files.values())
    counts = pa.table(table.engine.get_add_actions())["num_records"]
    total: int | None = pc.sum(counts, min_count=0, skip_nulls=False).as_py()
    return total
