"""Updates of a state with code of the user: combiners in tasks and the driver, reducers and updaters in the commit
phase.

A combiner's partial values are combined with the stored ones, as those of built-in aggregates are. A reducer or an
updater needs the stored values themselves, so its bolt collects the tuples and runs in the commit phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from transactional.core.ports import DeclaredState, PersistentAggregate, State
from transactional.model.aggregates import StoredColumns, describe_aggregates
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.picklable import ADVICE_OF_FUNCTIONS, check_picklable
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext
from transactional.topology.streams.aggregates.aggregating import Aggregates, column_types
from transactional.topology.streams.aggregates.own import OwnAggregator, Reducer, group_rows, table_rows
from transactional.topology.streams.pipelines.user_functions import function_name, many_rows, parse_output


class OwnUpdate(PersistentAggregate):
    """Updates a state by aggregates of the user, which may stand beside built-in ones."""

    def __init__(self, state: Any, columns: StoredColumns, key: tuple[str, ...]) -> None:
        check_key(state, key)
        self._state, self._columns, self._aggregates, self._key = state, columns, dict(columns.aggregates), key
        state.parts.declared.computed = columns.computed
        self._input = Schema(())

    @property
    def state(self) -> State:
        state: State = self._state
        return state

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields of the key. The code of the user may read all others as well."""
        return self._key

    def bind_input(self, input: Schema, *, used_by: str) -> None:
        self._state.parts.declared.bind(
            input.select(self._key), column_types(used_by, self._key, self._aggregates, input)
        )
        self._input = input

    @property
    def combine(self) -> Mapping[str, str]:
        return self.aggregator().combine_kinds

    @property
    def aggregates(self) -> Aggregates:
        return self._aggregates

    @property
    def aggregates_shown(self) -> Mapping[str, str]:
        return describe_aggregates(self._aggregates)

    def aggregator(self) -> OwnAggregator:
        """Return the picklable part, which runs on executors."""
        state, aggregates = self._state, tuple(self._aggregates.items())
        declared: DeclaredState = state.parts.declared
        options = self._input, declared.table, declared.value_limits, self._columns.computed
        return OwnAggregator(state.key, state.values, aggregates, *options)


def check_key(state: Any, key: tuple[str, ...]) -> None:
    """Raise `ConfigError` if a state was declared with another key."""
    declared: DeclaredState = state.parts.declared
    key_names = declared.known_key_names
    if key_names is not None and key_names != key:
        raise ConfigError(
            f"state {declared.table} has the key ({', '.join(key_names)}), and its update groups by "
            f"({', '.join(key)}): make them agree, or leave out the state's key"
        )


class _BatchCollector(ArrowBatchBolt):
    """Collects the tuples of a batch until the commit phase."""

    def __init__(self, output: Schema) -> None:
        self.output_schema = output
        self.output = str(output)  # type: ignore[misc]

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self._state, self._collector, self._component = context.state, collector, context.component_id
        self._batches: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)


class Reducing(_BatchCollector):
    """Reduces the tuples of each key onto the stored values. A task has all tuples of its keys."""

    def __init__(self, reducers: tuple[Reducer, ...], key: tuple[str, ...], input: Schema, output: Schema) -> None:
        super().__init__(output)
        self._reducers, self._key, self._input = reducers, key, input

    @property
    def steps_shown(self) -> tuple[str, ...]:
        return tuple(f"{type(reducer).__name__}()" for reducer in self._reducers)

    def finish_batch(self) -> None:
        """Reduce the tuples of each key, store the new values, and emit them."""
        assert self._state is not None
        table = pa.Table.from_batches(self._batches, arrow_schema(self._input))
        rows, groups = table_rows(table, self._component), group_rows(table, self._key)
        keys = [tuple(rows[group[0]][name] for name in self._key) for group in groups]
        for key, group, previous in zip(keys, groups, self._state.multi_get(keys), strict=True):
            stored = previous if len(self._reducers) > 1 else (previous,)
            values = tuple(
                reduce(
                    reducer.reduce, (rows[row] for row in group), reducer.init() if previous is None else stored[column]
                )
                for column, reducer in enumerate(self._reducers)
            )
            self._state.put(key, values if len(values) > 1 else values[0])
            self._collector.emit(*key, *values)


def reducing_bolt(operation: str, state: Any, aggregates: Aggregates, key: tuple[str, ...], fields: Schema) -> Reducing:
    """Make the committer of reducers, and bind its state. Raises `ConfigError`."""
    names = [name for name, aggregate in aggregates.items() if not isinstance(aggregate, Reducer)]
    if names:
        raise ConfigError(
            f"{operation}: reducers are computed apart from other aggregates; give {', '.join(names)} another state"
        )
    check_key(state, key)
    state.parts.declared.bind(fields.select(key), column_types(operation, key, aggregates, fields))
    return Reducing(tuple(aggregates.values()), key, fields, Schema((*state.key, *state.values)))


class Updating(_BatchCollector):
    """Calls a function with the tuples of a task and the state."""

    def __init__(self, label: str, updater: Callable[[list[Any], Any], Any], output: Schema) -> None:
        super().__init__(output)
        self._label, self._updater = label, updater

    @property
    def steps_shown(self) -> tuple[str, ...]:
        return (self._label,)

    def finish_batch(self) -> None:
        """Call the function, and emit the rows that it returns."""
        rows = [row for batch in self._batches for row in table_rows(pa.Table.from_batches([batch]), self._component)]
        returned = self._updater(rows, self._state)
        if self.output_schema:
            for row in many_rows(self._label, returned, len(self.output_schema)):
                self._collector.emit(*row)


def updating_bolt(operation: str, updater: Any, output: str | None) -> Updating:
    """Make the committer of a function. Raises `ConfigError`."""
    if not callable(updater):
        raise ConfigError(f"{operation} takes a function of rows and a state; got {updater!r}")
    label = f"{operation}({function_name(updater)})"
    check_picklable(label, updater, advice=ADVICE_OF_FUNCTIONS)
    return Updating(label, updater, Schema(()) if output is None else parse_output(label, output))
