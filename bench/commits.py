"""`python -m bench.commits`: what committing staged files costs, by their rows and their number, in an old table.

    python -m bench.commits --versions 10000 --transactions 30 --fold-after 12

Without Spark: the files of a transaction are links to such that are written before, under names of its own, as tasks
would report them. Tables take transactions in turns, so that what else the machine does falls on all. Milliseconds from
the partial aggregates' arrival in the driver to the Delta commit; files are synced as usual. Folds run between two
transactions here, and are waited for: the mean has them in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from bench import machine
from bench.figures import percentile
from bench.timed_table import finish_fold, folds_in
from state import DeltaMapState, LogLayout
from state.delta.tables.staging import staged_name
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.ports import Partials
from transactional.ports.staged import StagedFile

OWNER = "bench/commits"
KEPT = 500
"""Entries that a table's log keeps, by default."""
EVERY = ((1_000, 2), (100_000, 2), (10_000_000, 2), (1_000_000, 20), (1_000_000, 200))
"""Rows of a transaction, and files that they come in."""


class StagedTable:
    """A table in the log layout, whose transactions are so many rows in so many files."""

    def __init__(self, old: Path, rows: int, files: int, txid: int = 0, *, fold_after: int | None = None) -> None:
        self.rows, self.files = rows, files
        self.folder = old.parent / f"{rows}-{files}"
        if old.exists():
            shutil.copytree(old, self.folder)
        layout = LogLayout(fold_after=fold_after, staged_bytes=0)
        self.state = DeltaMapState(self.folder, "key long", "count long", layout=layout)
        self.state.set_durability("disk" if old.exists() else "process")
        self.state.open(OWNER, lambda attempt_id: TxId(int(attempt_id)))
        self.txid, self.wall_ms, self.cpu_ms, self.upkeep_ms = txid, list[float](), list[float](), list[float]()
        self.templates = self._templates()

    def grow_old(self, versions: int) -> None:
        """Let it have so many Delta versions: those that the log keeps, and the numbers of the others before them."""
        table = self.state._open_table
        while table.loaded.delta_version < min(versions, KEPT):
            attempt = self._attempt()
            self.state.version()
            table.write_version(attempt.attempt_id, attempt)
        table.loaded.snapshot.create_checkpoint()
        self.state.close()
        renumber(self.folder / "_delta_log", max(0, versions - KEPT))

    def step(self) -> None:
        """The next transaction."""
        attempt = self._attempt()
        staged = [self._linked(template, attempt) for template in self.templates]
        wall, cpu = time.perf_counter(), time.process_time()
        self.state.merge(attempt, Partials({"count": "sum"}, self._none(), staged))
        self.wall_ms.append((time.perf_counter() - wall) * 1e3)
        self.cpu_ms.append((time.process_time() - cpu) * 1e3)
        wall = time.perf_counter()
        self.state.tidy(attempt.txid, lambda: True)
        finish_fold(self.state, attempt.txid)
        self.upkeep_ms.append((time.perf_counter() - wall) * 1e3)

    def found(self) -> dict[str, Any]:
        """The figures. Raises `ValueError` if the table has not counted all rows."""
        counted, wanted = pc.sum(self._stored()["count"]).as_py(), self.rows * len(self.wall_ms)
        if counted != wanted:
            raise ValueError(f"{self.folder.name}: {counted} counted instead of {wanted}")
        each = {f"{name}_p{p}_ms": percentile(t, p) for name, t in self._times.items() for p in (50, 99)}
        version = self.state._open_table.loaded.delta_version
        mean = (sum(self.wall_ms) + sum(self.upkeep_ms)) / len(self.wall_ms)
        known = {"rows": self.rows, "files": self.files, "transactions": len(self.wall_ms), "version": version}
        folds = {
            "folds": folds_in(self.folder),
            "wall_mean_ms": statistics.mean(self.wall_ms),
            "mean_with_folds_ms": mean,
        }
        return {**known, **each, **folds}

    def _stored(self) -> pa.Table:
        table = DeltaTable(str(self.folder))
        return pa.table(QueryBuilder().register("t", table).execute('SELECT sum("count") AS "count" FROM t').read_all())

    @property
    def _times(self) -> dict[str, list[float]]:
        return {"wall": self.wall_ms, "cpu": self.cpu_ms}

    def _attempt(self) -> TransactionAttempt:
        self.txid += 1
        return TransactionAttempt(TxId(self.txid), AttemptId(self.txid))

    def _none(self) -> pa.Table:
        return pa.table({"key": pa.array([], pa.int64()), "count": pa.array([], pa.int64())})

    def _templates(self) -> list[StagedFile]:
        stager = self.state.stager(OWNER)
        if stager is None:
            raise ValueError(f"{self.folder} can't have staged files")
        each, nothing = self.rows // self.files, TransactionAttempt(TxId(1), AttemptId(2**60))
        ones = pa.repeat(pa.scalar(1), each)
        keys = (pa.array(range(n * each, (n + 1) * each), pa.int64()) for n in range(self.files))
        return [stager.stage(nothing, pa.table({"key": part, "count": ones})) for part in keys]

    def _linked(self, template: StagedFile, attempt: TransactionAttempt) -> StagedFile:
        path = staged_name(OWNER, attempt)
        os.link(self.folder / template.path, self.folder / path)
        return replace(template, path=path)


def renumber(log: Path, by: int) -> None:
    """Let the entries of a log have higher versions, as if so many had been cleaned out before them."""
    for path in sorted(log.glob("0*"), reverse=True):
        version, rest = path.name.split(".", 1)
        path.rename(log / f"{int(version) + by:020}.{rest}")
    hint = json.loads((log / "_last_checkpoint").read_text("utf-8"))
    (log / "_last_checkpoint").write_text(json.dumps({"version": hint["version"] + by, "size": hint["size"]}), "utf-8")


def main() -> None:
    """Print a line of JSON for each table."""
    parser = argparse.ArgumentParser(prog="python -m bench.commits", description=__doc__)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--transactions", type=int, default=40)
    parser.add_argument("--fold-after", type=int, help="fold so many transactions; else never")
    parser.add_argument("--most", type=lambda text: int(float(text)), default=10_000_000, help="rows of a transaction")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="commits-"))
    try:
        old = StagedTable(folder / "old", 0, 1)
        old.grow_old(options.versions)
        sizes = [(rows, files) for rows, files in EVERY if rows <= options.most]
        tables = [StagedTable(old.folder, *size, old.txid, fold_after=options.fold_after) for size in sizes]
        before = machine.cpu_time()
        for _ in range(options.transactions):
            for table in tables:
                table.step()
        after = machine.cpu_time()
        others = after.others_share_since(before) if before and after else None
        for table in tables:
            print(json.dumps({**table.found(), "others_share": others}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
