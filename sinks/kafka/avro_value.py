"""`AvroValue`: the value of a record as Avro, behind the id of its schema, as Confluent's serializers have it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from sinks.kafka.avro_bytes import AvroCompiler, join_rows
from transactional.model.arrow.conversions import arrow_schema
from transactional.model.errors import ConfigError, OperatingError, SchemaMismatch, SinkUnavailable
from transactional.model.schema import Schema


class SchemaRegistry(Protocol):
    """A registry of schemas, such as `spouts.Registry`."""

    def register(self, subject: str, schema: str) -> int:
        """Register a schema unless it is, and return its id. Raises `OperatingError` and `ConfigError`."""


class AvroValue:
    """A value, or a key, that is a record of an Avro schema, with the fields of the stream that have its fields' names.

    The schema is registered when a run starts, under the subject `TOPIC-value`, or `TOPIC-key`, of each topic, unless
    `subject` is another one. Fields that may be NULL have a union with null. Times in milliseconds lose their
    microseconds.
    """

    def __init__(self, schema: str, registry: SchemaRegistry, *, subject: str | None = None) -> None:
        if not isinstance(schema, str):
            raise ConfigError(f"AvroValue takes a schema as text: pass json.dumps(schema); got {schema!r:.100}")
        try:
            declaration = json.loads(schema)
            self._names = [str(member["name"]) for member in declaration["fields"]]
            self._record = str(declaration["name"])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"AvroValue takes the JSON of an Avro record: {error!r} in {schema!r:.100}") from error
        if not hasattr(registry, "register"):
            raise ConfigError(f"AvroValue takes a registry such as spouts.Registry('http://…:8081'), not {registry!r}")
        self.schema, self.registry, self.subject = schema, registry, subject
        self._declaration: Mapping[str, Any] = declaration
        self._prefix = b""

    def __str__(self) -> str:
        return f"avro {self._record}"

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a field is missing, or has a type that the schema has not."""
        types = {column.name: column.type for column in arrow_schema(fields)}
        self._compiler(used_by).record(self._declaration, types, "")

    def names(self, fields: Schema) -> Iterable[str]:
        """Return the names of the schema's fields."""
        return self._names

    def prepare(self, topics: Sequence[str], role: str) -> None:
        """Register the schema for the keys or values of topics, by the role.

        Raises `SinkUnavailable`, and `ConfigError` if the registry refuses the schema, or does not give it one id.
        """
        subjects = [self.subject] if self.subject else [f"{topic}-{role}" for topic in topics]
        try:
            schema_ids = {subject: self.registry.register(subject, self.schema) for subject in subjects}
        except OperatingError as error:
            raise SinkUnavailable(str(error)) from error
        if len({*schema_ids.values()}) > 1:
            raise ConfigError(
                f"the registry has the schema of {self._record!r} under several ids, {schema_ids}, and a KafkaSink "
                "writes one id into the records of all its topics: pass AvroValue a subject= for all of them"
            )
        self._prefix = b"\0" + schema_ids[subjects[0]].to_bytes(4, "big")

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the bytes of each row behind the id of the schema. Raises `SchemaMismatch`."""
        types = {column.name: column.type for column in batch.schema}
        encoders = self._compiler("the sink").record(self._declaration, types, "")
        try:
            columns = [encoder(batch.column(name)) for name, encoder in zip(self._names, encoders, strict=True)]
        except (ValueError, OverflowError) as error:
            raise SchemaMismatch(f"it has no form in Avro: {error}") from error
        return pa.array([self._prefix + row for row in join_rows(columns, batch.num_rows)], pa.binary())

    def _compiler(self, used_by: str) -> AvroCompiler:
        return AvroCompiler(used_by, str(self._declaration.get("namespace", "")))
