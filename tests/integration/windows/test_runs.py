"""Windows as users run them: the examples against plain Python; with a driver that is killed, over a real broker."""

from __future__ import annotations

import random
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from examples.five_minute_word_count import MAX_DELAY, MESSAGES, NOON
from examples.flights import flights, produce_flights
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from tests.integration.kafka_count import run_and_kill
from tests.integration.programs import finished
from tests.integration.windows.many_windows import (
    EVERY,
    GAP_HOURS,
    LENGTH,
    PARTITIONS,
    Died,
    of_a_bolt,
    of_streams,
    run,
)
from tests.unit.command_line import RUN, Command
from transactional.trident import collected

FLIGHTS = 5_000
KILLS = 2
DEATHS = {of_streams: (2, 9), of_a_bolt: (9,)}
"""In which transactions drivers die: from the seventh on windows close."""
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


def test_words_are_counted_by_five_minutes(tmp_path: Path, command: Command) -> None:
    assert command(*RUN, "examples.five_minute_word_count:build").code == 0
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


def hours() -> Counter[tuple[str, datetime]]:
    """The flights of each carrier and hour, counted plainly."""
    rows = islice(flights(), FLIGHTS)
    return Counter((row["carrier"], datetime.fromisoformat(row["time_hour"]).astimezone(UTC)) for row in rows)


def check(folder: Path) -> None:
    """Every flight is in one window, or late."""
    due = hours()
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
    assert late


def example(broker: LocalBroker, folder: Path) -> list[str]:
    options = {"topic": folder.name, "flights": FLIGHTS, "directory": folder, "max-delay": "1 hour", "batch": 100}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "examples.windowed_flights", "--bootstrap", broker.bootstrap]
    return [*command, *words, "--master", "none"]


@pytest.mark.kafka
def test_a_driver_that_is_killed_counts_every_flight_in_one_window(kafka_broker: LocalBroker, tmp_path: Path) -> None:
    folder = tmp_path / "windows-none"
    folder.mkdir()
    command = example(kafka_broker, folder)
    moments = random.Random(9)
    for _ in range(KILLS):
        run_and_kill(command, folder, moments.randint(2, 5), moments.random() / 5, topology_id="windowed-flights")
    assert "came too late" in finished(command, tmp_path).lines[-1]
    check(folder)


def rows(folder: Path, name: str, key: str, values: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaMapState(folder / name, key, values).read().to_pylist()
    return found


def check_sessions(folder: Path) -> None:
    """A flight is in the session of its carrier that is open, or has closed."""
    columns = "window_end timestamp, count long"
    key = "carrier string, window_start timestamp"
    closed, still = (rows(folder, name, key, columns) for name in ("sessions-closed", "sessions"))
    gap, due = timedelta(hours=GAP_HOURS), sessions(timedelta(hours=GAP_HOURS))
    assert {
        (row["carrier"], row["window_start"]): (row["window_end"], row["count"]) for row in (*closed, *still)
    } == due
    assert len(closed) > len(due) // 4
    assert len(closed) + len(still) == len(due)
    assert all(row["window_end"] - row["window_start"] >= gap for row in closed)


def sessions(gap: timedelta) -> dict[tuple[str, datetime], tuple[datetime, int]]:
    """Sorted by time, one after the other."""
    found: dict[tuple[str, datetime], tuple[datetime, int]] = {}
    begun: dict[str, datetime] = {}
    for (carrier, at), number in sorted(hours().items()):
        if carrier not in begun or found[carrier, begun[carrier]][0] <= at:
            begun[carrier] = at
        count = found.get((carrier, begun[carrier]), (at, 0))[1]
        found[carrier, begun[carrier]] = at + gap, count + number
    return found


def check_counts(folder: Path) -> None:
    """Every flight has one place among those of its carrier; and one among all."""
    due = hours()
    of_carrier = Counter(carrier for carrier, _ in due.elements())
    closed = rows(folder, "last-closed", "carrier string, window_end long", "window_start long, collect string")
    seen: Counter[tuple[str, datetime]] = Counter()
    for row in sorted(closed, key=lambda row: int(row["window_end"])):
        flights_of = collected(row["collect"])
        assert len(flights_of) == row["window_end"] - row["window_start"] == min(LENGTH, row["window_end"])
        seen += Counter((row["carrier"], each["time_hour"]) for each in flights_of[-EVERY:])
    ends = Counter(row["carrier"] for row in closed)
    assert ends == {carrier: number // EVERY for carrier, number in of_carrier.items() if number >= EVERY}
    for row in rows(folder, "last", "carrier string, pane long", "pane_start long, pane_end long, collect string"):
        if row["pane_start"] >= of_carrier[row["carrier"]] // EVERY * EVERY:
            seen += Counter((row["carrier"], each["time_hour"]) for each in collected(row["collect"]))
    assert seen == due
    twenty = rows(folder, "twenty-closed", "window_start long", "window_end long, count long")
    assert {row["window_start"]: row["count"] for row in twenty} == dict.fromkeys(
        range(0, FLIGHTS - LENGTH + 1, LENGTH), LENGTH
    )


def check_bolt(folder: Path) -> None:
    """A bolt has had each hour once, with all of its flights."""
    due = hours()
    key, values = "carrier string, window_start timestamp", "count long, times long, last long"
    found = rows(folder, "hours-closed", key, values)
    assert {row["times"] for row in found} == {1}
    assert {(row["carrier"], row["window_start"]): row["count"] for row in found}.items() <= due.items()
    newest = max(at for _, at in due) - timedelta(days=4)
    assert {window for window in due if window[1] < newest} <= {(row["carrier"], row["window_start"]) for row in found}


@pytest.mark.spark
@pytest.mark.kafka
def test_sessions_counts_and_bolts_on_spark_with_a_driver_that_dies(
    kafka_broker: LocalBroker, tmp_path: Path, spark: SparkSession
) -> None:
    produce_flights(kafka_broker.bootstrap, tmp_path.name, PARTITIONS, FLIGHTS)
    for build, deaths in DEATHS.items():
        built = partial(build, kafka_broker.bootstrap, tmp_path.name, tmp_path)
        for txid in deaths:
            with pytest.raises(Died):
                run(built, tmp_path, spark, dies_in=txid)
        run(built, tmp_path, spark)
    check_sessions(tmp_path)
    check_counts(tmp_path)
    check_bolt(tmp_path)
