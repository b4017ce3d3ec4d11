"""`state_query`: the values of a state, appended to tuples by its key.

A look-up gathers the tuples of a task and reads the state once for the distinct keys. The state of a committer is read
in the commit phase, after or before the transaction; a static table is read at the version recorded with the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from transactional.model.aggregates.key_matching import find_key_positions, take_rows
from transactional.model.arrow import arrow_schema
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.facts import StaticVersion
from transactional.model.reading import Lookups, StaticTable
from transactional.model.schema import Field, Schema
from transactional.topology.streams.pipelines.steps import GatheringStep
from transactional.topology.topology import previous_state

FEW_ROWS = 1_000
"""Up to this number of rows, distinct keys are determined in Python, which takes less time than a call of Arrow."""


@dataclass(frozen=True, slots=True)
class AppendValues(GatheringStep):
    """Appends the values that a state has for a key; NULL if it has no such key.

    Each task makes one look-up, with every key once.
    """

    input_schema: Schema
    looked_up: tuple[str, ...]
    """The fields whose values are looked up, in the order of the key's columns."""
    key: Schema
    values: Schema

    @abstractmethod
    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows of the state with these keys. It may return others as well."""

    def finish(self, batches: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(batches, arrow_schema(self.input_schema))
        if not table.num_rows:
            return
        keys = table.select(list(self.looked_up)).rename_columns(list(self.key.names)).cast(arrow_schema(self.key))
        matching_rows = self._read_columns(keys)
        # Without a column a table has no number of rows.
        places = find_key_positions(keys if self.key else table, matching_rows, self.key.names)
        values = take_rows(matching_rows, places)
        columns = [*table.columns, *(values[name] for name in self.values.names)]
        output = pa.Table.from_arrays(columns, names=list(self.output_schema.names)).cast(
            arrow_schema(self.output_schema)
        )
        yield from output.combine_chunks().to_batches()

    def _read_columns(self, keys: pa.Table) -> pa.Table:
        schema = arrow_schema(Schema((*self.key, *self.values)))
        names = list(self.key.names)
        return self.read_rows(_distinct_keys(keys) if names else keys).select(schema.names).cast(schema)


@dataclass(frozen=True, slots=True)
class LookUp(AppendValues):
    """Looks up the state of a committer."""

    committer: str
    is_before: bool
    """True if the look-up reads the state as it was before the transaction."""
    lookups: Lookups | None = None

    @property
    def lookup_name(self) -> str:
        """The name under which `Lookups` has the state."""
        return previous_state(self.committer) if self.is_before else self.committer

    def read_rows(self, keys: pa.Table) -> pa.Table:
        assert self.lookups is not None
        return self.lookups[self.lookup_name](keys)


@dataclass(frozen=True, slots=True)
class LookUpStatic(AppendValues):
    """Looks up a table that others write, at the version that is recorded with the batch."""

    table: StaticTable
    versions: Mapping[str, StaticVersion] = field(default_factory=dict)
    """The recorded version of each static table. If a batch was planned before the topology had the table, the newest
    version is read."""

    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows of one version. Raises `OperatingError`, and `SchemaMismatch` for a key with several rows."""
        version = self.versions.get(self.table.table)
        rows = self.table.lookup(self.table.newest() if version is None else version, keys)
        names = self.key.names
        if not find_key_positions(rows, rows, names).equals(pa.arange(0, rows.num_rows)):
            raise SchemaMismatch(
                f"{self.label}: a key ({', '.join(names)}) has several rows in {self.table.table}, so which values it "
                "has would be chance; use a table with one row for each key, or a key of more columns"
            )
        return rows


def _key_tuples(keys: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def _distinct_keys(keys: pa.Table) -> pa.Table:
    if keys.num_rows > FEW_ROWS:
        return keys.group_by(keys.column_names, use_threads=False).aggregate([]).select(keys.column_names)
    first_places: dict[tuple[Any, ...], int] = {}
    for place, key in enumerate(_key_tuples(keys)):
        first_places.setdefault(key, place)
    return keys if len(first_places) == keys.num_rows else keys.take(list(first_places.values()))


def look_up(fields: Schema, state: Any, key_fields: Any, output: Any, when: Any) -> LookUp:
    """Make the step that looks up tuples with these fields in a `TridentState`. Raises `ConfigError`."""
    if when not in ("after", "before"):
        raise ConfigError(f"state_query: when={when!r} is 'after' or 'before' the transaction")
    label, key = ", before" * (when == "before"), state.persisted.state.key
    values = state.fields.select(name for name in state.fields.names if name not in key.names)
    arguments = _look_up_arguments(fields, state.name, label, key, values, key_fields, output)
    return LookUp(**arguments, committer=state.name, is_before=when == "before")


def look_up_static(fields: Schema, table: StaticTable, key_fields: Any, output: Any) -> LookUpStatic:
    """Make the step that looks up tuples with these fields in a static table. Raises `ConfigError`."""
    name = table.table.rstrip("/").rsplit("/", 1)[-1]
    return LookUpStatic(
        **_look_up_arguments(fields, name, ", static", table.key, table.values, key_fields, output), table=table
    )


def _look_up_arguments(
    fields: Schema,
    name: str,
    suffix: str,
    key: Schema,
    values: Schema,
    key_fields: Any,
    output: Any,
) -> dict[str, Any]:
    """Return the arguments that both kinds of look-up share. Raises `ConfigError`."""
    names = (
        tuple(key.names) if key_fields is None else (key_fields,) if isinstance(key_fields, str) else tuple(key_fields)
    )
    if len(names) != len(key):
        raise ConfigError(
            f"state_query: state {name!r} has the key ({', '.join(key.names)}), and on= names {len(names)} fields: "
            f"{', '.join(map(str, names)) or '(none)'}"
        )
    fields.require(names, of="the stream", used_by="state_query")
    for looked_up, column in zip(names, key, strict=True):
        if fields[looked_up].type != column.type:
            raise ConfigError(
                f"state_query: field {looked_up!r} is a {fields[looked_up].type}, and the key {column.name!r} of state "
                f"{name!r} is a {column.type}; make the types equal: with_columns(…)"
            )
    appended_fields = _name_values(list(values), output)
    for appended in appended_fields:
        if appended.name in fields.names:
            raise ConfigError(
                f"state_query: the stream has a field {appended.name!r} already; name what state {name!r} gives by "
                f"output=[…]: {', '.join(appended.name for appended in appended_fields)}"
            )
    return {
        "label": f"state_query({name}, on=({', '.join(names)}){suffix})",
        "output_schema": Schema((*fields, *appended_fields)),
        "input_schema": fields,
        "looked_up": names,
        "key": key,
        "values": values,
    }


def _name_values(fields: list[Field], output: Any) -> list[Field]:
    if output is None:
        return fields
    names = [output] if isinstance(output, str) else list(output)
    if len(names) != len(fields):
        declared = ", ".join(field_.name for field_ in fields)
        raise ConfigError(f"state_query: output= has {len(names)} names for {len(fields)} values: {declared}")
    return [Field(name, field_.type) for name, field_ in zip(names, fields, strict=True)]
