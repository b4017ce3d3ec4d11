"""Words that keep arriving in a Kafka topic while a topology is killed, and a plain count of them.

They come in Kafka transactions, some of which are aborted; partitions are added now and then.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from random import Random
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from spouts.kafka_admin import add_partitions, create_topic

_numbers = itertools.count(1)
PARTITIONS = 2
PARTITIONS_MAX = 6
WORDS = [f"word-{number}" for number in range(40)]
PAUSE_S = 0.02
SECONDS_MAX = 30


class ArrivingWords:
    """A producer in a thread of its own. `counts` are the words of all Kafka transactions that were committed."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        number = next(_numbers)
        self.bootstrap, self.topic = bootstrap, f"soak-{seed}-{number}"
        self.counts: Counter[str] = Counter()
        self.committed = self.aborted = 0
        self._chance = Random(seed)
        self._partitions = PARTITIONS
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded)
        create_topic(bootstrap, self.topic, PARTITIONS)

    def add_partition(self) -> None:
        """One more, if there are not enough yet; words come to it at once."""
        if self._partitions < PARTITIONS_MAX:
            add_partitions(self.bootstrap, self.topic, self._partitions + 1)
            self._partitions += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """No more words. Raises what has gone wrong with them."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _guarded(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self._failure = error

    def _produce(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "transactional.id": f"{self.topic}-producer",
            "topic.metadata.refresh.interval.ms": 200,
            "log_level": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(SECONDS_MAX)
        while not self._ended.wait(PAUSE_S):
            self._transaction(producer)

    def _transaction(self, producer: Producer) -> None:
        words = self._chance.choices(WORDS, weights=range(1, len(WORDS) + 1), k=self._chance.randint(1, 40))
        # A partition is written to once the producer has heard of it.
        known = len(producer.list_topics(self.topic, SECONDS_MAX).topics[self.topic].partitions)
        producer.begin_transaction()
        for word in words:
            producer.produce(self.topic, word, partition=self._chance.randrange(known))
        assert producer.flush(SECONDS_MAX) == 0
        if self._chance.random() < 0.2:
            producer.abort_transaction(SECONDS_MAX)
            self.aborted += 1
        else:
            producer.commit_transaction(SECONDS_MAX)
            self.committed += 1
            self.counts.update(words)
