"""The simulated source: partitions that grow, lose their oldest records, fall silent, go, and come; and its spouts.

A record is a function of its partition and offset, so that the oracle needs no memory of what was in the logs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa

from spouts.base import PartitionedSpout
from spouts.planning import Limits, Logs, PartitionLog
from tests.simulation.faults import Faults, demand
from transactional.core.ports import PartitionReader
from transactional.errors import ReplayMismatch, SourceUnavailable
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.letters import Exclusion
from transactional.model.schema import Schema

KEYS = ("apple", "banana", "cat", "dog", "emu")
PARTITIONS_MAX = 5
OUTPUT = Schema.parse("word string, count long")


def record(partition: PartitionId, offset: int) -> tuple[str, int]:
    """The record at one offset: a key and an amount."""
    number = offset * 31 + partition.index * 17
    return KEYS[number % 13 % len(KEYS)], 1 + number % 7


@dataclass(slots=True)
class Partition:
    """The log of one partition: the offsets that are there, whether it answers, and whether it was made anew.

    Made anew it goes on under another id; the old one keeps its last offsets, which nobody can read.
    """

    start: int = 0
    end: int = 0
    is_silent: bool = False
    is_gone: bool = False


class Source:
    """All partitions that there ever were."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.partitions: dict[PartitionId, Partition] = {}
        self.poison: set[tuple[PartitionId, int]] = set()
        for _ in range(random.randint(1, 3)):
            self.add()
        self.is_read_from_its_end = random.random() < 0.3

    def add(self) -> None:
        self.partitions[PartitionId("log", len(self.partitions))] = Partition()

    def add_one_more(self) -> None:
        if len(self._existing()) < PARTITIONS_MAX:
            self.add()

    def grow(self) -> None:
        for partition in self._existing():
            partition.end += self.random.choice((0, 0, 1, 2, 5, 9))

    def truncate(self) -> None:
        partition = self.random.choice(self._existing())
        partition.start = self.random.randint(partition.start, partition.end)

    def poison_some(self) -> None:
        """Up to three of the next records of a partition are such that a bolt can't work on them."""
        name = self.random.choice([name for name, log in self.partitions.items() if not log.is_gone])
        first = self.partitions[name].end + self.random.randint(0, 9)
        self.poison.update((name, first + further) for further in range(self.random.randint(1, 3)))

    def make_anew(self) -> None:
        self.random.choice(self._existing()).is_gone = True
        self.add()

    def _existing(self) -> list[Partition]:
        return [partition for partition in self.partitions.values() if not partition.is_gone]

    def fall_silent(self) -> None:
        self.random.choice(list(self.partitions.values())).is_silent = True

    def answer_again(self) -> None:
        for partition in self.partitions.values():
            partition.is_silent = False

    def logs(self) -> dict[PartitionId, PartitionLog | None]:
        return {
            name: None if log.is_silent else PartitionLog(Offset(log.start), Offset(log.end))
            for name, log in self.partitions.items()
            if not log.is_gone
        }

    def read(self, partition: PartitionId, offsets: OffsetRange) -> list[tuple[str, int]]:
        """The records of a range, all of them or an error (row K7a)."""
        log = self.partitions[partition]
        if log.is_silent:
            raise SourceUnavailable(f"{partition} does not answer")
        if log.is_gone or not log.start <= offsets.start <= offsets.until <= log.end:
            raise ReplayMismatch(f"{partition} does not hold {offsets}")
        return [record(partition, offset) for offset in range(offsets.start, offsets.until)]


class Unread(PartitionReader):
    """A reader that is never asked."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError("the simulated executor reads the source itself")


class SimulatedSpout(PartitionedSpout):
    """The spout of one process over the shared source. Each batch is bounded anew, so an opaque replay differs."""

    def __init__(self, source: Source, faults: Faults, *, replays_exactly: bool) -> None:
        super().__init__(OUTPUT, Limits())
        self._source, self._faults, self._replays_exactly = source, faults, replays_exactly
        self._ends: dict[PartitionId, Offset] = {}

    @property
    def replays_exactly(self) -> bool:
        return self._replays_exactly

    def identity(self) -> Mapping[str, str]:
        return {"kind": "simulated"}

    def reader(self) -> PartitionReader:
        """None that reads: the simulated executor reads the source itself."""
        return Unread()

    def logs(self, after: BatchMetadata) -> Logs:
        if self._faults.strikes("planning fails"):
            raise SourceUnavailable("no broker answers")
        logs = self._source.logs()
        if not self._source.is_read_from_its_end:
            return logs
        return {partition: log and self._from_the_end(partition, log, after) for partition, log in logs.items()}

    def _from_the_end(self, partition: PartitionId, log: PartitionLog, after: BatchMetadata) -> PartitionLog:
        """As Kafka's "latest": the end when this process looked first; one that comes next may see another."""
        return log if partition in after.ranges else replace(log, start=self._ends.setdefault(partition, log.end))

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        most = 100 if self._faults.are_over else self._source.random.randint(1, 20)
        self.limits = Limits(batch_records_max=most)
        batch = super().plan(after, replay=replay)
        if batch is None:
            self._faults.reached["an idle source is asked again"] += 1
        elif replay and batch.is_empty:
            self._faults.reached["a replay is empty"] += 1
        return batch


def read_batch(source: Source, attempt: TransactionAttempt, batch: BatchMetadata) -> Iterator[tuple[str, int]]:
    """The records of a batch but those that are set aside; a batch whose contents are known must not have changed."""
    left_out = {exclusion.fingerprint for exclusion in batch.excluded}
    for partition, offsets in batch.non_empty():
        records = source.read(partition, offsets)
        known = batch.digests.get(partition)
        demand(
            known in (None, digest_of(records)), f"{attempt} reads something else in {partition} {offsets} than before"
        )
        for offset, each in enumerate(records, offsets.start):
            if not left_out or f"{partition}@{offset}" not in left_out:
                yield each


def poison_in(source: Source, batch: BatchMetadata) -> Iterator[tuple[Exclusion, int]]:
    """What of a batch can't be worked on: how it is set aside, and its offset."""
    for partition, offset in sorted(source.poison):
        offsets = batch.ranges.get(partition)
        if offsets is not None and offsets.start <= offset < offsets.until:
            yield Exclusion("bolt", f"{partition}@{offset}", "poison"), offset


def shown(batch: BatchMetadata | None) -> str:
    """A batch in few words, for the event log."""
    if batch is None:
        return "nothing there"
    return ", ".join(f"{partition.index} {offsets}" for partition, offsets in sorted(batch.ranges.items())) or "nothing"


def digest_of(records: list[tuple[str, int]]) -> Digest:
    return Digest(len(records), zlib.crc32(repr(records).encode()))
