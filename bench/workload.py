"""The topic that every system reads: Zipf-like words as keys, known before, so that every count can be checked."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spouts.kafka_admin import create_topic, produce

TOPIC = "words"
VALUE_BYTES = 64
_SEED = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """A topic's contents: `messages` words out of `vocabulary`, the i-th most frequent with a weight of 1/i.

    Message i is in partition i mod `partitions`. Its key is the word; its value, 64 bytes, is nobody's business.
    """

    messages: int
    partitions: int = 4
    vocabulary: int = 8_000
    words: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, messages: int) -> Workload:
        """The same words for the same number of messages, on every machine."""
        workload = cls(messages)
        frequency = list(itertools.accumulate(1 / rank for rank in range(1, workload.vocabulary + 1)))
        names = [f"word-{rank}" for rank in range(workload.vocabulary)]
        workload.words.extend(random.Random(_SEED).choices(names, cum_weights=frequency, k=messages))
        return workload

    def produce(self, bootstrap: str) -> None:
        """Create the topic and write all messages. Raises `OperatingError` when the broker does not take them."""
        # One segment per partition: a log that rolls every 16 MB is for tests of retention.
        create_topic(bootstrap, TOPIC, self.partitions, {"segment.bytes": str(2**30)})
        produce(bootstrap, TOPIC, self._records())

    def until(self, messages: int) -> dict[int, int]:
        """For each partition the offset at which the first `messages` messages of the topic end."""
        each, over = divmod(messages, self.partitions)
        return {partition: each + (partition < over) for partition in range(self.partitions)}

    def counts(self, until: Mapping[int, int]) -> Counter[str]:
        """How often each word is there before the given offsets."""
        total: Counter[str] = Counter()
        for partition, end in until.items():
            total.update(self.words[partition : end * self.partitions : self.partitions])
        return total

    def _records(self) -> Iterator[tuple[int, str, bytes]]:
        value = bytes(VALUE_BYTES)
        partitions = itertools.cycle(range(self.partitions))
        return ((partition, word, value) for partition, word in zip(partitions, self.words, strict=False))
