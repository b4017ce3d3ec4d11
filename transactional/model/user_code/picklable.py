"""Whether values can be sent to other processes, and which part of one can't."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import cloudpickle

from transactional.model.errors import ConfigError

_ADVICE = "open connections, locks and the like in prepare"
ADVICE_OF_FUNCTIONS = "create what it needs inside"
_DEPTH_MAX = 20
"""So many steps are followed into a value; each pickles what is below it."""


def check_picklable(what: str, value: object, *, advice: str = _ADVICE) -> None:
    """Raise `ConfigError` naming what can't be sent to other processes, the part of it that can't, and its place."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        part, place = _unpicklable_part(value), _place_of(value)
        where, shown = f" ({place})" if place else "", f": it is `{part}`" if part else ""
        raise ConfigError(f"{what}{where} can't be sent to other processes: {error}{shown}; {advice}") from error


def _is_picklable(value: object) -> bool:
    """Whether a value can be sent to another process."""
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _unpicklable_part(value: object) -> str:
    """The expression of the innermost part that can't be pickled, `self.clients['db']`; "" if it is the value."""
    name, seen = "", {id(value)}
    for _ in range(_DEPTH_MAX):
        try:
            parts = ((path, part) for path, part in _parts(name, value) if id(part) not in seen)
            inner = next(((path, part) for path, part in parts if not _is_picklable(part)), None)
        except Exception:  # of the value's own methods
            break
        if inner is None:
            break
        name, value = inner
        seen.add(id(value))
    return name


def _place_of(value: object) -> str:
    """Name, file and line of a function or of an object's class; "" for one of Python's own."""
    while isinstance(value, functools.partial):
        value = value.func
    defined = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    name = "" if defined.__module__ == "builtins" else getattr(defined, "__name__", type(value).__name__)
    try:
        file = inspect.getsourcefile(defined)
        line = inspect.getsourcelines(defined)[1]
    except (OSError, TypeError):
        return name
    return f"{name}, {file}:{line}"


def _parts(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """What a value is made of, with an expression for each part."""
    if isinstance(value, FunctionType):
        variables = inspect.getclosurevars(value)
        yield from {**variables.globals, **variables.nonlocals}.items()
        yield from (("a default value", each) for each in value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield from (("self", value.__self__), ("", value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((f"argument {number}", each) for number, each in enumerate(value.args))
        yield from (*value.keywords.items(), ("", value.func))
    elif isinstance(value, type):
        own = ((key, each) for key, each in vars(value).items() if not inspect.isdatadescriptor(each))
        yield from ((f"{value.__name__}.{key}", each) for key, each in own)
    elif isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}[{number}]", each) for number, each in enumerate(value))
    else:
        yield from ((f"{name or 'self'}.{key}", each) for key, each in _state_of(value).items())
        yield name, type(value)


def _state_of(value: Any) -> Mapping[str, object]:
    """The attributes of an object that are pickled with it."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:
        return {}
    attributes = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    parts = attributes if isinstance(attributes, tuple) else (attributes,)
    return {name: each for part in parts if isinstance(part, dict) for name, each in part.items()}
