"""One coordinator stands still, another takes over, the first one goes on: what it does then, and what has changed."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.integration.faults.standing_still import EXPECTED, IN_STORE, LEADING, LEADS, LEASE_MS, STANDS_STILL, TABLES
from tests.integration.programs import Program
from tests.integration.tables import counts, rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore

ROOT = Path(__file__).parents[3]
SPOUTS = ("opaque", "transactional")
COLUMNS = ("word", "count", "txid", "prev_txid", "prev_count")


@dataclass
class Two:
    """Two processes over one store."""

    folder: Path
    store: str
    spout: str
    take: int = field(default=2)

    def start(self, point: str) -> Program:
        """One of them. The second one's batches are others than the first one's, where that may be."""
        command = [sys.executable, "-m", "tests.integration.faults.standing_still", point]
        environment = {"STORE": self.store, "SPOUT": self.spout, "TAKE": str(self.take), "PYTHONPATH": str(ROOT)}
        self.take = 1 if self.spout == "opaque" else 2
        return Program(command, self.folder, **environment)

    def content(self) -> Any:
        """All that a coordinator can change: every row of the store, every row of a table and the table's versions."""
        with closing(SqlCoordinatorStore(self.store)) as store:
            # Whether a lease holds is also a matter of time: the other one may stand still as well.
            stored = ([replace(each, is_leased=True) for each in store.status()], store.attempts("still", limit=1_000))
        tables = [self.folder / table for table in TABLES if (self.folder / table / "_delta_log").exists()]
        return stored, [(delta_commits(table), rows(table, *COLUMNS)) for table in tables]

    def check(self) -> None:
        for table in TABLES:
            assert counts(self.folder / table, "word") == EXPECTED, table
        with closing(SqlCoordinatorStore(self.store)) as store:
            [status] = store.status()
            committed = [each for each in store.attempts("still", limit=1_000)[::-1] if each.phase == "committed"]
        assert not status.is_leased
        assert [each.attempt.txid for each in committed] == list(range(1, status.committed_txid + 1))
        assert sum(each.rows or 0 for each in committed) == sum(EXPECTED.values())


def delta_commits(table: Path) -> list[str]:
    """The names of a table's Delta commits."""
    return sorted(log.name for log in (table / "_delta_log").glob("*.json"))


def go_on(program: Program) -> None:
    os.kill(program.pid, signal.SIGCONT)


def shut_out(two: Two, point: str, *, after_commits: bool) -> None:
    """The first one wakes up too late: the other one leads, and has committed all there is, or nothing yet."""
    with two.start(point) as first:
        first.await_line(STANDS_STILL)
        with two.start("" if after_commits else LEADING) as second:
            second.await_line(LEADS)
            if after_commits:
                assert second.wait() == 0, second.text
            else:
                second.await_line(STANDS_STILL)
            before = two.content()
            go_on(first)
            assert first.wait() == 1, first.text
            # PostgreSQL has ended a transaction that stood still: a write, or a read of another thread at any point.
            ends = "TX401|TX306" if point == IN_STORE or two.store.startswith("postgresql") else "TX401"
            assert re.search(ends, first.text), first.text
            after = two.content()
            assert after == before, f"it has changed something:\n{first.text}"
            if not after_commits:
                go_on(second)
                assert second.wait() == 0, second.text
    two.check()


def held_up(two: Two) -> None:
    """The first one stands still inside a write to SQLite: nobody can take over until it goes on."""
    with two.start(IN_STORE) as first:
        first.await_line(STANDS_STILL)
        with two.start("") as second:
            assert not second.ends_within(3 * LEASE_MS / 1000)
            assert LEADS not in second.lines
            go_on(first)
            # Who of the two comes first then leads.
            codes = {first.wait(), second.wait()}
            assert codes in ({0}, {0, 1}), f"{first.text}\n{second.text}"
    two.check()
