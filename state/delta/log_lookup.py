"""Finding the rows of some keys in a large log: local copies of its runs, sorted by key and mapped into memory.

What a run holds never changes; a fold makes another one, of other files. So a copy is right as long as its files are in
the snapshot, and a lookup costs what the wanted keys cost, not what the table does. Copies are made when they are first
needed and go with the process.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from state.delta.table import with_keys
from transactional.attempt import TxId

Files = frozenset[str]
SORTED_ROWS_MIN = 200_000
"""Runs of fewer rows are searched whole."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A run's rows. Sorted by the one key column, without NULL in it; `rest` has those that are not sorted."""

    is_sorted: bool
    rows: pa.Table
    rest: pa.Table


class RunCopies:
    """Copies of the runs of one table. `load(txid)` gives a run's rows, sorted by key, NULL last."""

    def __init__(self, key: tuple[str, ...], load: Callable[[TxId], pa.RecordBatchReader]) -> None:
        self._key, self._load = key, load
        self._copies: dict[tuple[TxId, Files], _Copy] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._written = 0

    def search(self, runs: Mapping[TxId, tuple[Files, int]], wanted: pa.Table) -> pa.Table:
        """All rows of the runs that have a wanted key, maybe some more. `runs`: files and number of rows by txid."""
        present = {(txid, files): rows for txid, (files, rows) in runs.items()}
        self._copies = {run: copy for run, copy in self._copies.items() if run in present}
        for run, rows in present.items():
            if run not in self._copies:
                self._copies[run] = self._copied(run[0], rows)
        copies = self._copies.values()
        # In one go, so that the wanted keys are hashed once.
        small = pa.concat_tables([copy.rest for copy in copies])
        found = [_found(copy.rows, self._key[0], wanted) for copy in copies if copy.is_sorted]
        return pa.concat_tables([with_keys(small, wanted), *found])

    def _copied(self, txid: TxId, rows: int) -> _Copy:
        reader = self._load(txid)
        table = reader.read_all() if rows < SORTED_ROWS_MIN else self._mapped(reader)
        if rows < SORTED_ROWS_MIN or not self._is_searchable(table.schema):
            return _Copy(False, table.slice(0, 0), table)
        # Sorted with NULLs last: there is at most one.
        nulls = table.column(self._key[0]).null_count
        return _Copy(True, table.slice(0, rows - nulls), table.slice(rows - nulls))

    def _is_searchable(self, schema: pa.Schema) -> bool:
        """Several key columns, and decimals, are beyond Arrow's binary search: they are compared one by one."""
        return len(self._key) == 1 and not pa.types.is_decimal(schema.field(self._key[0]).type)

    def _mapped(self, reader: pa.RecordBatchReader) -> pa.Table:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="transactional-")
            weakref.finalize(self, self._folder.cleanup)
        self._written += 1
        path = Path(self._folder.name, f"{self._written}.arrow")
        with pa.ipc.new_file(str(path), reader.schema) as file:
            for batch in reader:
                file.write_batch(batch)
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        # What is mapped stays until nobody uses it any more.
        path.unlink()
        return table


def _found(rows: pa.Table, key: str, wanted: pa.Table) -> pa.Table:
    keys = wanted.column(key).combine_chunks().drop_null()
    keys = keys.take(pc.array_sort_indices(keys))
    places = pc.search_sorted(rows.column(key), keys, side="left")
    is_inside = pc.less(places, rows.num_rows)
    candidates = rows.take(places.filter(is_inside))
    return candidates.filter(pc.equal(candidates.column(key), keys.filter(is_inside)))
