"""A spout over lists, as users write them, and spouts that are wrong in one thing, with the case that fails."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from spouts import (
    MemoryTransactionalSpout,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TransactionalSpout,
)
from spouts.memory import MemoryPartitionReader
from tests.unit.own_spouts import Span, span
from transactional.errors import BatchLost
from transactional.model.batch import Offset, OffsetRange

SOURCES: dict[str, dict[str, list[str]]] = {}
HIDDEN: set[tuple[str, str]] = set()


def append(source: str, partition: int, words: Sequence[str]) -> None:
    """Add words to a partition of a source."""
    SOURCES.setdefault(source, {}).setdefault(str(partition), []).extend(words)


def truncate(source: str, partition: int) -> None:
    """Take the newest word of a partition away."""
    SOURCES[source][str(partition)].pop()


@contextmanager
def hide(source: str, partition: int) -> Iterator[None]:
    """Let a partition of a source not exist for a while."""
    HIDDEN.add((source, str(partition)))
    yield
    HIDDEN.remove((source, str(partition)))


class _Lists:
    """The words of a source, by partition."""

    output: ClassVar[str] = "word string"
    take = 1_000

    def __init__(self, source: str) -> None:
        self.source = source

    def identity(self) -> dict[str, Any]:
        return {"source": self.source}

    def words(self, partition: str) -> list[str]:
        return SOURCES.get(self.source, {}).get(partition, [])

    def partitions(self) -> list[str]:
        return [name for name in SOURCES.get(self.source, {}) if (self.source, name) not in HIDDEN]

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        start = previous["until"] if previous else 0
        until = min(start + self.take, len(self.words(partition)))
        return span(start, until) if start < until else None

    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        words = self.words(partition)
        if len(words) < metadata["until"]:
            raise EOFError(f"{partition} has only {len(words)} words")
        return [(word,) for word in words[metadata["start"] : metadata["until"]]]


class Lists(_Lists, PartitionedTransactionalSpout[Span]):
    """A transactional spout over lists."""

    def check_replay(self, partition: str, metadata: Span) -> None:
        if len(self.words(partition)) < metadata["until"]:
            raise BatchLost(f"{partition} was cut off")


class OpaqueLists(_Lists, OpaquePartitionedTransactionalSpout[Span]):
    """An opaque spout over lists."""


class WholeList(_Lists, TransactionalSpout[Span]):
    """A spout over one list, without partitions."""

    def initialize_transaction(self, previous: Span | None) -> Span | None:
        return self.next_batch("0", previous)

    def emit_batch(self, metadata: Span, part: int, parts: int) -> Any:
        return self.emit_partition_batch("0", metadata)[part::parts]


# --- planning ---------------------------------------------------------------------------------------------------------


class BatchesOfNothing(Lists):
    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        start = previous["until"] if previous else 0
        return span(start, len(self.words(partition)))


class OwnPosition(Lists):
    """Begins where its last call ended, not where the recorded batch ends."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        positions = vars(self).setdefault("positions", {})
        batch = super().next_batch(partition, positions.get(partition))
        positions[partition] = batch or positions.get(partition)
        return batch


class OwnPositionAfterStart(OwnPosition):
    """Looks at the recorded batch at its start only."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        if previous is None:
            vars(self).get("positions", {}).pop(partition, None)
        return super().next_batch(partition, previous)


class SkipsFirst(Lists):
    """Begins one record after the end."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        return super().next_batch(partition, previous and span(0, previous["until"] + 1))


class RepeatsLast(Lists):
    """Ends with a record that the next batch begins with."""

    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        return super().emit_partition_batch(partition, span(max(0, metadata["start"] - 1), metadata["until"]))


class OpenEnd(Lists):
    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        return super().emit_partition_batch(partition, span(metadata["start"], len(self.words(partition))))


class OnePage(Lists):
    """Reads a page of what the metadata describe."""

    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        return super().emit_partition_batch(partition, metadata)[:100]


class OverLimit(Lists):
    def limit_batches(self, limit: Any) -> None:
        self.take = limit.records + 1


class FirstPartitions(Lists):
    """Lists its partitions once."""

    def partitions(self) -> list[str]:
        return vars(self).setdefault("names", super().partitions()) or super().partitions()


class NumberedPartitions(Lists):
    """Names a partition by its place in a listing: another one has the name while one is away."""

    def partitions(self) -> list[str]:
        return [str(number) for number, _ in enumerate(super().partitions())]

    def words(self, partition: str) -> list[str]:
        return super().words(super().partitions()[int(partition)])


