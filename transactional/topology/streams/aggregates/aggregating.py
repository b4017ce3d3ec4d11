"""Aggregates of the tuples of a batch: the columns that they make, and the steps that compute them.

Each task aggregates its part of a batch; another step combines these parts, unless an aggregate needs all tuples of a
key one after the other. All checks are made where a stream is declared, and raise `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.aggregates import Aggregate, StoredColumns, TableAggregator
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema
from transactional.model.user_code.picklable import check_picklable
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.streams.aggregates.collecting import Collect, bind_aggregates
from transactional.topology.streams.aggregates.own import (
    BatchAggregator,
    Combiner,
    OwnAggregator,
    Reducer,
    group_rows,
    is_built_in,
    table_rows,
)
from transactional.topology.streams.pipelines.steps import Aggregated, GatheringStep
from transactional.topology.streams.pipelines.user_functions import many_rows, parse_output, prepare_function

Aggregates = Mapping[str, Any]


def named_aggregates(single: Any, by_name: Aggregates, fields: Schema) -> StoredColumns:
    """Return the aggregates by the names of their columns. Raises `ConfigError`.

    A single aggregate, which is passed without a name, is named after its class.
    """
    aggregates = dict(by_name)
    if isinstance(single, type):
        raise ConfigError(f"{single.__name__} is a class; pass an instance: {single.__name__}(…)")
    if single is not None:
        aggregates = {default_name(single): single, **by_name}
    if not aggregates:
        raise ConfigError("there is nothing to aggregate: pass Count(), or columns such as total=Sum('amount')")
    for name, aggregate in aggregates.items():
        _check_aggregate(name, aggregate)
    return StoredColumns.from_aggregates(bind_aggregates(aggregates.items(), fields))


def is_associative(aggregates: Aggregates) -> bool:
    """Return whether aggregates can be computed in parts."""
    return not any(isinstance(aggregate, Reducer) for aggregate in aggregates.values())


def _check_aggregate(name: str, aggregate: Any) -> None:
    if isinstance(aggregate, type):
        raise ConfigError(f"{name}={aggregate.__name__} is a class; pass an instance: {aggregate.__name__}(…)")
    if isinstance(aggregate, BatchAggregator):
        raise ConfigError(
            f"{name}={_aggregate_text(aggregate)} makes tuples of its own: pass it alone, without a name, to aggregate"
        )
    if isinstance(aggregate, Combiner | Reducer):
        check_picklable(_aggregate_text(aggregate), aggregate, advice="create what it needs in its methods")
        if len(parse_output(_aggregate_text(aggregate), aggregate.output)) != 1:
            raise ConfigError(f"{_aggregate_text(aggregate)}: output={aggregate.output!r} must declare one field")
    elif not isinstance(aggregate, Aggregate):
        raise ConfigError(f"{name}={aggregate!r} is no aggregate such as Count(), Sum('amount'), Min(…), Max(…)")


def default_name(aggregate: Any) -> str:
    """Return the name of a column: `count` for `Count()`, `sum_amount` for `Sum("amount")`, else the declared one."""
    if isinstance(aggregate, Combiner | Reducer):
        return parse_output(_aggregate_text(aggregate), aggregate.output).names[0]
    kind = type(aggregate).__name__.lower()
    field = getattr(aggregate, "field", None)
    return kind if field is None else f"{kind}_{field}"


def _aggregate_text(aggregate: Any) -> str:
    is_own = isinstance(aggregate, Combiner | Reducer | BatchAggregator) and not isinstance(aggregate, Collect)
    return f"{type(aggregate).__name__}()" if is_own else repr(aggregate)


def operation_label(operation: str, key: tuple[str, ...], aggregates: Aggregates) -> str:
    """Return the label of an operation, as `describe` shows it."""
    arguments = ", ".join(f"{name}={_aggregate_text(aggregate)}" for name, aggregate in aggregates.items())
    return f"group_by({', '.join(key)}).{operation}({arguments})" if key else f"{operation}({arguments})"


def column_types(operation: str, key: tuple[str, ...], aggregates: Aggregates, fields: Schema) -> Schema:
    """Return the columns that the aggregates make. Raises `ConfigError`."""
    values = []
    for name, aggregate in aggregates.items():
        if name in key:
            raise ConfigError(f"{operation}: {name!r} is a field that is grouped by; give the aggregate another name")
        if not is_built_in(aggregate):
            values.append(Field(name, parse_output(operation, aggregate.output).fields[0].type))
            continue
        if aggregate.field is not None:
            fields.require([aggregate.field], of="the stream", used_by=f"{operation}: {name}={aggregate}")
        try:
            values.append(Field(name, aggregate.type_for(fields[aggregate.field].type if aggregate.field else "long")))
        except ConfigError as error:
            raise ConfigError(f"{operation}: {error}") from None
    return Schema(tuple(values))


def aggregate_step(
    operation: str,
    key: tuple[str, ...],
    columns: StoredColumns,
    fields: Schema,
    *,
    is_final: bool = False,
    is_whole: bool = False,
    finishes: bool = True,
) -> Aggregated:
    """Make the step that aggregates tuples, or, with `is_final`, the partial aggregates of tasks.

    Without a key, the step makes one row even from no tuple: once per batch if it `is_whole`, which sees all tuples of
    the batch, else in each task. Unless it `finishes`, its output are partial aggregates.
    """
    aggregates, names = columns.aggregates, list(columns.requested)
    values = column_types(operation, key, aggregates, fields)
    label, key_schema = operation_label(operation, key, columns.requested), fields.select(key)
    computed = columns.computed if finishes else ComputedColumns()
    output = computed.fields(values).select(names) if finishes else values
    stored = tuple(aggregates.items())
    aggregator: TableAggregator | OwnAggregator
    if all(map(is_built_in, aggregates.values())):
        aggregator = TableAggregator(key_schema, values, stored, label, computed=computed)
    else:
        aggregator = OwnAggregator(key_schema, values, stored, fields, label, computed=computed)
    empty_row = tuple(map(_empty_value, aggregates.values())) if finishes and not key else None
    return Aggregated(label, Schema((*key_schema, *output)), aggregator, is_final, empty_row, is_whole)


def _empty_value(aggregate: Any) -> Any:
    return aggregate.init() if isinstance(aggregate, Reducer) else aggregate.zero()


@dataclass(frozen=True, slots=True)
class CompleteBatch(GatheringStep):
    """Calls a `BatchAggregator` with the tuples of each key."""

    input_schema: Schema
    key: tuple[str, ...]
    aggregator: BatchAggregator
    is_whole: bool

    def finish(self, batches: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Aggregate one group after the other. Without a key, no tuple at all is a group as well."""
        table = pa.Table.from_batches(batches, arrow_schema(self.input_schema))
        rows, output = table_rows(table, self.label), []
        makes_one = not self.key and (is_first or not self.is_whole)
        groups = group_rows(table, self.key) or ([[]] if makes_one else [])
        for group in groups:
            state = self.aggregator.init()
            for number in group:
                state = self.aggregator.aggregate(state, rows[number])
            key = tuple(rows[group[0]][name] for name in self.key)
            complete = self.aggregator.complete(state)
            output += [(*key, *row) for row in many_rows(self.label, complete, len(self.output_schema) - len(key))]
        yield batch_from_rows(output, arrow_schema(self.output_schema), component=self.label)


