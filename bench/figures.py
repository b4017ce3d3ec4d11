"""From rounds to figures: percentiles, medians with their spread, and ratios between rounds that ran side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.rounds import Round


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, median and largest of some figures."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        """The spread of at least one figure."""
        return cls(min(figures), statistics.median(figures), max(figures))


@dataclass(frozen=True, slots=True)
class Summary:
    """All rounds of one system with one batch size. Latencies in milliseconds."""

    system: str
    batch_messages: int
    messages_per_second: Spread
    batches: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    whole_p50_ms: float
    phases_ms: dict[str, float]
    """Medians by phase; of batches but the first of a round."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times quicker one system was than another, round by round."""

    system: str
    peer: str
    batch_messages: int
    throughput: Spread
    latency: Spread
    """Of the rounds' p50, peer's over ours."""


def percentile(figures: Sequence[float], percent: float) -> float:
    """The smallest figure that is not below `percent` of them (nearest rank)."""
    ordered = sorted(figures)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summarise(rounds: Sequence[Round]) -> Summary:
    """The figures of rounds of one system and one batch size."""
    batches = [batch for each in rounds for batch in each.batches[1:]]
    latencies = [batch.planned_ms for batch in batches]
    names = dict.fromkeys(name for batch in batches for name in batch.phases)
    return Summary(
        system=rounds[0].system,
        batch_messages=rounds[0].batch_messages,
        messages_per_second=Spread.of([each.messages_per_second for each in rounds]),
        batches=len(batches),
        p50_ms=percentile(latencies, 50),
        p95_ms=percentile(latencies, 95),
        p99_ms=percentile(latencies, 99),
        whole_p50_ms=percentile([batch.whole_ms for batch in batches], 50),
        phases_ms={name: statistics.median(batch.phases.get(name, 0) for batch in batches) for name in names},
    )


def compare(ours: Sequence[Round], theirs: Sequence[Round]) -> Ratio:
    """Ratios of the i-th round of one to the i-th round of the other, which ran right after it."""
    pairs = list(zip(ours, theirs, strict=False))
    return Ratio(
        system=ours[0].system,
        peer=theirs[0].system,
        batch_messages=ours[0].batch_messages,
        throughput=Spread.of([a.messages_per_second / b.messages_per_second for a, b in pairs]),
        latency=Spread.of([percentile(b.latencies_ms, 50) / percentile(a.latencies_ms, 50) for a, b in pairs]),
    )
