"""The topics that every system reads: contents that are known before, so that every count can be checked."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from examples.flights import flights
from spouts.kafka_admin import create_topic, produce

VALUE_BYTES = 64
FIRST_MS = 1_735_689_600_000
"""The beginning of 2025: before it no message has happened."""
_SEED = 4
_BLOCK = 1_000_000
"""So many words are drawn; then they come again in the same order."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A topic's contents. Message i is in partition i mod `partitions`.

    `words` are what is counted, one per message. `values` are the messages' values; without them the word is the key,
    and the value, 64 bytes, is nobody's business. The first `fill` messages fill the tables and are not measured.
    With `per_minute` the messages have times: so many are of each minute, from a time long past, in order.
    """

    topic: str
    words: Sequence[str]
    fill: int
    values: Sequence[bytes] | None = None
    partitions: int = 4
    per_minute: int | None = None

    @property
    def messages(self) -> int:
        """How many there are."""
        return len(self.words)

    def produce(self, bootstrap: str) -> None:
        """Create the topic and write all messages. Raises `OperatingError` if the broker does not take them."""
        self.create(bootstrap)
        self.append(bootstrap, 0, self.messages)

    def create(self, bootstrap: str) -> None:
        """Create the topic, without messages. Raises `OperatingError` if the broker refuses."""
        # Few segments per partition: a log that rolls every 16 MB is for tests of retention.
        # What has a time long past is not to be deleted for that.
        settings = {"segment.bytes": str(2**30), "retention.ms": "-1"}
        create_topic(bootstrap, self.topic, self.partitions, settings)

    def append(self, bootstrap: str, start: int, end: int) -> None:
        """Write the messages from `start` to before `end`. Raises `OperatingError` if the broker does not take them."""
        times_ms = None if self.per_minute is None else map(self.time_ms, range(start, end))
        produce(bootstrap, self.topic, self._records(start, end), times_ms=times_ms)

    def copy(self, bootstrap: str, suffix: str, messages: int | None = None) -> Workload:
        """Create an empty topic for the first `messages` of these, or all; its name ends in `suffix`.

        Raises `OperatingError` if the broker refuses.
        """
        values = self.values and self.values[:messages]
        copied = replace(self, topic=f"{self.topic}-{suffix}", words=self.words[:messages], values=values)
        copied.create(bootstrap)
        return copied

    def time_ms(self, message: int) -> int:
        """When a message happened, if they have times."""
        assert self.per_minute is not None
        return FIRST_MS + message * 60_000 // self.per_minute

    def until(self, messages: int) -> dict[int, int]:
        """For each partition the offset at which the first `messages` messages of the topic end."""
        each, over = divmod(messages, self.partitions)
        return {partition: each + (partition < over) for partition in range(self.partitions)}

    def words_until(self, until: Mapping[int, int]) -> Iterable[str]:
        """What is counted before the given offsets."""
        parts = (self.words[partition : end * self.partitions : self.partitions] for partition, end in until.items())
        return itertools.chain.from_iterable(parts)

    def _records(self, start: int, end: int) -> Iterator[tuple[int, str | None, bytes]]:
        partitions = (number % self.partitions for number in range(start, end))
        if self.values is None:
            value = bytes(VALUE_BYTES)
            return ((partition, word, value) for partition, word in zip(partitions, self.words[start:end], strict=True))
        return ((partition, None, value) for partition, value in zip(partitions, self.values[start:end], strict=True))


def zipf(topic: str, messages: int, vocabulary: int, fill: int) -> Workload:
    """Words out of `vocabulary`, the i-th most frequent with a weight of 1/i; the same ones on every machine.

    Where the tables are filled with at least one message for each word, those come first, in order.
    """
    names = [f"word-{rank}" for rank in range(vocabulary)]
    frequency = list(itertools.accumulate(1 / rank for rank in range(1, vocabulary + 1)))
    drawn = random.Random(_SEED).choices(names, cum_weights=frequency, k=min(messages, _BLOCK))
    first = names if fill >= vocabulary else []
    # A tuple: the garbage collector does not look through it.
    words = tuple(itertools.islice(itertools.chain(first, itertools.cycle(drawn)), messages + fill))
    return Workload(topic, words, fill)


def timed(workload: Workload, topic: str, per_minute: int) -> Workload:
    """The same words, with times."""
    return replace(workload, topic=topic, per_minute=per_minute)


def departures(topic: str, fill: int, messages: int | None = None) -> Workload:
    """Real data: all 336,776 flights that left New York in 2013, or the first ones, as JSON; carriers are counted."""
    carriers, values = [], []
    for row in itertools.islice(flights(), messages):
        carriers.append(row["carrier"])
        values.append(json.dumps(row).encode())
    return Workload(topic, tuple(carriers), fill, tuple(values))
