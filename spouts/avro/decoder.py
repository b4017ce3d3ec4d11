"""`Decoder`: the payloads of one writer's schema as columns of what is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa

from spouts.avro.cursor import Cursor
from spouts.avro.nested import Record, RecordUnion
from spouts.avro.nodes import AvroNode
from spouts.avro.resolution import has_records, record_reader, unread, value_reader
from spouts.avro.schema import AvroSchemaError, AvroType, parsed
from spouts.avro.wanted import Wanted, of_arrow, of_avro
from transactional.model.errors import ConfigError

__all__ = ["Decoder", "decoder", "of_arrow", "wanted_of"]


class Decoder:
    """Reads payloads of a writer's schema. May be used from several threads.

    A writer whose values are no records is read as the one field that is wanted. Raises `AvroSchemaError` for a schema
    of which nothing can be read as that.
    """

    def __init__(self, writer: AvroType, wanted: Wanted) -> None:
        self.unread: Sequence[str] = ()
        if has_records(writer) or len(wanted.fields) != 1:
            self._node: AvroNode = record_reader(writer, wanted)
            self.unread = tuple(dict.fromkeys(unread(writer, wanted)))
        else:
            self._node = value_reader(writer, wanted.fields[0])
        self._room = _room(writer, set())

    def decode(self, payloads: pa.Array) -> tuple[list[pa.Array], Mapping[int, str]]:
        """The columns, an entry for each payload; and the positions of those that can't be read, with why. Their
        entries mean nothing."""
        cursor = Cursor(payloads, self._room)
        lanes = cursor.all()
        if isinstance(self._node, Record | RecordUnion):
            columns = self._node.columns(cursor, lanes)
        else:
            columns = [self._node.read(cursor, lanes)]
        cursor.finish()
        return columns, cursor.problems


@lru_cache(maxsize=1_000)
def decoder(text: str, references: tuple[str, ...], wanted: Wanted) -> Decoder | str:
    """The decoder of a schema; or why there is none."""
    try:
        return Decoder(parsed(text, references), wanted)
    except AvroSchemaError as error:
        return str(error)


def wanted_of(text: str) -> Wanted:
    """What a reader's schema wants. Raises `ConfigError` for one that is no record, or has what no column can hold."""
    try:
        wanted = of_avro(parsed(text))
    except AvroSchemaError as error:
        raise ConfigError(f"the reader's Avro schema can't be used: {error}") from None
    if not wanted.fields:
        raise ConfigError("the reader's Avro schema is no record")
    return wanted


def _room(type_: AvroType, seen: set[int]) -> int:
    """The largest number of bytes of a fixed."""
    if id(type_) in seen:
        return 0
    seen.add(id(type_))
    within = [*type_.branches, *(each.type for each in type_.fields), *([type_.of] if type_.of else [])]
    return max([type_.size, *(_room(each, seen) for each in within)])
