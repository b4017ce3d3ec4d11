"""What is to be reached, and what was: the one list of targets, computed from the parts' files alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Documents = Mapping[str, Any]
"""The parts' files, by part."""

Figure = float | Mapping[str, float]
"""One figure, or a spread with min, median and max."""

NOT_MEASURED = "not measured"
WHOLE_RUN = 5_000
"""Transactions over which memory has to stay flat."""

TIMES = "\N{MULTIPLICATION SIGN}"

KEYS = "keys-8k"
"""The work of the pairs: a count per key, 8,000 keys."""


@dataclass(frozen=True, slots=True)
class Target:
    """One line: what, where the limit is (None: only reported), and what was reached (None: not measured).

    Of a spread the median counts.
    """

    what: str
    reached: Figure | None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = TIMES
    note: str = ""

    @property
    def wanted(self) -> str:
        """The limit, as text."""
        if self.at_least is not None:
            return f"≥ {formatted(self.at_least)} {self.unit}"
        return f"≤ {formatted(self.at_most)} {self.unit}".strip() if self.at_most is not None else "reported"

    @property
    def shown(self) -> str:
        """What was reached, with the spread where there is one."""
        if self.reached is None:
            return NOT_MEASURED
        figures = _figures(self.reached)
        return " … ".join(map(formatted, figures)) + f" {self.unit}".rstrip() + (f" ({self.note})" if self.note else "")

    @property
    def is_met(self) -> bool | None:
        """None where there is nothing to be met, or nothing was measured."""
        if self.reached is None or self.wanted == "reported":
            return None
        median = _figures(self.reached)[len(_figures(self.reached)) // 2]
        return median >= self.at_least if self.at_least is not None else median <= (self.at_most or 0)


def targets(documents: Documents) -> list[Target]:
    """All lines, in the order in which they are shown."""
    return [
        *_against_peers(documents),
        *_in_flight(documents),
        *_tables(documents),
        *_streams(documents),
        *_windows(documents),
        *_lookups(documents),
        *_guarantees(documents),
        *_steady(documents),
    ]


def formatted(figure: float | None) -> str:
    """A figure with three digits at most, and no more zeros than it needs."""
    if figure is None:
        return "-"
    if figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.{1 if figure >= 10 else 2}f}".rstrip("0").rstrip(".")


def ratio(documents: Documents, part: str, key: tuple[str, str, str, int], what: str = "throughput") -> Any:
    """A ratio of work, system, peer and batch size, None where it was not measured."""
    for each in documents.get(part, {}).get("ratios", []):
        if (each["work"], each["system"], each["peer"], each["batch_messages"]) == key:
            return each[what]
    return None


def _against_peers(documents: Documents) -> Iterator[Target]:
    merge, expert, raw = "Structured Streaming + MERGE", "the expert's recipe", "raw consumers into Arrow"

    def pair(peer: str, size: int) -> Any:
        return ratio(documents, "pairs", (KEYS, "ours-3", peer, size))

    yield Target(f"messages/s against {merge}, 200,000", pair("merge", 200_000))
    yield Target(f"messages/s against {merge}, 20,000", pair("merge", 20_000), at_least=12)
    latency = ratio(documents, "pairs", (KEYS, "ours-1", "merge", 1_000), "latency")
    yield Target("p50 planned → committed against its trigger, 1,000", latency, at_least=10, unit=f"{TIMES} shorter")
    for size, least in ((1_000, 8), (20_000, 3), (200_000, 2.5)):
        yield Target(f"messages/s against {expert}, {size:,}", pair("expert", size), at_least=least)
    for size in (200_000, 1_000_000):
        found = ratio(documents, "raw", (KEYS, "ours-3", "raw", size))
        yield Target(f"messages/s against {raw}, {size:,}", found, at_least=0.85)
    for size in (20_000, 200_000):
        found = ratio(documents, "bolts", ("capitals", "ours-dataframe", "ours-tuples", size))
        yield Target(f"DataFrame bolt against tuple-wise Python, messages/s, {size:,}", found)
    found = ratio(documents, "partitions", ("partitions", "ours-over-128", "ours-over-4", 20_000))
    yield Target("messages/s over 128 partitions of Kafka against 4, 20,000", found)


