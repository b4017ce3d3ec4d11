"""What a consumer has fetched of a partition, and no range has taken yet. Pure."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from transactional.model.batch import Offset, OffsetRange, PartitionId

PIECE_RECORDS_MAX = 10_000
PIECE_BYTES_MAX = 8 * 1024 * 1024
"""A range is read in pieces of about this size at most."""

_RUNS_MAX = 8
_MEASURED = 64
_OVERHEAD_BYTES = 300
"""What a message takes beside its value."""


@dataclass(slots=True)
class Run:
    """Offsets that follow one another, all of which were fetched, and the messages at them: control records and aborted
    ones leave gaps."""

    offsets: OffsetRange
    messages: list[Message]
    size: int
    """Bytes, about."""

    def part(self, offsets: OffsetRange, begin: int, end: int) -> Run:
        """A part of the offsets, with the messages from one position to another."""
        messages = self.messages[begin:end]
        return Run(offsets, messages, self.size * len(messages) // max(1, len(self.messages)))


@dataclass(slots=True)
class Fetched:
    """The messages of one partition from `start` on, as a consumer has fetched them: up to `seen` so far.

    Ranges may take them in any order, since attempts in flight come in any order. A range that another one has taken,
    or that was given up, has to be fetched again.
    """

    partition: PartitionId
    seen: int
    until: int = 0
    """Up to where there are ranges that expect something."""
    is_assigned: bool = False
    """Whether the consumer continues to fetch it."""
    heard_s: float = field(default_factory=time.monotonic)
    """When it was last heard of."""
    runs: list[Run] = field(default_factory=list)
    size: int = 0
    """Bytes, about."""
    low: int = 0
    low_until: int = 0
    """The log's earliest offset, as it was queried when everything below `low_until` had been fetched."""

    @property
    def is_due(self) -> bool:
        """Whether a range expects more of it."""
        return self.seen < self.until

    def reaches(self, partition: PartitionId, offsets: OffsetRange, skip_max: float) -> bool:
        """Whether the range is here, or comes if the consumer continues: after at most `skip_max` offsets before it."""
        if self.partition != partition:
            return False  # the topic was deleted and created again
        if offsets.start >= self.seen:
            return offsets.start - self.seen <= skip_max
        until = min(offsets.until, self.seen)
        return any(run.offsets.start <= offsets.start and until <= run.offsets.until for run in self.runs)

    def add(self, messages: Sequence[Message]) -> None:
        """Messages that have come, in order."""
        size = _bytes_of(messages)
        tail = self._extended(offset_of(messages[-1]) + 1)
        tail.messages += messages
        tail.size += size
        self.size += size

    def add_end(self, offset: int) -> None:
        """The log has no more below this offset."""
        if offset > self.seen:
            self._extended(offset)

    def _extended(self, until: int) -> Run:
        """The last run, up to this offset from now on."""
        if not self.runs or self.runs[-1].offsets.until < self.seen:
            self.keep_last(_RUNS_MAX - 1)
            self.runs.append(Run(_range(self.seen, self.seen), [], 0))
        tail = self.runs[-1]
        tail.offsets = _range(tail.offsets.start, until)
        self.seen, self.heard_s = until, time.monotonic()
        return tail

    def keep_last(self, count: int) -> None:
        """Forget what was skipped longest ago: the range that expected it was read elsewhere."""
        forgotten = self.runs[: max(0, len(self.runs) - count)]
        del self.runs[: len(forgotten)]
        self.size -= sum(run.size for run in forgotten)

    def take(self, offsets: OffsetRange) -> Run:
        """The beginning of a range, as far as it is here, and no more than a piece. It is here no longer."""
        place = next((n for n, run in enumerate(self.runs) if offsets.start in _span(run.offsets)), None)
        if place is None:
            return Run(_range(offsets.start, offsets.start), [], 0)
        run = self.runs[place]
        begin, end = (bisect_left(run.messages, at, key=offset_of) for at in (int(offsets.start), int(offsets.until)))
        end = min(end, begin + _piece_of(run))
        until = min(offsets.until, run.offsets.until, *map(offset_of, run.messages[end : end + 1]))
        behind = run.size * (len(run.messages) - end) // max(1, len(run.messages))
        before = run.part(_range(run.offsets.start, offsets.start), 0, begin)
        taken = Run(_range(offsets.start, until), run.messages[begin:end], run.size - before.size - behind)
        # What is left is not copied: of many partitions it is much more than what is taken.
        del run.messages[:end]
        run.offsets, run.size = _range(until, run.offsets.until), behind
        self.runs[place : place + 1] = [part for part in (before, run) if len(part.offsets)]
        self.size -= taken.size
        return taken


def offset_of(message: Message) -> int:
    """Its offset."""
    return message.offset() or 0


def _piece_of(run: Run) -> int:
    """How many of its messages are a piece."""
    mean = run.size // max(1, len(run.messages))
    return min(PIECE_RECORDS_MAX, PIECE_BYTES_MAX // max(1, mean) + 1)


def _bytes_of(messages: Sequence[Message]) -> int:
    """With many only a sample is measured, since even that takes time."""
    step = len(messages) // _MEASURED + 1
    return sum(map(len, messages[::step])) * step + _OVERHEAD_BYTES * len(messages)


def _range(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def _span(offsets: OffsetRange) -> range:
    return range(offsets.start, offsets.until)
