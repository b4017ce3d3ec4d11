"""Joins of the tuples of one batch, as in Storm: inner, left, right and outer, of any number of streams.

A combiner collects the tuples of each side and makes its output when the batch ends. All sides are partitioned by their
keys, so a task has all tuples of its keys. The order of the output depends on the input alone, so that a replay repeats
it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from transactional.model.aggregates.key_matching import make_comparable
from transactional.model.arrow import arrow_schema, origin_of
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext

KINDS = {"inner": "inner", "left": "left outer", "right": "right outer", "outer": "full outer"}
_ROW = "row {}"
"""A column with the position of each tuple on one side."""


@dataclass(frozen=True, slots=True)
class Side:
    """A stream of a join: its fields, and the key, the fields that are compared."""

    schema: Schema
    key: tuple[str, ...]

    @property
    def value_fields(self) -> tuple[Field, ...]:
        """The fields that are not part of the key."""
        return tuple(field for field in self.schema if field.name not in self.key)


def check_comparable(operation: str, sides: Sequence[Side]) -> None:
    """Raise `ConfigError` unless the keys of all sides have the same number of fields, of the same types."""
    if len({len(side.key) for side in sides}) > 1:
        keys = " and ".join(f"({', '.join(side.key)})" for side in sides)
        raise ConfigError(f"{operation}: each stream must be given as many fields to compare: {keys}")
    first, *later_sides = sides
    types = [[side.schema[name].type for name in side.key] for side in sides]
    for side, other_types in zip(later_sides, types[1:], strict=True):
        if other_types != types[0]:
            name = next(name for name, *both in zip(side.key, types[0], other_types, strict=True) if both[0] != both[1])
            raise ConfigError(
                f"{operation}: {_key_text(first, types[0])} and {_key_text(side, other_types)} can't be compared; make "
                f"the types equal, for example by with_columns({name}=field({name!r}).cast(…)) of that stream"
            )


def joined_schema(sides: Sequence[Side], *, keeps_all: bool, output: Sequence[str] | None) -> Schema:
    """Return the fields of a join. Raises `ConfigError`.

    They are the key of the first side and then all other fields, or, if it `keeps_all`, all fields of all sides.
    """
    first, *_ = sides
    check_comparable("join", sides)
    if keeps_all:
        fields = [field for side in sides for field in side.schema]
    else:
        fields = [*first.schema.select(first.key), *(field for side in sides for field in side.value_fields)]
    names = [field.name for field in fields]
    if output is not None:
        if isinstance(output, str):
            raise ConfigError(f"join: output is a list of names; got {output!r}")
        if len(output) != len(fields):
            list_of_names = ", ".join(names)
            raise ConfigError(f"join: output has {len(output)} names for {len(fields)} fields: {list_of_names}")
        fields = [Field(name, field.type) for name, field in zip(output, fields, strict=True)]
    output_names = [field.name for field in fields]
    repeated = sorted({name for name in output_names if output_names.count(name) > 1})
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
        """The operation, as `describe` shows it."""

    def with_origins(self, origins: Sequence[tuple[str, str]]) -> Self:
        """Return a copy that reads these components and streams."""
        combiner = copy(self)
        combiner.origins = tuple(origins)
        return combiner

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self._collector = collector
        self._collected: list[list[pa.RecordBatch]] = [[] for _ in self.sides]

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Collect the tuples of a record batch, by the side that they come from."""
        self._collected[self.origins.index(origin_of(batch))].append(batch.replace_schema_metadata())

    def finish_batch(self) -> None:
        """Combine the collected tuples, and emit the output."""
        batches = zip(self._collected, self.sides, strict=True)
        tables = [pa.Table.from_batches(collected, arrow_schema(side.schema)) for collected, side in batches]
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
        keys = " = ".join(f"({', '.join(side.key)})" for side in self.sides)
        return (f"{', '.join(dict.fromkeys(self.kinds))} join on {keys}",)

    def sources_of(self, name: str) -> list[tuple[int, str]]:
        """Return the fields that an output field comes from, each with its side's number. A key comes from all
        sides."""
        place, keys = self.output_schema.names.index(name), 0 if self.keeps_all else len(self.sides[0].key)
        if place < keys:
            return [(number, side.key[place]) for number, side in enumerate(self.sides)]
        fields = [
            (number, field.name)
            for number, side in enumerate(self.sides)
            for field in (side.schema if self.keeps_all else side.value_fields)
        ]
        return [fields[place - keys]]

    def combine(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the joined rows, in the order of their tuples on the first side, then the second, and so on."""
        keys = [f"key {position}" for position in range(len(self.sides[0].key))]
        joined, *right_tables = [
            _key_table(table, side, number) for number, (table, side) in enumerate(zip(tables, self.sides, strict=True))
        ]
        for right, kind in zip(right_tables, self.kinds, strict=True):
            joined = joined.join(right, keys, join_type=KINDS[kind], use_threads=False)
        # A hash join has no order of its own; a replay must have the same.
        joined = joined.sort_by([(_ROW.format(number), "ascending") for number in range(len(tables))])
        columns = [] if self.keeps_all else [joined[key] for key in keys]
        for number, (table, side) in enumerate(zip(tables, self.sides, strict=True)):
            names = [field.name for field in (side.schema if self.keeps_all else side.value_fields)]
            columns += table.select(names).take(joined[_ROW.format(number)]).columns if names else []
        return pa.Table.from_arrays(columns, schema=arrow_schema(self.output_schema))


def _key_table(table: pa.Table, side: Side, number: int) -> pa.Table:
    """Return the key columns of a side, and the position of each tuple. Arrow joins no nested columns."""
    keys = {f"key {position}": make_comparable(table[name]) for position, name in enumerate(side.key)}
    return pa.table({**keys, _ROW.format(number): pa.arange(0, table.num_rows)})


def check_kinds(names: Any, count: int) -> tuple[str, ...]:
    """Return the kind of each join after the first stream. Raises `ConfigError`."""
    kinds = (names,) * (count - 1) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else ()
    if len(kinds) != count - 1 or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise ConfigError(
            f"join: how={names!r} must be one of {', '.join(KINDS)}, or a list with one for each stream after the first"
        )
    return kinds
