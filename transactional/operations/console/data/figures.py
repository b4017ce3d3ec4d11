"""What the pages say in figures, computed from what the store holds of a topology."""

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
"""So many of the last attempts are read for an overview."""
DAY_MS: Final = 86_400_000
_EDGES_OF: Final = 20


@dataclass(frozen=True, slots=True)
class Phases:
    """How long an attempt took by phase, in milliseconds; None: not reached."""

    planning: int
    processing: int | None
    waiting: int | None
    committing: int | None

    @property
    def total(self) -> int | None:
        """From issue to commit."""
        parts = (self.processing, self.waiting, self.committing)
        return None if None in parts else self.planning + sum(part or 0 for part in parts)


def phases_of(each: AttemptTimes) -> Phases:
    """The time of an attempt by phase."""

    def between(start_ms: int | None, end_ms: int | None) -> int | None:
        return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)

    return Phases(
        max(0, each.planned_at_ms - each.issued_at_ms),
        between(each.planned_at_ms, each.processed_at_ms),
        between(each.processed_at_ms, each.commit_started_at_ms),
        between(each.commit_started_at_ms, each.committed_at_ms),
    )


def committed_of(attempts: Sequence[AttemptTimes]) -> list[AttemptTimes]:
    """Those that were committed, in the order given."""
    return [each for each in attempts if each.phase == COMMITTED and each.committed_at_ms is not None]


def event_time_in(details: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What was recorded of event time with a transaction commit (`event_time_of`); empty: nothing."""
    found: Mapping[str, Any] = (details or {}).get("event_time", {})
    return found


def tuples_by_edge(recent: Sequence[AttemptTimes]) -> dict[tuple[str, str, str], float]:
    """Mean number of tuples per transaction, by source, stream and target; of what was recorded."""
    sums = defaultdict[tuple[str, str, str], float](float)
    known = [each for each in committed_of(recent) if "edges" in (each.details or {})][:_EDGES_OF]
    for each in known:
        for source, stream, target, number in (each.details or {})["edges"]:
            sums[source, stream, target] += number / len(known)
    return dict(sums)


# --- series -------------------------------------------------------------------------------------------------------

SLOTS: Final = 72


@dataclass(frozen=True, slots=True)
class Span:
    """How far back the charts go; a slot of a day's chart is a quarter of an hour, of a month's ten hours."""

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
    """What was committed in one part of the time shown."""

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
        """Records per second."""
        return [slot.rows * 1_000 / self.slot_ms for slot in self.slots]

    @property
    def lags(self) -> list[float]:
        """The highest lag; in a part without a commit that of before."""
        return _filled(slot.lag for slot in self.slots)

    @property
    def behind_s(self) -> list[float]:
        """How many seconds the watermark was behind the newest event, at most; without a commit as before."""
        return [ms / 1_000 for ms in _filled(slot.behind_ms for slot in self.slots)]

    def spent(self, phase: str) -> list[float]:
        """Mean milliseconds of a transaction in a phase."""
        return [slot.spent_ms[phase] / max(1, slot.transactions) for slot in self.slots]


def _filled(values: Iterable[float | None]) -> list[float]:
    found, last = list[float](), 0.0
    for value in values:
        last = last if value is None else float(value)
        found.append(last)
    return found


def series_of(recent: Sequence[AttemptTimes]) -> Series | None:
    """The committed ones of these attempts over time; None: too few for a line."""
    committed = committed_of(recent)
    times = [each.committed_at_ms or 0 for each in committed]
    if len(committed) < 3 or max(times) == min(times):
        return None
    start_ms = min(times)
    number = min(SLOTS, len(committed))
    slot_ms = (max(times) - start_ms) / number
    slots = [Slot() for _ in range(number)]
    for each, at_ms in zip(committed, times, strict=True):
        _add(slots[min(number - 1, int((at_ms - start_ms) / slot_ms))], each)
    return Series(start_ms, slot_ms, slots)


def _add(slot: Slot, each: AttemptTimes) -> None:
    slot.transactions += 1
    slot.rows += each.rows or 0
    lag = lag_in(each.details)
    if lag is not None:
        slot.lag = max(lag, slot.lag or 0)
    reached = event_time_in(each.details)
    if reached and None not in (reached["newest_us"], reached["watermark_us"]):
        slot.behind_ms = max((reached["newest_us"] - reached["watermark_us"]) / 1_000, slot.behind_ms or 0)
    phases = phases_of(each)
    for phase in slot.spent_ms:
        slot.spent_ms[phase] += getattr(phases, phase) or 0


def series_of_minutes(minutes: Sequence[MinuteRecord], now_ms: int, span: Span) -> Series:
    """What was committed in the last hour, day or month, from the sums by minute."""
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
    """A partition as of the last transaction commit. `share` of the highest lag, from 0 to 1."""

    name: str
    position: int
    records: int
    lag: int | None
    share: float = 0.0
    event_ms: int | None = None
    """Its newest event time."""


def lags_in(details: Mapping[str, Any] | None) -> dict[tuple[str, int], int]:
    """The lag by partition that was recorded with a transaction commit."""
    return {(source, index): lag for source, index, lag in (details or {}).get("lags", ())}


@dataclass(frozen=True, slots=True)
class StateRow:
    """A committer's state: what it is, and what its last commit did, as far as that was recorded."""

    component: str
    identity: Mapping[str, Any]
    facts: Mapping[str, Any]
    upkeep_failure: str = ""
    """Why its table could not be maintained, as of that commit; empty if it was."""


def states_of(status: TopologyStatus, newest: AttemptTimes | None) -> list[StateRow]:
    """The states of a topology."""
    facts = (newest.details or {}).get("states", {}) if newest is not None else {}
    upkeep = {} if newest is None else upkeep_in(newest.details)
    committers = status.fingerprint.get("committers", {})
    if newest is not None and newest.details is not None:
        facts = {DEAD_LETTERS: {"rows": letters_in(newest.details)}, **facts}  # their table is written by no step
    return [
        StateRow(str(name), identity, facts.get(name, {}), upkeep.get(name, ""))
        for name, identity in committers.items()
    ]
