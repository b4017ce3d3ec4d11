"""The control topic of a topology: it holds the newest marker of each Kafka sink.

A marker is a record that names a publication. It is written in the same Kafka transaction as the records, so either
both are visible or neither is. The topic has one partition and is compacted by the name of the sink.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sinks.kafka.connection import TIMEOUT_S, TRANSACTION_TIMEOUT_MS, SinkConnection, kafka_error
from sinks.kafka.topics import partition_count, topic_settings
from transactional.core.ports import SinkOwner, SinkPosition
from transactional.core.store.outbox import Publication
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import ConfigError, CorruptRecord, StoreMismatch

_NAME_MAX: Final = 249
"""Kafka's limit for the name of a topic."""
_PREFIX_MAX: Final = 180
_PLAIN: Final = re.compile(r"[^A-Za-z0-9-]")
_SETTINGS: Final = {"cleanup.policy": "compact", "segment.ms": "600000"}
_END_WAIT_S: Final = TRANSACTION_TIMEOUT_MS / 1_000 + 30
"""How long the end of the topic is waited for: open transactions of others end by then."""
_TAIL: Final = 1_000
"""The number of offsets before the end that are read first. Each further read is ten times as long."""
_POLL_S: Final = 0.2


def control_topic(topology_id: str) -> str:
    """The name of the control topic of a topology, which no other topology has.

    Kafka's metrics take `a.b` and `a_b` for one name, so both signs are quoted: as `_2E` and `_5F`. The end of a long
    name is replaced by `_h` and a checksum of the topology's id, which no quoted name has.
    """
    name = f"transactional-control-{_PLAIN.sub(_quote_character, topology_id)}"
    if len(name) <= _NAME_MAX:
        return name
    return f"{name[:_PREFIX_MAX]}_h{sha256(topology_id.encode()).hexdigest()}"


def _quote_character(match: re.Match[str]) -> str:
    return "".join(f"_{byte:02X}" for byte in match[0].encode())


def encode_marker(owner: SinkOwner, publication: Publication) -> bytes:
    """The value of a marker."""
    attempt = publication.attempt
    marker = {"store": owner.store_id, "run": publication.run, "txid": attempt.txid, "attempt": attempt.attempt_id}
    return json.dumps(marker).encode()


def decode_marker(content: bytes | None, topic: str) -> SinkPosition:
    """The position that a marker names. Raises `CorruptRecord`."""
    try:
        marker = json.loads(content or b"")
        attempt = TransactionAttempt(TxId(int(marker["txid"])), AttemptId(int(marker["attempt"])))
        return SinkPosition(str(marker["store"]), Publication(str(marker["run"]), attempt))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(
            f"control topic {topic!r} has a record that is no marker: {content!r:.100}; something else writes to it"
        ) from error


class ControlTopic:
    """The control topic of one topology, for one of its sinks."""

    def __init__(self, connection: SinkConnection, owner: SinkOwner) -> None:
        self.name, self._connection, self._owner = control_topic(owner.topology_id), connection, owner

    def create(self, admin: AdminClient, *, has_published: bool) -> None:
        """Create the topic unless it exists. Raises `StoreMismatch` if it is missing although it had a marker."""
        if self.check(admin):
            return
        if has_published:
            raise StoreMismatch(
                f"sink {self._owner.sink!r}: the store has publications of it, and its control topic {self.name!r} "
                "does not exist at the cluster: it was deleted, or this is another cluster. Nothing was published"
            )
        try:
            admin.create_topics([NewTopic(self.name, 1, config=dict(_SETTINGS))])[self.name].result(TIMEOUT_S)
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._connection.unavailable(f"control topic {self.name!r} can't be created", error) from error

    def check(self, admin: AdminClient) -> bool:
        """Return whether the topic exists. Raises `ConfigError` if it has other settings."""
        partitions = partition_count(admin, self._connection, self.name)
        if partitions is None:
            return False
        settings = topic_settings(admin, self._connection, self.name)
        wrong = [f"{name} {settings[name]!r}" for name, setting in _SETTINGS.items() if settings[name] != setting]
        if partitions != 1:
            wrong.append(f"{partitions} partitions")
        if wrong:
            expected = ", ".join(f"{name} {setting!r}" for name, setting in _SETTINGS.items())
            raise ConfigError(
                f"control topic {self.name!r} has {' and '.join(wrong)}; it needs 1 partition, {expected}. Give it "
                "these settings, or delete it if no sink of the topology has published"
            )
        return True

    def visible_position(self) -> SinkPosition | None:
        """The newest marker that is visible now. Open transactions are not waited for."""
        return self._newest(waits_for_end=False)

    def final_position(self) -> SinkPosition | None:
        """The newest marker before the end of the topic, once every transaction up to there has ended.

        Raises `SinkUnavailable` if one stays open.
        """
        return self._newest(waits_for_end=True)

    def _newest(self, *, waits_for_end: bool) -> SinkPosition | None:
        low, end = self._watermarks()
        tail = _TAIL
        with self._consumer("read_committed") as consumer:
            while True:
                start = max(low, end - tail)
                newest = self._newest_between(consumer, start, end, waits_for_end=waits_for_end)
                if newest is not None or start == low:
                    return newest
                tail *= 10

    def _watermarks(self) -> tuple[int, int]:
        """The first and the last offset. Only a consumer of read_uncommitted sees the end behind open transactions."""
        with self._consumer("read_uncommitted") as consumer:
            try:
                watermarks = consumer.get_watermark_offsets(TopicPartition(self.name, 0), TIMEOUT_S)
            except KafkaException as error:
                raise self._connection.unavailable(f"control topic {self.name!r} can't be read", error) from error
        if watermarks is None:
            raise self._connection.unavailable(f"control topic {self.name!r} can't be read", "no response")
        return watermarks

    def _newest_between(self, consumer: Consumer, start: int, end: int, *, waits_for_end: bool) -> SinkPosition | None:
        consumer.assign([TopicPartition(self.name, 0, start)])
        newest, next_offset, deadline_s = None, start, time.monotonic() + _END_WAIT_S
        while next_offset < end:
            message = consumer.poll(_POLL_S)
            if message is not None:
                error, offset = message.error(), message.offset()
                if error is None and offset is not None:
                    next_offset = offset + 1
                    newest = self._position_in(message) or newest
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    next_offset = max(next_offset, offset or 0)
                    if not waits_for_end:
                        break
            if time.monotonic() > deadline_s:
                raise self._connection.unavailable(
                    f"control topic {self.name!r} could be read up to offset {next_offset} of {end} only",
                    f"a transaction has been open for {_END_WAIT_S:.0f} s",
                )
        return newest

    def _position_in(self, message: Message) -> SinkPosition | None:
        if message.key() != self._owner.sink.encode():
            return None
        return decode_marker(message.value(), self.name)

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[Consumer]:
        settings = {
            "group.id": "transactional-sink",  # required by the library; this consumer never joins it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 20,
        }
        consumer = Consumer(self._connection.settings(settings))
        try:
            yield consumer
        finally:
            consumer.close()
