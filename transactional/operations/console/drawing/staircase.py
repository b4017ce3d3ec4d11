"""The last transactions on one time axis: an attempt is a bar of its phases, commits in order make a staircase."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from transactional.core.store import AttemptTimes
from transactional.core.store.history import RunRecord
from transactional.core.store.rules import COMMITTED, FAILED, GIVEN_UP, OPEN, REWOUND, letters_in
from transactional.model.attempt import TxId
from transactional.model.drawing import svg
from transactional.model.drawing.formats import format_date_time, format_duration, format_time_of_day
from transactional.operations.console.drawing.labels import (
    ROW,
    Label,
    arrange_in_rows,
    draw_labels,
    label_ending_at,
    label_next_to,
)

TRANSACTIONS: Final = 25
"""The number of transactions that are drawn, a line for each: few enough for a glance, and for any browser."""

_WIDTH: Final = 1120.0
_LEFT: Final = 74.0
_RIGHT: Final = 92.0
_TOP: Final = 30.0
_LINE: Final = 21.0
_BAR: Final = 12.0
_GAP: Final = 0.08
"""The share of the axis that a long time without anything gets."""
_BEYOND: Final = 0.18
"""The share by which an attempt in flight may stretch the axis past the last commit. One that hangs must not squeeze
all others."""
_STEPS: Final = (
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
    600_000,
    3_600_000,
)
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Bar:
    """The time that an attempt spent in one phase, or in failing."""

    kind: str
    start_ms: int
    end_ms: int


def bars_of(attempt: AttemptTimes, now_ms: int, retried_at_ms: int | None = None) -> list[Bar]:
    """Return the bars of an attempt. `now_ms` ends the last one of an attempt in flight, and the next attempt at
    `retried_at_ms` that of one that was given up."""
    bars = [Bar("planning", attempt.issued_at_ms, attempt.planned_at_ms)]
    ended_at_ms = (
        attempt.failed_at_ms if attempt.phase == FAILED else retried_at_ms if attempt.phase not in OPEN else now_ms
    )
    start = attempt.planned_at_ms
    steps = (
        ("processing", attempt.processed_at_ms),
        ("waiting", attempt.commit_started_at_ms),
        ("committing", attempt.committed_at_ms),
    )
    for kind, at_ms in steps:
        if at_ms is None:
            bars.append(
                Bar(_last_bar_kind(attempt, kind), start, max(start, ended_at_ms if ended_at_ms is not None else start))
            )
            break
        bars.append(Bar(kind, start, at_ms))
        start = at_ms
    return bars


def _last_bar_kind(attempt: AttemptTimes, kind: str) -> str:
    return {FAILED: "failed", GIVEN_UP: "given-up", REWOUND: "given-up"}.get(attempt.phase, kind)


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis of time. A gap, a long time in which nothing was in flight, has the same small width whatever
    its length."""

    start_ms: int
    end_ms: int
    gaps: Sequence[tuple[int, int]] = ()

    @property
    def drawn_ms(self) -> float:
        """The milliseconds that the whole width stands for, with gaps drawn short."""
        return self._drawn_ms_until(self.end_ms) or 1

    @property
    def _gap_ms(self) -> float:
        """The milliseconds of ordinary time that are as wide as a gap."""
        return _GAP * (self.end_ms - self.start_ms - sum(end - start for start, end in self.gaps))

    def _drawn_ms_until(self, at_ms: int) -> float:
        at_ms = min(max(at_ms, self.start_ms), self.end_ms)
        drawn_ms = float(at_ms - self.start_ms)
        for start, end in self.gaps:
            elapsed_ms = min(max(at_ms - start, 0), end - start)
            drawn_ms += elapsed_ms / (end - start) * self._gap_ms - elapsed_ms
        return drawn_ms

    def x_of(self, at_ms: int) -> float:
        """Return the x coordinate of a time."""
        return _LEFT + self._drawn_ms_until(at_ms) / self.drawn_ms * (_WIDTH - _LEFT - _RIGHT)


