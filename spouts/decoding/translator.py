"""The base of translators that decode records: it looks up schemas by id, and treats records that can't be read."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from spouts.kafka.records import FIELD_TYPES
from spouts.kafka.translators import LeftOut, Translator
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
    """The tuples of the records that could be read, and the positions of the others, ascending. `explain` gives for
    one of these the part that is at fault, and the reason."""

    batch: pa.RecordBatch
    bad: Sequence[int]
    explain: Callable[[int], tuple[Part, str]]


class DecodingTranslator(Translator):
    """A translator that treats a record which can't be read as `on_error` says (see `JsonTranslator`)."""

    def __init__(
        self, decoded: Schema, *, on_error: OnError, record_fields: Iterable[str], needs: Collection[str]
    ) -> None:
        if on_error not in _CHOICES:
            hint = did_you_mean(str(on_error), _CHOICES)
            raise ConfigError(f"on_error is 'fail', 'null', 'skip' or 'dead_letter', not {on_error!r}{hint}")
        self._record_fields = (record_fields,) if isinstance(record_fields, str) else tuple(record_fields)
        ours = Schema(tuple(Field(name, _record_type(name)) for name in self._record_fields))
        columns = {"topic", "partition", "offset", *self._record_fields, *needs}
        super().__init__(Schema((*ours, *decoded)), [name for name in FIELD_TYPES if name in columns])
        self._on_error = on_error
        self._facts: frozenset[str] = frozenset()

    @abstractmethod
    def _decode(self, records: pa.RecordBatch) -> Decoded:
        """Decode records of one topic."""

    def translate(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records' fields as columns."""
        return self._translated(records, self._decode(records))

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, LeftOut]:
        """Return the records' fields as columns, and the positions of the records that can't be read.

        With `on_error="dead_letter"` these are refused, with `"skip"` skipped.
        """
        decoded = self._decode(records)
        positions = decoded.bad if self.skips_records else ()
        left_out = [
            (position, self._explain(records, decoded, position) if self.sets_aside else None) for position in positions
        ]
        return self._translated(records, decoded), left_out

    def with_facts(self, facts: Collection[str]) -> Self:
        """Return a copy for a batch that has recorded these schema ids as unknown."""
        translator = copy.copy(self)
        translator._facts = frozenset(facts)
        return translator

    @property
    def sets_aside(self) -> bool:
        """True if a record that can't be read becomes a dead letter."""
        return self._on_error == "dead_letter"

    @property
    def skips_records(self) -> bool:
        """True if a record may make no tuple."""
        return self._on_error in ("dead_letter", "skip")

    @property
    def can_mix_partitions(self) -> bool:
        """True: a tuple depends on its record alone."""
        return True

    def _translated(self, records: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch:
        bad, batch = decoded.bad, decoded.batch
        if bad and self._on_error == "fail":
            raise SchemaMismatch(
                f"{self._explain(records, decoded, bad[0])}. Fix the schema, or choose on_error='dead_letter', 'null' "
                "or 'skip'"
            )
        if bad and self._on_error == "null":
            batch = _with_nulls(batch, bad)
        record_columns = records.select(list(self._record_fields))
        if bad and self._on_error in ("skip", "dead_letter"):
            record_columns = record_columns.take(pa.array(positions_without(bad, records.num_rows), pa.int64()))
        return pa.RecordBatch.from_arrays([*record_columns.columns, *batch.columns], schema=arrow_schema(self.output))

    def _explain(self, records: pa.RecordBatch, decoded: Decoded, index: int) -> str:
        topic, partition, offset = (records.column(name)[index].as_py() for name in ("topic", "partition", "offset"))
        part, reason = decoded.explain(index)
        payload = text_of_payload(records.column(part)[index].as_py())
        return f"the {part} at offset {offset} of partition {partition} of topic {topic!r}{reason}; it is {payload}"

    def _framed(self, registry: Registry, records: pa.RecordBatch, part: Part, kind: str) -> Payloads:
        """Split records into schema ids and payloads, and look the schemas up. Only schemas of `kind` can be read."""
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
    """The encoded payloads of records, with NULL where there is none. `problems` has the reasons by position,
    `positions` the records of each schema id."""

    column: pa.Array
    problems: Mapping[int, str]
    positions: Mapping[SchemaId, pa.Array]
    schemas: Mapping[SchemaId, RegisteredSchema | None]

    def id_text(self, index: int) -> str:
        """Return the schema id of a record, for a message."""
        ids = (schema_id for schema_id, rows in self.positions.items() if pc.index(rows, index).as_py() >= 0)
        return "".join(f", with schema id {schema_id}," for schema_id in ids)


def positions_without(bad: Collection[int], total: int) -> list[int]:
    """Return the positions that are not among the bad ones."""
    left_out = set(bad)
    return [position for position in range(total) if position not in left_out]


def text_of_payload(value: Any) -> str:
    """Return a payload as text for a message, shortened."""
    if value is None:
        return "NULL"
    text = repr(value[:_SHOWN_CHARACTERS])[1:]
    return text + ("..." if len(value) > _SHOWN_CHARACTERS else "")


def _with_nulls(batch: pa.RecordBatch, bad: Sequence[int]) -> pa.RecordBatch:
    total = batch.num_rows + len(bad)
    positions: list[int | None] = [None] * total
    for row, position in enumerate(positions_without(bad, total)):
        positions[position] = row
    return batch.take(pa.array(positions, pa.int64()))


def _record_type(name: str) -> str:
    if name not in FIELD_TYPES or name == "value":
        fields = [field for field in FIELD_TYPES if field != "value"]
        raise ConfigError(
            f"a record has no field {name!r}{did_you_mean(name, fields)}; choose from {', '.join(fields)}"
        )
    return FIELD_TYPES[name]
