"""The tables of `python -m bench gears`, and what they are compared with: made from its file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.figures import Spread
from bench.gear_rows import FEW, MANY, MANY_BATCH, RAW
from bench.targets import Documents, Target, formatted

Found = Mapping[str, Any]
Of = tuple[str, int, int, int]
"""System, batch in messages, partitions, transactions in flight."""
SPEED_COLUMNS = ("batch", "in flight", "system", "1,000 messages/s", "p50", "p99", "interval, p99", "first commit")
PARTITION_COLUMNS = ("partitions", "in flight", "system", "interval", "of 4 partitions'", "planning", "threads", "MiB")


def by_row(documents: Documents) -> dict[Of, list[Found]]:
    """The rounds of each row, in order."""
    found: dict[Of, list[Found]] = {}
    for each in documents.get("gears", {}).get("rows", []):
        key = (each["system"], each["batch"], each["partitions"], each["in_flight"])
        found.setdefault(key, []).append(each)
    return found


def speed_rows(documents: Documents) -> Iterator[Sequence[str]]:
    """Sizes of batches, each system below the other."""
    found = {key: rounds for key, rounds in by_row(documents).items() if key[2] == FEW}
    for (system, batch, _, in_flight), rounds in sorted(found.items(), key=lambda each: (each[0][1], each[0][3])):
        speed = [each["speed"] / 1e3 for each in rounds]
        times = (_shown(rounds, name, "ms") for name in ("p50_ms", "p99_ms", "interval_p99_ms"))
        yield f"{batch:,}", str(in_flight), system, _spread(speed), *times, _shown(rounds, "first_s", "s")


def partition_rows(documents: Documents) -> Iterator[Sequence[str]]:
    """Numbers of partitions, the fewest first."""
    found = {key: rounds for key, rounds in by_row(documents).items() if key[1] == MANY_BATCH}
    for key in sorted(found, key=lambda key: (key[0], key[3], key[2])):
        system, _, partitions, in_flight = key
        times = [_shown(found[key], "interval_ms", "ms"), _factor(found, key), _shown(found[key], "planning_ms", "ms")]
        cost = [_shown(found[key], "threads"), _shown(found[key], "python_mib")]
        if "threads" in found[key][0]:
            yield str(partitions), str(in_flight), system, *times, *cost


def gear_targets(documents: Documents) -> Iterator[Target]:
    """What small batches, many partitions and short runs are to reach."""
    found = by_row(documents)

    def auto(batch: int, name: str) -> Any:
        return _figure(found.get(("auto", batch, FEW, 3), []), name)

    yield Target("auto, 1,000 messages a batch, messages/s", auto(1_000, "speed"), at_least=50_000, unit="")
    one = _figure(found.get(("auto", 1_000, FEW, 1), []), "p50_ms")
    yield Target("auto, 1,000 messages a batch, one in flight, p50", one, at_most=20, unit="ms")
    yield Target("auto, 20,000 messages a batch, messages/s", auto(20_000, "speed"), at_least=500_000, unit="")
    yield Target("auto, first commit, 1,000 messages a batch", auto(1_000, "first_s"), at_most=4, unit="s")
    auto_over_spark = _over(found, ("auto", 200_000, FEW, 3), ("spark", 200_000, FEW, 3), "speed")
    yield Target("auto against spark, 200,000 messages a batch", auto_over_spark, at_least=1)
    for system in ("spark", "auto"):
        key = (system, 1_000, FEW, 1)
        tail = [each["p99_ms"] / each["p50_ms"] for each in found.get(key, [])]
        yield Target(f"{system}, p99 against p50, 1,000 messages a batch", _of(tail), at_most=3)
    for system in ("spark", "auto"):
        over = _over(found, (system, 200_000, FEW, 3), (RAW, 200_000, FEW, 1), "speed")
        yield Target(f"{system} against raw consumers, twenty batches of 200,000", over, at_least=0.85)
    for system, partitions, at_most in (("auto", 128, 1.5), ("auto", 512, 3), ("none", 128, 1.5), ("none", 512, 3)):
        few, many = (system, MANY_BATCH, FEW, 3), (system, MANY_BATCH, partitions, 3)
        over = _over(found, many, few, "interval_ms")
        yield Target(f"{system}, {partitions} partitions against {FEW}, interval", over, at_most=at_most)
    many_rounds = found.get(("spark", MANY_BATCH, 128, 3), [])
    for figure, prefix in (("latency", ""), ("interval", "interval_")):
        tail = [each[f"{prefix}p99_ms"] / each[f"{prefix}p50_ms"] for each in many_rounds]
        yield Target(f"spark, 128 partitions, p99 against p50, {figure}", _of(tail), at_most=3)


def _over(found: Mapping[Of, list[Found]], over: Of, under: Of, name: str) -> Any:
    """Round by round, those that ran beside each other."""
    pairs = zip(found.get(over, []), found.get(under, []), strict=False)
    return _of([float(one[name]) / float(other[name]) for one, other in pairs])


def _factor(found: Mapping[Of, list[Found]], key: Of) -> str:
    system, batch, partitions, in_flight = key
    over = _over(found, key, (system, batch, FEW, in_flight), "interval_ms") if partitions in MANY else None
    return "-" if over is None else f"{formatted(over['median'])} times"


def _figure(rounds: Sequence[Found], name: str) -> Any:
    return _of([float(each[name]) for each in rounds if name in each])


def _of(figures: Sequence[float]) -> Any:
    return asdict(Spread.of(figures)) if figures else None


def _shown(rounds: Sequence[Found], name: str, unit: str = "") -> str:
    found = _figure(rounds, name)
    return "-" if found is None else f"{formatted(found['median'])} {unit}".strip()


def _spread(figures: Sequence[float]) -> str:
    found = Spread.of(figures)
    return " … ".join(map(formatted, (found.min, found.median, found.max)))
