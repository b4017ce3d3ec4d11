"""The tables of `python -m bench appends`, and what they are compared with: made from its file alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.figures import Row, format_rows, select_spread
from bench.targets import Target

COLUMNS = ("what", "rows", "system", "least … median … most")
_KEY = ("what", "form", "system")
_NAMES = {
    "mb_per_s": "{} MB/s",
    "rate_mb_per_s": "at {} MB/s",
    "p50_ms": "p50 {} ms",
    "p99_ms": "p99 {} ms",
    "busy_cores": "{} cores busy",
    "without_ms": "without {} ms",
    "with_ms": "with {} ms",
    "added_ms": "added {} ms",
    "cpu_ms": "with it {} ms of processors",
    "versions": "{} versions",
    "first_ms": "first {} ms",
    "last_ms": "last {} ms",
    "first_start_ms": "first start {} ms",
    "last_start_ms": "last start {} ms",
}


def append_rows(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """A line for each row over its rounds."""
    for key, figures in format_rows(rows, _KEY, _NAMES):
        yield *key, figures


def append_targets(rows: Sequence[Row]) -> Iterator[Target]:
    """What appends are to reach."""
    for form in ("json", "avro"):
        speed = _spread(rows, "backlog", form, "mb_per_s")
        yield Target(f"a backlog of {form}, MB/s", speed, at_least=100, unit="")
    for what, load in (("latency", "half"), ("quarter", "a quarter")):
        for form in ("json", "avro"):
            p99_ms = _spread(rows, what, form, "p99_ms")
            yield Target(f"sent to readable, {form} at {load} load, p99", p99_ms, at_most=1_000, unit="ms")
    for count in ("100 rows", "1,000 rows"):
        added_ms = _spread(rows, "added", count, "added_ms")
        yield Target(f"a sink, added to a transaction of {count}", added_ms, at_most=10, unit="ms")
    growth = _spread(rows, "growth", "1,000 rows", "growth")
    yield Target("a table of 10,000 versions, last against first", growth, at_most=1.2)


def _spread(rows: Sequence[Row], what: str, form: str, name: str) -> dict[str, float] | None:
    return select_spread(rows, name, what=what, form=form, system="ours")
