"""What the source has lost of a batch that was recorded: it is skipped and counted, or ends the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout
from spouts.planning import Logs, PartitionLog
from tests.unit.topology.reliable.runs import Send, Split, committed, fresh, run
from transactional.core.machine.protocol import RecordCommit, RecordFailure
from transactional.core.ports import PartitionReader
from transactional.errors import BatchLost, OperatingError, ReplayMismatch
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.failures import TaskFailed
from transactional.reliable import TopologyBuilder
from transactional.runtime.tasks.failing.losses import skipping_losses

LINES = [("a",), ("b",), ("c",), ("d",), ("e",), ("f",)]


@dataclass
class Log:
    """A log that loses its beginning."""

    first: int = 0


@dataclass(frozen=True)
class ShortReader(PartitionReader):
    """Reads a log that may have lost its beginning."""

    log: Log
    rows: MemoryPartitionReader

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in self.read_with_offsets(partition, offsets, metadata))

    @property
    def knows_offsets(self) -> bool:
        return True

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        if offsets.start < self.log.first:
            raise ReplayMismatch(f"{partition} has lost {offsets}", available_from=self.log.first)
        return self.rows.read_with_offsets(partition, offsets, metadata)


class ShortSpout(MemoryTransactionalSpout):
    """A spout over such a log, of both kinds."""

    def __init__(self, *, opaque: bool) -> None:
        super().__init__([LINES], "line string", 4)
        self.log, self.opaque = Log(), opaque

    @property
    def replays_exactly(self) -> bool:
        return not self.opaque

    def logs(self, after: BatchMetadata) -> Logs:
        return {p: PartitionLog(Offset(self.log.first), log.end) for p, log in super().logs(after).items() if log}

    def reader(self) -> Any:
        return ShortReader(self.log, super().reader())


def mails(spout: ShortSpout, **given: Any) -> Any:
    made = TopologyBuilder("mails", guarantee="at-least-once", **given)
    made.set_spout("lines", spout, 2)
    made.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    made.set_bolt("send", Send(), 3).fields_grouping("split", "word")
    return made.build()


def loses(spout: ShortSpout, first: int, after: type[Any]) -> Any:
    """Once an action of this kind is performed, retention takes everything before `first`."""

    def note(at_ms: int, event: Any, actions: Any) -> None:
        if any(isinstance(action, after) for action in actions):
            spout.log.first = first

    return note


def failing_job() -> Any:
    """The first job fails."""
    met = [0]

    def fails(word: str, _: int) -> bool:
        met[0] += 1
        if met[0] == 1:
            raise TaskFailed(OperatingError.code, "send", "the worker died")
        return False

    return fails


@pytest.mark.parametrize("ackers", [0, 1])
def test_what_was_recorded_and_is_gone_is_skipped_and_counted(ackers: int) -> None:
    given, spout = fresh(failing_job()), ShortSpout(opaque=True)
    store = run(mails(spout, ackers=ackers), observers=[loses(spout, 3, RecordFailure)], attempts_max=5)
    assert set(given.sent) - {"a", "b", "c"} == {"d", "e", "f"}
    assert (given.sent["e"], given.sent["f"]) == (1, 1)
    assert [batch.lost for batch in committed(store).values()] == [3, 0]


def test_a_batch_of_which_nothing_is_left_is_empty() -> None:
    fresh(failing_job())
    spout = ShortSpout(opaque=True)
    store = run(mails(spout), observers=[loses(spout, 5, RecordFailure)], attempts_max=5)
    assert [batch.lost for batch in committed(store).values()] == [4, 0], "what the next one skips is a gap of the plan"


def test_a_message_that_waits_and_is_gone_is_counted() -> None:
    given, spout = fresh(lambda word, times: word == "b"), ShortSpout(opaque=True)
    store = run(mails(spout), observers=[loses(spout, 2, RecordCommit)], attempts_max=5)
    batches = committed(store)
    assert given.split["b"] == 1
    assert sum(batch.lost for batch in batches.values()) == 1
    assert batches[max(batches)].pending == ()


def test_a_transactional_spout_stops_as_it_does_with_exactly_once() -> None:
    fresh(failing_job())
    spout = ShortSpout(opaque=False)
    with pytest.raises(BatchLost, match="no longer can be"):
        run(mails(spout), observers=[loses(spout, 3, RecordFailure)], attempts_max=5)


# --- reading around -----------------------------------------------------------------------------------------------

PARTITION = PartitionId("log", 0)
SCHEMA = pa.schema([("n", pa.int64())])


def span(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def read_all(losses: dict[int, tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Read 0 to 100. `losses`: of a range that starts there, up to where it delivers, where the log begins then, and
    up to where everything that exists was delivered. Gives what was read, and what was counted."""
    found, counted = list[int](), list[int]()

    def read(partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        until, first, read_until = losses.get(offsets.start, (offsets.until, 0, 0))
        yield pa.record_batch([list(range(offsets.start, until))], schema=SCHEMA)
        if first:
            raise ReplayMismatch("gone", available_from=first, read_until=read_until)

    for batch in skipping_losses(read, lambda count, why: counted.append(count))(PARTITION, span(0, 100)):
        assert isinstance(batch, pa.RecordBatch)
        found += batch.column(0).to_pylist()
    return found, counted


def test_reading_continues_where_there_are_records_again() -> None:
    assert read_all({}) == (list(range(100)), [])
    assert read_all({0: (0, 50, 0)}) == (list(range(50, 100)), [50])
    assert read_all({0: (21, 50, 21)}) == ([*range(21), *range(50, 100)], [29]), "in the middle"
    assert read_all({0: (0, 30, 0), 30: (30, 60, 30)}) == (list(range(60, 100)), [30, 30]), "again while it is read"
    assert read_all({0: (0, 150, 0)}) == ([], [100]), "all of it"
    assert read_all({0: (100, 50, 100)}) == (list(range(100)), []), "after it was read"
    assert read_all({0: (90, 50, 100)}) == (list(range(90)), [10]), "it can't be known that these were none"


def test_a_mismatch_that_is_no_loss_stays_one() -> None:
    def read(partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        raise ReplayMismatch("another one")

    with pytest.raises(ReplayMismatch, match="another one"):
        list(skipping_losses(read, lambda count, why: None)(PARTITION, span(0, 9)))
