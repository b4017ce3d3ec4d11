"""Spouts as users write them, over lists that stand for a source; they note what they are asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spouts.contract_spout import ContractSpout
from spouts.contracts import OpaquePartitionedTransactionalSpout, PartitionedTransactionalSpout, TransactionalSpout
from transactional.model.batch import EMPTY_BATCH, BatchMetadata

Span = dict[str, int]
Words = dict[str, list[str]]


def span(start: int, until: int) -> Span:
    return {"start": start, "until": until}


@dataclass
class Numbers(TransactionalSpout[Span]):
    """The numbers below `count`, so many at a time; each part emits every `parts`-th."""

    count: int = 10
    take: int = 4
    ready: bool = True
    asked: list[Span | None] = field(default_factory=list)
    told: list[Span] = field(default_factory=list)

    output = "number long"

    def is_ready(self) -> bool:
        return self.ready

    def initialize_transaction(self, previous: Span | None) -> Span | None:
        self.asked.append(previous)
        start = previous["until"] if previous else 0
        return span(start, min(start + self.take, self.count)) if start < self.count else None

    def emit_batch(self, metadata: Span, part: int, parts: int) -> Iterator[tuple[int]]:
        return ((number,) for number in range(metadata["start"] + part, metadata["until"], parts))

    def committed(self, metadata: Span) -> None:
        self.told.append(metadata)


@dataclass
class _Words:
    """What is there per partition; `asked` tells with which `previous` each was asked."""

    words: Words
    take: int = 2
    ready: bool = True
    asked: list[tuple[str, Span | None]] = field(default_factory=list)
    told: list[Mapping[str, Span]] = field(default_factory=list)

    def is_ready(self) -> bool:
        return self.ready

    def partitions(self) -> Collection[str]:
        return self.words.keys()

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        self.asked.append((partition, previous))
        start = previous["until"] if previous else 0
        until = min(start + self.take, len(self.words[partition]))
        return span(start, until) if start < until else None

    def emit_partition_batch(self, partition: str, metadata: Span) -> Iterator[Any]:
        there = self.words[partition][metadata["start"] : metadata["until"]]
        if len(there) < metadata["until"] - metadata["start"]:
            raise EOFError(f"only {len(there)} words are there")
        return ((word,) for word in there)

    def committed(self, metadata: Mapping[str, Span]) -> None:
        self.told.append(metadata)


class WordLists(_Words, PartitionedTransactionalSpout[Span]):
    """Replays exactly."""

    output = "word string"


class OpaqueWordLists(_Words, OpaquePartitionedTransactionalSpout[Span]):
    """A replay takes what is there then."""

    output = "word string"


def batches(spout: ContractSpout) -> Iterator[BatchMetadata]:
    """Every batch until there is nothing new."""
    after = EMPTY_BATCH
    while (planned := spout.plan(after, replay=False)) is not None:
        yield planned
        after = planned


def tuples_of(spout: ContractSpout, batch: BatchMetadata) -> list[tuple[Any, ...]]:
    """What the batch holds, partition after partition."""
    read = [
        each
        for partition, offsets in batch.non_empty()
        for each in spout.reader().read(partition, offsets, batch.metadata.get(partition))
    ]
    return [tuple(row.values()) for each in read for row in each.to_pylist()]
