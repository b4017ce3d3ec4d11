"""`KafkaSender`: sends records at least once, from tasks: without Kafka transactions, positions and an outbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message

from sinks.kafka.connection import SinkConnection
from sinks.kafka.publisher import POISON, Headers, split_records
from sinks.kafka.topics import TopicLimits, name_topics, size_settings
from transactional.model.errors import SinkUnavailable

DELIVERY_S: Final = 30.0
"""How long a record is tried to be sent, before the attempt of its tuple fails."""

DeliveryReport = Callable[[KafkaError | None, Message], None]
_Key = tuple[int, SinkConnection, tuple[TopicLimits, ...]]
_SENDERS: dict[_Key, KafkaSender] = {}


class KafkaSender:
    """A producer of this process for the topics of a sink. Records are on the in-sync replicas once `send` returns."""

    def __init__(self, connection: SinkConnection, limits: Sequence[TopicLimits]) -> None:
        self._connection, self._limits = connection, limits
        self._target_name = name_topics([topic.topic for topic in limits])
        settings = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            **size_settings(connection, limits),
            "delivery.timeout.ms": round(1_000 * DELIVERY_S),
        }
        self._producer = connection.open_producer(settings, used_by=f"a sink for {self._target_name}")

    def send(self, records: pa.Table) -> dict[int, str]:
        """Send records, and return why their topics refuse some, by their numbers. Raises `SinkUnavailable`."""
        failures = dict[int, KafkaError]()

        def note(number: int, error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures[number] = error

        for number, record in enumerate(split_records(records, self._limits[0].topic)):
            self._produce(*record, partial(note, number))
        if self._producer.flush(DELIVERY_S + 5):
            raise self._unavailable("some records have no answer")
        for error in failures.values():
            if error.code() not in POISON:
                raise self._unavailable(KafkaException(error))
        return {number: self._connection.redact(error.str()) for number, error in failures.items()}

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        content: bytes | None,
        headers: Headers,
        partition: int,
        on_delivery: DeliveryReport,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, content, key, partition, on_delivery, headers=headers)
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:
                raise self._unavailable(error) from error
            else:
                self._producer.poll(0)
                return

    def _unavailable(self, error: KafkaException | str) -> SinkUnavailable:
        """Forget this producer, which may be unusable, and return the error."""
        close_sender(self._connection, self._limits)
        return self._connection.unavailable(f"records can't be sent to {self._target_name}", error)


def sender_for(connection: SinkConnection, limits: Sequence[TopicLimits]) -> KafkaSender:
    """Return this process's sender for some topics, with these options. A forked process has one of its own."""
    key = (os.getpid(), connection, tuple(limits))
    if key not in _SENDERS:
        _SENDERS[key] = KafkaSender(connection, limits)
    return _SENDERS[key]


def close_sender(connection: SinkConnection, limits: Sequence[TopicLimits]) -> None:
    """Release the connections of this process's sender for some topics, once no task is using it.

    Nothing is left to flush: `KafkaSender.send` has waited for its records.
    """
    _SENDERS.pop((os.getpid(), connection, tuple(limits)), None)
