"""Windows, computed again in plain Python from the tuples of each transaction, and compared with the rows of tables.

None of the code that closes windows is used here: a window is a pair of numbers, and a table is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from verifier.evidence.findings import CheckImpossible, Findings, Kind

SHOWN_MAX = 20
"""Findings per table."""
Values = dict[str, Any]


def _order(value: Any) -> tuple[bool, Any]:
    """NaN is greater than every other number."""
    return value != value, value


COMBINED: Mapping[str, Callable[[Any, Any], object]] = {
    "sum": lambda one, other: one + other,
    "min": lambda one, other: min(one, other, key=_order),
    "max": lambda one, other: max(one, other, key=_order),
    "count": lambda one, other: one + other,
    "first": lambda one, other: one,
    "last": lambda one, other: other,
}
"""What can be computed again, by how two values become one: a count is a sum of ones, `count` of those not NULL."""
_WITH_NULL = ("first", "last")
"""For these NULL is a value like any other."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Windows of `length_us`, one beginning `every_us`, or sessions with a gap of `gap_us`.

    `columns` says for each value column that can be computed again how, and of which field; None: it counts tuples.
    """

    length_us: int
    every_us: int
    columns: Mapping[str, tuple[str, str | None]]
    gap_us: int | None = None
    longest_us: int = 0


@dataclass(frozen=True, slots=True)
class TimedTuple:
    """A tuple: its key, its time in microseconds since 1970, and the fields that are aggregated."""

    key: tuple[object, ...]
    us: int
    fields: Mapping[str, object]


@dataclass(slots=True)
class Recomputed:
    """Windows after any number of transactions. A row is known by its key and the start of its window."""

    rules: WindowRules
    open: dict[tuple[Any, ...], Values] = field(default_factory=dict)
    closed: dict[tuple[object, ...], Values] = field(default_factory=dict)
    ends: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Of sessions."""
    panes: dict[tuple[Any, ...], Values] = field(default_factory=dict)
    """What overlapping windows have in common."""
    was_cut: bool = False
    """Whether a session would have been longer than it may be."""
    late: int = 0

    @property
    def pane_us(self) -> int:
        """Every window is made of panes of this length."""
        return gcd(self.rules.length_us, self.rules.every_us)

    def commit(self, closed_until_us: int | None, tuples: Iterable[TimedTuple]) -> None:
        """The next transaction: windows that end until then close, and its tuples are counted, or late."""
        if closed_until_us is not None:
            for row in [row for row in self.open if self._end(row) <= closed_until_us]:
                self.closed[row] = self.open.pop(row)
            if self.rules.gap_us is None:
                length, every = self.rules.length_us, self.rules.every_us
                first_open = (closed_until_us - length) // every * every + every
                self.panes = {row: values for row, values in self.panes.items() if row[-1] >= first_open}
        for each in tuples:
            self._add(each, closed_until_us)

    def rows(self) -> Mapping[tuple[object, ...], Values]:
        """What the table of open windows has."""
        return self.open if self.rules.gap_us is not None else self.panes

    def closed_rows(self) -> Mapping[tuple[object, ...], Values]:
        """What a table of closed windows has."""
        return self.closed

    def _end(self, row: tuple[Any, ...]) -> int:
        return self.ends[row] if self.rules.gap_us is not None else int(row[-1]) + self.rules.length_us

    def _add(self, each: TimedTuple, closed_until_us: int | None) -> None:
        if self.rules.gap_us is not None:
            self._join(each, closed_until_us, self.rules.gap_us)
            return
        length, every, start = (
            self.rules.length_us,
            self.rules.every_us,
            each.us // self.rules.every_us * self.rules.every_us,
        )
        found = False
        while start + length > each.us:
            if closed_until_us is None or start + length > closed_until_us:
                row = (*each.key, start)
                self.open[row] = self._with(self.open.get(row), self._of(each))
                found = True
            start -= every
        self.late += not found
        if found:
            row = (*each.key, each.us // self.pane_us * self.pane_us)
            self.panes[row] = self._with(self.panes.get(row), self._of(each))

    def _join(self, each: TimedTuple, closed_until_us: int | None, gap_us: int) -> None:
        if closed_until_us is not None and each.us + gap_us <= closed_until_us:
            self.late += 1
            return
        start, end, values = each.us, each.us + gap_us, self._of(each)
        for row in [row for row in self.open if row[:-1] == each.key]:
            if row[-1] < end and self.ends[row] > start:
                start, end = min(start, row[-1]), max(end, self.ends.pop(row))
                values = self._with(self.open.pop(row), values)
        self.was_cut = self.was_cut or end - start > self.rules.longest_us
        self.open[*each.key, start], self.ends[*each.key, start] = values, end

    def _of(self, each: TimedTuple) -> Values:
        return {name: value_of(how, of, each.fields) for name, (how, of) in self.rules.columns.items()}

    def _with(self, known: Values | None, more: Values) -> Values:
        if known is None:
            return more
        return {name: both(how, known[name], more[name]) for name, (how, _) in self.rules.columns.items()}


def value_of(how: str, of: str | None, fields: Mapping[str, object]) -> object:
    """What one tuple counts as."""
    if of is None:
        return 1
    return int(fields[of] is not None) if how == "count" else fields[of]


def both(how: str, one: object, other: object) -> object:
    """Mostly NULL counts as nothing. Raises `CheckImpossible` for a word that is not known."""
    if how not in COMBINED:
        raise CheckImpossible(f"values are combined by {', '.join(COMBINED)}; {how!r} is not known")
    if how not in _WITH_NULL and (one is None or other is None):
        return one if other is None else other
    return COMBINED[how](one, other)


def check_windows(
    where: str,
    expected: Mapping[tuple[object, ...], Values],
    found: Mapping[tuple[object, ...], Values],
    findings: Findings,
    what: str = "window",
) -> None:
    """Compare the rows of a table with what was computed again, column by column. `what` is what a row is called."""
    different = [row for row in expected.keys() | found.keys() if not _is_alike(expected.get(row), found.get(row))]
    for row in sorted(different, key=repr)[:SHOWN_MAX]:
        findings.add(
            Kind.WRONG_WINDOW, f"{where}, {what} {_shown(row)}", _values(expected.get(row)), _values(found.get(row))
        )
    if len(different) > SHOWN_MAX:
        findings.note(f"{where}: {len(different) - SHOWN_MAX} more {what}s are wrong")
    findings.looked_at(
        "windows" if what == "window" else f"{what}s computed again", len(expected.keys() | found.keys())
    )


def _is_alike(expected: Values | None, found: Values | None) -> bool:
    if expected is None or found is None:
        return expected is found
    return all(_is_close(expected[name], found.get(name)) for name in expected)


def _is_close(one: object, other: object) -> bool:
    """Sums of floating-point numbers depend on their order."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= 1e-9 * max(abs(one), abs(other)) or (one != one and other != other)
    return bool(one == other)


def _shown(row: tuple[object, ...]) -> str:
    return ", ".join(map(str, row))


def _values(values: Values | None) -> str:
    return "no row" if values is None else ", ".join(f"{name}={value}" for name, value in values.items())
