"""The files of a partitioned table, followed through the entries of its log, while the table is written.

delta-rs takes milliseconds to load the next Delta version and to list its files, although the entry says what has
changed. Only entries that add and remove plain files are followed. For any other entry, delta-rs loads the version.
A process that writes an entry follows its own one without reading it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from deltalake import DeltaTable

from state.delta.log.entries import Entry
from state.delta.log.log import MALFORMED_ENTRY_ERRORS
from state.delta.tables.data_files import DataFile, WrittenFile

FOLLOWED_ACTIONS: Final = frozenset({"commitInfo", "txn", "add", "remove"})
"""The kinds of actions in an entry that can be followed."""
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_.=/-]+")
"""A path that the log does not escape."""


def is_plain_path(path: str) -> bool:
    """True for the path of a file that the log of a table does not escape."""
    return _PLAIN_PATH.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class Part:
    """A file in the log: its value of the partition column, its number of rows, and its size."""

    partition: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of one Delta version of a table that is partitioned by `column`, whose values are numbers."""

    column: str
    parts: Mapping[str, Part]

    @classmethod
    def from_snapshot(cls, snapshot: DeltaTable, column: str) -> Self | None:
        """Return the files that delta-rs has loaded. Raises `DeltaError`.

        None if a path is escaped, or the log lacks a number of rows or a partition value.
        """
        files = pa.table(snapshot.get_add_actions(flatten=True))
        names = ("path", f"partition.{column}", "num_records", "size_bytes")
        if not files.num_rows:
            return cls(column, {})
        if not set(names) <= set(files.column_names):
            return None
        columns = [files.column(name) for name in names]
        if any(array.null_count for array in columns):
            return None
        paths, *numbers = (array.to_pylist() for array in columns)
        if not all(map(is_plain_path, paths)):
            return None
        return cls(column, {path: Part(*map(int, part)) for path, *part in zip(paths, *numbers, strict=True)})

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(part.rows for part in self.parts.values())

    def by_partition(self) -> list[tuple[int, int, frozenset[str]]]:
        """Return each value of the partition column, in order, with its number of rows and its files."""
        paths_of = dict[int, list[str]]()
        for path, part in self.parts.items():
            paths_of.setdefault(part.partition, []).append(path)
        rows = {partition: sum(self.parts[path].rows for path in paths) for partition, paths in paths_of.items()}
        return [(partition, rows[partition], frozenset(paths_of[partition])) for partition in sorted(paths_of)]

    def files(self) -> dict[DataFile, int]:
        """Return the files with their numbers of rows."""
        return {DataFile(path, part.size_bytes, part.partition): part.rows for path, part in self.parts.items()}

    def files_between(self, start: int, end: int) -> list[DataFile]:
        """Return the files with `start < partition <= end`."""
        return [
            DataFile(path, part.size_bytes, part.partition)
            for path, part in self.parts.items()
            if start < part.partition <= end
        ]

    def replaced(self, old: Iterable[DataFile], new: Iterable[WrittenFile]) -> Self:
        """Return the files after new ones have replaced old ones."""
        parts = dict(self.parts)
        for old_file in old:
            del parts[old_file.name]
        for file in new:
            assert file.part.txid is not None
            parts[file.part.name] = Part(file.part.txid, file.rows, file.part.size_bytes)
        return type(self)(self.column, parts)

    def followed(self, entries: Sequence[Entry]) -> Self | None:
        """Return the files after later entries, or None if an entry does more than add and remove plain files."""
        parts = dict(self.parts)
        for entry in entries:
            added = {add["path"]: self._part(add) for add in entry.adds}
            is_plain = entry.actions <= FOLLOWED_ACTIONS and entry.rewound_to is None and None not in added.values()
            if not is_plain or not entry.removed <= parts.keys() or entry.removed & added.keys():
                return None
            for path in entry.removed:
                del parts[path]
            if not parts.keys().isdisjoint(added):
                return None
            parts.update({path: part for path, part in added.items() if part is not None})
        return type(self)(self.column, parts)

    def _part(self, add: Mapping[str, Any]) -> Part | None:
        """Return the part of an add action, or None if it differs from those that a transaction writes."""
        try:
            if add.get("deletionVector") or not is_plain_path(add["path"]):
                return None
            [(column, partition)] = add["partitionValues"].items()
            rows = json.loads(add["stats"])["numRecords"]
            return Part(int(partition), int(rows), int(add["size"])) if column == self.column else None
        except MALFORMED_ENTRY_ERRORS:
            return None
