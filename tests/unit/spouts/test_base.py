"""Logs that end before their position, and come back longer: behind, or cut off; the offsets do not say which."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spouts.base import PartitionedSpout
from spouts.planning import Limits, Logs, PartitionLog
from transactional.core.ports import PartitionReader
from transactional.errors import SourceUnavailable
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.schema import Schema

A, B = (PartitionId("flights", index) for index in range(2))


class Ends(PartitionedSpout):
    """A source whose logs end where a test says; None: the partition does not respond."""

    replays_exactly = False

    def __init__(self, **ends: int | None) -> None:
        super().__init__(Schema.parse("word string"), Limits())
        self.ends = ends

    def logs(self, after: BatchMetadata) -> Logs:
        partitions = {"a": A, "b": B}
        return {
            partitions[name]: None if end is None else PartitionLog(Offset(0), Offset(end))
            for name, end in self.ends.items()
        }

    def reader(self) -> PartitionReader:
        raise AssertionError("nothing is read")

    def identity(self) -> Mapping[str, str]:
        return {}


def position_after(spout: Ends) -> BatchMetadata:
    batch = spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    return batch


def refuse(spout: Ends, after: BatchMetadata, **ends: int | None) -> None:
    spout.ends = ends
    with pytest.raises(SourceUnavailable, match="offset 300 is expected, but the available offsets are"):
        spout.plan(after, replay=False)


def test_a_log_that_comes_back_longer_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    spout = Ends(a=300, b=10)
    first = position_after(spout)
    for end in (200, 150, 290):
        refuse(spout, first, a=end, b=20)
    spout.ends = {"a": None, "b": 20}
    spout.plan(first, replay=False)
    assert caplog.messages == [], "it does not respond, so nothing is known of it"
    spout.ends = {"a": 550, "b": 20}
    for _ in range(2):
        batch = spout.plan(first, replay=False)
        assert batch is not None
        assert batch.ranges[A] == OffsetRange(Offset(300), Offset(550))
    [message] = caplog.messages
    assert message.startswith("flights[0] ended at offset 150, before the position 300, and has [0, 550) now. If")


def test_a_log_that_has_always_reached_its_position_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    spout = Ends(a=300)
    first = position_after(spout)
    spout.ends = {"a": 301}
    spout.plan(first, replay=False)
    assert caplog.messages == []


def test_a_copy_apart_warns_of_what_it_has_seen_itself(caplog: pytest.LogCaptureFixture) -> None:
    spout = Ends(a=300)
    first = position_after(spout)
    refuse(spout, first, a=150)
    apart = spout.copy_unopened()
    for each in (apart, spout):
        each.ends = {"a": 300}
    apart.plan(first, replay=False)
    assert caplog.messages == []
    spout.plan(first, replay=False)
    assert len(caplog.messages) == 1
