"""Where a Kafka spout stops reading: at given offsets, at a time, and never before what was read. Without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spouts.kafka.end import EndPositions
from spouts.kafka.offsets import OffsetReader, Queried
from spouts.kafka.subscription import TopicNames
from spouts.planning import Limits, PartitionLog, cap_log_end, plan_batch
from transactional.errors import BatchLost, ConfigError
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId

A, B = PartitionId("flights#old", 0), PartitionId("flights#old", 1)
NAMES = TopicNames(("flights",))


class Broker(OffsetReader):
    """Answers with the offsets at one time, and notes what it was asked for."""

    def __init__(self, at: Mapping[PartitionId, int | None] | None = None) -> None:
        self.at, self.asked = dict(at or {}), list[str]()

    def query_offsets_at_time(self, queried: Queried, time_ms: int) -> dict[PartitionId, Offset | None]:
        self.asked += [f"{partition} at {time_ms}" for partition in queried]
        found = {p: self.at[p] for p in queried if p in self.at}
        return {p: None if offset is None else Offset(offset) for p, offset in found.items()}


def log(earliest: int, end: int, start: int | None = None) -> PartitionLog:
    return PartitionLog(Offset(earliest), Offset(end), None if start is None else Offset(start))


def after(**positions: int) -> BatchMetadata:
    named = {"a": A, "b": B}
    return BatchMetadata({named[name]: OffsetRange(Offset(end), Offset(end)) for name, end in positions.items()})


def ends(end: Any, logs: Any, batch: BatchMetadata = EMPTY_BATCH, broker: Broker | None = None) -> dict[str, Any]:
    found = EndPositions(end, NAMES).apply(broker or Broker(), batch, logs)
    return {str(partition): log and log.end for partition, log in found.items()}


def test_without_an_end_nothing_is_asked() -> None:
    broker, logs = Broker(), {A: log(0, 9)}
    assert EndPositions(None, NAMES).apply(broker, EMPTY_BATCH, logs) is logs
    assert broker.asked == []


def test_a_log_ends_at_a_given_offset_and_others_where_they_end() -> None:
    assert ends({"flights": {0: 5}}, {A: log(0, 9), B: log(0, 8)}) == {str(A): 5, str(B): 8}


def test_an_end_that_is_still_to_come() -> None:
    assert ends({"flights": {0: 50}}, {A: log(0, 9)}) == {str(A): 9}


@pytest.mark.parametrize("time", [2_000, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=2)])
def test_a_time_ends_at_the_first_record_that_is_not_earlier(time: Any) -> None:
    broker = Broker({A: 5, B: None})
    assert ends(time, {A: log(0, 9), B: log(0, 8)}, broker=broker) == {str(A): 5, str(B): 8}
    assert broker.asked == [f"{A} at 2000", f"{B} at 2000"]


def test_an_end_by_time_stays_where_it_was_found() -> None:
    """And where there was none yet, it is looked for again."""
    broker, positions = Broker({A: 5, B: None}), EndPositions(2_000, NAMES)
    positions.apply(broker, EMPTY_BATCH, {A: log(0, 9), B: log(0, 8)})
    broker.at, broker.asked = {A: 7, B: 8}, []
    found = positions.apply(broker, EMPTY_BATCH, {A: log(0, 9), B: log(0, 10)})
    assert {p: each and each.end for p, each in found.items()} == {A: 5, B: 8}
    assert broker.asked == [f"{B} at 2000"]
    positions.forget()
    assert positions.apply(broker, EMPTY_BATCH, {A: log(0, 9)})[A] == log(0, 7)


def test_a_partition_whose_end_is_not_known_waits() -> None:
    """Otherwise it would be read beyond its end."""
    assert ends(2_000, {A: log(0, 9), B: None}, broker=Broker()) == {str(A): None, str(B): None}


@pytest.mark.parametrize(
    ("found", "end", "position", "then"),
    [
        (log(0, 9), 5, 3, 5),
        (log(0, 9), 5, 7, 7),
        (log(6, 9), 5, None, 6),
        (log(0, 9, start=8), 5, None, 8),
        (log(0, 9), 5, 12, 9),
        (log(0, 4), 5, 3, 4),
        (log(0, 9), 0, None, 0),
    ],
    ids=["ahead", "already beyond", "gone by now", "begins beyond", "cut off", "still to come", "nothing"],
)
def test_an_end_is_never_before_what_was_read(found: PartitionLog, end: int, position: int | None, then: int) -> None:
    assert cap_log_end(found, Offset(end), None if position is None else Offset(position)).end == then


def test_what_is_lost_before_the_end_is_lost() -> None:
    logs = EndPositions({"flights": {0: 150}}, NAMES).apply(Broker(), after(a=100), {A: log(200, 300)})
    with pytest.raises(BatchLost):
        plan_batch(after(a=100), logs, Limits(), replays_exactly=True, replay=False)


def test_at_its_end_there_is_nothing_to_plan() -> None:
    logs = EndPositions({"flights": {0: 5}}, NAMES).apply(Broker(), after(a=5), {A: log(0, 9)})
    assert plan_batch(after(a=5), logs, Limits(), replays_exactly=True, replay=False) is None


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("latest", "end is a time .* or .*; got 'latest'"),
        (True, "end is a time .* got True"),
        (-1, "end must not be before 1970"),
        (datetime(2025, 1, 1), "end is a time without a time zone"),  # noqa: DTZ001 - that is the mistake
        ({"trains": {0: 1}}, "end= gives offsets of topic 'trains', which is not read"),
        ({"flights": {0: -1}}, "end= gives 0: -1 for topic 'flights'"),
    ],
)
def test_what_is_no_end_is_refused(end: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EndPositions(end, NAMES)
