"""Committers without user code: `state.count()`, `.sum(…)`; `transactional.aggregates` is what they compute with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from state.rows.value_limits import ValueLimits
from transactional.aggregates import Aggregate, StoredColumns, TableAggregator, aggregates_shown
from transactional.aggregates.ordered import have_keys_once
from transactional.arrow import arrow_schema, batch_from_rows
from transactional.arrow.computed import ComputedColumns
from transactional.errors import ConfigError, ProtocolError, SchemaMismatch
from transactional.ports import PersistentAggregate, State
from transactional.schema import Field, Schema

_ROW_CHARACTERS = 300


class Updatable(State):
    """A state as its updates see it."""

    computed: ComputedColumns
    """What is computed of the stored columns when rows are read; its update says so."""

    @property
    @abstractmethod
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns. Raises `ConfigError` as long as nobody has named them."""

    @property
    @abstractmethod
    def known_key_names(self) -> tuple[str, ...] | None:
        """The names of the key columns, None as long as nobody has named them."""

    @property
    def value_limits(self) -> ValueLimits | None:
        """What it refuses of what Arrow holds; None: nothing."""
        return None


class StateUpdate(PersistentAggregate):
    """Aggregates a batch and merges it into a state: a committer without user code."""

    def __init__(
        self, state: Updatable, aggregates: Mapping[str, Aggregate], key_names: tuple[str, ...] | None = None
    ) -> None:
        self._columns = StoredColumns.of(aggregates)
        self._state, self._aggregates, self._key_names = state, self._columns.aggregates, key_names
        state.computed = self._columns.computed

    def group_by(self, *fields: str) -> StateUpdate:
        """The same update per value of these fields, which are the key of a state that was given none: all tuples are
        one row without fields. Raises `ConfigError` where the state has another key.
        """
        known = self._state.known_key_names
        if known is not None and known != fields:
            raise ConfigError(
                f"state {self._state.table} has the key ({', '.join(known)}), and its update groups by "
                f"({', '.join(fields)}): make them agree, or leave out the state's key"
            )
        return StateUpdate(self._state, self._columns.requested, fields)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The fields that it groups by: those of `group_by`, or the state's own key."""
        return self._state.key_names if self._key_names is None else self._key_names

    @property
    def state(self) -> State:
        """The state that is updated."""
        return self._state

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The key's fields and the aggregated ones."""
        fields = (aggregate.field for aggregate in self._aggregates.values())
        return tuple(dict.fromkeys([*self.key_names, *(field for field in fields if field is not None)]))

    def check_input(self, input: Schema, *, used_by: str) -> None:
        """Determine the columns of the state from the types of the input.

        Raises `ConfigError` if a field is missing, can't be aggregated, or differs from its declaration.
        """
        input.require(self.input_fields, of="its input", used_by=used_by)
        try:
            values = [
                Field(name, aggregate.type_for(_type_of(aggregate, input)))
                for name, aggregate in self._aggregates.items()
            ]
            self._state.bind(input.select(self.key_names), Schema(tuple(values)))
            self._columns.computed.fields(Schema((*self._state.key, *self._state.values)))
        except ConfigError as error:
            raise type(error)(f"{used_by}: {error}") from error

    @property
    def combine(self) -> Mapping[str, str]:
        """How the values of each column are combined."""
        return self.aggregator().combine_kinds

    @property
    def aggregates(self) -> Mapping[str, Aggregate]:
        """What makes each stored column."""
        return self._aggregates

    @property
    def aggregates_shown(self) -> Mapping[str, str]:
        """Which aggregate of which field each column is."""
        return aggregates_shown(self._aggregates)

    def aggregator(self) -> TableAggregator:
        """The picklable part, which runs on executors."""
        state, aggregates = self._state, tuple(self._aggregates.items())
        how = state.table, state.value_limits, self._columns.computed
        return TableAggregator(state.key, state.values, aggregates, *how)


def _type_of(aggregate: Aggregate, input: Schema) -> str:
    return input[aggregate.field].type if aggregate.field is not None else "long"


def check_unique(table: pa.Table, key: tuple[str, ...], state: str) -> None:
    """Raise `ProtocolError` if two rows have the same key: a merge would apply only one of them."""
    if have_keys_once(table, key):
        return
    keys = table.select(list(key)).group_by(list(key), use_threads=False).aggregate([]).num_rows if key else 1
    if table.num_rows > keys:
        raise ProtocolError(f"{table.num_rows} rows with {keys} different keys were to be merged into state {state}")


def table_of_rows(rows: Iterable[tuple[Any, ...]], columns: Schema) -> pa.Table:
    """An Arrow table from rows of Python values. Raises `SchemaMismatch` for a value that does not match its column."""
    schema = arrow_schema(columns)
    return pa.Table.from_batches([batch_from_rows(list(rows), schema, component="a state")], schema)


def fitting_rows(rows: Sequence[tuple[Any, ...]], columns: Schema, state: str) -> pa.Table:
    """As `table_of_rows`, for rows passed to a state. The `SchemaMismatch` names state and row."""
    try:
        return table_of_rows(rows, columns)
    except (SchemaMismatch, TypeError, ValueError, OverflowError) as error:
        row = next((row for row in rows if _is_misfit(row, columns)), "")
        raise SchemaMismatch(
            f"state {state} has the columns '{columns}'; the given values do not match: {error}; the first such row is "
            f"{repr(row)[:_ROW_CHARACTERS]}"
        ) from error


def _is_misfit(row: tuple[Any, ...], columns: Schema) -> bool:
    try:
        table_of_rows([row], columns)
    except (SchemaMismatch, TypeError, ValueError, OverflowError):
        return True
    return False


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table as Python values; none for a table without columns."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
