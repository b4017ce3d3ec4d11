"""Joins of the tuples of one batch, as in Storm: inner, left, right and outer, of any number of streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from transactional.model.aggregates.places import comparable
from transactional.model.arrow import arrow_schema, origin_of
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext

KINDS = {"inner": "inner", "left": "left outer", "right": "right outer", "outer": "full outer"}
_ROW = "row {}"
"""The position of a tuple on one side."""


@dataclass(frozen=True, slots=True)
class Side:
    """A stream of a join: its fields, and those that are compared."""

    schema: Schema
    key: tuple[str, ...]

    @property
    def others(self) -> tuple[Field, ...]:
        """The fields that are not compared."""
        return tuple(field for field in self.schema if field.name not in self.key)


def check_comparable(operation: str, sides: Sequence[Side]) -> None:
    """Raise `ConfigError` unless the keys of all sides have the same number of fields, of the same types."""
    if len({len(side.key) for side in sides}) > 1:
        keys = " and ".join(f"({', '.join(side.key)})" for side in sides)
        raise ConfigError(f"{operation}: each stream must be given as many fields to compare: {keys}")
    first, *more = sides
    types = [[side.schema[name].type for name in side.key] for side in sides]
    for side, types_there in zip(more, types[1:], strict=True):
        if types_there != types[0]:
            name = next(name for name, *both in zip(side.key, types[0], types_there, strict=True) if both[0] != both[1])
            raise ConfigError(
                f"{operation}: {_key_text(first, types[0])} and {_key_text(side, types_there)} can't be compared; make "
                f"the types equal, for example by with_columns({name}=field({name!r}).cast(…)) of that stream"
            )


def joined_schema(sides: Sequence[Side], *, keeps_all: bool, output: Sequence[str] | None) -> Schema:
    """The fields of a join: the key of the first stream and all others; or all fields of all. Raises `ConfigError`."""
    first, *_ = sides
    check_comparable("join", sides)
    if keeps_all:
        fields = [field for side in sides for field in side.schema]
    else:
        fields = [*first.schema.select(first.key), *(field for side in sides for field in side.others)]
    names = [field.name for field in fields]
    if output is not None:
        if isinstance(output, str):
            raise ConfigError(f"join: output is a list of names; got {output!r}")
        if len(output) != len(fields):
            shown = ", ".join(names)
            raise ConfigError(f"join: output has {len(output)} names for {len(fields)} fields: {shown}")
        fields = [Field(name, field.type) for name, field in zip(output, fields, strict=True)]
    repeated = sorted({field.name for field in fields if [each.name for each in fields].count(field.name) > 1})
    if repeated:
        raise ConfigError(
            f"join: several streams have a field {', '.join(repeated)}; rename it, or name all of them by output=: "
            f"{', '.join(names)}"
        )
    return Schema(tuple(fields))


def _key_text(side: Side, types: Sequence[str]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in zip(side.key, types, strict=True))


class StreamCombiner(ArrowBatchBolt):
    """Combines several streams: collects the tuples of each side until the batch ends.

    `origins` are the component and stream of each side, in their order.
    """

    name: ClassVar[str]
    """The name of the operation, which becomes part of the component id."""

    def __init__(self, sides: Sequence[Side], output: Schema) -> None:
        self.sides = tuple(sides)
        self.origins: tuple[tuple[str, str], ...] = ()
        self.output_schema = output
        self.output = str(output)  # type: ignore[misc]

    @property
    @abstractmethod
    def steps_shown(self) -> tuple[str, ...]:
        """What `describe` shows."""

    def with_origins(self, origins: Sequence[tuple[str, str]]) -> Self:
        """Return a copy that reads these components and streams."""
        combiner = copy(self)
        combiner.origins = tuple(origins)
        return combiner

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Start a batch."""
        self._collector = collector
        self._kept: list[list[pa.RecordBatch]] = [[] for _ in self.sides]

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Keep the tuples."""
        self._kept[self.origins.index(origin_of(batch))].append(batch.replace_schema_metadata())

    def finish_batch(self) -> None:
        """Combine the collected tuples, and emit the output."""
        batches = zip(self._kept, self.sides, strict=True)
        tables = [pa.Table.from_batches(kept, arrow_schema(side.schema)) for kept, side in batches]
        self._collector.emit_batch(self.combine(tables))

    @abstractmethod
    def combine(self, tables: Sequence[pa.Table]) -> pa.Table | pa.RecordBatch:
        """Return the output for the collected tuples, one table per side."""


class Join(StreamCombiner):
    """Joins one stream after the other."""

    name = "join"

    def __init__(self, sides: Sequence[Side], kinds: Sequence[str], output: Schema, *, keeps_all: bool) -> None:
        super().__init__(sides, output)
        self.kinds, self.keeps_all = tuple(kinds), keeps_all

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """The kinds of join, and what is compared."""
        on = " = ".join(f"({', '.join(side.key)})" for side in self.sides)
        return (f"{', '.join(dict.fromkeys(self.kinds))} join on {on}",)

    def sources_of(self, name: str) -> list[tuple[int, str]]:
        """Which field of which side an output field is, by the side's place: one of the key is in all."""
        place, keys = self.output_schema.names.index(name), 0 if self.keeps_all else len(self.sides[0].key)
        if place < keys:
            return [(number, side.key[place]) for number, side in enumerate(self.sides)]
        fields = [
            (number, field.name)
            for number, side in enumerate(self.sides)
            for field in (side.schema if self.keeps_all else side.others)
        ]
        return [fields[place - keys]]

    def combine(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the joined rows, in the order of their tuples on the first side, then the second, and so on."""
        keys = [f"key {at}" for at in range(len(self.sides[0].key))]
        joined, *others = [
            _keys_of(table, side, number) for number, (table, side) in enumerate(zip(tables, self.sides, strict=True))
        ]
        for other, kind in zip(others, self.kinds, strict=True):
            joined = joined.join(other, keys, join_type=KINDS[kind], use_threads=False)
        # A hash join has no order of its own; a replay must have the same.
        joined = joined.sort_by([(_ROW.format(number), "ascending") for number in range(len(tables))])
        columns = [] if self.keeps_all else [joined[key] for key in keys]
        for number, (table, side) in enumerate(zip(tables, self.sides, strict=True)):
            names = [field.name for field in (side.schema if self.keeps_all else side.others)]
            columns += table.select(names).take(joined[_ROW.format(number)]).columns if names else []
        return pa.Table.from_arrays(columns, schema=arrow_schema(self.output_schema))


def _keys_of(table: pa.Table, side: Side, number: int) -> pa.Table:
    """What is compared, and where each tuple stands. Arrow joins no nested columns."""
    keys = {f"key {at}": comparable(table[name]) for at, name in enumerate(side.key)}
    return pa.table({**keys, _ROW.format(number): pa.arange(0, table.num_rows)})


def checked_kinds(how: Any, count: int) -> tuple[str, ...]:
    """The kind of each join after the first stream. Raises `ConfigError`."""
    kinds = (how,) * (count - 1) if isinstance(how, str) else tuple(how) if isinstance(how, Sequence) else ()
    if len(kinds) != count - 1 or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise ConfigError(
            f"join: how={how!r} must be one of {', '.join(KINDS)}, or a list with one for each stream after the first"
        )
    return kinds
