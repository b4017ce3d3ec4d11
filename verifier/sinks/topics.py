"""Reads the topic of a Kafka sink as its readers do: every committed record that still exists, from the beginning.

The headers of a record name its transaction, the attempt, and the sink, by an id that is made here as it is described
in the documentation. A topic may have records of other sinks, topologies and programs: they are only counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final
from urllib.parse import quote
from zlib import crc32

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from verifier.source import BATCH_RECORDS, ISOLATION, POLL_S, KafkaSource, SourceUnreadable

_OPEN_S: Final = 45.0
"""The maximum wait for records behind an open Kafka transaction, longer than it usually may be open."""


@dataclass(frozen=True, slots=True)
class CheckedTopic:
    """A topic, the sinks of one topology that publish to it, and the cluster that has it.

    Of each sink it is said whether its records name their topic: then the store's checksums have the topic as well.
    """

    topic: str
    sinks: Mapping[str, bool]
    cluster: KafkaSource


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """The offsets of a topic's partitions, `start <= offset < end`, and whether Kafka compacts it."""

    ranges: Mapping[int, tuple[int, int]]
    is_compacted: bool


@dataclass(frozen=True, slots=True)
class StepBack:
    """A record that stands behind one of a later attempt."""

    partition: int
    offset: int
    attempt_id: int
    previous_attempt_id: int


@dataclass(slots=True)
class SinkRecords:
    """The records of one sink in a topic, summed up by the attempt in their headers.

    `topic` is its name, if it is part of the checksums. `first_attempts` has the attempt of the first record of each
    partition that has one.
    """

    topic: bytes | None = None
    counts: Counter[int] = field(default_factory=Counter)
    checksums: Counter[int] = field(default_factory=Counter)
    txids: dict[int, set[int]] = field(default_factory=dict)
    first_attempts: dict[int, int] = field(default_factory=dict)
    steps_back: list[StepBack] = field(default_factory=list)
    _last_attempts: dict[int, int] = field(default_factory=dict)

    def add(
        self, partition: int, offset: int, txid: int, attempt_id: int, record: tuple[bytes | None, bytes | None]
    ) -> None:
        """Add a record, as key and value, in the order of its partition."""
        self.counts[attempt_id] += 1
        self.checksums[attempt_id] += checksum_of(*record, *(() if self.topic is None else (self.topic,)))
        self.txids.setdefault(attempt_id, set()).add(txid)
        self.first_attempts.setdefault(partition, attempt_id)
        previous_id = self._last_attempts.get(partition, attempt_id)
        if attempt_id < previous_id:
            self.steps_back.append(StepBack(partition, offset, attempt_id, previous_id))
        self._last_attempts[partition] = attempt_id


@dataclass(slots=True)
class TopicRecords:
    """The records of a topic: those of the checked sinks, by the id of each sink, and the number of all others."""

    by_sink_id: Mapping[bytes, SinkRecords]
    foreign_count: int = 0

    def add(self, partition: int, offset: int, record: tuple[bytes | None, bytes | None], headers: object) -> None:
        """Add a record, as key and value, in the order of its partition."""
        header_values = dict(headers) if isinstance(headers, list) else {}
        try:
            sink_records = self.by_sink_id[header_values["sink"]]
            txid, attempt_id = int(header_values["txid"]), int(header_values["attempt"])
        except (KeyError, TypeError, ValueError):
            self.foreign_count += 1
        else:
            sink_records.add(partition, offset, txid, attempt_id, record)


def compute_sink_id(topology_id: str, sink: str, store_id: str) -> bytes:
    """Return the id of a sink in the headers of its records.

    The first eight hexadecimal digits of the SHA-256 of the three names, each percent-encoded, with slashes between.
    """
    path = "/".join(quote(name, safe="") for name in (topology_id, sink, store_id))
    return sha256(path.encode()).hexdigest()[:8].encode()


def checksum_of(*parts: bytes | None) -> int:
    """Return the CRC-32 of the parts of a record, each after its length in four bytes, which is -1 if there is none."""
    checksum = 0
    for part in parts:
        length = -1 if part is None else len(part)
        checksum = crc32(part or b"", crc32(length.to_bytes(4, "big", signed=True), checksum))
    return checksum


def read_end(checked: CheckedTopic) -> TopicEnd:
    """Return how far a topic reaches now, with what is not committed yet. Raises `SourceUnreadable`."""
    consumer = _create_consumer(checked.cluster, "read_uncommitted")
    try:
        described = consumer.list_topics(checked.topic, checked.cluster.timeout_s).topics[checked.topic]
        if described.error is not None:
            raise SourceUnreadable(f"topic {checked.topic!r} can't be read: {described.error}")
        ranges = {}
        for partition in described.partitions:
            place = TopicPartition(checked.topic, partition)
            ranges[partition] = consumer.get_watermark_offsets(place, checked.cluster.timeout_s)
        resource = ConfigResource(ResourceType.TOPIC, checked.topic)
        admin = AdminClient(checked.cluster.settings())
        [answer] = admin.describe_configs([resource], request_timeout=checked.cluster.timeout_s).values()
        return TopicEnd(ranges, "compact" in str(answer.result()["cleanup.policy"].value))
    except KafkaException as error:
        raise SourceUnreadable(f"topic {checked.topic!r} can't be read: {error}") from error
    finally:
        consumer.close()


def read_records(checked: CheckedTopic, end: TopicEnd, sinks: Mapping[bytes, str]) -> TopicRecords:
    """Read all committed records up to an end, those of the sinks with these ids apart. Raises `SourceUnreadable`."""
    topic = checked.topic.encode()
    records = TopicRecords(
        {sink_id: SinkRecords(topic if checked.sinks[sink] else None) for sink_id, sink in sinks.items()}
    )
    consumer = _create_consumer(checked.cluster, "read_committed")
    places = [
        TopicPartition(checked.topic, partition, start) for partition, (start, until) in end.ranges.items() if until
    ]
    try:
        consumer.assign(places)
        quiet_since_s, positions = time.monotonic(), {place.partition: place.offset for place in places}
        while any(position < end.ranges[partition][1] for partition, position in positions.items()):
            messages = consumer.consume(BATCH_RECORDS, POLL_S)
            _add_all(records, messages, end)
            consumed_offsets = {place.partition: place.offset for place in consumer.position(places)}
            new_positions = {
                partition: max(consumed_offsets[partition], position) for partition, position in positions.items()
            }
            if new_positions != positions:
                quiet_since_s, positions = time.monotonic(), new_positions
            elif time.monotonic() - quiet_since_s > _OPEN_S:
                raise SourceUnreadable(
                    f"topic {checked.topic!r} returns nothing for {_OPEN_S:.0f} s: a Kafka transaction is open"
                )
    except KafkaException as error:
        raise SourceUnreadable(f"topic {checked.topic!r} can't be read: {error}") from error
    finally:
        consumer.close()
    return records


def _add_all(records: TopicRecords, messages: Sequence[Message], end: TopicEnd) -> None:
    for message in messages:
        partition, offset = message.partition(), message.offset()
        if (
            message.error() is None
            and partition is not None
            and offset is not None
            and offset < end.ranges[partition][1]
        ):
            records.add(partition, offset, (message.key(), message.value()), message.headers())


def _create_consumer(cluster: KafkaSource, isolation: str) -> Consumer:
    return Consumer(
        {
            **cluster.settings(),
            "group.id": "transactional-verify",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            ISOLATION: isolation,
        }
    )
