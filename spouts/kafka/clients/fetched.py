"""Buffers the messages that a consumer has fetched of a partition until a range takes them.

A `FetchedPartition` holds runs of offsets that follow one another. It is pure but for a clock: it knows no consumer and
no lock. It must never deliver a message twice, nor an offset as fetched that was not.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Message

from transactional.model.batch import Offset, OffsetRange, PartitionId

PIECE_RECORDS_MAX = 10_000
PIECE_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of a piece of a range, about, in bytes. A range is read in pieces."""

_RUNS_MAX = 8
_PASSED_RUNS_MAX = 2
"""The maximum number of runs before the offsets that were taken last. Another process has read them, or an attempt in
flight is about to."""
_SAMPLED_MESSAGES = 64
_OVERHEAD_BYTES = 300
"""The memory that a message takes beside its value, in bytes."""


offset_of = cast("Callable[[Message], int]", Message.offset)
"""The offset of a message. Every message that was fetched has one."""


@dataclass(slots=True)
class Run:
    """A range of offsets, all of which were fetched, and its messages. Control records and aborted ones leave gaps."""

    offsets: OffsetRange
    messages: list[Message]
    size: int
    """The memory that the messages take, about, in bytes."""

    def slice(self, offsets: OffsetRange, begin: int, end: int) -> Run:
        """Return a part of the run: these offsets, with the messages at the positions `begin` to `end`."""
        messages = self.messages[begin:end]
        return Run(offsets, messages, self.size * len(messages) // max(1, len(self.messages)))


@dataclass(slots=True)
class FetchedPartition:
    """The messages of one partition that a consumer has fetched and no range has taken, up to `fetched_until`.

    Ranges may take them in any order, since attempts in flight come in any order. A range that another one has taken,
    or that was given up, has to be fetched again.
    """

    partition: PartitionId
    fetched_until: int
    expected_until: int = 0
    """The offset up to which ranges expect messages."""
    is_assigned: bool = False
    """True while the consumer fetches the partition."""
    last_answer_s: float = field(default_factory=time.monotonic)
    """The time of the last message or end of log, by the monotonic clock."""
    runs: list[Run] = field(default_factory=list)
    size: int = 0
    """The memory that all runs take, about, in bytes."""
    log_start: int = 0
    log_start_checked_until: int = 0
    """The earliest offset of the log, as queried when all offsets below `log_start_checked_until` had been fetched."""

    @property
    def is_due(self) -> bool:
        """True if a range expects messages that were not fetched yet."""
        return self.fetched_until < self.expected_until

    def can_deliver(self, partition: PartitionId, offsets: OffsetRange, skip_max: float) -> bool:
        """Return True if the range was fetched, or will be after at most `skip_max` offsets that nobody expects."""
        if self.partition != partition:
            return False  # the topic was deleted and created again
        if offsets.start >= self.fetched_until:
            return offsets.start - self.fetched_until <= skip_max
        until = min(offsets.until, self.fetched_until)
        return any(run.offsets.start <= offsets.start and until <= run.offsets.until for run in self.runs)

    def has_in_one_piece(self, offsets: OffsetRange) -> bool:
        """Return True if the range was fetched to its end, and its run is no larger than a piece."""
        if (index := self._find_run(offsets.start)) is None:
            return False
        run = self.runs[index]
        is_small = len(run.messages) <= PIECE_RECORDS_MAX and run.size <= PIECE_BYTES_MAX
        return is_small and offsets.until <= run.offsets.until

    def add(self, messages: Sequence[Message]) -> None:
        """Add messages that the consumer has delivered, in order."""
        size = estimate_bytes(messages)
        tail = self._extend_last_run(offset_of(messages[-1]) + 1)
        tail.messages += messages
        tail.size += size
        self.size += size

    def record_log_end(self, offset: int) -> None:
        """Record that the log has no more records below this offset."""
        if offset > self.fetched_until:
            self._extend_last_run(offset)

    def _extend_last_run(self, until: int) -> Run:
        """Extend the last run up to this offset, and return it. A new run begins where the last one was taken."""
        if not self.runs or self.runs[-1].offsets.until < self.fetched_until:
            self.keep_last(_RUNS_MAX - 1)
            self.runs.append(Run(_make_range(self.fetched_until, self.fetched_until), [], 0))
        tail = self.runs[-1]
        tail.offsets = _make_range(tail.offsets.start, until)
        self.fetched_until, self.last_answer_s = until, time.monotonic()
        return tail

    def keep_last(self, count: int) -> None:
        """Drop the oldest runs but `count`: the ranges that expected them were read by another consumer."""
        forgotten_runs = self.runs[: max(0, len(self.runs) - count)]
        del self.runs[: len(forgotten_runs)]
        self.size -= sum(run.size for run in forgotten_runs)

    @property
    def ahead_size(self) -> int:
        """The memory of the newest run, about, in bytes: of the messages that were fetched ahead."""
        return self.runs[-1].size if self.runs else 0

    def take(self, offsets: OffsetRange) -> Run:
        """Remove and return the beginning of a range, as far as it was fetched, but no more than a piece."""
        if (index := self._find_run(offsets.start)) is None:
            return Run(_make_range(offsets.start, offsets.start), [], 0)
        run = self.runs[index]
        is_start = run.offsets.start == offsets.start
        begin = 0 if is_start else bisect_left(run.messages, int(offsets.start), key=offset_of)
        end = bisect_left(run.messages, int(offsets.until), begin, key=offset_of)
        end = min(end, begin + _count_piece_messages(run))
        until = min(offsets.until, run.offsets.until, *map(offset_of, run.messages[end : end + 1]))
        remaining_size = run.size * (len(run.messages) - end) // max(1, len(run.messages))
        skipped_run = run.slice(_make_range(run.offsets.start, offsets.start), 0, begin)
        piece = Run(
            _make_range(offsets.start, until), run.messages[begin:end], run.size - skipped_run.size - remaining_size
        )
        # The remaining messages are not copied: with many partitions they are far more than the piece.
        del run.messages[:end]
        run.offsets, run.size = _make_range(until, run.offsets.until), remaining_size
        self.runs[index : index + 1] = [run_part for run_part in (skipped_run, run) if len(run_part.offsets)]
        self.size -= piece.size
        passed_runs = index + (1 if len(skipped_run.offsets) else 0)
        self.keep_last(len(self.runs) - passed_runs + _PASSED_RUNS_MAX)
        return piece

    def take_whole(self, offsets: OffsetRange) -> Run | None:
        """Remove and return a range at the beginning of a run that has a message for each offset of it.

        None for any other range, and for one that is larger than a piece: `take` returns these in pieces.
        """
        index = self._find_run(offsets.start)
        run = None if index is None else self.runs[index]
        if index is None or run is None or run.offsets.start != offsets.start:
            return None
        if len(offsets) > _count_piece_messages(run):
            return None
        messages = run.messages[: len(offsets)]
        if not messages or len(messages) < len(offsets) or offset_of(messages[-1]) != offsets.until - 1:
            return None
        size = run.size * len(messages) // len(run.messages)
        del run.messages[: len(messages)]
        run.offsets, run.size = _make_range(offsets.until, run.offsets.until), run.size - size
        self.size -= size
        if not len(run.offsets):
            del self.runs[index]
        self.keep_last(len(self.runs) - index + _PASSED_RUNS_MAX)
        return Run(offsets, messages, size)

    def _find_run(self, offset: int) -> int | None:
        """Return the number of the first run that has this offset."""
        for number, run in enumerate(self.runs):
            if run.offsets.start <= offset < run.offsets.until:
                return number
        return None


def _count_piece_messages(run: Run) -> int:
    """Return how many messages of the run make a piece."""
    mean_bytes = run.size // max(1, len(run.messages))
    return min(PIECE_RECORDS_MAX, PIECE_BYTES_MAX // max(1, mean_bytes) + 1)


def estimate_bytes(messages: Sequence[Message]) -> int:
    """Return the size of the messages in memory, about. Of many messages only a sample is measured, to save time."""
    step = len(messages) // _SAMPLED_MESSAGES + 1
    return sum(map(len, messages[::step])) * step + _OVERHEAD_BYTES * len(messages)


def _make_range(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))
