"""`AvroTranslator`: Avro records to columns, thousands of records at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from spouts.decoding.translator import Decoded, DecodingTranslator, OnError, Payloads, positions_without
from spouts.registry.client import Registry, registry_of
from spouts.registry.framing import Part
from spouts.registry.schemas import RegisteredSchema, SchemaId
from transactional.model.arrow import arrow_schema, declared_schema
from transactional.model.errors import ConfigError
from transactional.model.names import DISTRIBUTION
from transactional.model.schema import Schema

if TYPE_CHECKING:
    from spouts.avro.decoder import Decoder
    from spouts.avro.reader_types import ReaderType

_log = logging.getLogger(__name__)
_reported = set[tuple[str, SchemaId | None]]()


class AvroTranslator(DecodingTranslator):
    """Record values in Avro, by the fields that are read: `AvroTranslator(registry, "carrier string, delay long")`.

    `registry` is a URL or a `Registry`, whose ids the records carry as Confluent's serializers write them: in a header
    or in front, without an option. `fields` are in Spark's DDL, or in an Avro schema of the reader's with
    `schema=`, a path or its JSON. The schema with which a record was writer_schemas is resolved to them as Avro's
    specification has it: by name, also by the reader's aliases; an int is also read as a long, float or double. A field
    that the writer lacks is NULL, or has the default of the reader's schema; fields that nobody wants are skipped.

    `key` are fields of the record's key, in DDL; a key that is no Avro record is read as its one field. A record
    without a key has NULL there. With `framing="none"` records carry no ids, and all are of the `writer` schema, a path
    or its JSON.

    A value that can't be read fails the attempt, with its topic, partition, offset, schema id and field; `on_error` and
    `record_fields` are as in `JsonTranslator`. So does a record without a value (a tombstone). Needs the extra `avro`,
    also on executors. Raises `ConfigError` for a schema that no column can hold.
    """

    def __init__(
        self,
        registry: str | Registry | None = None,
        fields: str | Schema = "",
        *,
        schema: str | Path | None = None,
        key: str | Schema = "",
        framing: Literal["registry", "none"] = "registry",
        writer: str | Path | None = None,
        on_error: OnError = "fail",
        record_fields: Iterable[str] = (),
    ) -> None:
        if framing not in ("registry", "none") or (framing == "registry") != (registry is not None):
            raise ConfigError("AvroTranslator takes the URL of a registry; or framing='none', and a writer schema")
        if (framing == "none") != (writer is not None):
            raise ConfigError("AvroTranslator takes a writer schema with framing='none', and only then")
        if framing == "none" and key:
            raise ConfigError("with framing='none' AvroTranslator reads no keys: their schema is not known")
        self._parts: dict[Part, ReaderType] = {"key": _reader_type(key, None)} if key else {}
        self._parts["value"] = _reader_type(fields, schema)
        columns = [field for reader_type in self._parts.values() for field in reader_type.arrow_type]
        needs = [*self._parts, *(["headers"] if registry is not None else [])]
        declared = declared_schema(pa.schema(columns))
        super().__init__(declared, on_error=on_error, record_fields=record_fields, needs=needs)
        self._registry = None if registry is None else registry_of(registry)
        self._writer = None if writer is None else _text(writer, "writer")
        if self._writer is not None:
            decoder = _decoder(self._writer, (), self._parts["value"])
            if isinstance(decoder, str):
                raise ConfigError(f"the writer schema of AvroTranslator can't be used: {decoder}")

    def _decode(self, records: pa.RecordBatch) -> Decoded:
        read = {part: self._read(records, part) for part in self._parts}
        problems = dict[int, tuple[Part, str]]()
        for part, columns_read in read.items():
            problems = {index: (part, columns_read.explain(index)) for index in columns_read.problems} | problems
        columns = [column for columns_read in read.values() for column in columns_read.columns]
        fields = [field for reader_type in self._parts.values() for field in reader_type.arrow_type]
        batch, bad = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), sorted(problems)
        if bad:
            batch = batch.take(pa.array(positions_without(bad, records.num_rows), pa.int64()))
        return Decoded(batch, bad, problems.__getitem__)

    def _read(self, records: pa.RecordBatch, part: Part) -> _ColumnsRead:
        column = records.column(part)
        if self._registry is None or not records.num_rows:
            payloads = Payloads(column, {}, {}, {})
            writer_schemas: list[_WriterSchema] = [(None, self._writer or "", ())]
        else:
            payloads = self._framed(self._registry, records, part, "AVRO")
            writer_schemas = list(_writer_schemas(payloads.schemas))
        problems, parts = dict(payloads.problems), list[_Part]()
        for schema_id, text, references in writer_schemas:
            present = pc.indices_nonzero(pc.is_valid(column)).cast(pa.int64())
            rows = present if schema_id is None else payloads.positions[schema_id]
            decoder = _decoder(text, references, self._parts[part])
            if isinstance(decoder, str):
                problems |= dict.fromkeys(rows.to_pylist(), decoder)
                continue
            if len(rows):
                _report(decoder, schema_id, records)
            is_all = len(rows) == records.num_rows
            columns, damaged = decoder.decode(payloads.column if is_all else payloads.column.take(rows))
            problems |= zip(rows.take(pa.array(list(damaged), pa.int64())).to_pylist(), damaged.values(), strict=True)
            parts.append((rows, columns))
        if part == "value" and column.null_count:
            problems |= dict.fromkeys(pc.indices_nonzero(pc.is_null(column)).to_pylist(), "the record has no value")
        return _ColumnsRead(payloads, _in_order(parts, self._parts[part].arrow_type, records.num_rows), problems)


_WriterSchema = tuple[SchemaId | None, str, tuple[str, ...]]
"""The id of a schema, its text, and the texts of the schemas that it refers to."""
_Part = tuple[pa.Array, list[pa.Array]]
"""Records of one schema: their positions, and their columns."""


@dataclass(frozen=True, slots=True)
class _ColumnsRead:
    """The columns that were read from the keys, or the values, of records, with an entry for each record."""

    payloads: Payloads
    columns: list[pa.Array]
    problems: Mapping[int, str]

    def explain(self, index: int) -> str:
        return f"{self.payloads.id_text(index)} can't be read as Avro: {self.problems[index]}"


def _in_order(parts: Sequence[_Part], type_: pa.StructType, count: int) -> list[pa.Array]:
    """Return the columns of all records, in order. Records that are in no part have NULL."""
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    rows = pa.concat_arrays([pa.nulls(0, pa.int64()), *(rows for rows, _ in parts)])
    order = pc.index_in(pa.array(range(count), pa.int64()), value_set=rows)
    parts_by_column = ([columns[place] for _, columns in parts] for place in range(len(type_)))
    return [
        pa.concat_arrays(arrays).take(order) if arrays else pa.nulls(count, field.type)
        for arrays, field in zip(parts_by_column, type_, strict=True)
    ]


def _writer_schemas(schemas: Mapping[SchemaId, RegisteredSchema | None]) -> Iterator[_WriterSchema]:
    for schema_id, schema in schemas.items():
        if schema is not None and schema.kind == "AVRO":
            yield schema_id, schema.text, tuple(reference.text for reference in schema.references)


def _report(decoder: Decoder, schema_id: SchemaId | None, records: pa.RecordBatch) -> None:
    """Log once the fields of a schema that nobody reads: a producer may have added them."""
    topic = records.column("topic")[0].as_py()
    if decoder.unread_fields and (topic, schema_id) not in _reported:
        _reported.add((topic, schema_id))
        source = "" if schema_id is None else f" of schema id {schema_id}"
        _log.info(
            "records of topic %r%s have fields that are not read: %s", topic, source, ", ".join(decoder.unread_fields)
        )


def _reader_type(fields: str | Schema, schema: str | Path | None) -> ReaderType:
    module = _import_decoder()
    if bool(fields) == (schema is not None):
        raise ConfigError(
            "AvroTranslator takes fields such as 'carrier string, delay long', or schema=, an Avro schema"
        )
    if schema is not None:
        reader_type: ReaderType = module.parse_reader_schema(_text(schema, "schema"))
    else:
        declared = fields if isinstance(fields, Schema) else Schema.parse(fields)
        reader_type = module.type_from_arrow(pa.struct(list(arrow_schema(declared))))
    return reader_type


def _text(schema: str | Path, name: str) -> str:
    """Return the JSON of a schema, which is given as it is or by a path."""
    if isinstance(schema, str) and schema.lstrip("\ufeff \t\r\n").startswith(("{", "[", '"')):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}= of AvroTranslator is an Avro schema in JSON, or its path: {error}") from None


def _decoder(text: str, references: tuple[str, ...], reader_type: ReaderType) -> Decoder | str:
    decoder: Decoder | str = _import_decoder().make_decoder(text, references, reader_type)
    return decoder


def _import_decoder() -> Any:
    """Import the decoder, which needs numpy; a spout of other records does not."""
    try:
        return import_module("spouts.avro.decoder")
    except ModuleNotFoundError as error:
        raise ConfigError(f"AvroTranslator needs numpy: install {DISTRIBUTION}[avro], also on executors") from error
