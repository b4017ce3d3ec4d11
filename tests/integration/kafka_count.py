"""The Kafka example as tests run it, and what must stand in its tables."""

from __future__ import annotations

import functools
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from examples.flights import flights
from spouts.local_broker import LocalBroker
from tests.integration.programs import Program
from tests.integration.tables import counts
from transactional.core.store import AttemptRecord
from transactional.core.store.sql.sql_store import SqlCoordinatorStore

TOPIC = "flights"
"""Shared by tests: the example fills it when it is not there."""
COMMITTED = r"transaction \d+:\d+ committed"


def command(broker: LocalBroker, folder: Path, *, master: str, batch: int) -> list[str]:
    """The example as a command."""
    options = {"bootstrap": broker.bootstrap, "topic": TOPIC, "directory": folder, "master": master, "batch": batch}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "examples.opaque_kafka_count", *arguments]


def run_and_kill(
    example: list[str], folder: Path, after_commits: int, delay_s: float = 0, *, topology_id: str = "flights"
) -> None:
    """Start an example, and kill it some time after it has committed so many transactions."""
    with Program(example, folder) as program:
        for _ in range(after_commits):
            program.await_line(COMMITTED)
        assert not program.ends_within(delay_s), f"it had ended before it could be killed:\n{program.text}"
        program.kill()
    end_lease(folder, topology_id)


def check_after_kills(folder: Path, batch: int) -> None:
    """Every flight is counted once, and there were transactions that were tried again."""
    check_tables(folder)
    committed = check_store(folder)
    assert len(attempts(folder)) > len(committed) >= sum(expected()["carrier"].values()) // batch


@functools.cache
def expected() -> dict[str, Counter[str]]:
    """Flights per carrier and per origin, counted plainly from the file."""
    found: dict[str, Counter[str]] = {"carrier": Counter(), "origin": Counter()}
    for row in flights():
        for field, counter in found.items():
            counter[row[field]] += 1
    return found


def check_tables(folder: Path) -> None:
    """Both tables hold exactly the plain counts."""
    for field, counter in expected().items():
        assert counts(folder / f"per-{field}", field) == counter, f"per {field}"


def attempts(folder: Path) -> list[AttemptRecord]:
    """All attempts that the store remembers, in order."""
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    records = store.attempts("flights", limit=1_000_000)[::-1]
    store.close()
    return records


def check_store(folder: Path) -> list[AttemptRecord]:
    """The committed transactions have no holes, and neither have their ranges; they hold every flight. Returns them."""
    committed = [record for record in attempts(folder) if record.phase == "committed"]
    assert [record.attempt.txid for record in committed] == list(range(1, len(committed) + 1))
    for one, next_one in pairwise(committed):
        for partition, offset in one.batch.positions().items():
            assert next_one.batch.ranges[partition].start == offset
    assert sum(record.rows or 0 for record in committed) == sum(expected()["carrier"].values())
    return committed


def end_lease(folder: Path, topology_id: str, name: str = "store.db") -> None:
    """End the lease of a run that was killed, as time would."""
    with closing(sqlite3.connect(folder / name)) as store, store:
        ended = store.execute(
            "UPDATE transactional_topologies SET leased_until_ms = 0 WHERE topology_id = ?", [topology_id]
        )
        assert ended.rowcount == 1
