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
from transactional.operations.console.drawing.labels import ROW, Label, before, beside, draw_labels, in_rows

TRANSACTIONS: Final = 25
"""As many lines as can be taken in at a glance, and no browser finds heavy."""

_WIDTH: Final = 1120.0
_LEFT: Final = 74.0
_RIGHT: Final = 92.0
_TOP: Final = 30.0
_LINE: Final = 21.0
_BAR: Final = 12.0
_GAP: Final = 0.08
"""The share of the axis that a long time without anything gets."""
_BEYOND: Final = 0.18
"""What still runs may stretch the axis by this share past the last commit: a transaction that stands still must not
squeeze all others."""
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
    """A part of an attempt."""

    kind: str
    start_ms: int
    end_ms: int


def bars_of(each: AttemptTimes, now_ms: int, retried_at_ms: int | None = None) -> list[Bar]:
    """What an attempt spent its time on. `now_ms` ends what still runs, the next attempt what was given up."""
    bars = [Bar("planning", each.issued_at_ms, each.planned_at_ms)]
    over = each.failed_at_ms if each.phase == FAILED else retried_at_ms if each.phase not in OPEN else now_ms
    start = each.planned_at_ms
    steps = (
        ("processing", each.processed_at_ms),
        ("waiting", each.commit_started_at_ms),
        ("committing", each.committed_at_ms),
    )
    for kind, at_ms in steps:
        if at_ms is None:
            bars.append(Bar(_ending(each, kind), start, max(start, over if over is not None else start)))
            break
        bars.append(Bar(kind, start, at_ms))
        start = at_ms
    return bars


def _ending(each: AttemptTimes, kind: str) -> str:
    return {FAILED: "failed", GIVEN_UP: "given-up", REWOUND: "given-up"}.get(each.phase, kind)


@dataclass(frozen=True, slots=True)
class Axis:
    """Time from left to right. In a gap nothing happened for long: it takes only a little room, whatever it lasted."""

    start_ms: int
    end_ms: int
    gaps: Sequence[tuple[int, int]] = ()

    @property
    def shown_ms(self) -> float:
        """What the whole width stands for."""
        return self._shown_until(self.end_ms) or 1

    @property
    def _gap_ms(self) -> float:
        """What a gap is drawn as long as."""
        return _GAP * (self.end_ms - self.start_ms - sum(end - start for start, end in self.gaps))

    def _shown_until(self, at_ms: int) -> float:
        at_ms = min(max(at_ms, self.start_ms), self.end_ms)
        shown = float(at_ms - self.start_ms)
        for start, end in self.gaps:
            within = min(max(at_ms - start, 0), end - start)
            shown += within / (end - start) * self._gap_ms - within
        return shown

    def x(self, at_ms: int) -> float:
        """The place of a moment."""
        return _LEFT + self._shown_until(at_ms) / self.shown_ms * (_WIDTH - _LEFT - _RIGHT)


