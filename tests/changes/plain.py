"""What tables hold, in plain Python: of all that has been committed, in parts, each by the program of its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.changes.program import PUBLISHED, Branch, Lets, Program, shown
from tests.changes.topics import Record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMED = {"tumbling": (10, 10), "longer": (20, 20), "sliding": (10, 5)}
"""Lengths and distances, in seconds."""
COUNTED = {"count": 3, "more": 5}
GAP = timedelta(seconds=3)

Committed = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""Records by stream, and partition by partition."""
Parts = Sequence[tuple[Program, Committed]]
Keyed = dict[tuple[tuple[str, Any], ...], dict[str, Any]]
Tables = dict[str, list[dict[str, Any]]]
"""By name of the table its rows, sorted."""
END = "~"
"""The word of records that only come for the windows before them to close."""


def tables(parts: Parts) -> Tables:
    """What is in them. Of windows those that have closed, if records have come that close all of them."""
    found: Tables = {}
    for name in {branch.table_name for program, _ in parts for branch in program.branches}:
        of_table = [(program, branch, committed) for program, branch, committed in _branches(parts, name)]
        window = of_table[-1][1].window
        rows = _closed(of_table) if window else _aggregated(of_table)
        found[f"{name}-closed" if window else name] = in_order(dict(key) | values for key, values in rows.items())
    return found


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows in an order of their own; without those that only close windows."""
    return sorted((dict(sorted(row.items())) for row in rows if END not in row.values()), key=repr)


def _key(branch: Branch, row: Mapping[str, Any], **more: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted({name: row[name] for name in branch.key}.items())) + tuple(more.items())


def letters(parts: Parts) -> list[int]:
    """The ids of the tuples that were set aside, sorted."""
    return sorted(
        row["id"]
        for program, committed in parts
        for branch in program.branches
        for row in _rows(program, branch, committed, with_failing=True)
        if _fails(branch, row)
    )


def published(parts: Parts) -> dict[str, list[Record]]:
    """The records of each topic, sorted."""
    topics = defaultdict[str, list[Record]](list)
    for program, branch, committed in _branches(parts, PUBLISHED):
        for row in _rows(program, branch, committed):
            for publishing in program.sinks:
                topics[publishing.topic_of(row)].append(publishing.record(row, branch.outputs))
    return {topic: sorted(records) for topic, records in topics.items()}


def _branches(parts: Parts, table: str) -> Any:
    for program, committed in parts:
        for branch in program.branches:
            if branch.table_name == table:
                yield program, branch, committed


def _fails(branch: Branch, row: Mapping[str, Any]) -> bool:
    return bool(branch.fails_on) and row["id"] > 0 and row["id"] % branch.fails_on == 0


def _rows(program: Program, branch: Branch, committed: Committed, *, with_failing: bool = False) -> Any:
    """Those that go through a branch, in the order of their partitions."""
    sources = {source.name: source for source in program.sources}
    for name in branch.reads:
        for partition in committed.get(name, ()):
            for record in partition:
                row = sources[name].row(record)
                if _fails(branch, row):
                    if with_failing:
                        yield row
                elif row["n"] % 2 in Lets.parities[branch.lets]:
                    yield row


def _aggregated(parts: Any) -> Keyed:
    found: Keyed = {}
    for program, branch, committed in parts:
        for row in _rows(program, branch, committed):
            _add(found.setdefault(_key(branch, row), {}), branch, row)
        names = [name for name, _, _ in branch.columns]
        for values in found.values():
            # A column that came later is NULL in rows that were there.
            values.update({name: values.get(name) for name in names})
    return found


def _add(values: dict[str, Any], branch: Branch, row: Mapping[str, Any]) -> None:
    for name, how, of in branch.columns:
        new, old = (1 if how == "count" else row[of]), values.get(name)
        values[name] = new if old is None else {"min": min, "max": max}.get(how, int.__add__)(old, new)


def _closed(parts: Any) -> Keyed:
    program, branch, _ = parts[-1]
    if branch.window in COUNTED:
        return _by_count(parts)
    if branch.window == "session":
        return _sessions(parts)
    if not program.is_trident:
        return _tuples_by_time(parts)
    found: Keyed = {}
    for program, branch, committed in parts:
        for row in _rows(program, branch, committed):
            for start in _starts(row[branch.time], *TIMED[branch.window]):
                _add(found.setdefault(_key(branch, row, window_start=start), {"times": 1}), branch, row)
    return found


def _starts(at: datetime, length_s: int, every_s: int) -> list[datetime]:
    us, length, every = (at - EPOCH) // timedelta(microseconds=1), length_s * 1_000_000, every_s * 1_000_000
    last = us // every * every
    return [EPOCH + timedelta(microseconds=start) for start in range(last - length + every, last + 1, every)]


def _tuples_by_time(parts: Any) -> Keyed:
    windows = defaultdict[Any, list[tuple[int, int]]](list)
    for program, branch, committed in parts:
        for row in _rows(program, branch, committed):
            for start in _starts(row[branch.time], *TIMED[branch.window]):
                windows[_key(branch, row), start].append((row["id"], row["n"]))
    return {_as_shown(key, start, its): {"times": 1} for (key, start), its in windows.items()}


def _as_shown(key: Any, start: datetime | None, its: Iterable[tuple[int, int]]) -> tuple[tuple[str, Any], ...]:
    return ("word", dict(key)["word"]), ("start", start), ("tuples", shown(its))


def _sessions(parts: Any) -> Keyed:
    by_key = defaultdict[Any, list[tuple[datetime, Branch, Any]]](list)
    for program, branch, committed in parts:
        for row in _rows(program, branch, committed):
            by_key[_key(branch, row)].append((row[branch.time], branch, row))
    found: Keyed = {}
    for key, rows in by_key.items():
        values, last, start = dict[str, Any](), None, None
        for at, branch, row in sorted(rows, key=lambda each: each[0]):
            if last is None or at - last >= GAP:
                start, values = at, {"times": 1}
                found[*key, ("window_start", start)] = values
            _add(values, branch, row)
            last = at
    return found


def _by_count(parts: Any) -> Keyed:
    by_key = defaultdict[Any, list[tuple[Branch, Any]]](list)
    for program, branch, committed in parts:
        for row in _rows(program, branch, committed):
            by_key[_key(branch, row)].append((branch, row))
    is_trident = parts[-1][0].is_trident
    found: Keyed = {}
    for key, rows in by_key.items():
        size = COUNTED[rows[-1][0].window]
        for until in range(size, len(rows) + 1, size):
            its = rows[until - size : until]
            if not is_trident:
                found[_as_shown(key, None, ((row["id"], row["n"]) for _, row in its))] = {"times": 1}
                continue
            values: dict[str, Any] = {"times": 1}
            for branch, row in its:
                _add(values, branch, row)
            found[*key, ("window_start", until - size)] = values
    return found
