"""`Decoder`: the payloads of one writer's schema as columns of a reader's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa

from spouts.avro.cursor import Cursor
from spouts.avro.nested import Record, RecordUnion
from spouts.avro.nodes import AvroNode
from spouts.avro.reader_types import ReaderType, type_from_arrow, type_from_avro
from spouts.avro.resolution import has_records, record_reader, unread_fields, value_reader
from spouts.avro.schema import AvroSchemaError, AvroType, parse_schema
from transactional.model.errors import ConfigError

__all__ = ["Decoder", "make_decoder", "parse_reader_schema", "type_from_arrow"]


class Decoder:
    """Reads payloads of a writer's schema. May be used from several threads.

    A writer whose values are no records is read as the reader's one field. Raises `AvroSchemaError` for a schema that
    can't be read as the reader's type at all.
    """

    def __init__(self, writer: AvroType, reader_type: ReaderType) -> None:
        self.unread_fields: Sequence[str] = ()
        if has_records(writer) or len(reader_type.fields) != 1:
            self._node: AvroNode = record_reader(writer, reader_type)
            self.unread_fields = tuple(dict.fromkeys(unread_fields(writer, reader_type)))
        else:
            self._node = value_reader(writer, reader_type.fields[0])
        self._room = _room(writer, set())

    def decode(self, payloads: pa.Array) -> tuple[list[pa.Array], Mapping[int, str]]:
        """Return columns with an entry for each payload, and the reasons by position for payloads that can't be read.
        The entries of those mean nothing."""
        cursor = Cursor(payloads, self._room)
        lanes = cursor.all_lanes()
        if isinstance(self._node, Record | RecordUnion):
            columns = self._node.columns(cursor, lanes)
        else:
            columns = [self._node.read(cursor, lanes)]
        cursor.finish()
        return columns, cursor.problems


@lru_cache(maxsize=1_000)
def make_decoder(text: str, references: tuple[str, ...], reader_type: ReaderType) -> Decoder | str:
    """Return the decoder of a writer's schema, or the reason why there is none."""
    try:
        return Decoder(parse_schema(text, references), reader_type)
    except AvroSchemaError as error:
        return str(error)


def parse_reader_schema(text: str) -> ReaderType:
    """Return the type of a reader's schema. Raises `ConfigError` for no record, or a type that no column can hold."""
    try:
        reader_type = type_from_avro(parse_schema(text))
    except AvroSchemaError as error:
        raise ConfigError(f"the reader's Avro schema can't be used: {error}") from None
    if not reader_type.fields:
        raise ConfigError("the reader's Avro schema is no record")
    return reader_type


def _room(type_: AvroType, visited: set[int]) -> int:
    """Return the largest size of a fixed type within a type, in bytes."""
    if id(type_) in visited:
        return 0
    visited.add(id(type_))
    inner_types = [
        *type_.branches,
        *(field.type for field in type_.fields),
        *([type_.item_type] if type_.item_type else []),
    ]
    return max([type_.size, *(_room(inner, visited) for inner in inner_types)])
