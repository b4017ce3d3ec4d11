"""`state_query`: the values of a state, appended to tuples by its key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from transactional.model.aggregates.places import places_in, rows_at
from transactional.model.arrow import arrow_schema
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.facts import StaticVersion
from transactional.model.reading import Lookups, StaticTable
from transactional.model.schema import Field, Schema
from transactional.topology.streams.pipelines.steps import GatheringStep
from transactional.topology.topology import before

FEW_ROWS = 1_000
"""Of so many equal keys are found in Python, which takes less time than to begin in Arrow."""


@dataclass(frozen=True, slots=True)
class AppendedValues(GatheringStep):
    """Appends the values of a state; NULL where the state has no such key. One look-up for each task, in which equal
    keys are looked up once."""

    before: Schema
    on: tuple[str, ...]
    """The fields that are looked up, in the order of the key's columns."""
    key: Schema
    values: Schema

    @abstractmethod
    def rows_of(self, keys: pa.Table) -> pa.Table:
        """The rows of the state that have these keys, maybe more."""

    def finish(self, kept: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Look up what has come."""
        table = pa.Table.from_batches(kept, arrow_schema(self.before))
        if not table.num_rows:
            return
        wanted = table.select(list(self.on)).rename_columns(list(self.key.names)).cast(arrow_schema(self.key))
        found = self._found(wanted)
        # Without a column a table has no number of rows.
        places = places_in(wanted if self.key else table, found, self.key.names)
        values = rows_at(found, places)
        columns = [*table.columns, *(values[name] for name in self.values.names)]
        made = pa.Table.from_arrays(columns, names=list(self.after.names)).cast(arrow_schema(self.after))
        yield from made.combine_chunks().to_batches()

    def _found(self, wanted: pa.Table) -> pa.Table:
        schema = arrow_schema(Schema((*self.key, *self.values)))
        names = list(self.key.names)
        return self.rows_of(_unique(wanted) if names else wanted).select(schema.names).cast(schema)


@dataclass(frozen=True, slots=True)
class LookUp(AppendedValues):
    """Looks up the state of a committer."""

    committer: str
    is_before: bool
    """Whether it looks up what was before the transaction."""
    lookups: Lookups | None = None

    @property
    def read(self) -> str:
        """What it looks up."""
        return before(self.committer) if self.is_before else self.committer

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Of the committer's state."""
        assert self.lookups is not None
        return self.lookups[self.read](keys)


@dataclass(frozen=True, slots=True)
class LookUpStatic(AppendedValues):
    """Looks up a table of others, at the version that is recorded with the batch."""

    table: StaticTable
    versions: Mapping[str, StaticVersion] = field(default_factory=dict)
    """What the batch has recorded. What was planned before the topology had this table reads the newest version."""

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Of one version. Raises `OperatingError`, and for a key with several rows `SchemaMismatch`."""
        version = self.versions.get(self.table.table)
        found = self.table.lookup(self.table.newest() if version is None else version, keys)
        names = self.key.names
        if not places_in(found, found, names).equals(pa.arange(0, found.num_rows)):
            raise SchemaMismatch(
                f"{self.label}: a key ({', '.join(names)}) has several rows in {self.table.table}, so which values it "
                "has would be chance; use a table with one row for each key, or a key of more columns"
            )
        return found


def _tuples(keys: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def _unique(keys: pa.Table) -> pa.Table:
    """Each key once."""
    if keys.num_rows > FEW_ROWS:
        return keys.group_by(keys.column_names, use_threads=False).aggregate([]).select(keys.column_names)
    first: dict[tuple[Any, ...], int] = {}
    for place, key in enumerate(_tuples(keys)):
        first.setdefault(key, place)
    return keys if len(first) == keys.num_rows else keys.take(list(first.values()))


def look_up(fields: Schema, state: Any, on: Any, output: Any, when: Any) -> LookUp:
    """The step that looks tuples with these fields up in a `TridentState`. Raises `ConfigError`."""
    if when not in ("after", "before"):
        raise ConfigError(f"state_query: when={when!r} is 'after' or 'before' the transaction")
    label, key = ", before" * (when == "before"), state.persisted.state.key
    values = state.fields.select(name for name in state.fields.names if name not in key.names)
    given = _appended(fields, state.name, label, key, values, on, output)
    return LookUp(**given, committer=state.name, is_before=when == "before")


def look_up_static(fields: Schema, table: StaticTable, on: Any, output: Any) -> LookUpStatic:
    """The step that looks tuples with these fields up in a table of others. Raises `ConfigError`."""
    name = table.table.rstrip("/").rsplit("/", 1)[-1]
    return LookUpStatic(**_appended(fields, name, ", static", table.key, table.values, on, output), table=table)


def _appended(
    fields: Schema,
    name: str,
    how: str,
    key: Schema,
    values: Schema,
    on: Any,
    output: Any,
) -> dict[str, Any]:
    """What both kinds of look-ups have. Raises `ConfigError`."""
    names = tuple(key.names) if on is None else (on,) if isinstance(on, str) else tuple(on)
    if len(names) != len(key):
        raise ConfigError(
            f"state_query: state {name!r} has the key ({', '.join(key.names)}), and on= names {len(names)} fields: "
            f"{', '.join(map(str, names)) or '(none)'}"
        )
    fields.require(names, of="the stream", used_by="state_query")
    for wanted, column in zip(names, key, strict=True):
        if fields[wanted].type != column.type:
            raise ConfigError(
                f"state_query: field {wanted!r} is a {fields[wanted].type}, and the key {column.name!r} of state "
                f"{name!r} is a {column.type}; make the types equal: with_columns(…)"
            )
    new = _renamed(list(values), output)
    for added in new:
        if added.name in fields.names:
            raise ConfigError(
                f"state_query: the stream has a field {added.name!r} already; name what state {name!r} gives by "
                f"output=[…]: {', '.join(each.name for each in new)}"
            )
    return {
        "label": f"state_query({name}, on=({', '.join(names)}){how})",
        "after": Schema((*fields, *new)),
        "before": fields,
        "on": names,
        "key": key,
        "values": values,
    }


def _renamed(new: list[Field], output: Any) -> list[Field]:
    if output is None:
        return new
    names = [output] if isinstance(output, str) else list(output)
    if len(names) != len(new):
        shown = ", ".join(each.name for each in new)
        raise ConfigError(f"state_query: output= has {len(names)} names for {len(new)} values: {shown}")
    return [Field(name, each.type) for name, each in zip(names, new, strict=True)]
