"""Record translators: they convert the contents of Kafka records to the tuples of a spout.

`Translator` is the port; `SimpleTranslator` calls a function per record, `ByTopicTranslator` chooses a translator by
topic, and `spouts.decoding` has those for JSON and Avro. A translator must be a pure function of the record: the same
record gives the same tuple, in every process and on every replay. A transactional spout checks that (by count and
checksum), and fails a replay that differs.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

import pyarrow as pa

from spouts.kafka.records import FIELD_TYPES
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.errors import BoltFailed, ConfigError, SchemaMismatch, TransactionalError
from transactional.model.schema import Schema

_COMPONENT = "translator"

LeftOut = Sequence[tuple[int, str | None]]
"""The positions of records that make no tuple, ascending: each with the reason if it is refused, None if skipped."""

Headers = tuple[tuple[str, bytes | None], ...]


class Translator(ABC):
    """Converts records to tuples. `output` declares the fields of the tuples, `fields` the parts of a record that it
    needs."""

    def __init__(self, output: str | Schema, fields: Sequence[str]) -> None:
        self.output = output if isinstance(output, Schema) else Schema.parse(output)
        self.fields = tuple(fields)
        if not len(self.output):
            raise ConfigError(f'{type(self).__name__} needs the fields of its tuples: "carrier string, delay long"')

    @abstractmethod
    def translate(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the tuples of records of one partition, in order: at most one for each, in the columns of `output`.

        With `can_mix_partitions` the records are of several partitions of one topic. `records` has the columns
        `fields`, in the types of a record's fields: key and value are binary.
        """

    def check_topic(self, topic: str) -> None:  # noqa: B027 - optional
        """Raise `ConfigError` if there are no tuples for the records of a topic."""

    def with_facts(self, facts: Collection[str]) -> Self:
        """Return the translator for a batch for which these facts are recorded (see `PartitionReader.with_facts`)."""
        return self

    @property
    def sets_aside(self) -> bool:
        """True if it refuses records, which become dead letters, instead of failing the attempt."""
        return False

    @property
    def skips_records(self) -> bool:
        """False if each record makes a tuple: none is skipped or set aside."""
        return True

    @property
    def can_mix_partitions(self) -> bool:
        """True if records of several partitions of one topic can be translated together, which is quicker if each
        partition has few: a tuple depends on its record alone. By default they are not."""
        return False

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, LeftOut]:
        """Return the tuples as `translate` does, and the positions of records in `records` that make none.

        A refused record has a reason and becomes a dead letter; a skipped one has None, or need not be named.
        """
        return self.translate(records), ()


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record, as passed to a function. `timestamp` is in UTC, None if the record has none; reading one beyond the
    year 9999, from a producer that does not use milliseconds, is an error."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: datetime | None
    headers: Headers
    source_id: str = ""

    def __str__(self) -> str:
        return f"offset {self.offset} of partition {self.partition} of topic {self.topic!r}"