def batch_aggregator_step(
    operation: str, key: tuple[str, ...], aggregator: BatchAggregator, fields: Schema, *, is_whole: bool = False
) -> CompleteBatch:
    """Make the step of a `BatchAggregator`, which sees all tuples of a batch if it `is_whole`."""
    label = operation_label(operation, key, {})[:-1] + f"{type(aggregator).__name__}())"
    check_picklable(label, aggregator, advice="create what it needs in its methods")
    output = Schema((*fields.select(key), *parse_output(label, aggregator.output)))
    return CompleteBatch(label, output, fields, key, aggregator, is_whole)


@dataclass(frozen=True, slots=True)
class TakeExtreme(GatheringStep):
    """Takes the tuple of a task for which a function returns the least or the greatest value."""

    function: Callable[[Tuple], Any]
    is_greatest: bool

    def prepare(self, context: TopologyContext) -> None:
        prepare_function(self.function, context)

    def finish(self, batches: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Call the function once with each tuple. Of equal values Python takes the first, as `TakeFirst` does."""
        table = pa.Table.from_batches(batches, arrow_schema(self.output_schema))
        values = {number: self.function(row) for number, row in enumerate(table_rows(table, self.label))}
        compared = [number for number, rank in values.items() if rank is not None]
        if compared:
            pick = max if self.is_greatest else min
            yield from table.slice(pick(compared, key=values.__getitem__), 1).combine_chunks().to_batches()


@dataclass(frozen=True, slots=True)
class TakeFirst(GatheringStep):
    """Takes the first tuples of a task, or the first in the order of a field."""

    count: int
    sort_field: str | None
    descending: bool
    with_null: bool

    def finish(self, batches: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Sort by the field, if there is one, and take the first rows. NaN is greater than every other number."""
        table = pa.Table.from_batches(batches, arrow_schema(self.output_schema))
        if self.sort_field is not None:
            table = table if self.with_null else table.filter(table[self.sort_field].is_valid())
            order = [(self.sort_field, "descending" if self.descending else "ascending")]
            keys = table.select([self.sort_field])
            if self.descending and pa.types.is_floating(table[self.sort_field].type):
                keys = keys.append_column(" nan", pc.fill_null(pc.is_nan(table[self.sort_field]), fill_value=False))
                order.insert(0, (" nan", "descending"))
            table = table.take(pc.sort_indices(keys, order).slice(0, self.count))
        yield from table.slice(0, self.count).combine_chunks().to_batches()