def find_gaps(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals outside all spans that are longer than half of the time within spans."""
    gaps, busy_ms, until = list[tuple[int, int]](), 0, None
    for start, end in sorted(spans):
        if until is not None and start > until:
            gaps.append((until, start))
        busy_ms += max(0, end - (start if until is None else max(start, until)))
        until = end if until is None else max(end, until)
    return [(start, end) for start, end in gaps if end - start > max(busy_ms / 2, 1)]


def draw_staircase(
    attempts: Sequence[AttemptTimes], runs: Sequence[RunRecord], now_ms: int, link: Callable[[TxId], str]
) -> str:
    """Draw the newest transactions among these attempts as SVG; an empty text without attempts."""
    txids = sorted({attempt.attempt.txid for attempt in attempts})[-TRANSACTIONS:]
    if not txids:
        return ""
    drawn = sorted(
        (attempt for attempt in attempts if attempt.attempt.txid >= txids[0]),
        key=lambda attempt: attempt.attempt.attempt_id,
    )
    axis = _make_axis(drawn, now_ms)
    y_by_txid = {txid: _TOP + number * _LINE for number, txid in enumerate(txids)}
    bottom = _TOP + len(txids) * _LINE
    parts = [
        svg.element("rect", class_="lane even", x=0, y=y - 4, width=_WIDTH, height=_LINE, rx=4)
        for y in list(y_by_txid.values())[::2]
    ]
    new_runs = [run for run in runs if axis.start_ms < run.began_at_ms < axis.end_ms]
    label_rows = arrange_in_rows(_make_labels(axis, new_runs))
    parts += [*_draw_gaps(axis, bottom), *_draw_grid(axis, bottom), *_draw_run_starts(new_runs, axis, bottom)]
    parts += draw_labels(label_rows, bottom + ROW)
    for txid in txids:
        attempts_at_txid = [attempt for attempt in drawn if attempt.attempt.txid == txid]
        parts.append(_draw_transaction(txid, attempts_at_txid, axis, y_by_txid[txid], now_ms, link(txid)))
    parts += _draw_waits(drawn, axis, y_by_txid)
    label = f"Timeline of transactions {txids[0]} to {txids[-1]}; the list of attempts has the same figures"
    return svg.picture(_WIDTH, bottom + 6 + ROW * len(label_rows), label, *parts, class_="staircase")


def _make_axis(attempts: Sequence[AttemptTimes], now_ms: int) -> Axis:
    start_ms = min(attempt.issued_at_ms for attempt in attempts)
    ends_ms = (
        attempt.committed_at_ms or attempt.failed_at_ms or attempt.processed_at_ms or attempt.planned_at_ms
        for attempt in attempts
    )
    # A clock that was set back may have put every end before every start.
    starts_ms = (attempt.issued_at_ms for attempt in attempts)
    last_ms = max(start_ms + 1, *ends_ms, *starts_ms)
    spans = [
        (bars[0].start_ms, max(bars[0].start_ms, bars[-1].end_ms))
        for bars in (bars_of(attempt, last_ms) for attempt in attempts)
    ]
    gaps = find_gaps(spans)
    if any(attempt.phase in OPEN for attempt in attempts):
        busy_ms = last_ms - start_ms - sum(end - start for start, end in gaps)
        last_ms = max(last_ms, min(now_ms, last_ms + max(200, int(busy_ms * _BEYOND))))
    return Axis(start_ms, last_ms, gaps)


def _draw_grid(axis: Axis, bottom: float) -> list[str]:
    days = math.ceil(axis.drawn_ms / _DAY_MS / 9)  # a clock that was set may have jumped by decades
    step_ms = next((candidate_ms for candidate_ms in _STEPS if axis.drawn_ms / candidate_ms < 9), days * _DAY_MS)
    parts, free_from = [svg.text(format_date_time(axis.start_ms)[5:10], 0, _TOP - 14, class_="tick")], 0.0
    for at_ms in _grid_times(axis, step_ms):
        x = axis.x_of(at_ms)
        words = format_time_of_day(at_ms)[: 8 if step_ms >= 1_000 else 12]
        parts.append(svg.element("line", class_="grid", x1=x, x2=x, y1=_TOP - 8, y2=bottom))
        if x > free_from:
            parts.append(svg.text(words, x, _TOP - 14, class_="tick", text_anchor="middle"))
            free_from = x + svg.CHARACTER * len(words) + 8
    return parts


def _grid_times(axis: Axis, step_ms: int) -> Iterator[int]:
    """Yield the multiples of a step that lie in no gap."""
    starts = [axis.start_ms, *(end for _, end in axis.gaps)]
    ends = [*(start for start, _ in axis.gaps), axis.end_ms]
    for start, end in zip(starts, ends, strict=True):
        yield from range(start - start % step_ms + step_ms, end + 1, step_ms)


def _draw_gaps(axis: Axis, bottom: float) -> list[str]:
    parts = []
    for start, end in axis.gaps:
        left_x, right_x = axis.x_of(start) + 4, axis.x_of(end) - 4
        title = svg.title(f"nothing was in flight for {format_duration(end - start)}")
        band = svg.element(
            "rect", class_="gap", x=left_x, y=_TOP - 4, width=max(right_x - left_x, 1.0), height=bottom - _TOP
        )
        parts.append(svg.element("g", title, band))
    return parts


def _make_labels(axis: Axis, runs: Sequence[RunRecord]) -> list[Label]:
    """Return the labels below the lines: the length of each gap, and the number of each run that began."""
    idle = [label_ending_at(format_duration(end - start), axis.x_of(end) - 4, "idle") for start, end in axis.gaps]
    return idle + [label_next_to(f"run {run.epoch}", axis.x_of(run.began_at_ms), "takeover", _WIDTH) for run in runs]


def _draw_run_starts(runs: Sequence[RunRecord], axis: Axis, bottom: float) -> list[str]:
    """Draw a vertical line at the beginning of each run."""
    parts = []
    for run in runs:
        run_x = axis.x_of(run.began_at_ms)
        title = svg.title(f"run {run.epoch} began at {format_time_of_day(run.began_at_ms)}: {run.owner}")
        rule = svg.element("line", class_="takeover", x1=run_x, x2=run_x, y1=_TOP - 8, y2=bottom + 4)
        parts.append(svg.element("g", title, rule))
    return parts


def _draw_transaction(
    txid: TxId, attempts: Sequence[AttemptTimes], axis: Axis, y: float, now_ms: int, href: str
) -> str:
    parts = [
        svg.title("; ".join(_describe_attempt(attempt, now_ms) for attempt in attempts)),
        svg.element("rect", class_="lane", x=0, y=y - 4, width=_WIDTH, height=_LINE, rx=4),
        svg.text(f"{txid}", _LEFT - 14, y + 10, class_="txid", text_anchor="end"),
    ]
    if letters := sum(letters_in(attempt.details) for attempt in attempts):
        title = svg.title(f"{letters} tuple{'' if letters == 1 else 's'} set aside")
        parts.append(svg.element("circle", title, class_="set-aside", cx=_LEFT - 6, cy=y + _BAR / 2, r=3.5))
    for attempt, next_attempt in zip(attempts, [*attempts[1:], None], strict=True):
        parts += _draw_attempt(attempt, next_attempt, axis, y, now_ms)
    parts.append(_draw_duration(attempts[-1], axis, y, now_ms))
    return svg.element("a", *parts, href=href, class_="transaction")


def _draw_attempt(
    attempt: AttemptTimes, next_attempt: AttemptTimes | None, axis: Axis, y: float, now_ms: int
) -> list[str]:
    parts = []
    for bar in bars_of(attempt, now_ms, None if next_attempt is None else next_attempt.issued_at_ms):
        bar_x = axis.x_of(bar.start_ms)
        width = axis.x_of(bar.end_ms) - bar_x
        if width > 0.2 or bar.kind in ("failed", "given-up"):
            kind = f"{bar.kind} open" if attempt.phase in OPEN and bar.end_ms == now_ms else bar.kind
            parts.append(svg.element("rect", class_=kind, x=bar_x, y=y, width=max(width, 1.5), height=_BAR, rx=1.5))
        if bar.kind == "failed":
            cross_x = bar_x + (width - 11 if width > 14 else width / 2 - 4)  # within the bar, if there is room
            parts.append(svg.element("path", class_="cross", d=f"M{cross_x:.1f} {y + 2:.1f}l8 8m0 -8l-8 8"))
    return parts


def _draw_duration(attempt: AttemptTimes, axis: Axis, y: float, now_ms: int) -> str:
    """Draw the duration of an attempt at the end of its bar, or its phase if it failed or was given up."""
    if attempt.committed_at_ms is not None:
        words, end_ms = format_duration(attempt.committed_at_ms - attempt.issued_at_ms), attempt.committed_at_ms
    elif attempt.phase in OPEN:
        words, end_ms = format_duration(max(0, now_ms - attempt.issued_at_ms)) + " …", axis.end_ms
    else:
        words, end_ms = attempt.phase, max(bar.end_ms for bar in bars_of(attempt, now_ms))
    return svg.text(words, axis.x_of(end_ms) + 8, y + 10, class_="took")


def _describe_attempt(attempt: AttemptTimes, now_ms: int) -> str:
    phases = ", ".join(f"{bar.kind} {format_duration(bar.end_ms - bar.start_ms)}" for bar in bars_of(attempt, now_ms))
    rows = "" if attempt.rows is None else f", {attempt.rows:,} records"
    return f"attempt {attempt.attempt} {attempt.phase}{rows}: {phases}"


def _draw_waits(attempts: Sequence[AttemptTimes], axis: Axis, y_by_txid: dict[TxId, float]) -> list[str]:
    """Draw a line from each commit that a transaction waited for to the bar of that transaction."""
    committed = {attempt.attempt.txid: attempt for attempt in attempts if attempt.phase == COMMITTED}
    parts = []
    for txid, attempt in committed.items():
        previous = committed.get(TxId(txid - 1))
        if previous is None or previous.committed_at_ms is None or attempt.processed_at_ms is None:
            continue
        if attempt.processed_at_ms < previous.committed_at_ms <= (attempt.commit_started_at_ms or 0):
            commit_x = axis.x_of(previous.committed_at_ms)
            parts.append(
                svg.element(
                    "path",
                    class_="after",
                    d=f"M{commit_x:.1f} {y_by_txid[previous.attempt.txid] + _BAR:.1f}V{y_by_txid[txid]:.1f}",
                )
            )
    return parts
