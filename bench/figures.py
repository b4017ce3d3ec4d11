"""From rounds to figures: percentiles, medians with their spread, and ratios between rounds that ran side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
    """All rounds of one system with one work and batch size. Latencies in milliseconds, from planned to committed.

    Batches are all but the first of each round. `bytes_per_message` are those of new files: data, log, checkpoint.
    """

    work: str
    system: str
    batch_messages: int
    messages_per_second: Spread
    batches: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    whole_p50_ms: float | None
    mean_ms: float | None
    phases_ms: dict[str, float]
    """Medians by phase."""
    bytes_per_message: float
    bytes_per_batch: float
    peaks_mib: dict[str, float]
    """The largest memory by part: driver, jvm, workers."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times quicker one system was than another, round by round."""

    work: str
    system: str
    peer: str
    batch_messages: int
    throughput: Spread
    latency: Spread | None
    """Of the rounds' p50, peer's over ours."""


Row = Mapping[str, Any]
"""What one round of a benchmark has measured, and its key: what was measured, of which system, at which size."""


def select_rows(rows: Sequence[Row], **key: object) -> list[Row]:
    """Return the rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in key.items())]


def select_spread(rows: Sequence[Row], name: str, **key: object) -> dict[str, float] | None:
    """Return the spread of a figure over the rows with this key that have it; None if there are none."""
    figures = [row[name] for row in select_rows(rows, **key) if name in row]
    return asdict(Spread.of(figures)) if figures else None


def format_rows(
    rows: Sequence[Row], key: Sequence[str], texts: Mapping[str, str]
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield each key of the rows, and in words the lowest, the median and the highest of its figures.

    `texts` has a text with a placeholder for each figure.
    """
    for values in dict.fromkeys(tuple(row[name] for name in key) for row in rows):
        rounds = select_rows(rows, **dict(zip(key, values, strict=True)))
        spreads = {name: Spread.of([row[name] for row in rounds]) for name in texts if name in rounds[0]}
        yield values, ", ".join(texts[name].format(_format_spread(spread)) for name, spread in spreads.items())


def _format_spread(spread: Spread) -> str:
    return " … ".join(f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" for figure in asdict(spread).values())


def percentile(figures: Sequence[float], percent: float) -> float:
    """The smallest figure that is not below `percent` of them (nearest rank)."""
    ordered = sorted(figures)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summarise(rounds: Sequence[Round]) -> Summary:
    """The figures of rounds of one system, work and batch size."""
    batches = [batch for each in rounds for batch in each.batches[1:]]
    latencies = [batch.planned_ms for batch in batches]
    names = dict.fromkeys(name for batch in batches for name in batch.phases)
    parts = dict.fromkeys(part for each in rounds for part in each.peaks_mib)
    written, whole = sum(each.bytes_written for each in rounds), [batch.whole_ms for batch in batches]
    return Summary(
        work=rounds[0].work,
        system=rounds[0].system,
        batch_messages=rounds[0].batch_messages,
        messages_per_second=Spread.of([each.messages_per_second for each in rounds]),
        batches=len(batches),
        p50_ms=percentile(latencies, 50) if latencies else None,
        p95_ms=percentile(latencies, 95) if latencies else None,
        p99_ms=percentile(latencies, 99) if latencies else None,
        whole_p50_ms=percentile(whole, 50) if whole else None,
        mean_ms=statistics.mean(latencies) if latencies else None,
        phases_ms={name: statistics.median(batch.phases.get(name, 0) for batch in batches) for name in names},
        bytes_per_message=written / sum(each.messages for each in rounds),
        bytes_per_batch=written / sum(len(each.batches) for each in rounds),
        peaks_mib={part: max(each.peaks_mib.get(part, 0) for each in rounds) for part in parts},
    )


def compare(ours: Sequence[Round], theirs: Sequence[Round]) -> Ratio:
    """Ratios of the i-th round of one to the i-th round of the other, which ran beside it."""
    pairs = list(zip(ours, theirs, strict=False))
    timed = all(each.latencies_ms for each in (*ours, *theirs))
    return Ratio(
        work=ours[0].work,
        system=ours[0].system,
        peer=theirs[0].system,
        batch_messages=ours[0].batch_messages,
        throughput=Spread.of([a.messages_per_second / b.messages_per_second for a, b in pairs]),
        latency=Spread.of([_p50(b) / _p50(a) for a, b in pairs]) if timed else None,
    )


def _p50(each: Round) -> float:
    return percentile(each.latencies_ms, 50)
