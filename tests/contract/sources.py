"""The sources of two partitions of words that the spouts' contract suite runs over."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spouts.base import PartitionedSpout
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import produce
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

PARTITIONS = 2
names = itertools.count(1)


class Source(Protocol):
    """A source of two partitions of words, and the spouts over it."""

    kind: type

    def append(self, partition: int, words: Sequence[str]) -> None:
        """Add words; whoever asks afterwards sees them."""

    def spout(self) -> PartitionedSpout:
        """A spout over this source, not yet open, whose batches take all that is there."""


@dataclass
class MemorySource:
    kind: type[MemoryTransactionalSpout]
    words: list[list[tuple[str]]]

    def append(self, partition: int, words: Sequence[str]) -> None:
        self.words[partition] += [(word,) for word in words]

    def spout(self) -> PartitionedSpout:
        return self.kind(self.words, fields="value string", take=100_000)


@dataclass
class KafkaSource:
    kind: type[TransactionalKafkaSpout | OpaqueKafkaSpout]
    bootstrap: str
    topic: str

    def append(self, partition: int, words: Sequence[str]) -> None:
        produce(self.bootstrap, self.topic, [(partition, None, word) for word in words])

    def spout(self) -> PartitionedSpout:
        return self.kind(
            self.bootstrap,
            [self.topic],
            fields=("value",),
            value_type="string",
            timeout_ms=2_000,
            batch_records_max=None,
        )


KINDS: dict[str, Any] = {
    "memory": MemoryTransactionalSpout,
    "opaque memory": OpaqueMemoryTransactionalSpout,
    "kafka": TransactionalKafkaSpout,
    "opaque kafka": OpaqueKafkaSpout,
}
