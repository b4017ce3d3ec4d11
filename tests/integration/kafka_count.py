"""The Kafka example as tests run it, and what must stand in its tables."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

from examples.flights import flights
from spouts.local_broker import LocalBroker
from state.store.sql_store import SqlCoordinatorStore
from tests.integration.tables import counts
from transactional.engine.clock import SystemClock
from transactional.store import AttemptRecord

TOPIC = "flights"
"""Shared by tests: the example fills it when it is not there."""
COMMITTED = r"transaction \d+:\d+ committed"


def command(broker: LocalBroker, folder: Path, *, master: str, batch: int) -> list[str]:
    """The example as a command."""
    options = {"bootstrap": broker.bootstrap, "topic": TOPIC, "directory": folder, "master": master, "batch": batch}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "examples.opaque_kafka_count", *arguments]


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


def await_end_of_lease(folder: Path, topology_id: str = "flights") -> None:
    """Wait until the lease of a run that was killed has ended; none was taken when it was killed early."""
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    for status in store.status(topology_id):
        left_ms = (status.leased_until_ms or 0) - SystemClock().wall_ms()
        threading.Event().wait(max(left_ms, 0) / 1000)
    store.close()
