"""Aggregates of the tuples of a batch: which columns they make, and the steps that compute them."""

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
from transactional.topology.streams.aggregates.collecting import Collect, bound
from transactional.topology.streams.aggregates.own import (
    BatchAggregator,
    Combiner,
    OwnAggregator,
    Reducer,
    groups_of,
    is_built_in,
    rows_of,
)
from transactional.topology.streams.pipelines.functions import many_rows, parse_output, prepare_function
from transactional.topology.streams.pipelines.steps import Aggregated, GatheringStep

Aggregates = Mapping[str, Any]


def named_aggregates(alone: Any, named: Aggregates, fields: Schema) -> StoredColumns:
    """The aggregates of a stream with these fields by the names of their columns; one that stands alone has the name of
    its class."""
    wanted = dict(named)
    if isinstance(alone, type):
        raise ConfigError(f"{alone.__name__} is a class; pass an instance: {alone.__name__}(…)")
    if alone is not None:
        wanted = {default_name(alone): alone, **named}
    if not wanted:
        raise ConfigError("there is nothing to aggregate: pass Count(), or columns such as total=Sum('amount')")
    for name, aggregate in wanted.items():
        _check(name, aggregate)
    return StoredColumns.from_aggregates(bound(wanted.items(), fields))


def is_associative(aggregates: Aggregates) -> bool:
    """Whether they can be computed in parts."""
    return not any(isinstance(each, Reducer) for each in aggregates.values())


def _check(name: str, aggregate: Any) -> None:
    if isinstance(aggregate, type):
        raise ConfigError(f"{name}={aggregate.__name__} is a class; pass an instance: {aggregate.__name__}(…)")
    if isinstance(aggregate, BatchAggregator):
        raise ConfigError(
            f"{name}={_shown(aggregate)} makes tuples of its own: pass it alone, without a name, to aggregate"
        )
    if isinstance(aggregate, Combiner | Reducer):
        check_picklable(_shown(aggregate), aggregate, advice="create what it needs in its methods")
        if len(parse_output(_shown(aggregate), aggregate.output)) != 1:
            raise ConfigError(f"{_shown(aggregate)}: output={aggregate.output!r} must declare one field")
    elif not isinstance(aggregate, Aggregate):
        raise ConfigError(f"{name}={aggregate!r} is no aggregate such as Count(), Sum('amount'), Min(…), Max(…)")


def default_name(aggregate: Any) -> str:
    """`count` for a `Count()`, `sum_amount` for a `Sum("amount")`; for your own what it declares."""
    if isinstance(aggregate, Combiner | Reducer):
        return parse_output(_shown(aggregate), aggregate.output).names[0]
    kind = type(aggregate).__name__.lower()
    field = getattr(aggregate, "field", None)
    return kind if field is None else f"{kind}_{field}"


def _shown(aggregate: Any) -> str:
    is_own = isinstance(aggregate, Combiner | Reducer | BatchAggregator) and not isinstance(aggregate, Collect)
    return f"{type(aggregate).__name__}()" if is_own else repr(aggregate)


def labelled(operation: str, key: tuple[str, ...], aggregates: Aggregates) -> str:
    """What `describe` shows."""
    shown = ", ".join(f"{name}={_shown(aggregate)}" for name, aggregate in aggregates.items())
    return f"group_by({', '.join(key)}).{operation}({shown})" if key else f"{operation}({shown})"


def column_types(operation: str, key: tuple[str, ...], aggregates: Aggregates, fields: Schema) -> Schema:
    """The columns that the aggregates make. Raises `ConfigError`."""
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
    """The step that reduces tuples with these fields, or, `is_final`, what tasks have made of them. Without a key it
    makes a row of nothing: one of the batch if it `is_whole`, which sees all tuples of it, otherwise one in each task.
    Unless it `finishes`, it makes what another one is to reduce."""
    aggregates, names = columns.aggregates, list(columns.requested)
    values = column_types(operation, key, aggregates, fields)
    label, of_key = labelled(operation, key, columns.requested), fields.select(key)
    computed = columns.computed if finishes else ComputedColumns()
    after = computed.fields(values).select(names) if finishes else values
    stored = tuple(aggregates.items())
    aggregator: TableAggregator | OwnAggregator
    if all(map(is_built_in, aggregates.values())):
        aggregator = TableAggregator(of_key, values, stored, label, computed=computed)
    else:
        aggregator = OwnAggregator(of_key, values, stored, fields, label, computed=computed)
    nothing = tuple(map(_of_nothing, aggregates.values())) if finishes and not key else None
    return Aggregated(label, Schema((*of_key, *after)), aggregator, is_final, nothing, is_whole)


