"""`BoltFunction`: a plain function as a bolt. The annotation of its first parameter determines its kind."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from transactional.model.errors import ConfigError
from transactional.model.schema import Schema


class FunctionKind(Enum):
    """The kinds of functions, by what a function receives and what it returns.

    TUPLE: a `Tuple` → None (dropped), a tuple of values or the `Tuple` itself, or an iterable of such.
    ARROW: a `pyarrow.RecordBatch` → a `RecordBatch` or `Table`.
    DATAFRAME: a Spark `DataFrame`, the whole batch → a `DataFrame`.
    """

    TUPLE = "Tuple"
    ARROW = "RecordBatch"
    DATAFRAME = "DataFrame"


_ANYTHING = ("_empty", "Any", "object")

_SPARK_TYPE_OF = {
    "str": "string",
    "int": "long",
    "float": "double",
    "bool": "boolean",
    "bytes": "binary",
    "datetime": "timestamp",
    "date": "date",
}


@dataclass(frozen=True, slots=True)
class BoltFunction:
    """A function as a bolt, with its kind and its declared output."""

    function: Callable[..., Any]
    kind: FunctionKind
    output: Schema

    @classmethod
    def from_function(cls, bolt_id: str, function: Callable[..., Any], output: str | None) -> BoltFunction:
        """Make a bolt of a function, by its annotations. Raises `ConfigError` if they are insufficient."""
        kind = _kind_of(bolt_id, function)
        declared = output if output is not None else annotated_output(f"bolt {bolt_id!r}", function)
        if declared is None:
            raise ConfigError(
                f"bolt {bolt_id!r}: the output of {_name(function)} is not declared; pass output='name type, …' to "
                "set_bolt, or annotate a tuple-wise function as returning a NamedTuple"
            )
        return cls(function, kind, parse_output(bolt_id, declared))


def parse_output(bolt_id: str, text: str) -> Schema:
    """The declared fields of a bolt. Raises `ConfigError` naming it."""
    try:
        return Schema.parse(text)
    except ConfigError as error:
        raise ConfigError(f"the output of bolt {bolt_id!r} is declared incorrectly: {error}") from None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _kind_of(bolt_id: str, function: Callable[..., Any]) -> FunctionKind:
    parameter = _only_parameter(bolt_id, function)
    annotation = _type_name(_hints_of(function).get(parameter.name, parameter.annotation))
    if annotation in _ANYTHING:
        return FunctionKind.TUPLE
    for kind in FunctionKind:
        if kind.value == annotation:
            return kind
    raise ConfigError(
        f"bolt {bolt_id!r}: {_name(function)} takes a {annotation}; the argument is a transactional.Tuple, a "
        "pyarrow.RecordBatch or a pyspark.sql.DataFrame: annotate it with one of these"
    )


def _only_parameter(bolt_id: str, function: Callable[..., Any]) -> inspect.Parameter:
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except ValueError:  # a built-in function without a signature
        parameters = []
    if len(parameters) != 1 or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise ConfigError(f"bolt {bolt_id!r}: {_name(function)} must take one argument, its input")
    return parameters[0]


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations, resolved; none if they contain names that only type checkers see."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (NameError, TypeError, AttributeError):
        return {}


def _type_name(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.strip("'\"").rsplit(".", 1)[-1]


def annotated_output(label: str, function: Callable[..., Any]) -> str | None:
    """Return the fields of a NamedTuple that is, or is inside, the return annotation. `label` is for messages."""
    for candidate in _parts(_hints_of(function).get("return")):
        if hasattr(candidate, "_fields"):
            fields = typing.get_type_hints(candidate)
            return ", ".join(f"`{name}` {_spark_type(label, name, type_)}" for name, type_ in fields.items())
    return None


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in typing.get_args(annotation):
        yield from _parts(argument)


def _spark_type(label: str, field: str, annotation: Any) -> str:
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    inner = [_spark_type(label, field, argument) for argument in arguments]
    match typing.get_origin(annotation), inner:
        case (typing.Union | types.UnionType, [only]):
            return only
        case (builtins.list, [element]):
            return f"array<{element}>"
        case (builtins.dict, [key, value]):
            return f"map<{key},{value}>"
        case _ if _type_name(annotation) in _SPARK_TYPE_OF:
            return _SPARK_TYPE_OF[_type_name(annotation)]
    raise ConfigError(
        f"{label}: field {field!r} is annotated as {_type_name(annotation)}, which has no Spark type; "
        "pass output='name type, …'"
    )
