"""What translators that decode records have in common: schema ids, and what becomes of a record that can't be read."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from spouts.kafka.records import FIELD_TYPES
from spouts.kafka.translators import Translator
from spouts.registry.client import Registry
from spouts.registry.framing import Part, unframed, without_rows
from spouts.registry.schemas import RegisteredSchema, SchemaId
from transactional.model.arrow import arrow_schema
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Field, Schema, did_you_mean

OnError = Literal["fail", "null", "skip", "dead_letter"]

_CHOICES = ("fail", "null", "skip", "dead_letter")
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Decoded:
    """The tuples of those records that could be read, the positions of the others, ascending, and why each of them
    could not: the part that is at fault, and the reason."""

    batch: pa.RecordBatch
    bad: Sequence[int]
    why: Callable[[int], tuple[Part, str]]


class DecodingTranslator(Translator):
    """A translator that is done with a record that can't be read as `on_error` says (see `JsonTranslator`)."""

    def __init__(
        self, decoded: Schema, *, on_error: OnError, record_fields: Iterable[str], needs: Collection[str]
    ) -> None:
        if on_error not in _CHOICES:
            near = did_you_mean(str(on_error), _CHOICES)
            raise ConfigError(f"on_error is 'fail', 'null', 'skip' or 'dead_letter', not {on_error!r}{near}")
        self._record_fields = (record_fields,) if isinstance(record_fields, str) else tuple(record_fields)
        ours = Schema(tuple(Field(name, _record_type(name)) for name in self._record_fields))
        wanted = {"topic", "partition", "offset", *self._record_fields, *needs}
        super().__init__(Schema((*ours, *decoded)), [name for name in FIELD_TYPES if name in wanted])
        self._on_error = on_error
        self._facts: frozenset[str] = frozenset()

    @abstractmethod
    def _decode(self, records: pa.RecordBatch) -> Decoded:
        """What can be read of records of one topic."""

    def translate(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records' fields as columns."""
        return self._translated(records, self._decode(records))

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[tuple[int, str]]]:
        """The records' fields as columns; and those that can't be read, with `on_error="dead_letter"`."""
        decoded = self._decode(records)
        refused = decoded.bad if self.sets_aside else ()
        why = [(position, self._why(records, decoded, position)) for position in refused]
        return self._translated(records, decoded), why

    def knowing(self, facts: Collection[str]) -> Self:
        """With the schema ids that are recorded as unknown."""
        made = copy.copy(self)
        made._facts = frozenset(facts)
        return made

    @property
    def sets_aside(self) -> bool:
        """With `on_error="dead_letter"`."""
        return self._on_error == "dead_letter"

    @property
    def leaves_out(self) -> bool:
        """With `on_error="dead_letter"` or `"skip"`."""
        return self._on_error in ("dead_letter", "skip")

    def _translated(self, records: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch:
        bad, batch = decoded.bad, decoded.batch
        if bad and self._on_error == "fail":
            raise SchemaMismatch(
                f"{self._why(records, decoded, bad[0])}. Fix the schema, or choose on_error='dead_letter', 'null' or "
                "'skip'"
            )
        if bad and self._on_error == "null":
            batch = _with_nulls(batch, bad)
        kept = records.select(list(self._record_fields))
        if bad and self._on_error in ("skip", "dead_letter"):
            kept = kept.take(pa.array(without(bad, records.num_rows), pa.int64()))
        return pa.RecordBatch.from_arrays([*kept.columns, *batch.columns], schema=arrow_schema(self.output))

    def _why(self, records: pa.RecordBatch, decoded: Decoded, index: int) -> str:
        topic, partition, offset = (records.column(name)[index].as_py() for name in ("topic", "partition", "offset"))
        part, reason = decoded.why(index)
        it = shown(records.column(part)[index].as_py())
        return f"the {part} at offset {offset} of partition {partition} of topic {topic!r}{reason}; it is {it}"

    def _framed(self, registry: Registry, records: pa.RecordBatch, part: Part, kind: str) -> Payloads:
        """What stands behind the schema ids of records, which are of schemas of one kind."""
        framed = unframed(records, part)
        schemas = registry.schemas(framed, self._facts, records=self._on_error != "fail")
        problems = dict(framed.bad)
        for schema_id, positions in framed.positions.items():
            schema = schemas[schema_id]
            if schema is None:
                problems |= dict.fromkeys(positions.to_pylist(), registry.unknown_text(schema_id))
            elif schema.kind != kind:
                problems |= dict.fromkeys(positions.to_pylist(), f"schema id {schema_id} is one of {schema.kind}")
        return Payloads(without_rows(framed.payloads, problems), problems, framed.positions, schemas)


@dataclass(frozen=True, slots=True)
class Payloads:
    """What is to be read of records. `problems` are why a payload is not there, by position; `positions` are those of
    the records of each schema id."""

    column: pa.Array
    problems: Mapping[int, str]
    positions: Mapping[SchemaId, pa.Array]
    schemas: Mapping[SchemaId, RegisteredSchema | None]

    def id_text(self, index: int) -> str:
        """The schema id of a record, for a message."""
        known = (each for each, rows in self.positions.items() if pc.index(rows, index).as_py() >= 0)
        return "".join(f", with schema id {each}," for each in known)


def without(bad: Collection[int], total: int) -> list[int]:
    """The positions that are not among the bad ones."""
    left_out = set(bad)
    return [position for position in range(total) if position not in left_out]


def shown(value: Any) -> str:
    """A part of a record, for a message."""
    if value is None:
        return "NULL"
    text = repr(value[:_SHOWN_CHARACTERS])[1:]
    return text + ("..." if len(value) > _SHOWN_CHARACTERS else "")


def _with_nulls(batch: pa.RecordBatch, bad: Sequence[int]) -> pa.RecordBatch:
    total = batch.num_rows + len(bad)
    positions: list[int | None] = [None] * total
    for row, position in enumerate(without(bad, total)):
        positions[position] = row
    return batch.take(pa.array(positions, pa.int64()))


def _record_type(name: str) -> str:
    if name not in FIELD_TYPES or name == "value":
        rest = [field for field in FIELD_TYPES if field != "value"]
        raise ConfigError(f"a record has no field {name!r}{did_you_mean(name, rest)}; choose from {', '.join(rest)}")
    return FIELD_TYPES[name]
