"""Reading a whole table in the log layout: one with uncompacted transactions, and one that is compacted, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from bench.figures import percentile
from bench.timed_table import Table
from state.delta.segments.log_layout import LogLayout
from transactional.model.attempt import TxId
from transactional.runtime.spark.session import spark_session

Reader = Callable[[Table], int]
"""Reads the whole table but its newest transaction; how many rows there are."""
Readers = AbstractContextManager[Mapping[str, Reader]]


def readers() -> Readers:
    """Readers without Spark. The name goes before `uncompacted_ms` and `compacted_ms`; the view's is empty."""
    return nullcontext({"": _by_view, "read_": _by_state})


@contextmanager
def spark_readers() -> Iterator[Mapping[str, Reader]]:
    """The view on Spark; its rows are aggregated, so that none goes to the driver."""
    session = spark_session("bench", master="local[2]", parallelism=2)

    def read(table: Table) -> int:
        view = table.state.view(f"delta.`{table.path}`", committed_txid=_visible(table))
        rows = session.sql(f"SELECT count(*) AS rows, sum(hash(key)), sum(`count`) FROM ({view})").toArrow()
        return int(rows.column("rows")[0].as_py())

    try:
        yield {"": read}
    finally:
        session.stop()


def measure(keys: int, folder: Path, readers: Readers, uncompacted: int = 50, rounds: int = 5) -> dict[str, float]:
    """Reading both tables, p50 in milliseconds by reader."""
    tables = {
        "uncompacted": _written(keys, folder / "uncompacted", uncompacted),
        "compacted": _written(keys, folder / "compacted", uncompacted),
    }
    tables["compacted"].state.compact()
    times: dict[str, list[float]] = {}
    with readers as each:
        for number in range(rounds + 1):
            for name, table in tables.items():
                for reader, read in each.items():
                    taken_ms = _timed_ms(read, table)
                    if number:
                        times.setdefault(f"{reader}{name}_ms", []).append(taken_ms)
    return {name: percentile(taken, 50) for name, taken in times.items()}


def _written(keys: int, path: Path, uncompacted: int) -> Table:
    """A table with so many uncompacted transactions, and one more, since the newest is never compacted."""
    table = Table(keys, LogLayout(compact_after=None), path)
    for _ in range(uncompacted + 1):
        table.step()
    return table


def _timed_ms(read: Reader, table: Table) -> float:
    before = perf_counter()
    rows = read(table)
    taken_ms = (perf_counter() - before) * 1e3
    if rows != table.keys:
        raise ValueError(f"{table.path} has {table.keys} keys, {rows} were read")
    return taken_ms


def _visible(table: Table) -> TxId:
    return TxId(table.txid - 1)


def _by_state(table: Table) -> int:
    return int(table.state.read(_visible(table)).num_rows)


def _by_view(table: Table) -> int:
    query = table.state.view("t", dialect="datafusion", committed_txid=_visible(table))
    batches = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", DeltaTable(table.path)).execute(query))
    return sum(int(batch.num_rows) for batch in batches)
