"""The files of a partitioned table, carried on from the entries of its log: for readers of a table that is written.

delta-rs takes milliseconds to load the next Delta version, and to list its files; an entry says what has changed. Only
entries that do no more than add and remove plain files are followed: of any other one delta-rs knows what it means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from deltalake import DeltaTable

from state.delta.log.entries import Entry
from state.delta.log.log import UNREADABLE

FOLLOWED: Final = frozenset({"commitInfo", "txn", "add", "remove"})
"""The actions of an entry that is followed."""
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_.=/-]+")
"""A path that is written in the log as it is."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the log says of a file: the value of the column by which the table is partitioned, and how many rows."""

    value: int
    rows: int


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """The files of one Delta version of a table that is partitioned by `column`, whose values are numbers."""

    column: str
    parts: Mapping[str, Part]

    @classmethod
    def of(cls, snapshot: DeltaTable, column: str) -> Self | None:
        """Those that delta-rs has loaded; None: something about them is out of the ordinary. Raises `DeltaError`."""
        files = pa.table(snapshot.get_add_actions(flatten=True))
        names = ("path", f"partition.{column}", "num_records")
        if not files.num_rows:
            return cls(column, {})
        if not set(names) <= set(files.column_names):
            return None
        columns = [files.column(name) for name in names]
        if any(each.null_count for each in columns):
            return None
        paths, values, rows = (each.to_pylist() for each in columns)
        if not all(map(_PLAIN_PATH.fullmatch, paths)):
            return None
        parts = (Part(int(value), int(number)) for value, number in zip(values, rows, strict=True))
        return cls(column, dict(zip(paths, parts, strict=True)))

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(part.rows for part in self.parts.values())

    def by_value(self) -> list[tuple[int, int, frozenset[str]]]:
        """The values of the column in their order, with the number of rows and the files of each."""
        found = dict[int, list[str]]()
        for path, part in self.parts.items():
            found.setdefault(part.value, []).append(path)
        rows = {value: sum(self.parts[path].rows for path in paths) for value, paths in found.items()}
        return [(value, rows[value], frozenset(found[value])) for value in sorted(found)]

    def after(self, entries: Sequence[Entry]) -> Self | None:
        """Those after further Delta commits; None: one of them is out of the ordinary."""
        parts = dict(self.parts)
        for entry in entries:
            added = {add["path"]: self._part(add) for add in entry.adds}
            is_plain = entry.actions <= FOLLOWED and entry.rewound_to is None and None not in added.values()
            if not is_plain or not entry.removed <= parts.keys() or entry.removed & added.keys():
                return None
            for path in entry.removed:
                del parts[path]
            if not parts.keys().isdisjoint(added):
                return None
            parts.update({path: part for path, part in added.items() if part is not None})
        return type(self)(self.column, parts)

    def _part(self, add: Mapping[str, Any]) -> Part | None:
        """What the log says of a file; None: not what it says of those that a transaction writes."""
        try:
            if add.get("deletionVector") or not _PLAIN_PATH.fullmatch(add["path"]):
                return None
            [(column, value)] = add["partitionValues"].items()
            rows = json.loads(add["stats"])["numRecords"]
            return Part(int(value), int(rows)) if column == self.column else None
        except UNREADABLE:
            return None
