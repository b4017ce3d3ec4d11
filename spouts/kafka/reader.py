"""Reads offset ranges of Kafka partitions into Arrow: the part of the Kafka spouts that runs on executors.

`KafkaPartitionReader` leases a consumer from the pool of its process, turns the messages of a range into record
batches, and applies the spout's translator. It reads exactly the planned range, or raises: it must never yield less
without an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any, Self

import pyarrow as pa
from confluent_kafka import Message

from spouts.kafka.clients.cluster import KafkaConnection, id_of, topic_of
from spouts.kafka.clients.fetched import PIECE_BYTES_MAX, estimate_bytes
from spouts.kafka.clients.pool import consumer_pool
from spouts.kafka.records import FIELD_TYPES, record_schema
from spouts.kafka.translators import Translator
from transactional.core.ports import JointRecords, PartitionReader, RefusedRecord
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import BoltFailed, ConfigError, SchemaMismatch
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Schema

_JOINT_RECORDS = 2_000
"""The number of messages that make a record batch. Ranges with fewer share one, since each record batch costs as much
as a few hundred of its rows."""

Origins = Sequence[tuple[PartitionId, int]]
"""The partitions of some messages in order, each with the number of its messages."""


@dataclass(frozen=True, slots=True)
class KafkaPartitionReader(PartitionReader):
    """Reads ranges of Kafka partitions as record batches with the columns of `output`. Cheap to pickle.

    `translator` produces these from records; without it they are fields of the records themselves.
    """

    connection: KafkaConnection
    output: Schema
    translator: Translator | None = None

    @property
    def refuses_records(self) -> bool:
        """True if the translator has `on_error="dead_letter"`."""
        return self.translator is not None and self.translator.sets_aside

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        """Begin to fetch the ranges, with one consumer if there are many."""
        consumer_pool().expect(self.connection, [requested for requested in ranges if len(requested[1])])

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches of `read_or_refuse`, without refused records."""
        for read in self.read_or_refuse(partition, offsets, metadata):
            if isinstance(read, pa.RecordBatch):
                yield read

    def read_again(
        self, values: Mapping[str, object], stream: str = DEFAULT_STREAM
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """Yield the tuple that the current translator makes of a record that was refused earlier."""
        schema = arrow_schema(record_schema(tuple(FIELD_TYPES)))
        try:
            if self.translator is None:
                raise SchemaMismatch("the spout no longer has a translator")
            row = tuple(values[name] for name in schema.names)
            yield from self._translate(batch_from_rows([row], schema, component="a dead letter"), lambda _: values)
        except (ConfigError, BoltFailed, KeyError) as error:
            yield RefusedRecord(values, str(error))

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: object = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """Yield the existing records of the range, in order. Control records and aborted ones leave gaps.

        Raises `ReplayMismatch` if the log has lost records of the range; `SourceUnavailable` if the broker does not
        deliver anything for `timeout_ms`; `SchemaMismatch` for text that is not UTF-8, and whatever the translator
        raises, unless it refuses a record. Which incarnation of the topic the records are from is checked once per
        batch, by the spout's `check_read`.
        """
        for messages in self._read_messages(partition, offsets):
            yield from self._make_tuples(messages, partition)

    def read_together(
        self, ranges: Sequence[tuple[PartitionId, OffsetRange]]
    ) -> Iterator[JointRecords | RefusedRecord] | None:
        """Yield the records of several ranges in common record batches, with a translator those of one topic. None if
        the translator takes the records of one partition at a time."""
        can_mix = self.translator is None or self.translator.can_mix_partitions
        return self._read_together(ranges) if can_mix else None

    def _read_together(
        self, ranges: Sequence[tuple[PartitionId, OffsetRange]]
    ) -> Iterator[JointRecords | RefusedRecord]:
        topics = groupby(ranges, lambda requested: self.translator and requested[0].source)
        first = 0
        for ranges_of_topic in ([*group] for _, group in topics):
            for part in self._read_topic(ranges_of_topic):
                yield part if isinstance(part, RefusedRecord) else _shift(part, first)
            first += len(ranges_of_topic)

    def _read_topic(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> Iterator[JointRecords | RefusedRecord]:
        messages, counts, size = list[Message](), list[tuple[int, int]](), 0
        for number, piece, piece_size in self._read_ranges(ranges):
            messages += piece
            counts.append((number, len(piece)))
            size += piece_size
            if len(messages) >= _JOINT_RECORDS or size >= PIECE_BYTES_MAX:
                yield from self._make_joint_tuples(messages, counts, ranges)
                messages, counts, size = [], [], 0
        if messages:
            yield from self._make_joint_tuples(messages, counts, ranges)

    def _read_ranges(
        self, ranges: Sequence[tuple[PartitionId, OffsetRange]]
    ) -> Iterator[tuple[int, list[Message], int]]:
        """Yield the messages of one range after the other, with its position and their size in memory."""
        number = 0
        while number < len(ranges):
            for run in consumer_pool().take_whole(self.connection, ranges[number:]):
                yield number, run.messages, run.size
                number += 1
            if number < len(ranges):
                for messages in self._read_messages(*ranges[number]):
                    yield number, messages, estimate_bytes(messages)
                number += 1

    def _make_joint_tuples(
        self,
        messages: list[Message],
        counts: list[tuple[int, int]],
        ranges: Sequence[tuple[PartitionId, OffsetRange]],
    ) -> Iterator[JointRecords | RefusedRecord]:
        origins = [(ranges[number][0], count) for number, count in counts]
        if self.translator is None:
            yield _make_records(messages, self.output, origins), counts
            return
        records = _make_records(messages, record_schema(self.translator.fields), origins)
        batch, left_out = self.translator.translate_or_refuse(records)
        ends = [*accumulate(count for _, count in counts)]
        if batch.num_rows + len(left_out) != len(messages):  # it has skipped records, and does not say which
            for (number, count), end in zip(counts, ends, strict=True):
                for part in self._make_tuples(messages[end - count : end], ranges[number][0]):
                    yield part if isinstance(part, RefusedRecord) else (part, [(number, part.num_rows)])
            return
        places = [bisect_right(ends, position) for position, _ in left_out]
        missing = Counter(places)
        yield batch, [(number, count - missing[place]) for place, (number, count) in enumerate(counts)]
        for place, (position, reason) in zip(places, left_out, strict=True):
            if reason is not None:
                yield RefusedRecord(_as_letter(messages[position], origins[place][0]), reason)

    def with_facts(self, facts: Collection[str]) -> Self:
        """Return a reader whose translator uses the recorded facts."""
        return self if self.translator is None else replace(self, translator=self.translator.with_facts(facts))

    @property
    def knows_offsets(self) -> bool:
        """True: a message names its offset."""
        return True

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: object = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the batches of `read` with the offsets of their tuples. A record without a tuple leaves a gap."""
        for messages in self._read_messages(partition, offsets):
            batches = [batch for batch in self._make_tuples(messages, partition) if isinstance(batch, pa.RecordBatch)]
            batches_with_messages = [(batch, messages) for batch in batches if batch.num_rows == len(messages)]
            if not batches_with_messages:  # the translator has left records out, and does not say which
                single_batches = [
                    (batch, [message]) for message in messages for batch in self._make_tuples([message], partition)
                ]
                batches_with_messages = [
                    (batch, message)
                    for batch, message in single_batches
                    if isinstance(batch, pa.RecordBatch) and batch.num_rows
                ]
            for batch, source_messages in batches_with_messages:
                yield batch, pa.array([message.offset() for message in source_messages], pa.int64())

    def _read_messages(self, partition: PartitionId, offsets: OffsetRange) -> Iterator[list[Message]]:
        if not len(offsets):
            return
        with consumer_pool().leasing(self.connection, partition, offsets) as consumer:
            records = 0
            for messages in consumer.read(partition, offsets):
                records += len(messages)
                yield messages
            if records < len(offsets):
                consumer.check_start(partition, offsets)

    def _make_tuples(self, messages: list[Message], partition: PartitionId) -> Iterator[pa.RecordBatch | RefusedRecord]:
        origins = [(partition, len(messages))]
        if self.translator is None:
            yield _make_records(messages, self.output, origins)
        else:
            records = _make_records(messages, record_schema(self.translator.fields), origins)
            yield from self._translate(records, lambda position: _as_letter(messages[position], partition))

    def _translate(
        self, records: pa.RecordBatch, make_letter: Callable[[int], Mapping[str, object]]
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        assert self.translator is not None
        records = records.select(list(self.translator.fields))
        batch, left_out = self.translator.translate_or_refuse(records)
        yield batch
        for position, reason in left_out:
            if reason is not None:
                yield RefusedRecord(make_letter(position), reason)


def _shift(records: JointRecords, first: int) -> JointRecords:
    """Return the records with the positions of their ranges counted from `first`."""
    batch, counts = records
    return batch, [(number + first, count) for number, count in counts] if first else counts


def _make_records(messages: list[Message], fields: Schema, origins: Origins) -> pa.RecordBatch:
    schema = arrow_schema(fields)
    return pa.RecordBatch.from_arrays([_make_column(field, messages, origins) for field in schema], schema=schema)


def _as_letter(message: Message, partition: PartitionId) -> dict[str, Any]:
    """Return all fields of a record; key and value as text if they are UTF-8."""
    [row] = _make_records([message], record_schema(tuple(FIELD_TYPES)), [(partition, 1)]).to_pylist()
    return {**row, "key": _try_text(row["key"]), "value": _try_text(row["value"])}


def _try_text(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


_TIME_MS_MAX = (2**63 - 1) // 1_000


def _make_column(field: pa.Field, messages: list[Message], origins: Origins) -> pa.Array:
    match field.name:
        case "topic":
            return _repeat([(topic_of(partition.source), count) for partition, count in origins], field.type)
        case "partition":
            return _repeat([(partition.index, count) for partition, count in origins], field.type)
        case "offset":
            return pa.array(list(map(Message.offset, messages)), pa.int64())
        case "key":
            return _make_bytes_column(field, list(map(Message.key, messages)), messages)
        case "value":
            return _make_bytes_column(field, list(map(Message.value, messages)), messages)
        case "timestamp":
            return pa.array(_valid_times_ms(messages), pa.timestamp("ms", tz="UTC")).cast(field.type)
        case "source_id":
            return _repeat([(id_of(partition.source), count) for partition, count in origins], field.type)
        case _:
            return pa.array([message.headers() or [] for message in messages], field.type)


def _repeat(constants: Sequence[tuple[Any, int]], type_: pa.DataType) -> pa.Array:
    """Return a column in which each constant is repeated as often as the number beside it says."""
    if len(constants) == 1:
        [(constant, count)] = constants
        return pa.repeat(pa.scalar(constant, type_), count)
    return pa.array([constant for constant, count in constants for _ in range(count)], type_)


def _valid_times_ms(messages: list[Message]) -> Sequence[int | None]:
    kinds, times_ms = zip(*map(Message.timestamp, messages), strict=True)
    if all(kinds) and min(times_ms) >= -_TIME_MS_MAX and max(times_ms) <= _TIME_MS_MAX:
        return times_ms
    # A producer may set any number; one that is not a time in microseconds can't be shown as a time.
    kinds_and_times = zip(kinds, times_ms, strict=True)
    return [time_ms if kind and abs(time_ms) <= _TIME_MS_MAX else None for kind, time_ms in kinds_and_times]


def _make_bytes_column(field: pa.Field, values: list[Any], messages: list[Message]) -> pa.Array:
    try:
        return pa.array(values, field.type)  # of bytes it makes text only if they are UTF-8
    except pa.ArrowInvalid as error:
        raise _not_utf8_error(field.name, values, messages) from error


def _not_utf8_error(name: str, values: list[Any], messages: list[Message]) -> SchemaMismatch:
    for value, message in zip(values, messages, strict=True):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            return SchemaMismatch(
                f"the {name} at offset {message.offset()} of partition {message.partition()} of topic "
                f"{message.topic()!r} is not UTF-8 ({error.reason} at byte {error.start}); use {name}_type='binary'"
            )
    raise AssertionError(f"Arrow refused a {name} as text that Python takes")
