"""A load that comes at its own pace, whatever becomes of those who read it, and what its words count to."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from spouts.kafka_admin import create_topic, produce
from tests.experiment.timeline import Reached
from transactional.runtime.engine.clock import SystemClock

PARTITIONS = 4
WORDS = tuple(f"word-{number}" for number in range(10_000))
STRIDE = 7919
"""Prime to the number of words: neighbours in the topic are no neighbours in the table."""
VALUE = bytes(64)
TICK_S = 0.02
SECONDS_MAX = 60


def word(number: int) -> str:
    """The word of the topic's message `number`, which is in partition `number` mod `PARTITIONS`."""
    return WORDS[number * STRIDE % len(WORDS)]


def counts(messages: int) -> Counter[str]:
    """What the first messages count to."""
    rounds, rest = divmod(messages, len(WORDS))
    found = Counter(dict.fromkeys(WORDS, rounds)) if rounds else Counter[str]()
    found.update(word(number) for number in range(rest))
    return found


def positions(messages: int) -> tuple[int, ...]:
    """How many of the first messages each partition has."""
    return tuple((messages - partition + PARTITIONS - 1) // PARTITIONS for partition in range(PARTITIONS))


def backlog(bootstrap: str, topic: str, messages: int) -> None:
    """A new topic with so many messages."""
    create_topic(bootstrap, topic, PARTITIONS)
    records: Iterator[tuple[int, str, bytes]] = ((n % PARTITIONS, word(n), VALUE) for n in range(messages))
    produce(bootstrap, topic, records)


class OpenLoop:
    """A producer of `rate` messages a second, in a thread of its own, while the context lasts.

    A message is due at its time and says so even when the producer was held up: nobody's slowness hides in the load.
    `due` tells how far the load was due when, by the monotonic clock. The topic holds its first messages already.
    """

    def __init__(self, bootstrap: str, topic: str, rate: float, *, first: int) -> None:
        self.rate, self.topic = rate, topic
        self.messages = self.first = first
        self.due = [Reached(0.0, positions(first))]
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._ended = threading.Event()
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self.began_at = time.monotonic()
        self.began_wall_s = SystemClock().wall_ms() / 1000
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None and self._failures:
            raise RuntimeError(f"the load was not written: {self._failures[0]}")

    def _run(self) -> None:
        try:
            for tick in itertools.count(1):
                if self._ended.wait(max(self.began_at + tick * TICK_S - time.monotonic(), 0)):
                    break
                self._write(self.first + int(self.rate * TICK_S * tick))
                self.due.append(Reached(tick * TICK_S, positions(self.messages)))
            if left := self._producer.flush(SECONDS_MAX):
                self._failures.append(f"{left} messages were not acknowledged")
        except Exception as error:
            self._failures.append(repr(error))

    def _write(self, until: int) -> None:
        for number in range(self.messages, until):
            self._producer.produce(
                self.topic, VALUE, word(number), partition=number % PARTITIONS, on_delivery=self._delivered
            )
        self._producer.poll(0)
        self.messages = until

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._failures.append(str(error))
