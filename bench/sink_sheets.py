"""The tables of `python -m bench sinks`, and what they are compared with: made from its file alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.figures import Row, format_rows, select_spread
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
    "cpu_ms": "with it {} ms of processors",
}


def sink_rows(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """A line for each row over its rounds."""
    for (what, records, system), figures in format_rows(rows, _KEY, _NAMES):
        yield what, f"{records:,}", system, figures


def sink_targets(rows: Sequence[Row]) -> Iterator[Target]:
    """What sinks are to reach."""
    for start, name, most in (("consumed", "consumed_p50_ms", 30), ("sent", "p50_ms", None)):
        latency = _spread(rows, "latency", 1_000, name)
        yield Target(f"{start} to visible, 1,000 records/s, p50", latency, at_most=most, unit="ms")
    speed = _spread(rows, "throughput", 200_000, "speed")
    yield Target("a backlog, 200,000 records a transaction, records/s", speed, at_least=400_000, unit="")
    for what, pace in (("added", "at full load"), ("paced", "with pauses")):
        for records in (1_000, 20_000):
            added = _spread(rows, what, records, "added_ms")
            yield Target(f"a sink, added to a transaction of {records:,}, {pace}", added, at_most=10, unit="ms")


def _spread(rows: Sequence[Row], what: str, records: int, name: str) -> dict[str, float] | None:
    return select_spread(rows, name, what=what, records=records, system="ours")