class WrongLag(MemoryTransactionalSpout):
    def lag(self, previous_batch: Any) -> int | None:
        return 7


# --- replays ----------------------------------------------------------------------------------------------------------


class Shuffled(Lists):
    calls: ClassVar[int] = 0

    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        Shuffled.calls += 1
        return super().emit_partition_batch(partition, metadata)[:: 1 - self.calls // 2 % 2 * 2]


class Consuming(Lists):
    """Takes what it reads out of the source."""

    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        emitted = super().emit_partition_batch(partition, metadata)
        self.words(partition)[metadata["start"] : metadata["until"]] = [""] * len(emitted)
        return emitted


class Tupled(MemoryTransactionalSpout):
    """Has metadata that come back from JSON as something else."""

    def plan(self, previous_batch: Any, *, replay: bool) -> Any:
        batch = super().plan(previous_batch, replay=replay)
        if batch is not None:
            object.__setattr__(batch, "metadata", dict.fromkeys(batch.ranges, (1, 2)))
        return batch


class Connected(Lists):
    """Reads with what `open` has made."""

    def open(self) -> None:
        self.connection = self.source

    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        return super().emit_partition_batch(partition, metadata) if self.connection else []


class MemoryOfBatches(Lists):
    """Remembers in one process what its batches are, and records their numbers."""

    def next_batch(self, partition: str, previous: Any) -> Any:
        batches = vars(self).setdefault("batches", {})
        batch = super().next_batch(partition, batches.get((partition, previous)))
        if batch is None:
            return None
        batches[partition, (previous or 0) + 1] = batch
        return (previous or 0) + 1

    def emit_partition_batch(self, partition: str, metadata: Any) -> Any:
        return super().emit_partition_batch(partition, self.batches[partition, metadata])  # type: ignore[attr-defined]


class WholeForEach(WholeList):
    """Emits the whole batch in each part."""

    def emit_batch(self, metadata: Span, part: int, parts: int) -> Any:
        return super().emit_batch(metadata, 0, 1)


class LessInSilence(Lists):
    def emit_partition_batch(self, partition: str, metadata: Span) -> Any:
        return [(word,) for word in self.words(partition)[metadata["start"] : metadata["until"]]]


class FromTheStart(OpaqueLists):
    """Plans each replay from the start of the partition."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        batch = super().next_batch(partition, previous)
        return batch and span(max(0, batch["start"] - 1), batch["until"])


class LosesReplays(MemoryTransactionalSpout):
    """Has no batch for a replay of nothing."""

    @property
    def replays_exactly(self) -> bool:
        return False

    def plan(self, previous_batch: Any, *, replay: bool) -> Any:
        return super().plan(previous_batch, replay=False)


class RangeReader(MemoryPartitionReader):
    """Reads the whole partition, whatever the range is."""

    def read(self, partition: Any, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        yield from super().read(partition, OffsetRange(Offset(0), Offset(len(self.partitions[partition.index]))))


class SilentReader(MemoryPartitionReader):
    def read(self, partition: Any, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        end = min(offsets.until, len(self.partitions[partition.index]))
        yield from super().read(partition, OffsetRange(offsets.start, Offset(end)))


class CountingReader(MemoryPartitionReader):
    """Counts records from 1 on."""

    def read_with_offsets(self, *arguments: Any) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        for batch, numbers in super().read_with_offsets(*arguments):
            yield batch, pa.array([number + 1 for number in numbers.to_pylist()])


class JoiningReader(RangeReader):
    """Counts each range with the rows of the next one."""

    def read_together(self, ranges: Any) -> Any:
        parts = [(number, part) for number, some in enumerate(ranges) for part in self.read(*some)]
        counts = [(len(ranges) - 1 - number, part.num_rows) for number, part in parts]
        yield pa.Table.from_batches([part for _, part in parts]).combine_chunks().to_batches()[0], counts


class WholePartition(MemoryTransactionalSpout):
    reader_class: ClassVar[Any] = RangeReader

    def reader(self) -> Any:
        return self.reader_class(self._partitions, self.output)


class CountsOfAnother(WholePartition):
    reader_class = JoiningReader


class SilentRanges(WholePartition):
    reader_class = SilentReader


class CountedFromOne(WholePartition):
    reader_class = CountingReader


# --- a spout's life ---------------------------------------------------------------------------------------------------


class IdentityWithAPath(Lists):
    def identity(self) -> dict[str, Any]:
        return {"source": Path(self.source)}


class IdentityWithANumber(Lists):
    def identity(self) -> dict[str, Any]:
        return {"source": self.source, "partitions": 2}


class IdentityOfTheProcess(Lists):
    def identity(self) -> dict[str, Any]:
        return {"source": self.source, "client": uuid.uuid4().hex}


class IdentityThatGrows(Lists):
    def identity(self) -> dict[str, Any]:
        return {"source": self.source, "partitions": ",".join(self.partitions())}


class OtherColumns(MemoryTransactionalSpout):
    class Reader(MemoryPartitionReader):
        def read(self, *arguments: Any) -> Iterator[pa.RecordBatch]:
            for batch in super().read(*arguments):
                yield batch.rename_columns(["line"])

    def reader(self) -> Any:
        return self.Reader(self._partitions, self.output)


class OtherTypes(Lists):
    output = "word int"


class ClosedOnce(Lists):
    def open(self) -> None:
        self.connection = self.source

    def close(self) -> None:
        del self.connection


class SharedConnection(Lists):
    """Has a connection in an object that a copy refers to."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.connections: list[str] = []

    def open(self) -> None:
        self.connections.append(self.source)

    def close(self) -> None:
        self.connections.clear()

    def partitions(self) -> list[str]:
        return super().partitions() if self.connections else []


class DeletesTooMuch(Lists):
    """Deletes everything once a batch is committed, not only what the batch has read."""

    def committed(self, metadata: Any) -> None:
        for name in metadata:
            self.words(name).clear()


class CommitsByCounting(Lists):
    """Takes one batch off a list with each notice."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        batch = super().next_batch(partition, previous)
        if batch is not None:
            vars(self).setdefault("waiting", []).append(batch)
        return batch

    def committed(self, metadata: Any) -> None:
        for _ in metadata:
            self.waiting.pop()  # type: ignore[attr-defined]


def over_rows(kind: type[MemoryTransactionalSpout]) -> Any:
    """Return a function that makes a memory spout of this class over a source."""

    def make(source: str) -> MemoryTransactionalSpout:
        return kind(ROWS.setdefault(source, [[], []]), "word string", 1_000)

    return make


ROWS: dict[str, list[list[tuple[str]]]] = {}


def append_rows(source: str, partition: int, words: Sequence[str]) -> None:
    """Add rows to a partition of a source in memory."""
    ROWS.setdefault(source, [[], []])[partition] += [(word,) for word in words]


WRONG: dict[type, str] = {
    BatchesOfNothing: "nothing_new_is_no_batch",
    SkipsFirst: "records_come_once_in_order",
    RepeatsLast: "records_come_once_in_order",
    OnePage: "many_records_come_once",
    OpenEnd: "a_batch_ends_where_it_was_planned",
    OwnPosition: "a_batch_that_was_not_recorded_is_planned_again",
    OwnPositionAfterStart: "planning_goes_back_with_the_progress",
    OverLimit: "batches_keep_a_limit",
    FirstPartitions: "a_partition_joins_later",
    NumberedPartitions: "a_partition_that_is_away_keeps_its_position",
    WrongLag: "the_lag_counts_unread_records",
    Shuffled: "a_batch_reads_the_same_again",
    Consuming: "a_batch_reads_the_same_again",
    Tupled: "a_batch_is_stored_as_it_is",
    Connected: "tasks_read_with_a_reader_from_before_open",
    MemoryOfBatches: "a_restart_continues",
    WholeForEach: "another_number_of_tasks_reads_the_same",
    LessInSilence: "less_than_a_batch_is_an_error",
    FromTheStart: "records_come_once_in_order",
    LosesReplays: "an_opaque_replay_is_planned_again",
    WholePartition: "a_range_is_read_in_parts",
    CountsOfAnother: "ranges_that_are_read_together_keep_their_tuples",
    SilentRanges: "a_range_beyond_the_end_is_an_error",
    CountedFromOne: "offsets_are_those_of_the_records",
    IdentityWithAPath: "the_identity_is_that_of_the_source",
    IdentityWithANumber: "the_identity_is_that_of_the_source",
    IdentityOfTheProcess: "the_identity_is_that_of_the_source",
    IdentityThatGrows: "the_identity_is_that_of_the_source",
    OtherColumns: "tuples_have_the_declared_fields",
    OtherTypes: "tuples_have_the_declared_fields",
    ClosedOnce: "a_spout_is_closed_and_opened_again",
    SharedConnection: "an_examination_does_not_disturb_a_run",
    DeletesTooMuch: "commits_are_noticed",
    CommitsByCounting: "commits_are_noticed",
}
