"""The transactional producer of a Kafka sink: each call of `publish` is one Kafka transaction.

A call that fails leaves one of two things behind. Either the transaction was aborted, which the broker has confirmed,
and the producer is as before; or its outcome is unknown, and the producer has to be replaced: the next one with its
transactional id ends what was begun, and the marker in the control topic shows how.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message

from sinks.kafka.connection import TIMEOUT_S, SinkConnection, kafka_error
from sinks.kafka.control import control_topic, encode_marker
from sinks.kafka.record_encoding import HEADER, KEY, PARTITION, TOPIC, VALUE
from sinks.kafka.topics import TopicLimits, size_settings
from transactional.core.ports import PublishedRecords, SinkOwner
from transactional.model.errors import RecordRefused

if TYPE_CHECKING:
    import pyarrow as pa

Headers = list[tuple[str, str | bytes | None]]

_COMMIT_S: Final = 30.0
"""How long a commit without an answer is repeated; then a new producer finds out."""
_INIT_S: Final = 30.0
BY_KEY: Final = -1
"""The partition of a record whose key chooses it."""
POISON: Final = (
    *(KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG),
    *(KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_TIMESTAMP),
)
"""The errors of a broker for a record that it will never take."""


class TimeoutTooLong(Exception):
    """The brokers do not allow Kafka transactions to be open for so long."""


class KafkaPublisher:
    """The one producer of a sink. Opening it fences every earlier one.

    Raises `SinkUnavailable`, and `TimeoutTooLong` for a `timeout_ms` that the brokers do not allow.
    """

    def __init__(
        self, connection: SinkConnection, owner: SinkOwner, limits: Sequence[TopicLimits], timeout_ms: int
    ) -> None:
        self._connection, self._owner, self._topic = connection, owner, limits[0].topic
        self._timeout_s = timeout_ms / 1_000
        self._control = control_topic(owner.topology_id)
        self._failures: list[tuple[KafkaError, Message]] = []
        ids = (owner.topology_id, owner.sink, owner.store_id)
        transactional_id = "/".join(quote(name, safe="") for name in ids)
        self._sink_id = sha256(transactional_id.encode()).hexdigest()[:8].encode()
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            **size_settings(connection, limits),
            "delivery.report.only.error": True,
            "on_delivery": self._note_failure,
        }
        self._producer = connection.open_producer(settings, used_by=f"sink {owner.sink!r}")
        try:
            self._producer.init_transactions(_INIT_S)
        except KafkaException as error:
            if kafka_error(error).code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise TimeoutTooLong(kafka_error(error).str()) from error
            raise connection.unavailable(f"sink {owner.sink!r} can't take over its topic", error) from error

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        """Publish transactions and a marker for the last one, in one Kafka transaction."""
        self._failures.clear()
        self._began_s = time.monotonic()
        try:
            self._producer.begin_transaction()
            for published in group:
                self._produce_records(published)
            marker = encode_marker(self._owner, group[-1].publication)
            self._produce(self._control, self._owner.sink.encode(), marker, None)
            self._commit()
        except KafkaException as error:
            self._fail(kafka_error(error), group)

    def _produce_records(self, published: PublishedRecords) -> None:
        """Hand records over to the client; a line more for each of them is a tenth of the time of a publication."""
        attempt, produce = published.publication.attempt, self._producer.produce
        ours: Headers = [
            *(("txid", str(attempt.txid).encode()), ("attempt", str(attempt.attempt_id).encode())),
            ("sink", self._sink_id),
        ]
        for topic, key, content, headers, partition in split_records(published.records, self._topic, ours):
            try:
                produce(topic, content, key, partition, headers=headers)
            except BufferError:
                self._produce(topic, key, content, headers, partition)

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        partition: int = BY_KEY,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.05)

    def _commit(self) -> None:
        """Commit the transaction. One without an answer may have been committed, so it is committed again."""
        deadline_s = time.monotonic() + _COMMIT_S
        while True:
            try:
                return self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as error:
                if not kafka_error(error).retriable() or time.monotonic() > deadline_s:
                    raise

    def _fail(self, error: KafkaError, group: Sequence[PublishedRecords]) -> None:
        """Abort the transaction where that is possible, and raise what has happened."""
        txids = [published.publication.attempt.txid for published in group]
        failed = f"sink {self._owner.sink!r} can't publish transactions {txids[0]} to {txids[-1]}"
        is_aborted = self._abort(error)
        refused = next((failure for failure in self._failures if failure[0].code() in POISON), None)
        if is_aborted and refused is not None:
            code, message = refused
            record = self._describe(message, group)
            raise RecordRefused(self._connection.redact(f"{record} is refused: {code.str()}"))
        if is_aborted and error.code() in POISON:
            raise RecordRefused(self._connection.redact(f"a record is refused: {error.str()}"))
        reason = error if not self._failures else self._failures[0][0]
        has_timed_out = time.monotonic() - self._began_s >= self._timeout_s
        raise self._connection.unavailable(
            failed, KafkaException(reason), is_fenced=not is_aborted, has_timed_out=has_timed_out
        )

    def _abort(self, error: KafkaError) -> bool:
        """Abort the transaction; False if it is not known to be aborted."""
        if error.fatal() or (error.retriable() and not error.txn_requires_abort()):
            return False
        deadline_s = time.monotonic() + _COMMIT_S
        while True:
            try:
                self._producer.abort_transaction(TIMEOUT_S)
                self._producer.poll(0)  # for delivery reports, and raises a fatal error
            except KafkaException as failed:
                if not kafka_error(failed).retriable() or time.monotonic() > deadline_s:
                    return False
            else:
                return True

    def _describe(self, message: Message, group: Sequence[PublishedRecords]) -> str:
        """Name a refused record, by its number in its transaction unless it is the marker.

        The client reports records without their headers, so of equal ones the first is named.
        """
        place = message.topic(), message.key(), message.value()
        place_text = f"for topic {place[0]!r} with key {place[1]!r:.100}"
        for published in group:
            for number, record in enumerate(split_records(published.records, self._topic)):
                if record[:3] == place:
                    txid = published.publication.attempt.txid
                    return f"record {number} of transaction {txid}, {place_text}, or one that was sent with it,"
        return f"a record {place_text}"

    def _note_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:
            self._failures.append((error, message))


def split_records(
    records: pa.Table, topic: str, first_headers: Headers | None = None
) -> Iterable[tuple[str, bytes | None, bytes | None, Headers, int]]:
    """Return topic, key, value, headers and partition of each encoded record.

    `topic` is that of records which name none. Their own headers come after `first_headers`; records without headers of
    their own share one list.
    """
    names = [name for name in records.column_names if name.startswith(HEADER)]
    shared = first_headers or []
    headers: Iterable[Headers] = repeat(shared, records.num_rows)
    if names:
        headers = _headers_of(records, names, shared)
    partitions: Iterable[int] = repeat(BY_KEY, records.num_rows)
    if PARTITION in records.column_names:
        partitions = pc.fill_null(records.column(PARTITION), BY_KEY).to_pylist()
    topics: Iterable[str] = repeat(topic, records.num_rows)
    if TOPIC in records.column_names:
        topics = records.column(TOPIC).to_pylist()
    return zip(topics, _parts_of(records, KEY), _parts_of(records, VALUE), headers, partitions, strict=True)


def _parts_of(records: pa.Table, name: str) -> Iterable[bytes | None]:
    column = records.column(name)
    return repeat(None, len(column)) if column.null_count == len(column) else column.to_pylist()


def _headers_of(records: pa.Table, names: Sequence[str], first_headers: Headers) -> Iterator[Headers]:
    plain_names = [name.removeprefix(HEADER) for name in names]
    for texts in zip(*(records.column(name).to_pylist() for name in names), strict=True):
        yield [*first_headers, *zip(plain_names, texts, strict=True)]
