"""Aggregates of the tuples of a batch: which columns they make, and the steps that compute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transactional.aggregates import Aggregate, Count, Sum, TableAggregator
from transactional.errors import ConfigError
from transactional.schema import Field, Schema
from transactional.trident.steps import Aggregated


def named_aggregates(alone: Any, named: Mapping[str, Any]) -> dict[str, Aggregate]:
    """The aggregates by the names of their columns; one that stands alone has the name of its class."""
    columns = dict(named)
    if alone is not None:
        columns = {default_name(alone): alone, **named}
    if not columns:
        raise ConfigError("there is nothing to aggregate: pass Count(), or columns such as total=Sum('amount')")
    for name, aggregate in columns.items():
        if isinstance(aggregate, type):
            raise ConfigError(f"{name}={aggregate.__name__} is a class; pass an instance: {aggregate.__name__}(…)")
        if not hasattr(aggregate, "type_for"):
            raise ConfigError(f"{name}={aggregate!r} is no aggregate such as Count(), Sum('amount'), Min(…), Max(…)")
    return columns


def default_name(aggregate: Any) -> str:
    """`count` for a `Count()`, `sum_amount` for a `Sum("amount")`."""
    kind = type(aggregate).__name__.lower()
    field = getattr(aggregate, "field", None)
    return kind if field is None else f"{kind}_{field}"


def aggregate_step(
    operation: str, key: tuple[str, ...], columns: Mapping[str, Aggregate], fields: Schema, *, is_final: bool
) -> Aggregated:
    """The step that reduces tuples with these fields, or, `is_final`, what tasks have made of them."""
    shown = ", ".join(f"{name}={aggregate}" for name, aggregate in columns.items())
    label = f"group_by({', '.join(key)}).{operation}({shown})" if key else f"{operation}({shown})"
    values = []
    for name, aggregate in columns.items():
        if aggregate.field is not None:
            fields.require([aggregate.field], of="the stream", used_by=f"{operation}: {name}={aggregate}")
        if name in key:
            raise ConfigError(f"{operation}: {name!r} is a field that is grouped by; give the aggregate another name")
        try:
            values.append(Field(name, aggregate.type_for(fields[aggregate.field].type if aggregate.field else "long")))
        except ConfigError as error:
            raise ConfigError(f"{operation}: {error}") from None
    schema = Schema((*fields.select(key), *values))
    aggregator = TableAggregator(fields.select(key), Schema(tuple(values)), tuple(columns.items()), label)
    nothing = tuple(_of_nothing(each) for each in columns.values()) if is_final and not key else None
    return Aggregated(label, schema, aggregator, is_final, nothing)


def _of_nothing(aggregate: Aggregate) -> Any:
    """As in Storm, nothing adds up to 0."""
    return 0 if isinstance(aggregate, Count | Sum) else None
