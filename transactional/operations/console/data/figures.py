"""The figures of the pages, computed from the attempts, minutes and status that the store has of a topology."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.core.store import AttemptTimes, TopologyStatus
from transactional.core.store.history import MinuteRecord
from transactional.core.store.rules import COMMITTED, lag_in, letters_in, upkeep_in
from transactional.model.names import DEAD_LETTERS

RECENT: Final = 300
"""The number of newest attempts that are read for an overview."""
DAY_MS: Final = 86_400_000
_EDGES_OF: Final = 20


@dataclass(frozen=True, slots=True)
class Phases:
    """The duration of an attempt by phase, in milliseconds; None for a phase that it has not reached."""

    planning: int
    processing: int | None
    waiting: int | None
    committing: int | None

    @property
    def total(self) -> int | None:
        """The milliseconds from issue to commit, or None if the attempt was not committed."""
        parts = (self.processing, self.waiting, self.committing)
        return None if None in parts else self.planning + sum(part or 0 for part in parts)


def phases_of(attempt: AttemptTimes) -> Phases:
    """Return the duration of an attempt by phase."""

    def milliseconds_between(start_ms: int | None, end_ms: int | None) -> int | None:
        return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)

    return Phases(
        max(0, attempt.planned_at_ms - attempt.issued_at_ms),
        milliseconds_between(attempt.planned_at_ms, attempt.processed_at_ms),
        milliseconds_between(attempt.processed_at_ms, attempt.commit_started_at_ms),
        milliseconds_between(attempt.commit_started_at_ms, attempt.committed_at_ms),
    )


def committed_of(attempts: Sequence[AttemptTimes]) -> list[AttemptTimes]:
    """Return the attempts that were committed, in the order given."""
    return [attempt for attempt in attempts if attempt.phase == COMMITTED and attempt.committed_at_ms is not None]


def event_time_in(details: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the event time that was recorded with a transaction commit (`event_time_of`), or nothing."""
    event_time: Mapping[str, Any] = (details or {}).get("event_time", {})
    return event_time


def tuples_by_edge(recent: Sequence[AttemptTimes]) -> dict[tuple[str, str, str], float]:
    """Return the mean number of tuples per transaction by source, stream and target, of the newest commits."""
    sums = defaultdict[tuple[str, str, str], float](float)
    counted = [attempt for attempt in committed_of(recent) if "edges" in (attempt.details or {})][:_EDGES_OF]
    for attempt in counted:
        for source, stream, target, number in (attempt.details or {})["edges"]:
            sums[source, stream, target] += number / len(counted)
    return dict(sums)


# --- series -------------------------------------------------------------------------------------------------------

SLOTS: Final = 72


@dataclass(frozen=True, slots=True)
class Span:
    """The time that charts cover, and the number of its slots: one of a day's chart is a quarter of an hour."""

    words: str
    ms: int
    slots: int


SPANS: Final = {
    "hour": Span("last hour", 3_600_000, 60),
    "day": Span("last day", DAY_MS, 96),
    "month": Span("last 30 days", 30 * DAY_MS, 72),
}


@dataclass(slots=True)
class Slot:
    """The sums of the transactions that were committed in one part of a chart's time."""

    transactions: int = 0
    rows: int = 0
    lag: int | None = None
    behind_ms: float | None = None
    spent_ms: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("planning", "processing", "waiting", "committing"), 0)
    )


@dataclass(frozen=True, slots=True)
class Series:
    """Equal parts of the time from the first commit shown to the last."""

    start_ms: int
    slot_ms: float
    slots: Sequence[Slot]

    @property
    def rates(self) -> list[float]:
        """The records per second by slot."""
        return [slot.rows * 1_000 / self.slot_ms for slot in self.slots]

    @property
    def lags(self) -> list[float]:
        """The highest lag by slot; a slot without a commit has that of the slot before it."""
        return _fill_from_previous(slot.lag for slot in self.slots)

    @property
    def behind_s(self) -> list[float]:
        """The greatest lag of the watermark in seconds by slot; a slot without a commit has that of the one before."""
        return [ms / 1_000 for ms in _fill_from_previous(slot.behind_ms for slot in self.slots)]

    def spent(self, phase: str) -> list[float]:
        """Return by slot the mean milliseconds that a transaction spent in a phase."""
        return [slot.spent_ms[phase] / max(1, slot.transactions) for slot in self.slots]


