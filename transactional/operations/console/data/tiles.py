"""The figures at the top of a topology's page, of its present run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transactional.core.store import AttemptTimes, TopologyStatus
from transactional.core.store.history import RunRecord
from transactional.core.store.rules import COMMITTED, FAILED
from transactional.core.store.set_aside import RecentLetters
from transactional.model.drawing.formats import format_count, format_date_time, format_duration, format_short_count
from transactional.operations.console.data.figures import DAY_MS, committed_of, phases_of

_LATENCY_OF: Final = 100
_RATE_MS: Final = 60_000
_RATE_OF_AT_LEAST: Final = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the overview."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    link: str = ""
    """The page of the topology that has more about the figure."""


def percentile(values: Sequence[int], share: float) -> int | None:
    """Return the value that this share of the values does not exceed, or None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def attempts_of_run(recent: Sequence[AttemptTimes], run: RunRecord | None) -> list[AttemptTimes]:
    """Return the attempts of a run: those of earlier runs say nothing about the present. An attempt that was committed
    after the run began belongs to it, whatever the clocks say."""
    if run is None:
        return list(recent)
    later = (attempt for attempt in recent if attempt.attempt.txid > run.began_at_txid)
    return [attempt for attempt in later if attempt.phase == COMMITTED or attempt.issued_at_ms >= run.began_at_ms]


@dataclass(frozen=True, slots=True)
class Rate:
    """Records per second, and the milliseconds over which they were counted."""

    per_second: float
    over_ms: int


def rate_of(committed: Sequence[AttemptTimes], until_ms: int) -> Rate | None:
    """Return the rate of the last minute, or since the fourth last commit if that is longer ago, so that a source that
    falls silent has a rate of 0 after a while. `committed` is newest first."""
    times = [attempt.committed_at_ms or 0 for attempt in committed]
    if len(times) < 2:
        return None
    since_ms = max(times[-1], min(until_ms - _RATE_MS, times[:_RATE_OF_AT_LEAST][-1]))
    rows = sum(attempt.rows or 0 for attempt, at_ms in zip(committed, times, strict=True) if at_ms > since_ms)
    over_ms = until_ms - since_ms
    return Rate(rows * 1_000 / over_ms, over_ms) if over_ms > 0 else None


def tiles_of(status: TopologyStatus, recent: Sequence[AttemptTimes], now_ms: int) -> list[Tile]:
    """Return the figures at the top of a topology's page, of its last run. `recent` is newest first."""
    attempts = attempts_of_run(recent, status.run)
    committed = committed_of(attempts)
    took = [phases_of(attempt).total or 0 for attempt in committed[:_LATENCY_OF]]
    return [
        Tile("committed transactions", format_count(status.committed_txid), format_age(status.committed_at_ms, now_ms)),
        _rate_tile(status, committed, now_ms),
        Tile(
            "latency, median",
            format_duration(percentile(took, 0.5)),
            f"95 %: {format_duration(percentile(took, 0.95))}",
        ),
        Tile("lag", format_short_count(status.lag), "records behind", link="partitions"),
        _failed_tile(status, attempts),
    ]


def letters_tiles(set_aside: RecentLetters) -> list[Tile]:
    """Return the figure of dead letters, or nothing without dead letters."""
    if not set_aside.letters:
        return []
    return [Tile("dead letters", format_count(set_aside.letters), set_aside.scope, link="letters")]


def format_age(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago a commit was, or its date and time if that is more than a day."""
    if at_ms is None:
        return "nothing committed yet"
    since_ms = max(0, now_ms - at_ms)
    return format_date_time(at_ms) if since_ms > DAY_MS else f"{format_duration(since_ms)} ago"


def _failed_tile(status: TopologyStatus, attempts: Sequence[AttemptTimes]) -> Tile:
    failed = sum(attempt.phase == FAILED for attempt in attempts)
    note = f"of {format_count(len(attempts))} in run {status.epoch}"
    return Tile("failed attempts", format_count(failed), note, *(("bad", "attempts?phase=failed") if failed else ()))


def _rate_tile(status: TopologyStatus, committed: Sequence[AttemptTimes], now_ms: int) -> Tile:
    """Return the figure of the rate: of a run that has ended it is the rate at the last commit."""
    until_ms = now_ms if status.is_leased or not committed else committed[0].committed_at_ms or 0
    rate = rate_of(committed, until_ms)
    note = (
        "too few transactions" if rate is None else f"over {format_duration(round(rate.over_ms, -3) or rate.over_ms)}"
    )
    return Tile("records per second", format_short_count(None if rate is None else rate.per_second), note)
