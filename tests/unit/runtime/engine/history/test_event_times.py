"""What the store keeps of event time with a transaction commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional.core.machine.window_assignment import Windows, WindowTimes
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock, MemoryCoordinatorStore
from transactional.trident import Count, TridentTopology, count, session, sliding, tumbling

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


def details_of(window: Any, seconds: list[int], **declared: Any) -> list[dict[str, Any]]:
    """Of each transaction, which has one tuple, and of one that closes the last windows."""
    rows = [("a", NOON + timedelta(seconds=each)) for each in seconds]
    topology = TridentTopology("windows")
    spout = MemoryTransactionalSpout([rows], "key string, at timestamp", take=1)
    stream = topology.new_stream("clicks", spout, **declared).group_by("key").window(window)
    stream.persistent_aggregate(MemoryMapState(), Count(), name="counts")
    built, store = topology.build(), MemoryCoordinatorStore()
    clock = ManualClock(wall_ms=NOON_US // 1_000)
    config = TopologyConfig(stop_when_drained=True, idle_pause_ms=1, max_spout_pending=1)
    TopologyDriver(built, store, LocalExecutor(built), config, clock=clock, owner="test").run()
    return [dict(each.details or {}) for each in reversed(store.attempts("windows", limit=99))]


TIMED = {"event_time": "at", "max_delay": "2 seconds"}


def test_the_newest_time_the_watermark_the_open_windows_and_what_is_late() -> None:
    found = details_of(tumbling("5 seconds"), [1, 11, 21, 3, 22], **TIMED)
    times = [each["event_time"] for each in found]
    assert [(each["newest_us"] - NOON_US) // 1_000_000 for each in times] == [1, 11, 21, 21, 22, 22]
    assert [each["watermark_us"] and (each["watermark_us"] - NOON_US) // 1_000_000 for each in times] == [
        None,
        -1,
        9,
        19,
        19,
        20,
    ]
    assert [each["open"] for each in times] == [{"counts": number} for number in (None, 4, 4, 2, 2, 1)]
    ends = [each["open_until"]["counts"] for each in times[-2:]]
    assert ends == [[NOON_US + us, NOON_US + 27_000_000, False] for us in (19_000_000, 20_000_000)]
    assert [each.get("late") for each in found] == [None, None, None, {"counts": 1}, None, None]


def test_sessions_have_a_watermark_and_late_tuples() -> None:
    found = details_of(session("5 seconds", longest="1 minute"), [1, 11, 21, 3], **TIMED)
    assert found[-1]["event_time"]["open"] == {"counts": None}
    assert found[-1]["late"] == {"counts": 1}


def test_windows_of_the_transactions_own_time_have_no_watermark() -> None:
    [first, *_] = details_of(tumbling("5 seconds", time="transaction"), [1])
    open_until = {"counts": [NOON_US, NOON_US + 5_000_000, True]}
    expected = {"newest_us": None, "watermark_us": None, "open": {"counts": 1}, "open_until": open_until}
    assert first["event_time"] == expected
    assert "late" not in first


def test_windows_by_count_have_no_event_time() -> None:
    assert "event_time" not in details_of(count(2), [1, 2])[-1]


@pytest.mark.parametrize(
    ("windows", "watermark", "newest", "number"),
    [
        (Windows(5, 5), 9, 21, 4),
        (Windows(5, 5), 10, 21, 3),
        (Windows(5, 5), 21, 21, 1),
        (Windows(10, 5), 21, 21, 2),
        (Windows(5, 5), -7, 3, 3),
        (Windows(5, 5), 50, 21, 0),
        (Windows(5, 5), None, 21, None),
        (Windows(5, 5), 50, None, None),
    ],
)
def test_open_windows_are_those_from_the_first_that_has_not_closed(
    windows: Windows, watermark: int | None, newest: int | None, number: int | None
) -> None:
    assert windows.count_open_windows(WindowTimes(watermark, None), newest) == number


def test_overlapping_windows_are_all_open() -> None:
    found = details_of(sliding("10 seconds", every="5 seconds"), [1, 11, 21], **TIMED)
    assert found[2]["event_time"]["open"] == {"counts": 5}
