"""The tables of `python -m bench sinks`, and what they are compared with: made from its file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.append_sheets import format_spread
from bench.figures import Spread
from bench.targets import Target

COLUMNS = ("what", "records", "system", "least … median … most")
_KEY = ("what", "records", "system")
_NAMES = {
    "p50_ms": "p50 {} ms",
    "p99_ms": "p99 {} ms",
    "consumed_p50_ms": "consumed p50 {} ms",
    "consumed_p99_ms": "consumed p99 {} ms",
    "speed": "{} records/s",
    "without_ms": "without {} ms",
    "with_ms": "with {} ms",
    "added_ms": "added {} ms",
}


def sink_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """A line for each row over its rounds."""
    for what, records, system in dict.fromkeys(tuple(row[name] for name in _KEY) for row in rows):
        rounds = _rounds(rows, what, records, system)
        figures = (text.format(format_spread(rounds, name)) for name, text in _NAMES.items() if name in rounds[0])
        yield what, f"{records:,}", system, ", ".join(figures)


def sink_targets(rows: Sequence[Mapping[str, Any]]) -> Iterator[Target]:
    """What sinks are to reach."""
    for start, name, most in (("consumed", "consumed_p50_ms", 30), ("sent", "p50_ms", None)):
        latency = _figure(rows, "latency", 1_000, name)
        yield Target(f"{start} to visible, 1,000 records/s, p50", latency, at_most=most, unit="ms")
    speed = _figure(rows, "throughput", 200_000, "speed")
    yield Target("a backlog, 200,000 records a transaction, records/s", speed, at_least=400_000, unit="")
    for records in (1_000, 20_000):
        added = _figure(rows, "added", records, "added_ms")
        yield Target(f"a sink, added to a transaction of {records:,}", added, at_most=10, unit="ms")


def _rounds(rows: Sequence[Mapping[str, Any]], *key: object) -> list[Mapping[str, Any]]:
    return [row for row in rows if tuple(row[name] for name in _KEY) == key]


def _figure(rows: Sequence[Mapping[str, Any]], what: str, records: int, name: str) -> Any:
    rounds = [row for row in _rounds(rows, what, records, "ours") if name in row]
    return asdict(Spread.of([row[name] for row in rounds])) if rounds else None
