"""Committers without user code: `state.count()`, `.sum(…)`. `transactional.model.aggregates` computes them."""

from __future__ import annotations

from collections.abc import Mapping

from transactional.core.ports import PersistentAggregate, State
from transactional.model.aggregates import (
    Aggregate,
    Avg,
    Count,
    Max,
    Min,
    StoredColumns,
    Sum,
    TableAggregator,
    describe_aggregates,
)
from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema
from transactional.model.user_code.storm_names import NamesOfStates


class Updatable(State, NamesOfStates):
    """The updates of a state without user code, as its user names them."""

    def count(self, name: str = "count") -> StateUpdate:
        """Count the tuples per key, in column `name`."""
        return self.aggregate({name: Count()})

    def sum(self, field: str, name: str | None = None) -> StateUpdate:
        """Sum up a field per key, in column `name` (default `sum_<field>`)."""
        return self.aggregate({name or f"sum_{field}": Sum(field)})

    def min(self, field: str, name: str | None = None) -> StateUpdate:
        """Keep the smallest value of a field per key, in column `name` (default `min_<field>`)."""
        return self.aggregate({name or f"min_{field}": Min(field)})

    def max(self, field: str, name: str | None = None) -> StateUpdate:
        """Keep the largest value of a field per key, in column `name` (default `max_<field>`)."""
        return self.aggregate({name or f"max_{field}": Max(field)})

    def mean(self, field: str, name: str | None = None) -> StateUpdate:
        """Keep the mean of a field per key, as a sum and a count of it, of which column `name` (default
        `mean_<field>`) is computed when rows are read."""
        return self.aggregate({name or f"mean_{field}": Avg(field)})

    def aggregate(self, aggregates: Mapping[str, Aggregate] | None = None, /, **named: Aggregate) -> StateUpdate:
        """Several aggregates at once, each in its column: `aggregate(count=Count(), total=Sum("amount"))`."""
        update: StateUpdate = self.parts.declared.aggregate({**(aggregates or {}), **named})
        return update


class StateUpdate(PersistentAggregate):
    """Aggregates a batch and merges it into a state: a committer without user code."""

    def __init__(
        self, state: State, aggregates: Mapping[str, Aggregate], key_names: tuple[str, ...] | None = None
    ) -> None:
        self._columns = StoredColumns.from_aggregates(aggregates)
        self._state, self._aggregates, self._key_names = state, self._columns.aggregates, key_names
        self._declared = state.parts.declared
        self._declared.computed = self._columns.computed

    def group_by(self, *fields: str) -> StateUpdate:
        """The same update per value of these fields, which are the key of a state that was given none: all tuples are
        one row without fields. Raises `ConfigError` where the state has another key.
        """
        key_names = self._declared.known_key_names
        if key_names is not None and key_names != fields:
            raise ConfigError(
                f"state {self._declared.table} has the key ({', '.join(key_names)}), and its update groups by "
                f"({', '.join(fields)}): make them agree, or leave out the state's key"
            )
        return StateUpdate(self._state, self._columns.requested, fields)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The fields that it groups by: those of `group_by`, or the state's own key."""
        names = self._declared.known_key_names if self._key_names is None else self._key_names
        return self._state.key.names if names is None else names

    @property
    def state(self) -> State:
        """The state that is updated."""
        return self._state

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The key's fields and the aggregated ones."""
        fields = (aggregate.field for aggregate in self._aggregates.values())
        return tuple(dict.fromkeys([*self.key_names, *(field for field in fields if field is not None)]))

    def bind_input(self, input: Schema, *, used_by: str) -> None:
        """Determine the columns of the state from the types of the input.

        Raises `ConfigError` if a field is missing, can't be aggregated, or differs from its declaration.
        """
        input.require(self.input_fields, of="its input", used_by=used_by)
        try:
            values = [
                Field(name, aggregate.type_for(_type_of(aggregate, input)))
                for name, aggregate in self._aggregates.items()
            ]
            self._declared.bind(input.select(self.key_names), Schema(tuple(values)))
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
        return describe_aggregates(self._aggregates)

    def aggregator(self) -> TableAggregator:
        """The picklable part, which runs on executors."""
        declared, aggregates = self._declared, tuple(self._aggregates.items())
        how = declared.table, declared.value_limits, self._columns.computed
        return TableAggregator(self._state.key, self._state.values, aggregates, *how)


def _type_of(aggregate: Aggregate, input: Schema) -> str:
    return input[aggregate.field].type if aggregate.field is not None else "long"