def _in_flight(documents: Documents) -> Iterator[Target]:
    what = "throughput of 3 in flight against 1, where the commit phase ≥ half of processing"
    found = [
        (summary, ratio(documents, part, (summary["work"], "ours-3", "ours-1", summary["batch_messages"])))
        for part in ("pairs", "works")
        for summary in documents.get(part, {}).get("summaries", [])
        if summary["system"] == "ours-1" and commit_weighs(summary["phases_ms"])
    ]
    for summary, reached in found:
        yield Target(f"{what}: {summary['work']}, {summary['batch_messages']:,}", reached, at_least=1.5)
    if not found:
        yield Target(what, None, at_least=1.5)


def commit_weighs(phases_ms: Mapping[str, float]) -> bool:
    """Whether the commit phase takes at least half as long as processing."""
    return phases_ms.get("commit", 0) >= phases_ms.get("processing", float("inf")) / 2


def _tables(documents: Documents) -> Iterator[Target]:
    tables = documents.get("tables", {})
    small, large = _small_and_large(tables.get("size", []))
    what = "transaction commit of 20,000 keys into 10⁷ keys against into 2·10⁴"
    yield Target(f"mean {what}, with the compactions' share", _over(large, small, "mean_ms"), at_most=3)
    yield Target(f"p50 of the {what}", _over(large, small, "p50_ms"), at_most=1.3)
    yield Target(f"p99 of the {what}", _over(large, small, "p99_ms"), at_most=2)
    for layout, times in ({"log": []} | tables.get("update", {})).items():
        reached = times[-1] / times[0] if times else None
        limit = 3 if layout == "log" else None
        yield Target(f"read-modify-write, p50, 10⁷ keys against 2·10⁴, layout {layout}", reached, at_most=limit)
    what = "reading 10⁷ keys through the view with 50 uncompacted transactions against compacted"
    reading, spark = tables.get("read"), tables.get("spark")
    yield Target(what, _over(reading, reading, "uncompacted_ms", "compacted_ms"), at_most=1.5)
    if spark:
        yield Target(f"{what}, in Spark", _over(spark, spark, "uncompacted_ms", "compacted_ms"), at_most=1.5)
    for kept, age in ages(tables) or [("", {})]:
        version = f"version {age['version']:,}" if age else "version 10,000"
        yield Target(
            f"transaction at {version} against a young table{kept}", _over(age, age, "old_ms", "young_ms"), at_most=1.2
        )


def _streams(documents: Documents) -> Iterator[Target]:
    found = documents.get("streams", {}).get("streams", {})
    for name, beside, limit in (
        ("a word count in Arrow", "a bolt by hand", 0.95),
        ("three operations on tuples", "three tuple-wise bolts", 2),
    ):
        reached = found.get(name, {}).get("times")
        yield Target(f"{name} as a stream against {beside}, throughput by processor time", reached, at_least=limit)


def _windows(documents: Documents) -> Iterator[Target]:
    def pair(ours: str, size: int, what: str = "throughput") -> Any:
        return ratio(documents, "windows", ("windows", ours, "streaming", size), what)

    for size, least in ((1_000, 10), (20_000, 10), (200_000, 5)):
        what = f"count by key and minute against Structured Streaming's windows, messages/s, {size:,}"
        yield Target(what, pair("ours-3", size), at_least=least)
    yield Target("the same, p50 planned → committed, 1,000", pair("ours-1", 1_000, "latency"), at_least=10)
    for kind, sizes in documents.get("closing", {}).get("closing", {"log": {}}).items():
        costs = [{"keys": size, **each} for size, each in sizes.items()]
        small, large = _small_and_large(costs)
        for name, figure in (("p50", "p50_ms"), ("mean", "mean_ms"), ("p99", "p99_ms")):
            what = f"{name} of a commit that closes 1,000 windows, 10⁶ open rows against 10⁴, layout {kind}"
            yield Target(what, _over(large, small, figure), at_most=1.5)