def _of_nothing(aggregate: Any) -> Any:
    return aggregate.init() if isinstance(aggregate, Reducer) else aggregate.zero()


@dataclass(frozen=True, slots=True)
class Completed(GatheringStep):
    """What a `BatchAggregator` makes of the tuples of each key."""

    input_schema: Schema
    key: tuple[str, ...]
    aggregator: BatchAggregator
    is_whole: bool

    def finish(self, kept: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Aggregate the groups one after the other; without a key also nothing."""
        table = pa.Table.from_batches(kept, arrow_schema(self.input_schema))
        rows, made = rows_of(table, self.label), []
        makes_one = not self.key and (is_first or not self.is_whole)
        groups = groups_of(table, self.key) or ([[]] if makes_one else [])
        for group in groups:
            state = self.aggregator.init()
            for at in group:
                state = self.aggregator.aggregate(state, rows[at])
            key = tuple(rows[group[0]][name] for name in self.key)
            complete = self.aggregator.complete(state)
            made += [(*key, *each) for each in many_rows(self.label, complete, len(self.output_schema) - len(key))]
        yield batch_from_rows(made, arrow_schema(self.output_schema), component=self.label)


def completed_step(
    operation: str, key: tuple[str, ...], aggregator: BatchAggregator, fields: Schema, *, is_whole: bool = False
) -> Completed:
    """The step of a `BatchAggregator`, which sees all tuples of the batch if it `is_whole`."""
    label = labelled(operation, key, {})[:-1] + f"{type(aggregator).__name__}())"
    check_picklable(label, aggregator, advice="create what it needs in its methods")
    after = Schema((*fields.select(key), *parse_output(label, aggregator.output)))
    return Completed(label, after, fields, key, aggregator, is_whole)


@dataclass(frozen=True, slots=True)
class Extreme(GatheringStep):
    """The tuple of a task for which a function returns the least, or the greatest."""

    function: Callable[[Tuple], Any]
    is_greatest: bool

    def prepare(self, context: TopologyContext) -> None:
        """Prepare the function, if it wants that."""
        prepare_function(self.function, context)

    def finish(self, kept: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Call the function once with each tuple. Of equal ones Python picks the first, as `Picked` does."""
        table = pa.Table.from_batches(kept, arrow_schema(self.output_schema))
        values = {at: self.function(row) for at, row in enumerate(rows_of(table, self.label))}
        compared = [at for at, value in values.items() if value is not None]
        if compared:
            pick = max if self.is_greatest else min
            yield from table.slice(pick(compared, key=values.__getitem__), 1).combine_chunks().to_batches()


@dataclass(frozen=True, slots=True)
class Picked(GatheringStep):
    """The first tuples of a task, or those that come first in the order of a field."""

    count: int
    by: str | None
    descending: bool
    with_null: bool

    def finish(self, kept: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Sort, if wanted, and take the first. NaN is greater than every other number."""
        table = pa.Table.from_batches(kept, arrow_schema(self.output_schema))
        if self.by is not None:
            table = table if self.with_null else table.filter(table[self.by].is_valid())
            order = [(self.by, "descending" if self.descending else "ascending")]
            keys = table.select([self.by])
            if self.descending and pa.types.is_floating(table[self.by].type):
                keys = keys.append_column(" nan", pc.fill_null(pc.is_nan(table[self.by]), fill_value=False))
                order.insert(0, (" nan", "descending"))
            table = table.take(pc.sort_indices(keys, order).slice(0, self.count))
        yield from table.slice(0, self.count).combine_chunks().to_batches()
