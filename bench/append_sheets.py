"""The tables of `python -m bench appends`, and what they are compared with: made from its file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.figures import Spread
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
    "versions": "{} versions",
    "first_ms": "first {} ms",
    "last_ms": "last {} ms",
    "first_start_ms": "first start {} ms",
    "last_start_ms": "last start {} ms",
}


def append_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """A line for each row over its rounds."""
    for key in dict.fromkeys(tuple(row[name] for name in _KEY) for row in rows):
        rounds = _rounds(rows, *key)
        figures = (text.format(format_spread(rounds, name)) for name, text in _NAMES.items() if name in rounds[0])
        yield *key, ", ".join(figures)


def append_targets(rows: Sequence[Mapping[str, Any]]) -> Iterator[Target]:
    """What appends are to reach."""
    for form in ("json", "avro"):
        speed = _figure(rows, "backlog", form, "mb_per_s")
        yield Target(f"a backlog of {form}, MB/s", speed, at_least=100, unit="")
    for what, load in (("latency", "half"), ("quarter", "a quarter")):
        for form in ("json", "avro"):
            p99_ms = _figure(rows, what, form, "p99_ms")
            yield Target(f"sent to readable, {form} at {load} load, p99", p99_ms, at_most=1_000, unit="ms")
    for count in ("100 rows", "1,000 rows"):
        added_ms = _figure(rows, "added", count, "added_ms")
        yield Target(f"a sink, added to a transaction of {count}", added_ms, at_most=10, unit="ms")
    growth = _figure(rows, "growth", "1,000 rows", "growth")
    yield Target("a table of 10,000 versions, last against first", growth, at_most=1.2)


def _rounds(rows: Sequence[Mapping[str, Any]], *key: object) -> list[Mapping[str, Any]]:
    return [row for row in rows if tuple(row[name] for name in _KEY) == key]


def format_spread(rounds: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the lowest, the median and the highest figure of some rounds."""
    spread = Spread.of([row[name] for row in rounds])
    return " … ".join(f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" for figure in asdict(spread).values())


def _figure(rows: Sequence[Mapping[str, Any]], what: str, form: str, name: str) -> Any:
    rounds = _rounds(rows, what, form, "ours")
    return asdict(Spread.of([row[name] for row in rounds])) if rounds else None
