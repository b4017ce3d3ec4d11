"""`python -m bench tables`: what a transaction commit costs against the size and the age of its table.

Without Spark and broker: the states alone. Two tables take the same transactions in turns, so that what else the
machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from bench import machine
from bench.figures import percentile
from state.delta import DeltaMapState
from state.delta_log_table import LogLayout
from state.delta_rs import DeltaHandle
from state.fenced import FencedState, Source
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.ports import Partials

KEYS = 20_000
"""Keys that a transaction touches."""
OWNER = "bench/tables"
RETENTIONS = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
BATCHES = 40
"""Different batches, which are used again and again."""


class TimedState(DeltaMapState):
    """A state that notes how long a write took, and what was done to the table after it, in milliseconds."""

    writes: list[float]
    upkeep: list[float]

    def _write(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        before = perf_counter()
        FencedState._write(self, attempt, source, combine)
        written = perf_counter()
        self._handle.maintain(attempt.txid)
        self.writes.append((written - before) * 1e3)
        self.upkeep.append((perf_counter() - written) * 1e3)

    @property
    def handle(self) -> DeltaHandle:
        """The table's handle."""
        return self._handle


@dataclass(slots=True)
class Table:
    """A table of `keys` keys, and how far it is."""

    keys: int
    layout: str | LogLayout
    path: Path
    how: str = "sum"
    retention: str = ""
    """For how long log and removed files are kept, where not as usual."""
    txid: int = 0
    state: TimedState = field(init=False)
    batches: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = pa.array(range(self.keys), pa.int64())
        keys = pc.binary_join_element_wise("key-", pc.utf8_lpad(pc.cast(values, pa.string()), 8, "0"), "")
        chance = random.Random(self.keys)
        for _ in range(BATCHES):
            chosen = keys.take(pa.array(chance.sample(range(self.keys), min(KEYS, self.keys))))
            self.batches.append(pa.table({"key": chosen, "count": pa.repeat(pa.scalar(1), len(chosen))}))
        properties = dict.fromkeys(RETENTIONS, self.retention) if self.retention else {}
        options: dict[str, Any] = {"layout": self.layout, "engine": "delta-rs", "properties": properties}
        self.state = TimedState(self.path, "key string", "count long", **options)
        self.state.open(OWNER, lambda attempt_id: TxId(int(attempt_id)))
        self.forget()
        self.merge(pa.table({"key": keys, "count": pa.repeat(pa.scalar(1), self.keys)}))
        self.forget()

    def forget(self) -> None:
        """Forget the times."""
        self.state.writes, self.state.upkeep = [], []

    def attempt(self) -> TransactionAttempt:
        """The next transaction's."""
        self.txid += 1
        return TransactionAttempt(TxId(self.txid), AttemptId(self.txid))

    def merge(self, rows: pa.Table) -> None:
        """A transaction of partial counts."""
        self.state.merge(self.attempt(), Partials({"count": self.how}, rows))

    def step(self) -> None:
        """The next transaction."""
        self.merge(self.batches[self.txid % BATCHES])

    def check(self, transactions: int) -> None:
        """Raise ValueError when the table does not hold what was written."""
        table = self.state.read()
        expected = self.keys + transactions * self.batches[0].num_rows
        if (table.num_rows, pc.sum(table["count"]).as_py()) != (self.keys, expected):
            raise ValueError(
                f"{self.path} holds {table.num_rows} keys, {pc.sum(table['count'])} in all, not {expected}"
            )


@dataclass(frozen=True, slots=True)
class Cost:
    """Transaction commits into one table, in milliseconds. `mean_ms` has the folds' share in it."""

    keys: int
    layout: str
    transactions: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    upkeep_ms_max: float
    folds: str

    @classmethod
    def of(cls, table: Table) -> Cost:
        """What a table has noted."""
        writes, upkeep = table.state.writes, table.state.upkeep
        told = getattr(table.state.handle, "write_amplification", lambda: "")()
        return cls(
            *(table.keys, str(table.layout), len(writes), percentile(writes, 50), percentile(writes, 99)),
            *((sum(writes) + sum(upkeep)) / len(writes), max(upkeep), told),
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


def measure_read(keys: int, folder: Path, unfolded: int = 50, rounds: int = 5) -> dict[str, float]:
    """Reading a whole table with so many unfolded transactions, and after they were folded, in milliseconds."""
    table = Table(keys, LogLayout(fold_after=None), folder / "read")
    for _ in range(unfolded):
        table.step()
    unfolded_ms = median_ms(table.state.read, rounds)
    table.step()
    table.state.fold()
    # The newest transaction is never folded: only what was before it is read.
    newest = TxId(table.txid - 1)
    return {"unfolded_ms": unfolded_ms, "folded_ms": median_ms(lambda: table.state.read(newest), rounds)}


def measure_updates(
    sizes: Sequence[int], layouts: Sequence[str], transactions: int, folder: Path
) -> dict[str, list[float]]:
    """Reading 20,000 keys, and writing them anew, by layout: p50 in milliseconds by size."""
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
    """A young table beside one that has got old: p50 of 100 transactions of 1,000 keys into each, in turns."""
    until_s = monotonic() + minutes * 60
    old = Table(1_000, "log", folder / "old", retention=retention)
    while old.state.handle.delta_version < versions and monotonic() < until_s:
        old.step()
    young = Table(1_000, "log", folder / "young", retention=retention)
    for table in (old, young):
        table.forget()
    version = old.state.handle.delta_version
    for _ in range(100):
        for table in (old, young):
            table.step()
    costs = {"old_ms": old.state, "young_ms": young.state}
    return {"version": version, **{name: percentile(state.writes, 50) for name, state in costs.items()}}


def median_ms(work: Callable[[], object], rounds: int) -> float:
    """The median of some rounds, after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        before = perf_counter()
        work()
        times.append((perf_counter() - before) * 1e3)
    return percentile(times[1:], 50)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench tables", description=__doc__)
    parser.add_argument(
        "--keys", type=lambda text: [int(float(part)) for part in text.split(",")], default=[20_000, 10_000_000]
    )
    parser.add_argument("--transactions", type=int, default=500)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["size", "read", "update", "age"])
    parser.add_argument("--layouts", type=lambda text: text.split(","), default=["merge", "log"], help="of updates")
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
        "size": lambda: [asdict(cost) for cost in measure_size(options.keys, "log", options.transactions, folder)],
        "read": lambda: measure_read(max(options.keys), folder),
        "update": lambda: measure_updates(options.keys, options.layouts, 20, folder),
        "age": lambda: measure_age(options.versions, options.retention, folder, options.minutes),
    }
    console, found = Console(), {}
    try:
        for part in options.parts:
            before = machine.cpu_time()
            found[part] = parts[part]()
            after = machine.cpu_time()
            others = after.others_share_since(before) if before and after else None
            console.print(part, found[part], "others' share of the machine:", others)
            for each in folder.iterdir():
                shutil.rmtree(each)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.output.write_text(json.dumps({"machine": machine.facts(), **found}, indent=1) + "\n")
