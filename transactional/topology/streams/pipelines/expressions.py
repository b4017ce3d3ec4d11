"""Expressions over the columns of a stream, such as `field("amount") * 2`, and their checks when a stream is
declared."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.compute import Expression

from transactional.model.arrow.computed import expression_type
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema


def field(name: str) -> Expression:
    """A column of a stream, to compute with: `field("amount") * 2`, `(field("n") > 1) & (field("word") != "the")`.

    The result is an Arrow expression, so the functions of `pyarrow.compute` take it: `pc.utf8_length(field("word"))`.
    """
    return pc.field(name)


def as_expression(operation: str, operand: Any) -> Expression:
    """Return an expression as it is, and a constant as an expression. Raises `ConfigError`."""
    try:
        return operand if isinstance(operand, Expression) else pc.scalar(operand)
    except pa.ArrowException:
        raise ConfigError(
            f"{operation} takes an expression such as field('n') * 2, or a constant; got {type(operand).__name__}"
        ) from None


def check_filter(operation: str, expression: Expression, schema: Schema) -> None:
    """Raise `ConfigError` unless an expression is a condition on the tuples of a stream."""
    type_ = expression_type(operation, expression, schema)
    if type_ != "boolean":
        raise ConfigError(f"{operation}: {expression} is a {type_}, not a condition: compare it with something")
