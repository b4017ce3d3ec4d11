"""What large batches and large tables may cost, and do cost: computed from `scale.json` and the grid's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench.figures import Spread
from bench.targets import Documents, Target

MILLION = 1_000_000


def scale_targets(documents: Documents) -> Iterator[Target]:
    """Every target, reached or not."""
    yield from _beside_peers(documents)
    yield from _commits(_tables("commits", documents))
    yield from _driver(_tables("memory", documents))
    yield from _executors(documents)
    for work in ("count", "read-modify-write"):
        found = [each for each in _tables("tables", documents) if each["work"] == work]
        yield from _large_tables(work, sorted(found, key=lambda each: each["keys"]))


def _beside_peers(documents: Documents) -> Iterator[Target]:
    points = documents.get("grid", {}).get("points", [])
    point = next((each for each in points if each["keys"] == each["table"] == MILLION), None)
    for peer, at_least in (("expert", 3), ("merge", 10)):
        reached, note = None, ""
        if point is not None:
            ratios = [each for each in point["ratios"] if (each["system"], each["peer"]) == ("ours-auto", peer)]
            reached = ratios[0]["throughput"] if ratios else None
            batches = next(each["batches"] for each in point["summaries"] if each["system"] == "ours-auto")
            note = f"{batches} batches of ours" + (f"; {point['load']}" if "load" in point else "")
        yield Target(f"a million keys a batch, throughput against {peer}", reached, at_least=at_least, note=note)


def _commits(tables: list[Mapping[str, Any]]) -> Iterator[Target]:
    by_size = {(each["rows"], each["files"]): each for each in tables}
    few, many = by_size.get((1_000, 2)), by_size.get((10_000_000, 2))
    for name in ("p50", "p99"):
        both = None if few is None or many is None else many[f"wall_{name}_ms"] / few[f"wall_{name}_ms"]
        note = "" if few is None or many is None else f"{few['compactions']} and {many['compactions']} compactions"
        yield Target(f"staged commit, {name}: 10⁷ rows against 10³", both, at_most=1.5, note=note)
    for files in (20, 200):
        table = by_size.get((MILLION, files))
        p50 = None if table is None else table["wall_p50_ms"]
        note = "" if table is None else f"p99 {table['wall_p99_ms']:.1f} ms"
        yield Target(f"staged commit of {files} files, p50", p50, unit="ms", note=note)


def _driver(tables: list[Mapping[str, Any]]) -> Iterator[Target]:
    """Its Python and its JVM, from the fewest keys a batch to the most."""
    by_keys = sorted(tables, key=lambda each: each["keys"])
    sizes = f"{by_keys[0]['keys']:,} to {by_keys[-1]['keys']:,}" if by_keys else "10³ to 10⁷"
    peaks = [each["peak_driver_mib"] + each["peak_jvm_mib"] for each in by_keys]
    memory = max(peaks) / peaks[0] if len(peaks) > 1 else None
    shown = " … ".join(f"{peak:.0f}" for peak in peaks)
    yield Target(
        f"driver's peak memory, {sizes} keys a batch", memory, at_most=1.2, note=f"{shown} MiB" if peaks else ""
    )
    shares = [_share(each) for each in by_keys]
    growth = shares[-1] / shares[0] if len(shares) > 1 else None
    shown = " … ".join(f"{share:.1%}" for share in shares)
    yield Target(f"driver's share of a transaction's time, {sizes} keys", growth, at_most=1, note=shown)


def _share(each: Mapping[str, Any]) -> float:
    """Processor time of the driver over the time that a transaction takes."""
    used = each["driver_cpu_s_per_transaction"] + each["jvm_cpu_s_per_transaction"]
    return float(used * each["messages_per_s"] / each["keys"])


def _executors(documents: Documents) -> Iterator[Target]:
    speeds: dict[str, list[float]] = {}
    for each in _figures("executors", documents):
        speeds.setdefault(each["case"].split(" ")[0], []).append(each["tables"][0]["messages_per_s"])
    for more, fewer in (("2", "1"), ("4", "2")):
        pairs = list(zip(speeds.get(more, []), speeds.get(fewer, []), strict=False))
        reached = asdict(Spread.of([one / other for one, other in pairs])) if pairs else None
        yield Target(f"throughput of {more} executors against {fewer}, on two cores", reached, at_least=1)


def _large_tables(work: str, tables: list[Mapping[str, Any]]) -> Iterator[Target]:
    names = {
        "p50_ms": ("p50", 1.3),
        "p99_ms": ("p99", 2),
        "mean_with_base_compactions_ms": ("mean with compactions", 3),
    }
    few, most = (tables[0], tables[-1]) if len(tables) > 1 else (None, None)
    for name, (shown, at_most) in names.items():
        reached = None if few is None or most is None else most[name] / few[name]
        note = (
            ""
            if few is None or most is None
            else f"{few[name]:.1f} and {most[name]:.1f} ms, {most['compactions']} compactions"
        )
        what = f"{work}, 20,000 keys into {most['keys']:,} keys" if most is not None else f"{work} into 10⁸ keys"
        yield Target(f"{what}: {shown}, against a million", reached, at_most=at_most, note=note)


def _figures(part: str, documents: Documents) -> list[Mapping[str, Any]]:
    return [each for each in documents.get("scale", {}).get("figures", []) if each["part"] == part]


def _tables(part: str, documents: Documents) -> list[Mapping[str, Any]]:
    return [table for each in _figures(part, documents) for table in each["tables"]]
