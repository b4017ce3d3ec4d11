"""The functions that users pass to the operations of a stream: their names, their declared output, their return values.

Everything that can be checked without a tuple is checked where the operation is declared, and raises `ConfigError`.
What a function returns is checked for each row, and raises `SchemaMismatch`.
"""

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
"""Operations whose function returns one result. A generator function is refused: its call returns a generator, which is
true."""


_STORM_METHODS: Final = ("isKeep", "execute", "accept")
"""The methods of Storm's filters, functions and consumers."""


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of a callable object."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else name


def id_name(function: Callable[..., Any]) -> str:
    """Return the name of a function as it becomes part of a component id; empty if it has none."""
    name = function_name(function)
    return name if name != "lambda" and name.isidentifier() else ""


def check_function(operation: str, function: Any) -> str:
    """Return the label of an operation with its function. Raises `ConfigError` unless the function takes a row, and can
    be sent to executors."""
    if not callable(function):
        method = next((name for name in _STORM_METHODS if hasattr(function, name)), None)
        hint = (
            f"; Storm calls its method {method!r}, here it is __call__, which takes a row and returns" if method else ""
        )
        alternative = ", or an expression such as field('n') > 1" if operation == "filter" else ""
        raise ConfigError(f"{operation} takes a function of a row{alternative}; got {function!r}{hint}")
    label = f"{operation}({function_name(function)})"
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
    """Call the `prepare` of an object that has one, before the tuples of a batch."""
    if hasattr(function, "prepare"):
        function.prepare(context)


def declared_output(label: str, function: Callable[..., Any], output: str | None) -> Schema | None:
    """Return the fields that a function declares, by `output=` or by returning a NamedTuple. None if it declares
    none."""
    text = output if output is not None else annotated_output(label, function)
    return None if text is None else parse_output(label, text)


def parse_output(label: str, text: str) -> Schema:
    """Parse declared fields. Raises a `ConfigError` that names the operation."""
    try:
        schema = Schema.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{label}: output={text!r} is declared incorrectly: {error}") from None
    if not schema:
        raise ConfigError(f"{label}: output={text!r} declares no field")
    return schema


def one_row(label: str, returned: Any, width: int) -> tuple[Any, ...]:
    """Return the row of a function that must return one: a tuple, or the value of the only field."""
    if isinstance(returned, tuple):
        if len(returned) != width:
            raise _mismatch(label, f"returned {len(returned)} values for {width} {_fields(width)}", returned)
        return returned
    if returned is None or width != 1:
        raise _mismatch(label, f"must return a tuple with {width} {'value' if width == 1 else 'values'}", returned)
    return (returned,)


def many_rows(label: str, returned: Any, width: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a function that may return any number: None, a tuple, or an iterable of tuples."""
    if returned is None:
        return
    if isinstance(returned, tuple):
        yield one_row(label, returned, width)
        return
    if isinstance(returned, _NO_ROW) or not isinstance(returned, Iterable):
        raise _mismatch(label, "must return a tuple, an iterable of tuples, or None", returned)
    for row in returned:
        yield one_row(label, row, width)


def appended_rows(label: str, returned: Any, width: int) -> Iterator[tuple[Any, ...]]:
    """Yield the values that a function appends: as `many_rows`, or a single value for one field."""
    if width == 1 and returned is not None and (isinstance(returned, _NO_ROW) or not isinstance(returned, Iterable)):
        yield (returned,)
    else:
        yield from many_rows(label, returned, width)


def _fields(width: int) -> str:
    return "field" if width == 1 else "fields"


def _mismatch(label: str, problem: str, returned: Any) -> SchemaMismatch:
    return SchemaMismatch(f"{label} {problem}; got {repr(returned)[:100]}")