class SimpleTranslator(Translator):
    """A function per record: it takes a `KafkaRecord`, and returns the values of one tuple, or None to skip it.

        SimpleTranslator(lambda record: (record.value.decode(), record.offset), "line string, offset long")

    An exception in the function fails the attempt, with the record's position in the message; with
    `on_error="dead_letter"` the record is set aside instead, and so is one whose values do not match. An
    `OperatingError` fails the attempt in any case: raise one if it is not the record's fault. For many records
    `JsonTranslator`, or no translator and a bolt on Arrow batches, is several times faster.
    """

    def __init__(
        self,
        function: Callable[[KafkaRecord], Sequence[Any] | None],
        output: str | Schema,
        *,
        on_error: Literal["fail", "dead_letter"] = "fail",
    ) -> None:
        super().__init__(output, tuple(FIELD_TYPES))
        if on_error not in ("fail", "dead_letter"):
            raise ConfigError(f"on_error is 'fail' or 'dead_letter', not {on_error!r}")
        self._on_error = on_error
        if not callable(function):
            raise ConfigError(f"SimpleTranslator takes a function of a KafkaRecord, got {function!r}")
        self._function = function

    def translate(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the function's tuples. Raises `BoltFailed` or `SchemaMismatch`, which name the record."""
        schema = arrow_schema(self.output)
        translated = [(record, self._translate_one(record)) for record in _make_records(records)]
        records_with_values = [(record, values) for record, values in translated if values is not None]
        try:
            return batch_from_rows([values for _, values in records_with_values], schema, component=_COMPONENT)
        except SchemaMismatch as error:
            raise self._error_of_single_record(records_with_values) or error from error

    @property
    def sets_aside(self) -> bool:
        """True with `on_error="dead_letter"`: a record that can't be translated becomes a dead letter."""
        return self._on_error == "dead_letter"

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, LeftOut]:
        """Return the function's tuples, and the records that it can't translate."""
        try:
            return self.translate(records), ()
        except (BoltFailed, SchemaMismatch):
            if not self.sets_aside:
                raise
        parts, refused = [], []
        for position in range(records.num_rows):
            try:
                parts.append(self.translate(records.slice(position, 1)))
            except (BoltFailed, SchemaMismatch) as error:
                refused.append((position, str(error)))
        schema = arrow_schema(self.output)
        table = pa.Table.from_batches(parts, schema=schema).combine_chunks()
        return batch_from_rows([], schema, component=_COMPONENT) if not len(table) else table.to_batches()[0], refused

    def _error_of_single_record(
        self, records_with_values: Sequence[tuple[KafkaRecord, tuple[Any, ...]]]
    ) -> SchemaMismatch | None:
        """Return the error for the single record that caused it, or None if each record alone is right."""
        for record, values in records_with_values:
            try:
                batch_from_rows([values], arrow_schema(self.output), component=_COMPONENT)
            except SchemaMismatch as error:
                return SchemaMismatch(f"{error}; for {record}")
        return None

    def _translate_one(self, record: KafkaRecord) -> tuple[Any, ...] | None:
        try:
            values = self._function(record)
        except TransactionalError:
            raise
        except Exception as error:
            raise BoltFailed.raised_by("the translator", error, f", for {record}") from error
        if values is None:
            return None
        if not isinstance(values, tuple | list) or len(values) != len(self.output):
            raise SchemaMismatch(
                f"the translator returned {values!r} for {record}; it must return a tuple with a value for each of "
                f"'{self.output}', or None to skip the record"
            )
        return tuple(values)


