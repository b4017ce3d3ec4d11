"""What windows wait for is logged, once, after a minute."""

from __future__ import annotations

import pytest

from transactional.model.batch import PartitionId
from transactional.model.facts import EventTime, Listed, Listing
from transactional.runtime.engine.waiting import PartitionWaitLog

PARTITIONS = [PartitionId("orders", number) for number in range(9)]


def note(log: PartitionWaitLog, now_s: int, *listed: int, of: EventTime | None = None, is_awaited: bool = True) -> None:
    """Some partitions are listed then, since a day."""
    each = Listed(now_s * 1_000 - 86_400_000, Listing.EMPTY, is_awaited)
    partitions = [PARTITIONS[number] for number in listed]
    log.update(dict.fromkeys(partitions, each), dict.fromkeys(partitions, of or EventTime("at")), now_s * 1_000)


def test_one_line_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    log = PartitionWaitLog()
    for now_s in (0, 59, 60, 61, 1_000):
        note(log, now_s, 7, of=EventTime("at", idle_after_ms=5_400_000))
    assert caplog.messages == ["windows wait for orders[7] (empty), no record yet; idle_after=1:30:00"]


def test_a_partition_that_was_not_waited_for_in_between_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    log = PartitionWaitLog()
    note(log, 0, 1)
    note(log, 50, 1, is_awaited=False)
    note(log, 70, 1)
    note(log, 129, 1, 2)
    assert caplog.messages == []
    note(log, 130, 1, 2)
    note(log, 200, 1, 2)
    assert caplog.messages == [
        f"windows wait for orders[{number}] (empty), no record yet; idle_after=None" for number in (1, 2)
    ]


def test_many_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = PartitionWaitLog()
    note(log, 0, *range(9))
    note(log, 60, *range(9))
    assert len(caplog.messages) == 1
    assert "orders[3] (empty), orders[4] (empty) and 4 more, no record yet" in caplog.messages[0]