def gaps_between(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where nothing was in flight for longer than half of the time in which something was."""
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
    """The picture of the newest transactions among these attempts; empty without any."""
    txids = sorted({each.attempt.txid for each in attempts})[-TRANSACTIONS:]
    if not txids:
        return ""
    shown = sorted(
        (each for each in attempts if each.attempt.txid >= txids[0]), key=lambda each: each.attempt.attempt_id
    )
    axis = _axis(shown, now_ms)
    line = {txid: _TOP + number * _LINE for number, txid in enumerate(txids)}
    bottom = _TOP + len(txids) * _LINE
    parts = [
        svg.element("rect", class_="lane even", x=0, y=y - 4, width=_WIDTH, height=_LINE, rx=4)
        for y in list(line.values())[::2]
    ]
    begun = [run for run in runs if axis.start_ms < run.began_at_ms < axis.end_ms]
    below = in_rows(_labels(axis, begun))
    parts += [*_gaps(axis, bottom), *_grid(axis, bottom), *_takeovers(begun, axis, bottom)]
    parts += draw_labels(below, bottom + ROW)
    for txid in txids:
        tries = [each for each in shown if each.attempt.txid == txid]
        parts.append(_transaction(txid, tries, axis, line[txid], now_ms, link(txid)))
    parts += _waited_for(shown, axis, line)
    label = f"Timeline of transactions {txids[0]} to {txids[-1]}; the list of attempts has the same figures"
    return svg.picture(_WIDTH, bottom + 6 + ROW * len(below), label, *parts, class_="staircase")


def _axis(shown: Sequence[AttemptTimes], now_ms: int) -> Axis:
    start_ms = min(each.issued_at_ms for each in shown)
    known = (each.committed_at_ms or each.failed_at_ms or each.processed_at_ms or each.planned_at_ms for each in shown)
    issued = (each.issued_at_ms for each in shown)  # a clock that was set back has endings before all beginnings
    last_ms = max(start_ms + 1, *known, *issued)
    spans = [
        (bars[0].start_ms, max(bars[0].start_ms, bars[-1].end_ms))
        for bars in (bars_of(each, last_ms) for each in shown)
    ]
    gaps = gaps_between(spans)
    if any(each.phase in OPEN for each in shown):
        busy_ms = last_ms - start_ms - sum(end - start for start, end in gaps)
        last_ms = max(last_ms, min(now_ms, last_ms + max(200, int(busy_ms * _BEYOND))))
    return Axis(start_ms, last_ms, gaps)


def _grid(axis: Axis, bottom: float) -> list[str]:
    days = math.ceil(axis.shown_ms / _DAY_MS / 9)  # a clock that was set may have jumped by decades
    step = next((each for each in _STEPS if axis.shown_ms / each < 9), days * _DAY_MS)
    parts, free_from = [svg.text(format_date_time(axis.start_ms)[5:10], 0, _TOP - 14, class_="tick")], 0.0
    for at_ms in _moments(axis, step):
        x = axis.x(at_ms)
        words = format_time_of_day(at_ms)[: 8 if step >= 1_000 else 12]
        parts.append(svg.element("line", class_="grid", x1=x, x2=x, y1=_TOP - 8, y2=bottom))
        if x > free_from:
            parts.append(svg.text(words, x, _TOP - 14, class_="tick", text_anchor="middle"))
            free_from = x + svg.CHARACTER * len(words) + 8
    return parts


def _moments(axis: Axis, step: int) -> Iterator[int]:
    """Round times, but those in a gap."""
    starts = [axis.start_ms, *(end for _, end in axis.gaps)]
    ends = [*(start for start, _ in axis.gaps), axis.end_ms]
    for start, end in zip(starts, ends, strict=True):
        yield from range(start - start % step + step, end + 1, step)


def _gaps(axis: Axis, bottom: float) -> list[str]:
    parts = []
    for start, end in axis.gaps:
        left, right = axis.x(start) + 4, axis.x(end) - 4
        told = svg.title(f"nothing was in flight for {format_duration(end - start)}")
        band = svg.element("rect", class_="gap", x=left, y=_TOP - 4, width=max(right - left, 1.0), height=bottom - _TOP)
        parts.append(svg.element("g", told, band))
    return parts


def _labels(axis: Axis, begun: Sequence[RunRecord]) -> list[Label]:
    """What stands below the lines: how long a gap was, and which run began."""
    idle = [before(format_duration(end - start), axis.x(end) - 4, "idle") for start, end in axis.gaps]
    return idle + [beside(f"run {run.epoch}", axis.x(run.began_at_ms), "takeover", _WIDTH) for run in begun]


def _takeovers(begun: Sequence[RunRecord], axis: Axis, bottom: float) -> list[str]:
    """A line where another run has begun."""
    parts = []
    for run in begun:
        x = axis.x(run.began_at_ms)
        told = svg.title(f"run {run.epoch} began at {format_time_of_day(run.began_at_ms)}: {run.owner}")
        rule = svg.element("line", class_="takeover", x1=x, x2=x, y1=_TOP - 8, y2=bottom + 4)
        parts.append(svg.element("g", told, rule))
    return parts


def _transaction(txid: TxId, tries: Sequence[AttemptTimes], axis: Axis, y: float, now_ms: int, href: str) -> str:
    parts = [
        svg.title("; ".join(_told(each, now_ms) for each in tries)),
        svg.element("rect", class_="lane", x=0, y=y - 4, width=_WIDTH, height=_LINE, rx=4),
        svg.text(f"{txid}", _LEFT - 14, y + 10, class_="txid", text_anchor="end"),
    ]
    if letters := sum(letters_in(each.details) for each in tries):
        told = svg.title(f"{letters} tuple{'' if letters == 1 else 's'} set aside")
        parts.append(svg.element("circle", told, class_="set-aside", cx=_LEFT - 6, cy=y + _BAR / 2, r=3.5))
    for each, later in zip(tries, [*tries[1:], None], strict=True):
        parts += _attempt(each, later, axis, y, now_ms)
    parts.append(_at_its_end(tries[-1], axis, y, now_ms))
    return svg.element("a", *parts, href=href, class_="transaction")


def _attempt(each: AttemptTimes, later: AttemptTimes | None, axis: Axis, y: float, now_ms: int) -> list[str]:
    parts = []
    for bar in bars_of(each, now_ms, None if later is None else later.issued_at_ms):
        x = axis.x(bar.start_ms)
        width = axis.x(bar.end_ms) - x
        if width > 0.2 or bar.kind in ("failed", "given-up"):
            kind = f"{bar.kind} open" if each.phase in OPEN and bar.end_ms == now_ms else bar.kind
            parts.append(svg.element("rect", class_=kind, x=x, y=y, width=max(width, 1.5), height=_BAR, rx=1.5))
        if bar.kind == "failed":
            at = x + (width - 11 if width > 14 else width / 2 - 4)  # within the bar, if there is room
            parts.append(svg.element("path", class_="cross", d=f"M{at:.1f} {y + 2:.1f}l8 8m0 -8l-8 8"))
    return parts


def _at_its_end(each: AttemptTimes, axis: Axis, y: float, now_ms: int) -> str:
    """How long it took, beside its bar; or for how long it has stood."""
    if each.committed_at_ms is not None:
        words, end_ms = format_duration(each.committed_at_ms - each.issued_at_ms), each.committed_at_ms
    elif each.phase in OPEN:
        words, end_ms = format_duration(max(0, now_ms - each.issued_at_ms)) + " …", axis.end_ms
    else:
        words, end_ms = each.phase, max(bar.end_ms for bar in bars_of(each, now_ms))
    return svg.text(words, axis.x(end_ms) + 8, y + 10, class_="took")


def _told(each: AttemptTimes, now_ms: int) -> str:
    spent = ", ".join(f"{bar.kind} {format_duration(bar.end_ms - bar.start_ms)}" for bar in bars_of(each, now_ms))
    rows = "" if each.rows is None else f", {each.rows:,} records"
    return f"attempt {each.attempt} {each.phase}{rows}: {spent}"


def _waited_for(shown: Sequence[AttemptTimes], axis: Axis, line: dict[TxId, float]) -> list[str]:
    """A line from the commit that a transaction waited for to its own."""
    committed = {each.attempt.txid: each for each in shown if each.phase == COMMITTED}
    parts = []
    for txid, each in committed.items():
        before = committed.get(TxId(txid - 1))
        if before is None or before.committed_at_ms is None or each.processed_at_ms is None:
            continue
        if each.processed_at_ms < before.committed_at_ms <= (each.commit_started_at_ms or 0):
            x = axis.x(before.committed_at_ms)
            parts.append(
                svg.element(
                    "path", class_="after", d=f"M{x:.1f} {line[before.attempt.txid] + _BAR:.1f}V{line[txid]:.1f}"
                )
            )
    return parts