class ByTopicTranslator(Translator):
    """A different translator for each topic; all have the same fields, because a spout has one stream (Storm's
    ByTopic).

        ByTopicTranslator().for_topic("orders", JsonTranslator(...)).for_topic("old-orders", SimpleTranslator(...))

    `default` translates all other topics; without it their records are an error. A spout that knows its topics reports
    one without a translator when it is created.
    """

    def __init__(self, default: Translator | None = None) -> None:
        self._routes: Mapping[str, Translator] = {}
        self._set_translators(default, {})

    def for_topic(self, topic: str, translator: Translator) -> ByTopicTranslator:
        """Return a translator that uses `translator` for the records of `topic`, and is otherwise like this one.

        Raises `ConfigError` for a topic that already has one, and for fields that differ from the previous ones.
        """
        if not isinstance(translator, Translator):
            raise ConfigError(f"topic {topic!r} needs a translator, such as JsonTranslator(...); got {translator!r}")
        if topic in self._routes:
            raise ConfigError(f"topic {topic!r} already has a translator")
        if (self._routes or self._default) and str(translator.output) != str(self.output):
            raise ConfigError(
                f"the translator of topic {topic!r} has the fields '{translator.output}', the others "
                f"'{self.output}'; all must have the same fields"
            )
        extended = ByTopicTranslator(self._default)
        extended._set_translators(self._default, {**self._routes, topic: translator})
        return extended

    def _set_translators(self, default: Translator | None, routes: Mapping[str, Translator]) -> None:
        self._default, self._routes = default, routes
        translators = self._translators
        self.output = translators[0].output if translators else Schema(())
        self.fields = tuple(
            name for name in FIELD_TYPES if name == "topic" or any(name in t.fields for t in translators)
        )

    def check_topic(self, topic: str) -> None:
        """Raise `ConfigError` if the topic has no translator and there is no default."""
        translator = self._routes.get(topic, self._default)
        if translator is None:
            raise ConfigError(
                f"topic {topic!r} has no translator: add .for_topic({topic!r}, ...), or a default; there are some for: "
                f"{', '.join(sorted(self._routes)) or 'none'}"
            )
        translator.check_topic(topic)

    def with_facts(self, facts: Collection[str]) -> Self:
        """Return the same choice of translators, each for a batch for which these facts are recorded."""
        configured = copy.copy(self)
        configured._routes = {topic: translator.with_facts(facts) for topic, translator in self._routes.items()}
        configured._default = self._default and self._default.with_facts(facts)
        return configured

    @property
    def sets_aside(self) -> bool:
        """True if one of the translators sets records aside."""
        return any(translator.sets_aside for translator in self._translators)

    @property
    def skips_records(self) -> bool:
        """True if one of the translators leaves records out."""
        return any(translator.skips_records for translator in self._translators)

    @property
    def can_mix_partitions(self) -> bool:
        """True if each of the translators can."""
        return all(translator.can_mix_partitions for translator in self._translators)

    @property
    def _translators(self) -> list[Translator]:
        return [*self._routes.values(), *([self._default] if self._default else [])]

    def translate(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the tuples that the topic's translator makes."""
        return self._translator_of(records).translate(records.select(list(self._translator_of(records).fields)))

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, LeftOut]:
        """Return the tuples that the topic's translator makes, and the records that it refuses."""
        return self._translator_of(records).translate_or_refuse(
            records.select(list(self._translator_of(records).fields))
        )

    def _translator_of(self, records: pa.RecordBatch) -> Translator:
        topic = records.column("topic")[0].as_py()
        self.check_topic(topic)
        translator = self._routes.get(topic, self._default)
        assert translator is not None
        return translator


def check_translator(translator: Translator, topics: Sequence[str]) -> Translator:
    """Return the translator. Raises `ConfigError` if it is of another type, or can't translate one of the topics."""
    if not isinstance(translator, Translator):
        raise ConfigError(f"translator is a JsonTranslator, SimpleTranslator or ByTopicTranslator, not {translator!r}")
    if not len(translator.output):
        raise ConfigError("the translator has no topic yet: add .for_topic(topic, translator), or a default")
    for topic in topics:
        translator.check_topic(topic)
    return translator


class _UnreadableTimeRecord(KafkaRecord):
    """A record whose timestamp Python can't represent. Only reading the timestamp is an error."""

    __slots__ = ("_timestamp",)
    _timestamp: int

    @property
    def timestamp(self) -> datetime | None:
        raise SchemaMismatch(
            f"the timestamp of the record at {self} is {self._timestamp} microseconds after 1970, and Python's years "
            "are 1 to 9999: its producer did not use milliseconds; don't read it, or have it corrected"
        )

    @timestamp.setter
    def timestamp(self, microseconds: Any) -> None:
        object.__setattr__(self, "_timestamp", microseconds)


def _make_records(records: pa.RecordBatch) -> Iterator[KafkaRecord]:
    names = [name for name in FIELD_TYPES if name not in ("timestamp", "headers", "source_id")]
    columns = [records.column(name).to_pylist() for name in names]
    times, headers = _to_times(records.column("timestamp")), records.column("headers").to_pylist()
    source_id = records.column("source_id")[0].as_py() if records.num_rows else ""  # all are of one partition
    for topic, partition, offset, key, value, time, header_list in zip(*columns, times, headers, strict=True):
        headers_of_record = tuple((header["key"], header["value"]) for header in header_list)
        record_class = _UnreadableTimeRecord if isinstance(time, int) else KafkaRecord
        yield record_class(topic, partition, offset, key, value, time, headers_of_record, source_id)


def _to_times(column: pa.Array) -> list[Any]:
    """Return the times of a column. A time that Python can't represent stays a number of microseconds."""
    try:
        times: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [_to_time(scalar) for scalar in column]
    return times


def _to_time(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar.value
