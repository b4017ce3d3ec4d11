"""The functions that a stream's operations are given: what they are called, what they declare, what they may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema
from transactional.model.user_code.picklable import ADVICE_OF_FUNCTIONS, check_picklable
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.bolts.functions import annotated_output

Rows = Iterable[tuple[Any, ...]]
_NO_ROW = (str, bytes, Mapping)
_ONE_RESULT = ("map", "filter", "peek")
"""Operations whose function returns: calling a generator only makes one, which counts as true."""


_STORM_METHODS: Final = ("isKeep", "execute", "accept")
"""The methods of Storm's filters, functions and consumers."""


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else name


def id_name(function: Callable[..., Any]) -> str:
    """What an id has of it: its name, if that can be part of one."""
    name = name_of(function)
    return name if name != "lambda" and name.isidentifier() else ""


def check_function(operation: str, function: Any) -> str:
    """Raise `ConfigError` unless it takes a row and can be sent to executors. Returns the operation with its name."""
    if not callable(function):
        method = next((name for name in _STORM_METHODS if hasattr(function, name)), None)
        hint = (
            f"; Storm calls its method {method!r}, here it is __call__, which takes a row and returns" if method else ""
        )
        also = ", or an expression such as field('n') > 1" if operation == "filter" else ""
        raise ConfigError(f"{operation} takes a function of a row{also}; got {function!r}{hint}")
    label = f"{operation}({name_of(function)})"
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigError(f"{label}: the function is asynchronous, so it would never run: use a plain one")
    if operation in _ONE_RESULT and inspect.isgeneratorfunction(called):
        raise ConfigError(f"{label}: the function yields, and must return: use flat_map or each for several tuples")
    try:
        inspect.signature(function).bind(())
    except TypeError as error:
        raise ConfigError(f"{label}: the function is called with one argument, a row: {error}") from None
    except ValueError:  # a built-in function without a signature
        pass
    check_picklable(label, function, advice=ADVICE_OF_FUNCTIONS)
    return label


def prepare_function(function: Callable[..., Any], context: TopologyContext) -> None:
    """Give an object with a method `prepare` the context, before the tuples of a batch."""
    if hasattr(function, "prepare"):
        function.prepare(context)


def declared_output(label: str, function: Callable[..., Any], output: str | None) -> Schema | None:
    """The fields that a function declares by `output=`, or by returning a NamedTuple; None if it declares none."""
    text = output if output is not None else annotated_output(label, function)
    return None if text is None else parsed(label, text)


def parsed(label: str, text: str) -> Schema:
    """Declared fields. Raises `ConfigError` that names the operation."""
    try:
        schema = Schema.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{label}: output={text!r} is declared incorrectly: {error}") from None
    if not schema:
        raise ConfigError(f"{label}: output={text!r} declares no field")
    return schema


def one_row(label: str, made: Any, width: int) -> tuple[Any, ...]:
    """What a function returned that must return one row: a tuple, or the value of the only field."""
    if isinstance(made, tuple):
        if len(made) != width:
            raise _mismatch(label, f"returned {len(made)} values for {width} {_fields(width)}", made)
        return made
    if made is None or width != 1:
        raise _mismatch(label, f"must return a tuple with {width} {'value' if width == 1 else 'values'}", made)
    return (made,)


def many_rows(label: str, made: Any, width: int) -> Iterator[tuple[Any, ...]]:
    """What a function returned that may return any number of rows: None, a tuple, or an iterable of rows."""
    if made is None:
        return
    if isinstance(made, tuple):
        yield one_row(label, made, width)
        return
    if isinstance(made, _NO_ROW) or not isinstance(made, Iterable):
        raise _mismatch(label, "must return a tuple, an iterable of tuples, or None", made)
    for each in made:
        yield one_row(label, each, width)


def appended_rows(label: str, made: Any, width: int) -> Iterator[tuple[Any, ...]]:
    """As `many_rows`, but a single value is allowed as well."""
    if width == 1 and made is not None and (isinstance(made, _NO_ROW) or not isinstance(made, Iterable)):
        yield (made,)
    else:
        yield from many_rows(label, made, width)


def _fields(width: int) -> str:
    return "field" if width == 1 else "fields"


def _mismatch(label: str, problem: str, made: Any) -> SchemaMismatch:
    return SchemaMismatch(f"{label} {problem}; got {repr(made)[:100]}")
