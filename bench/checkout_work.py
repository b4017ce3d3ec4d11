"""One work of `python -m bench checkouts`, run by a checkout on its path: prints its seconds as JSON.

A work writes transactions into a table, or runs a topology over a topic. It uses what this checkout and earlier ones
have in common. Wall time is counted after the first transactions; processor time is this process's, and for a topology
that of its workers too, with their start.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from transactional.core.ports import Partials
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.facts import BatchFacts

WARM = 3
"""The number of transactions before the time is taken."""
TOPOLOGY_BATCH, IN_FLIGHT = 20_000, 3


@dataclass(frozen=True, slots=True)
class TableWork:
    """Transactions that write `rows` of `keys` keys. `address` is a server's URL, or a folder."""

    keys: int
    rows: int
    transactions: int
    make_state: Callable[[str, str, dict[str, Any]], Any]
    is_put: bool = False
    """Writes by `put`, and deletes every other key."""
    expires: bool = False

    def run(self, address: str, name: str) -> None:
        """Write all transactions, and print what those after the first ones have taken."""
        options: dict[str, Any] = {"deletes": True} if self.is_put else {}
        values = "count long, seen timestamp" if self.expires else "count long"
        if self.expires:
            options |= {"expires": "seen", "after": "100 seconds"}
        state = self.make_state(address, name, {"key": "key string", "values": values, **options})
        state.open("bench/checkouts", lambda attempt_id: TxId(int(attempt_id)))
        chance = random.Random(1)
        self.write(state, 1, range(self.keys))
        batches = [chance.sample(range(self.keys), self.rows) for _ in range(10)]
        began_s, began_cpu_s = 0.0, 0.0
        for number in range(self.transactions + WARM):
            if number == WARM:
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
            self.write(state, number + 2, batches[number % len(batches)])
        show(time.perf_counter() - began_s, time.process_time() - began_cpu_s)
        state.close()

    def write(self, state: Any, txid: int, numbers: Any) -> None:
        """Write one transaction. Its time is `txid` seconds, so keys of 100 transactions earlier expire."""
        attempt, time_us = TransactionAttempt(TxId(txid), AttemptId(txid)), txid * 1_000_000
        declaration_of(state).begin(attempt, BatchFacts(txid * 1_000, time_us, (txid - 1) * 1_000, time_us - 1_000_000))
        if self.is_put:
            state.put(attempt, {(f"key-{n:08}",): ABSENT if (n + txid) % 2 else (txid,) for n in numbers})
            return
        columns = {"key": [f"key-{n:08}" for n in numbers], "count": [1] * len(numbers)}
        combine = {"count": "sum"}
        table = pa.table(columns)
        if self.expires:
            seen = pa.array([time_us] * len(numbers), pa.timestamp("us", tz="UTC"))
            table, combine = table.append_column("seen", seen), {**combine, "seen": "max"}
        state.merge(attempt, Partials(combine, table))


def declaration_of(state: Any) -> Any:
    """Return what has `begin`: in earlier checkouts the state itself.

    Not by `hasattr`: a state that lacks a name looks for similar ones, which takes long.
    """
    return state if any("begin" in vars(base) for base in type(state).__mro__) else state.parts.declared


def make_delta_state(layout: str) -> Callable[[str, str, dict[str, Any]], Any]:
    """Return what makes a Delta state with this layout."""

    def make(address: str, name: str, options: dict[str, Any]) -> Any:
        from state import DeltaMapState

        return DeltaMapState(f"{address}/{name}", layout=layout, **options)

    return make


def make_sql_state(address: str, name: str, options: dict[str, Any]) -> Any:
    """Return a state in PostgreSQL, or in a SQLite file if the address is a folder."""
    from state import SqlMapState

    return SqlMapState(address if "://" in address else f"sqlite:///{address}/{name}.db", name, **options)


def make_redis_state(address: str, name: str, options: dict[str, Any]) -> Any:
    """Return a state in Redis."""
    from state import RedisMapState

    return RedisMapState(address, name, **options)


def run_topology_work(partitions: int, bootstrap: str) -> None:
    """Count a topic of so many partitions with `auto`, and print what it took."""
    from bench.gear_rows import OurRow, Row, figures

    row = Row("auto", TOPOLOGY_BATCH, partitions, IN_FLIGHT)
    with tempfile.TemporaryDirectory(prefix="checkouts-") as folder:
        course = OurRow(row, bootstrap, Path(folder)).course()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    show(figures(row, course)["interval_ms"] / 1e3, time.process_time() + ended.ru_utime + ended.ru_stime)


def show(wall_s: float, cpu_s: float) -> None:
    """Print the figures of a work."""
    sys.stdout.write(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}) + "\n")


MERGE, LOG = make_delta_state("merge"), make_delta_state("log")
TABLES = {
    "small": TableWork(1_000, 1_000, 60, MERGE),
    "by-file": TableWork(300_000, 1_000, 20, MERGE),
    "log": TableWork(20_000, 1_000, 60, LOG),
    "1-key": TableWork(1_000, 1, 100, MERGE),
    "20-into-100": TableWork(100, 20, 100, MERGE),
    "deletes": TableWork(1_000, 200, 60, MERGE, is_put=True),
    "expiry": TableWork(1_000, 200, 60, MERGE, expires=True),
    "million": TableWork(1_000_000, 1_000_000, 1, MERGE),
    "sqlite": TableWork(1_000, 200, 60, make_sql_state),
    "postgresql": TableWork(1_000, 200, 60, make_sql_state),
    "redis": TableWork(1_000, 200, 60, make_redis_state),
}
PARTITIONS = {"4-partitions": 4, "128-partitions": 128, "512-partitions": 512}


def main(work: str, address: str, name: str) -> None:
    """Run a work. `name` is the table's, which no other run has."""
    if work in PARTITIONS:
        run_topology_work(PARTITIONS[work], address)
    else:
        TABLES[work].run(address, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
