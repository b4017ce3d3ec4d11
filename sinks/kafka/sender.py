"""`KafkaSender`: sends records at least once, from tasks: without Kafka transactions, positions and an outbox."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sinks.kafka.connection import SinkConnection, kafka_error
from sinks.kafka.publisher import POISON, Headers, split_records
from sinks.kafka.topics import TopicLimits
from transactional.model.errors import ConfigError, SinkUnavailable

DELIVERY_S: Final = 30.0
"""How long a record is tried to be sent, before the attempt of its tuple fails."""

DeliveryReport = Callable[[KafkaError | None, Message], None]
_Key = tuple[int, SinkConnection, TopicLimits]
_SENDERS: dict[_Key, KafkaSender] = {}


class KafkaSender:
    """A producer of this process for one topic. Records are on the in-sync replicas once `send` returns."""

    def __init__(self, connection: SinkConnection, limits: TopicLimits) -> None:
        self._connection, self._limits, self._topic = connection, limits, limits.topic
        settings = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "message.max.bytes": limits.request_bytes_max,
            "delivery.timeout.ms": round(1_000 * DELIVERY_S),
        }
        try:
            self._producer = Producer(connection.settings(settings))
        except KafkaException as error:
            reason = connection.redact(kafka_error(error).str())
            raise ConfigError(f"the options= of a sink for topic {self._topic!r} can't be used: {reason}") from error

    def send(self, records: pa.Table) -> dict[int, str]:
        """Send records, and return why the topic refuses some, by their numbers. Raises `SinkUnavailable`."""
        failures = dict[int, KafkaError]()

        def note(number: int, error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures[number] = error

        for number, (key, content, headers, partition) in enumerate(split_records(records)):
            self._produce(key, content, headers, partition, partial(note, number))
        if self._producer.flush(DELIVERY_S + 5):
            raise self._unavailable("some records have no answer")
        for error in failures.values():
            if error.code() not in POISON:
                raise self._unavailable(KafkaException(error))
        return {number: self._connection.redact(error.str()) for number, error in failures.items()}

    def _produce(
        self,
        key: bytes | None,
        content: bytes | None,
        headers: Headers,
        partition: int,
        on_delivery: DeliveryReport,
    ) -> None:
        while True:
            try:
                self._producer.produce(self._topic, content, key, partition, on_delivery, headers=headers)
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
        return self._connection.unavailable(f"records can't be sent to topic {self._topic!r}", error)


def sender_for(connection: SinkConnection, limits: TopicLimits) -> KafkaSender:
    """Return this process's sender for a topic, with these options. A forked process has one of its own."""
    key = (os.getpid(), connection, limits)
    if key not in _SENDERS:
        _SENDERS[key] = KafkaSender(connection, limits)
    return _SENDERS[key]


def close_sender(connection: SinkConnection, limits: TopicLimits) -> None:
    """Release the connections of this process's sender for a topic, once no task is using it.

    Nothing is left to flush: `KafkaSender.send` has waited for its records.
    """
    _SENDERS.pop((os.getpid(), connection, limits), None)
