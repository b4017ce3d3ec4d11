"""What updates a state with code of yours: combiners in tasks and in the driver, reducers and updaters in the commit
phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from transactional.core.ports import PersistentAggregate, State
from transactional.model.aggregates import StoredColumns, describe_aggregates
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.picklable import ADVICE_OF_FUNCTIONS, check_picklable
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext
from transactional.topology.streams.aggregates.aggregating import Aggregates, column_types
from transactional.topology.streams.aggregates.own import OwnAggregator, Reducer, groups_of, rows_of
from transactional.topology.streams.pipelines.functions import function_name, many_rows, parse_output


class OwnUpdate(PersistentAggregate):
    """As a state's own update, with aggregates of yours."""

    def __init__(self, state: Any, columns: StoredColumns, key: tuple[str, ...]) -> None:
        check_key(state, key)
        self._state, self._columns, self._aggregates, self._key = state, columns, dict(columns.aggregates), key
        state.computed = columns.computed
        self._input = Schema(())

    @property
    def state(self) -> State:
        """The state that is updated."""
        state: State = self._state
        return state

    @property
    def input_fields(self) -> tuple[str, ...]:
        """Those of the key; your code may use all others."""
        return self._key

    def check_input(self, input: Schema, *, used_by: str) -> None:
        """Determine the columns of the state."""
        self._state.bind(input.select(self._key), column_types(used_by, self._key, self._aggregates, input))
        self._input = input

    @property
    def combine(self) -> Mapping[str, str]:
        """How the values of each column are combined."""
        return self.aggregator().combine_kinds

    @property
    def aggregates(self) -> Aggregates:
        """What makes each stored column, also your own."""
        return self._aggregates

    @property
    def aggregates_shown(self) -> Mapping[str, str]:
        """Which aggregate of which field each column is."""
        return describe_aggregates(self._aggregates)

    def aggregator(self) -> OwnAggregator:
        """The picklable part, which runs on executors."""
        state, aggregates = self._state, tuple(self._aggregates.items())
        how = self._input, state.table, state.value_limits, self._columns.computed
        return OwnAggregator(state.key, state.values, aggregates, *how)


def check_key(state: Any, key: tuple[str, ...]) -> None:
    """Raise `ConfigError` if a state has another key."""
    known = state.known_key_names
    if known is not None and tuple(known) != key:
        raise ConfigError(
            f"state {state.table} has the key ({', '.join(known)}), and its update groups by ({', '.join(key)}): make "
            "them agree, or leave out the state's key"
        )


class _Keeping(ArrowBatchBolt):
    """Keeps the tuples of its batch until the commit phase."""

    def __init__(self, output: Schema) -> None:
        self.made = output
        self.output = str(output)  # type: ignore[misc]

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self._state, self._collector, self._component = context.state, collector, context.component_id
        self._kept: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)


class Reducing(_Keeping):
    """Reduces the tuples of each key onto the stored values. All tuples of a key are in one task."""

    def __init__(self, reducers: tuple[Reducer, ...], key: tuple[str, ...], input: Schema, output: Schema) -> None:
        super().__init__(output)
        self._reducers, self._key, self._input = reducers, key, input

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """What `describe` shows."""
        return tuple(f"{type(reducer).__name__}()" for reducer in self._reducers)

    def finish_batch(self) -> None:
        """Reduce, write, and emit the new values."""
        assert self._state is not None
        table = pa.Table.from_batches(self._kept, arrow_schema(self._input))
        rows, groups = rows_of(table, self._component), groups_of(table, self._key)
        keys = [tuple(rows[group[0]][name] for name in self._key) for group in groups]
        for key, group, before in zip(keys, groups, self._state.multi_get(keys), strict=True):
            stored = before if len(self._reducers) > 1 else (before,)
            values = tuple(
                reduce(
                    reducer.reduce, (rows[at] for at in group), reducer.init() if before is None else stored[at_column]
                )
                for at_column, reducer in enumerate(self._reducers)
            )
            self._state.put(key, values if len(values) > 1 else values[0])
            self._collector.emit(*key, *values)


def reducing_bolt(operation: str, state: Any, aggregates: Aggregates, key: tuple[str, ...], fields: Schema) -> Reducing:
    """The committer of reducers, which binds the state. Raises `ConfigError`."""
    others = [name for name, each in aggregates.items() if not isinstance(each, Reducer)]
    if others:
        raise ConfigError(
            f"{operation}: reducers are computed apart from other aggregates; give {', '.join(others)} another state"
        )
    check_key(state, key)
    state.bind(fields.select(key), column_types(operation, key, aggregates, fields))
    return Reducing(tuple(aggregates.values()), key, fields, Schema((*state.key, *state.values)))


class Updating(_Keeping):
    """Calls a function with the tuples of the task and the state."""

    def __init__(self, label: str, updater: Callable[[list[Any], Any], Any], output: Schema) -> None:
        super().__init__(output)
        self._label, self._updater = label, updater

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """What `describe` shows."""
        return (self._label,)

    def finish_batch(self) -> None:
        """Update, and emit what the function returns."""
        rows = [row for batch in self._kept for row in rows_of(pa.Table.from_batches([batch]), self._component)]
        returned = self._updater(rows, self._state)
        if self.made:
            for row in many_rows(self._label, returned, len(self.made)):
                self._collector.emit(*row)


def updating_bolt(operation: str, updater: Any, output: str | None) -> Updating:
    """The committer of a function. Raises `ConfigError`."""
    if not callable(updater):
        raise ConfigError(f"{operation} takes a function of rows and a state; got {updater!r}")
    label = f"{operation}({function_name(updater)})"
    check_picklable(label, updater, advice=ADVICE_OF_FUNCTIONS)
    return Updating(label, updater, Schema(()) if output is None else parse_output(label, output))
