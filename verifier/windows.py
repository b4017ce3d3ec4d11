"""Windows, computed again in plain Python from the tuples of each transaction, and compared with the rows of tables.

`Recomputed` takes the tuples of one transaction after the other, with the time up to which windows close. It keeps the
open and the closed windows in dictionaries, and `check_windows` compares those with tables. None of the code that
closes windows is used here, so that a mistake there can't hide itself: a window is a pair of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from verifier.evidence.findings import CheckImpossible, Findings, Kind

SHOWN_MAX = 20
"""The maximum number of findings per table."""
Values = dict[str, Any]


def _order(number: Any) -> tuple[bool, Any]:
    """Return the key by which numbers are ordered: NaN is greater than every other number."""
    return number != number, number


COMBINATIONS: Mapping[str, Callable[[Any, Any], object]] = {
    "sum": lambda earlier, later: earlier + later,
    "min": lambda earlier, later: min(earlier, later, key=_order),
    "max": lambda earlier, later: max(earlier, later, key=_order),
    "count": lambda earlier, later: earlier + later,
    "first": lambda earlier, later: earlier,
    "last": lambda earlier, later: later,
}
"""The aggregates that can be computed again, each with the function that combines two values. A count of tuples is a
sum of ones, `count` a sum over the values that are not NULL."""
_WITH_NULL = ("first", "last")
"""Aggregates for which NULL is a value like any other."""


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Windows of `length_us`, one beginning `every_us`, or sessions with a gap of `gap_us`.

    `columns` has for each value column that can be computed again its aggregate and the aggregated field, which is None
    if it counts tuples.
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
    """The windows after any number of transactions. Rows are stored by their key and the start of their window."""

    rules: WindowRules
    open: dict[tuple[Any, ...], Values] = field(default_factory=dict)
    closed: dict[tuple[object, ...], Values] = field(default_factory=dict)
    ends: dict[tuple[object, ...], int] = field(default_factory=dict)
    """The ends of open sessions."""
    panes: dict[tuple[Any, ...], Values] = field(default_factory=dict)
    """The parts that overlapping windows share, by key and start."""
    was_cut: bool = False
    """Whether a session would have exceeded its maximum length."""
    late: int = 0

    @property
    def pane_us(self) -> int:
        """The length of a pane. Every window consists of whole panes."""
        return gcd(self.rules.length_us, self.rules.every_us)

    def commit(self, closed_until_us: int | None, tuples: Iterable[TimedTuple]) -> None:
        """Take the next transaction: close the windows that end by `closed_until_us`, then add its tuples, or count
        them as late."""
        if closed_until_us is not None:
            for row in [row for row in self.open if self._end(row) <= closed_until_us]:
                self.closed[row] = self.open.pop(row)
            if self.rules.gap_us is None:
                length_us, every_us = self.rules.length_us, self.rules.every_us
                first_open = (closed_until_us - length_us) // every_us * every_us + every_us
                self.panes = {row: values for row, values in self.panes.items() if row[-1] >= first_open}
        for timed_tuple in tuples:
            self._add(timed_tuple, closed_until_us)

    def rows(self) -> Mapping[tuple[object, ...], Values]:
        """Return the rows that the table of open windows should have."""
        return self.open if self.rules.gap_us is not None else self.panes

    def closed_rows(self) -> Mapping[tuple[object, ...], Values]:
        """Return the rows that a table of closed windows should have."""
        return self.closed

    def _end(self, row: tuple[Any, ...]) -> int:
        return self.ends[row] if self.rules.gap_us is not None else int(row[-1]) + self.rules.length_us

    def _add(self, timed_tuple: TimedTuple, closed_until_us: int | None) -> None:
        if self.rules.gap_us is not None:
            self._add_to_session(timed_tuple, closed_until_us, self.rules.gap_us)
            return
        key, us, values = timed_tuple.key, timed_tuple.us, self._values_of(timed_tuple)
        length_us, every_us = self.rules.length_us, self.rules.every_us
        start = us // every_us * every_us
        is_late = True
        while start + length_us > us:
            if closed_until_us is None or start + length_us > closed_until_us:
                row = (*key, start)
                self.open[row] = self._combine(self.open.get(row), values)
                is_late = False
            start -= every_us
        self.late += is_late
        if not is_late:
            row = (*key, us // self.pane_us * self.pane_us)
            self.panes[row] = self._combine(self.panes.get(row), values)

    def _add_to_session(self, timed_tuple: TimedTuple, closed_until_us: int | None, gap_us: int) -> None:
        """Add a tuple to the open sessions of its key that it overlaps, which become one."""
        key, us = timed_tuple.key, timed_tuple.us
        if closed_until_us is not None and us + gap_us <= closed_until_us:
            self.late += 1
            return
        start, end, values = us, us + gap_us, self._values_of(timed_tuple)
        for row in [row for row in self.open if row[:-1] == key]:
            if row[-1] < end and self.ends[row] > start:
                start, end = min(start, row[-1]), max(end, self.ends.pop(row))
                values = self._combine(self.open.pop(row), values)
        self.was_cut = self.was_cut or end - start > self.rules.longest_us
        self.open[*key, start], self.ends[*key, start] = values, end

    def _values_of(self, timed_tuple: TimedTuple) -> Values:
        columns = self.rules.columns.items()
        return {name: initial_value(aggregate, source, timed_tuple.fields) for name, (aggregate, source) in columns}

    def _combine(self, earlier: Values | None, later: Values) -> Values:
        if earlier is None:
            return later
        columns = self.rules.columns.items()
        return {name: combine_values(aggregate, earlier[name], later[name]) for name, (aggregate, _) in columns}


def initial_value(aggregate: str, source: str | None, fields: Mapping[str, object]) -> object:
    """Return an aggregate of one tuple, over the field `source`; None: the aggregate counts tuples."""
    if source is None:
        return 1
    return int(fields[source] is not None) if aggregate == "count" else fields[source]


def combine_values(aggregate: str, earlier: object, later: object) -> object:
    """Combine two values of an aggregate. NULL counts as nothing, except for `first` and `last`. Raises
    `CheckImpossible` for an unknown aggregate."""
    if aggregate not in COMBINATIONS:
        raise CheckImpossible(f"values are combined by {', '.join(COMBINATIONS)}; {aggregate!r} is not known")
    if aggregate not in _WITH_NULL and (earlier is None or later is None):
        return earlier if later is None else later
    return COMBINATIONS[aggregate](earlier, later)


def check_windows(
    table: str,
    expected: Mapping[tuple[object, ...], Values],
    actual: Mapping[tuple[object, ...], Values],
    findings: Findings,
    row_name: str = "window",
) -> None:
    """Compare the rows of a table with the recomputed ones, column by column. `row_name` is for messages."""
    rows = expected.keys() | actual.keys()
    different = [row for row in rows if not _are_equal(expected.get(row), actual.get(row))]
    for row in sorted(different, key=repr)[:SHOWN_MAX]:
        place = f"{table}, {row_name} {', '.join(map(str, row))}"
        findings.add(Kind.WRONG_WINDOW, place, _format_values(expected.get(row)), _format_values(actual.get(row)))
    if len(different) > SHOWN_MAX:
        findings.note(f"{table}: {len(different) - SHOWN_MAX} more {row_name}s are wrong")
    findings.add_checked("windows" if row_name == "window" else f"{row_name}s computed again", len(rows))


def _are_equal(expected: Values | None, actual: Values | None) -> bool:
    if expected is None or actual is None:
        return expected is actual
    return all(_is_close(expected[name], actual.get(name)) for name in expected)


def _is_close(expected: object, actual: object) -> bool:
    """Return whether two values are equal, up to rounding: sums of floating-point numbers depend on their order."""
    if isinstance(expected, float) and isinstance(actual, float):
        is_within = abs(expected - actual) <= 1e-9 * max(abs(expected), abs(actual))
        return expected == actual or is_within or (expected != expected and actual != actual)
    return bool(expected == actual)


def _format_values(values: Values | None) -> str:
    return "no row" if values is None else ", ".join(f"{name}={number}" for name, number in values.items())