def _lookups(documents: Documents) -> Iterator[Target]:
    document = documents.get("lookups", {})
    found, keys = document.get("lookups", {}), document.get("keys", 1_000_000)
    for state, name in (("sqlite", "SQLite"), ("log", "Delta, layout log")):
        wall, cpu = (found.get(state, {}).get(clock, {}) for clock in ("wall_ms", "cpu_ms"))
        note = "; ".join(
            f"{clock} {formatted(each['mean'])} mean, {formatted(each['p99'])} p99"
            for clock, each in (("wall", wall), ("processor", cpu))
            if each
        )
        yield Target(
            f"looking 3 of {keys:,} keys up from another process while 20 transactions a second commit, p50: {name}",
            wall.get("p50"),
            at_most=2,
            unit="ms",
            note=note,
        )


def _guarantees(documents: Documents) -> Iterator[Target]:
    found = documents.get("guarantees", {})
    tracking, bolt = found.get("tracking", {}), found.get("stateful", {})
    what = "processor time of a tuple that is followed"
    yield Target(what, tracking.get("followed_us"), at_most=5.3, unit="µs")
    yield Target("the same against one that is not followed", tracking.get("ratio"))
    what = "processor time of a stateful bolt's transaction against a committer's by hand"
    yield Target(what, bolt.get("ratio"), at_most=1.1)
    for name, rates in bolt.get("executes_per_s", {}).items():
        yield Target(f"executes a second of processor time, {name}", rates, unit="")
    for name, rates in found.get("levels", {}).items():
        yield Target(f"messages a second of processor time, {name}, three words each", rates, unit="")


def ages(tables: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What was measured of old tables: how long the log is kept, where not as usual, and the figures."""
    found = tables.get("age", {})
    by_retention = {"": found} if "version" in found else found
    return [(f", log kept {name.removeprefix('interval ')}" if name else "", age) for name, age in by_retention.items()]


def _steady(documents: Documents) -> Iterator[Target]:
    steady = documents.get("steady", {})
    marks = sorted((int(number), peaks) for number, peaks in steady.get("peaks_mib", {}).items())
    reached, note, first, last = None, "", WHOLE_RUN // 10, WHOLE_RUN
    if len(marks) > 1:
        (first, young), (last, old) = marks[0], marks[-1]
        reached = _driver(old) / _driver(young)
        python = f"{young['driver']:,.0f} → {old['driver']:,.0f}"
        note = f"{_driver(young):,.0f} → {_driver(old):,.0f} MiB, Python alone {python}"
    what = f"driver's peak memory (Python and JVM) over {last:,} transactions against over {first:,}"
    # A run that ended before says less.
    yield Target(what, reached, at_most=1.1 if last >= WHOLE_RUN else None, note=note)
    yield Target(
        "coordinator's own work per transaction, p50", steady.get("own_ms", {}).get("p50"), at_most=5, unit="ms"
    )


def _driver(peaks: Mapping[str, float]) -> float:
    return peaks["driver"] + peaks.get("jvm", 0)


def _small_and_large(costs: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    ordered = sorted(costs, key=lambda cost: int(cost["keys"]))
    return (ordered[0], ordered[-1]) if len(ordered) > 1 else (None, None)


def _over(
    over: Mapping[str, Any] | None, under: Mapping[str, Any] | None, name: str, other: str | None = None
) -> float | None:
    if not over or not under or name not in over or (other or name) not in under:
        return None
    return float(over[name]) / float(under[other or name])


def _figures(reached: Figure) -> list[float]:
    return [float(reached)] if isinstance(reached, int | float) else [reached[n] for n in ("min", "median", "max")]
