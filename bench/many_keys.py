"""`python -m bench.many_keys`: transactions of 20,000 keys into tables of a million and of a hundred million keys.

    python -m bench.many_keys --keys 1e6,1e8 --transactions 120

Without Spark: states in the log layout alone, a count (partial sums) and read-modify-write (the keys are looked up, and
put again). Tables are filled and folded first, so that each is one row per key. Then they take transactions in turns,
forty at a time, with what is folded after them; a fold that is written apart is waited for before the next table's
turn. Milliseconds of a whole transaction: look-up, write and upkeep. At the end every table is checked.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from bench import machine
from bench.figures import percentile
from bench.timed_table import KEYS, OWNER, finish_fold, folds_in
from state import DeltaMapState, LogLayout
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.ports import Partials

FILL = 5_000_000
"""Keys that come in one transaction while a table is filled."""
FOLD_ROWS = 20_000_000
"""So many are folded at once meanwhile."""
TURN = 40
"""Transactions of a table until it is another one's turn."""
WORKS = {"count": "sum", "read-modify-write": "last"}


@dataclass(slots=True)
class LargeTable:
    """A table with all of its keys, and what its transactions took, in milliseconds."""

    keys: int
    work: str
    path: Path
    txid: int = 0
    fill_s: float = 0.0
    times_ms: list[float] = field(default_factory=list)
    waited_ms: float = 0.0
    """For folds that were written apart."""
    transactions: int = 0
    folds_before: int = 0
    state: DeltaMapState = field(init=False)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        began = perf_counter()
        self.state = self._opened(LogLayout(fold_after=None))
        for begin in range(0, self.keys, FILL):
            keys = pa.array(range(begin, min(begin + FILL, self.keys)), pa.int64())
            self._write(pa.table({"key": keys, "count": pa.repeat(pa.scalar(1), len(keys))}))
            if (begin // FILL + 1) % (FOLD_ROWS // FILL) == 0:
                self.state.fold()
        self._fold_all()
        self.state.close()
        self.state = self._opened(LogLayout())
        self.fill_s, self.folds_before = perf_counter() - began, folds_in(self.path)

    def turn(self, transactions: int) -> None:
        """So many transactions, and the fold that they have begun."""
        for _ in range(transactions):
            keys = self.chance.sample(range(self.keys), min(KEYS, self.keys))
            before = perf_counter()
            self._write(self._rows(keys))
            self.state.tidy(TxId(self.txid), lambda: True)
            self.times_ms.append((perf_counter() - before) * 1e3)
        before = perf_counter()
        finish_fold(self.state, self.txid)
        self.waited_ms += (perf_counter() - before) * 1e3
        self.transactions += transactions

    def forget(self) -> None:
        """Forget the times."""
        self.times_ms, self.waited_ms = [], 0.0

    def found(self) -> dict[str, Any]:
        """The figures. Raises `ValueError` if the table is wrong."""
        before = perf_counter()
        self._fold_all()
        base_fold_ms, every = (perf_counter() - before) * 1e3, self.keys / KEYS
        columns = 'count(*) AS keys, sum("key") AS weighed, sum("count") AS counted'
        answer = QueryBuilder().register("t", DeltaTable(str(self.path))).execute(f"SELECT {columns} FROM t")
        [row] = pa.table(answer.read_all()).to_pylist()
        counted = self.keys + self.transactions * min(KEYS, self.keys)
        wanted = {"keys": self.keys, "weighed": self.keys * (self.keys - 1) // 2, "counted": counted}
        if row != wanted:
            raise ValueError(f"{self.work}, {self.keys} keys: {row} instead of {wanted}")
        mean_ms = (sum(self.times_ms) + self.waited_ms) / len(self.times_ms)
        return {
            "work": self.work,
            "keys": self.keys,
            "transactions": len(self.times_ms),
            "folds": folds_in(self.path) - self.folds_before - 1,
            "p50_ms": percentile(self.times_ms, 50),
            "p99_ms": percentile(self.times_ms, 99),
            "mean_with_folds_ms": mean_ms,
            "base_fold_ms": base_fold_ms,
            # One comes after so many transactions: those that were measured have its share where they have none of it.
            "mean_with_base_folds_ms": mean_ms + (base_fold_ms / every if every > len(self.times_ms) else 0),
            "fill_s": self.fill_s,
        }

    def _fold_all(self) -> None:
        """One row per key. All but the newest transaction is folded, which is an empty one."""
        self._write(pa.table({"key": pa.array([], pa.int64()), "count": pa.array([], pa.int64())}))
        self.state.fold()

    def _opened(self, layout: LogLayout) -> DeltaMapState:
        state = DeltaMapState(self.path, "key long", "count long", layout=layout)
        state.open(OWNER, lambda attempt_id: TxId(int(attempt_id)))
        return state

    def _write(self, rows: pa.Table) -> None:
        attempt = TransactionAttempt(TxId(self.txid + 1), AttemptId(self.txid + 1))
        self.state.merge(attempt, Partials({"count": WORKS[self.work]}, rows))
        self.txid += 1

    def _rows(self, keys: list[int]) -> pa.Table:
        if self.work == "count":
            return pa.table({"key": pa.array(keys, pa.int64()), "count": pa.repeat(pa.scalar(1), len(keys))})
        attempt = TransactionAttempt(TxId(self.txid + 1), AttemptId(self.txid + 1))
        wanted = [(key,) for key in keys]
        values = self.state.get(attempt, wanted)
        return pa.table({"key": pa.array(keys, pa.int64()), "count": [values[key][0] + 1 for key in wanted]})


def measure(sizes: list[int], works: list[str], transactions: int, folder: Path) -> list[dict[str, Any]]:
    """Each work on tables of all sizes, in turns."""
    found = []
    for work in works:
        tables = [LargeTable(keys, work, folder / f"{work}-{keys}") for keys in sizes]
        for table in tables:
            table.turn(2)  # copies are made, code is loaded
            table.forget()
        before = machine.cpu_time()
        for _ in range(-(-transactions // TURN)):
            for table in tables:
                table.turn(min(TURN, transactions))
        after = machine.cpu_time()
        others = after.others_share_since(before) if before and after else None
        for table in tables:
            found.append({**table.found(), "others_share": others, "peak_mib": _peak_mib()})
            table.state.close()
            shutil.rmtree(table.path)
    return found


def _peak_mib() -> float:
    """The largest memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print a line of JSON for each table."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_keys", description=__doc__)
    parser.add_argument("--keys", type=_sizes, default=[1_000_000, 100_000_000], help="of the tables")
    parser.add_argument("--works", type=lambda text: text.split(","), default=list(WORKS))
    parser.add_argument("--transactions", type=int, default=120)
    parser.add_argument("--directory", type=Path, help="where tables are kept while it runs")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="many-keys-", dir=options.directory))
    try:
        for found in measure(options.keys, options.works, options.transactions, folder):
            print(json.dumps(found), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sizes(text: str) -> list[int]:
    return [int(float(part)) for part in text.split(",")]


if __name__ == "__main__":
    main()