def _fill_from_previous(figures: Iterable[float | None]) -> list[float]:
    filled, last = list[float](), 0.0
    for figure in figures:
        last = last if figure is None else float(figure)
        filled.append(last)
    return filled


def series_of(recent: Sequence[AttemptTimes]) -> Series | None:
    """Return the series of the committed ones of these attempts, or None if they are too few for a line."""
    committed = committed_of(recent)
    times = [attempt.committed_at_ms or 0 for attempt in committed]
    if len(committed) < 3 or max(times) == min(times):
        return None
    start_ms = min(times)
    number = min(SLOTS, len(committed))
    slot_ms = (max(times) - start_ms) / number
    slots = [Slot() for _ in range(number)]
    for attempt, at_ms in zip(committed, times, strict=True):
        _add_attempt(slots[min(number - 1, int((at_ms - start_ms) / slot_ms))], attempt)
    return Series(start_ms, slot_ms, slots)


def _add_attempt(slot: Slot, attempt: AttemptTimes) -> None:
    slot.transactions += 1
    slot.rows += attempt.rows or 0
    lag = lag_in(attempt.details)
    if lag is not None:
        slot.lag = max(lag, slot.lag or 0)
    event_time = event_time_in(attempt.details)
    if event_time and None not in (event_time["newest_us"], event_time["watermark_us"]):
        slot.behind_ms = max((event_time["newest_us"] - event_time["watermark_us"]) / 1_000, slot.behind_ms or 0)
    phases = phases_of(attempt)
    for phase in slot.spent_ms:
        slot.spent_ms[phase] += getattr(phases, phase) or 0


def series_of_minutes(minutes: Sequence[MinuteRecord], now_ms: int, span: Span) -> Series:
    """Return the series of a span that ends now, from the sums by minute."""
    start_ms = now_ms - span.ms
    slots = [Slot() for _ in range(span.slots)]
    slot_ms = span.ms / span.slots
    for minute in minutes:
        if start_ms <= minute.at_ms < now_ms:
            _add_minute(slots[int((minute.at_ms - start_ms) / slot_ms)], minute)
    return Series(start_ms, slot_ms, slots)


def _add_minute(slot: Slot, minute: MinuteRecord) -> None:
    slot.transactions += minute.transactions
    slot.rows += minute.rows
    slot.lag = max(minute.lag_max, slot.lag or 0)
    for phase in slot.spent_ms:
        slot.spent_ms[phase] += minute.phases_ms.get(phase, 0)


# --- partitions and states ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition as of the last transaction commit. `share` is its part of the highest lag, from 0 to 1."""

    name: str
    position: int
    records: int
    lag: int | None
    share: float = 0.0
    event_ms: int | None = None
    """The newest event time of the partition, if it has any."""


def lags_in(details: Mapping[str, Any] | None) -> dict[tuple[str, int], int]:
    """Return the lag by partition that was recorded with a transaction commit."""
    return {(source, index): lag for source, index, lag in (details or {}).get("lags", ())}


@dataclass(frozen=True, slots=True)
class StateRow:
    """A committer's state: its identity, and the recorded facts of its last commit."""

    component: str
    identity: Mapping[str, Any]
    facts: Mapping[str, Any]
    upkeep_failure: str = ""
    """Why its table could not be maintained, as of that commit; empty if it was."""


def states_of(status: TopologyStatus, newest: AttemptTimes | None) -> list[StateRow]:
    """Return the states of a topology, with the facts of its newest committed attempt."""
    facts = (newest.details or {}).get("states", {}) if newest is not None else {}
    upkeep = {} if newest is None else upkeep_in(newest.details)
    committers = status.fingerprint.get("committers", {})
    if newest is not None and newest.details is not None:
        facts = {DEAD_LETTERS: {"rows": letters_in(newest.details)}, **facts}  # their table is written by no step
    return [
        StateRow(str(name), identity, facts.get(name, {}), upkeep.get(name, ""))
        for name, identity in committers.items()
    ]
