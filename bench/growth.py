"""`python -m bench tables`: what a transaction commit costs against the size and the age of its table.

Without Spark and broker: the states alone. Two tables take the same transactions in turns, so that what else the
machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, perf_counter

from rich.console import Console

from bench import machine, reading
from bench.figures import percentile
from bench.results import in_lines
from bench.timed_table import BATCHES, Table
from state.delta.segments.log_layout import LogLayout
from state.fence import TableWrite
from state.rows.python_rows import check_unique


@dataclass(frozen=True, slots=True)
class Cost:
    """Transaction commits into one table, in milliseconds. `mean_ms` has the compactions' share in it."""

    keys: int
    layout: str
    transactions: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    upkeep_ms_max: float
    compactions: str

    @classmethod
    def of(cls, table: Table) -> Cost:
        """What a table has noted."""
        writes, upkeep = table.state.writes, table.state.upkeep
        compactions = getattr(table.state.handle, "compactor", None)
        formatted = "" if compactions is None else compactions.write_amplification()
        return cls(
            *(table.keys, str(table.layout), len(writes), percentile(writes, 50), percentile(writes, 99)),
            *((sum(writes) + sum(upkeep)) / len(writes), max(upkeep), formatted),
        )


def measure_size(sizes: Sequence[int], layout: str | LogLayout, transactions: int, folder: Path) -> list[Cost]:
    """Transactions into tables of two sizes, in turns."""
    tables = [Table(keys, layout, folder / f"{keys}") for keys in sizes]
    for _ in range(transactions):
        for table in tables:
            table.step()
    for table in tables:
        table.check(transactions)
    return [Cost.of(table) for table in tables]


def measure_updates(
    sizes: Sequence[int], layouts: Sequence[str], transactions: int, folder: Path
) -> dict[str, list[float]]:
    """Reading 20,000 keys, and writing them again, by layout: p50 in milliseconds by size."""
    found: dict[str, list[float]] = {}
    for layout in layouts:
        for keys in sizes:
            table = Table(keys, layout, folder / f"update-{layout}-{keys}", "last")
            found.setdefault(layout, []).append(_updates(table, transactions))
    return found


def _updates(table: Table, transactions: int) -> float:
    times = []
    for number in range(transactions):
        wanted = [(key,) for key in table.batches[number % BATCHES]["key"].to_pylist()]
        before = perf_counter()
        attempt = table.attempt()
        values = table.state.get(attempt, wanted)
        table.state.put(attempt, {key: (values[key][0] + 1,) for key in wanted})
        times.append((perf_counter() - before) * 1e3)
    return percentile(times, 50)


def measure_age(versions: int, retention: str, folder: Path, minutes: float) -> dict[str, float]:
    """A young table beside one that has got old: 200 transactions of 1,000 keys into each, in turns.

    `old_ms` and `young_ms` are the p50; the means have compactions, checkpoints and the log's cleaning in them.
    """
    until_s = monotonic() + minutes * 60
    old = Table(1_000, "log", folder / "old", retention=retention)
    while old.state.handle.loaded.delta_version < versions and monotonic() < until_s:
        old.step()
    tables = {"old": old, "young": Table(1_000, "log", folder / "young", retention=retention)}
    found: dict[str, float] = {"version": old.state.handle.loaded.delta_version}
    old.forget()
    for _ in range(200):
        for table in tables.values():
            table.step()
    for name, table in tables.items():
        writes, upkeep = table.state.writes, table.state.upkeep
        found[f"{name}_ms"], found[f"{name}_mean_ms"] = percentile(writes, 50), (sum(writes) + sum(upkeep)) / 200
        found[f"{name}_log_files"] = len(list((table.path / "_delta_log").iterdir()))
    return found


def measure_steps(folder: Path, transactions: int = 200) -> dict[str, dict[str, float]]:
    """What one Delta commit is made of, by layout: p50 in milliseconds of 1,000 keys into 8,000."""
    found = {}
    for layout in ("log", "merge"):
        table, times = Table(8_000, layout, folder / layout), dict[str, list[float]]()
        for _ in range(transactions):
            _step_by_step(table, times)
        found[layout] = {name: percentile(each, 50) for name, each in times.items()}
    return found


def _step_by_step(table: Table, times: dict[str, list[float]]) -> None:
    """The steps of a transaction's write, as `TableState` makes them."""
    handle, combine = table.state.handle, {"count": table.how}
    rows, attempt = table.batches[(table.txid + 1) % BATCHES].slice(0, 1_000), table.attempt()
    steps: dict[str, Callable[[], object]] = {
        "fence": table.state.version,
        "unique": lambda: check_unique(rows, ("key",), "t"),
        "delta_commit": lambda: handle.apply(TableWrite(attempt, rows, combine)),
        "upkeep": lambda: handle.upkeep.maintain(attempt.txid, lambda: True),
    }
    for name, work in steps.items():
        before = perf_counter()
        work()
        times.setdefault(name, []).append((perf_counter() - before) * 1e3)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench tables", description=__doc__)
    parser.add_argument(
        "--keys", type=lambda text: [int(float(part)) for part in text.split(",")], default=[20_000, 10_000_000]
    )
    parser.add_argument("--transactions", type=int, default=500)
    parser.add_argument(
        "--parts", type=_words, default=["steps", "size", "read", "update", "age"], help="these, and spark"
    )
    parser.add_argument("--layouts", type=_words, default=["merge", "log"], help="of updates")
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--retention", default="", help="of log and removed files, like 'interval 5 seconds'")
    parser.add_argument("--minutes", type=float, default=8, help="for a table to get old")
    parser.add_argument("--output", type=Path, default=Path("docs/performance/tables.json"))
    parser.add_argument("--directory", type=Path, help="where tables are kept while it runs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure, show and write down."""
    options = options_of(arguments)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    parts: dict[str, Callable[[], object]] = {
        "steps": lambda: measure_steps(folder),
        "size": lambda: [asdict(cost) for cost in measure_size(options.keys, "log", options.transactions, folder)],
        "read": lambda: reading.measure(max(options.keys), folder, reading.readers()),
        "spark": lambda: reading.measure(max(options.keys), folder, reading.spark_readers(), rounds=3),
        "update": lambda: measure_updates(options.keys, options.layouts, 20, folder),
        "age": lambda: measure_age(options.versions, options.retention, folder, options.minutes),
    }
    console, found = Console(), {}
    try:
        for part in options.parts:
            before = machine.cpu_time()
            found[part] = parts[part]()
            # What was measured before stays, so that a single line can be measured again.
            _save(options.output, {part: found[part]})
            after = machine.cpu_time()
            others = after.others_share_since(before) if before and after else None
            console.print(part, found[part], "others' share of the machine:", others)
            for each in folder.iterdir():
                shutil.rmtree(each)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _save(path: Path, found: Mapping[str, object]) -> None:
    written = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(in_lines({**written, "machine": machine.facts(), **found}), "utf-8")


def _words(text: str) -> list[str]:
    return text.split(",")
