"""Windows as users run them: the examples against plain Python; with a driver that is killed, over a real broker."""

from __future__ import annotations

import random
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.five_minute_word_count import MAX_DELAY, MESSAGES, NOON
from examples.flights import flights
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from tests.integration.kafka_count import COMMITTED, await_end_of_lease
from tests.integration.programs import CLI, Program, finished

FLIGHTS = 5_000
KILLS = 2
Counts = dict[tuple[Any, ...], int]


def counts(table: pa.Table, *key: str) -> Counts:
    return {tuple(row[name] for name in key): row["count"] for row in table.to_pylist()}


def minutes_from_noon() -> tuple[Counts, Counter[tuple[datetime, str]]]:
    """One message is one transaction; a window has closed once a message was past its end by the delay."""
    windows: Counts = {}
    late: Counter[tuple[datetime, str]] = Counter()
    closed: Counts = {}
    newest = -1
    for minute, text in MESSAGES:
        limit = newest - MAX_DELAY // timedelta(minutes=1)
        closed |= {key: windows.pop(key) for key in list(windows) if newest >= 0 and key[0] + 5 <= limit}
        start = minute - minute % 5
        for word in text.split():
            if newest >= 0 and start + 5 <= limit:
                late[NOON + timedelta(minutes=minute), word] += 1
            else:
                windows[start, word] = windows.get((start, word), 0) + 1
        newest = max(newest, minute)
    return {(NOON + timedelta(minutes=start), word): n for (start, word), n in closed.items()}, late


def test_words_are_counted_by_five_minutes(tmp_path: Path) -> None:
    finished([*CLI, "run", "examples.five_minute_word_count:build", "--master", "none", "--until-drained"], tmp_path)
    folder = tmp_path / "data" / "five-minutes"
    key, values = "window_start timestamp, word string", "window_end timestamp, count long"
    found = DeltaMapState(folder / "counts", key, values).read()
    expected, late = minutes_from_noon()
    assert counts(found, "window_start", "word") == expected
    assert {row["window_end"] - row["window_start"] for row in found.to_pylist()} == {timedelta(minutes=5)}
    assert (
        counts(DeltaMapState(folder / "late", "at timestamp, word string", "count long").read(), "at", "word") == late
    )
    assert late


def check(folder: Path, *, none_is_late: bool) -> None:
    """Every flight is in one window, or late; if none may be late, closed windows are what a batch computes."""
    due = Counter(
        (row["carrier"], datetime.fromisoformat(row["time_hour"]).astimezone(UTC)) for row in islice(flights(), FLIGHTS)
    )
    key, values = "carrier string, window_start timestamp", "count long"
    still_open = counts(DeltaMapState(folder / "open", key, values).read(), "carrier", "window_start")
    closed_state = DeltaMapState(folder / "departures", key, "window_end timestamp, count long")
    closed = counts(closed_state.read(), "carrier", "window_start")
    late = counts(
        DeltaMapState(folder / "late", "carrier string, time_hour timestamp", "count long").read(),
        "carrier",
        "time_hour",
    )
    assert not closed.keys() & still_open.keys()
    assert Counter(closed) + Counter(still_open) + Counter(late) == due
    assert len(closed) > len(due) // 10
    assert bool(late) is not none_is_late
    if none_is_late:
        assert all(due[key] == count for key, count in closed.items())


def example(broker: LocalBroker, folder: Path, *, batch: int, delay: str, master: str) -> list[str]:
    options = {"topic": folder.name, "flights": FLIGHTS, "directory": folder, "max-delay": delay, "batch": batch}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "examples.windowed_flights", "--bootstrap", broker.bootstrap]
    return [*command, *words, "--master", master]


def kill_some(command: list[str], folder: Path) -> None:
    moments = random.Random(9)
    for _ in range(KILLS):
        with Program(command, folder) as program:
            for _ in range(moments.randint(2, 5)):
                program.await_line(COMMITTED, timeout_s=120)
            assert not program.ends_within(moments.random() / 5), program.text
            program.kill()
        await_end_of_lease(folder, "windowed-flights")


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_driver_that_is_killed_counts_every_flight_in_one_window(kafka_broker: LocalBroker, tmp_path: Path) -> None:
    folder = tmp_path / "windows-none"
    folder.mkdir()
    command = example(kafka_broker, folder, batch=100, delay="1 hour", master="none")
    kill_some(command, folder)
    assert "came too late" in finished(command, tmp_path, timeout_s=200).lines[-1]
    check(folder, none_is_late=False)


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_on_spark_closed_windows_are_what_a_batch_computes_if_nothing_is_late(
    kafka_broker: LocalBroker, tmp_path: Path
) -> None:
    folder = tmp_path / "windows-spark"
    folder.mkdir()
    finished(example(kafka_broker, folder, batch=250, delay="2 days", master="local[2]"), tmp_path, timeout_s=200)
    check(folder, none_is_late=True)
