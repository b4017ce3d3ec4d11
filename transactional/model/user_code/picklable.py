"""Checks whether the user's objects can be sent to other processes, and names the part of an object that can't.

The check runs when a topology is built, so that a lock or a connection in a bolt is one line that names the attribute,
not an error of pickle on an executor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, TypeVar

import cloudpickle

from transactional.model.errors import ConfigError

Value = TypeVar("Value")
_ADVICE = "open connections, locks and the like in prepare"
ADVICE_OF_FUNCTIONS = "create what it needs inside"
_DEPTH_MAX = 20
"""The maximum depth of the search for the part of a value that can't be pickled. Each step pickles all parts of one."""


def check_picklable(subject: str, value: object, *, advice: str = _ADVICE) -> None:
    """Raise `ConfigError` if a value can't be sent to other processes, with its definition, and the part at fault.

    `subject` names the value in the message.
    """
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        part, definition = _unpicklable_part(value), _describe_definition(value)
        shown_definition, shown_part = f" ({definition})" if definition else "", f": it is `{part}`" if part else ""
        raise ConfigError(
            f"{subject}{shown_definition} can't be sent to other processes: {error}{shown_part}; {advice}"
        ) from error


def copy_by_pickle(subject: str, original: Value) -> Value:
    """Return an object as other processes get it. Raises `ConfigError` as `check_picklable` does."""
    check_picklable(subject, original)
    copy: Value = cloudpickle.loads(cloudpickle.dumps(original))
    return copy


def _is_picklable(value: object) -> bool:
    """Return True if a value can be sent to another process."""
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _unpicklable_part(candidate: object) -> str:
    """Return an expression for the innermost part that can't be pickled, such as `self.clients['db']`.

    Returns "" if that is the value itself.
    """
    name, visited = "", {id(candidate)}
    for _ in range(_DEPTH_MAX):
        try:
            parts = ((path, part) for path, part in _list_parts(name, candidate) if id(part) not in visited)
            unpicklable = next(((path, part) for path, part in parts if not _is_picklable(part)), None)
        except Exception:  # of the value's own methods
            break
        if unpicklable is None:
            break
        name, candidate = unpicklable
        visited.add(id(candidate))
    return name


def _describe_definition(candidate: object) -> str:
    """Return name, file and line of a function or of an object's class, or "" for one of Python's own."""
    while isinstance(candidate, functools.partial):
        candidate = candidate.func
    definition = candidate if inspect.isroutine(candidate) or isinstance(candidate, type) else type(candidate)
    name = "" if definition.__module__ == "builtins" else getattr(definition, "__name__", type(candidate).__name__)
    try:
        file = inspect.getsourcefile(definition)
        line = inspect.getsourcelines(definition)[1]
    except (OSError, TypeError):
        return name
    return f"{name}, {file}:{line}"


def _list_parts(name: str, candidate: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value, each with an expression for it."""
    if isinstance(candidate, FunctionType):
        variables = inspect.getclosurevars(candidate)
        yield from {**variables.globals, **variables.nonlocals}.items()
        yield from (("a default value", part) for part in candidate.__defaults__ or ())
    elif isinstance(candidate, MethodType):
        yield from (("self", candidate.__self__), ("", candidate.__func__))
    elif isinstance(candidate, functools.partial):
        yield from ((f"argument {number}", part) for number, part in enumerate(candidate.args))
        yield from (*candidate.keywords.items(), ("", candidate.func))
    elif isinstance(candidate, type):
        attributes = ((key, part) for key, part in vars(candidate).items() if not inspect.isdatadescriptor(part))
        yield from ((f"{candidate.__name__}.{key}", part) for key, part in attributes)
    elif isinstance(candidate, Mapping):
        yield from ((f"{name}[{key!r}]", part) for key, part in candidate.items())
    elif isinstance(candidate, list | tuple | set | frozenset):
        yield from ((f"{name}[{number}]", part) for number, part in enumerate(candidate))
    else:
        yield from ((f"{name or 'self'}.{key}", part) for key, part in _pickled_attributes(candidate).items())
        yield name, type(candidate)


def _pickled_attributes(candidate: Any) -> Mapping[str, object]:
    """Return the attributes of an object that are pickled with it."""
    try:
        reduced = candidate.__reduce_ex__(4)
    except Exception:
        return {}
    attributes = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 else None
    parts = attributes if isinstance(attributes, tuple) else (attributes,)
    return {name: attribute for part in parts if isinstance(part, dict) for name, attribute in part.items()}
