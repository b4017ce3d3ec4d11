"""Checks that the methods of a user's class can be called as the framework calls them.

`OverridesChecked` is the base of what users derive from. A method with other parameters than the one that it overrides
would raise a `TypeError` in every attempt, and the attempt would be retried forever. So it is refused when the class is
defined, and so are methods that only Storm would call (`storm_names`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from transactional.model.errors import ConfigError
from transactional.model.plumbing.tracebacks import function_location
from transactional.model.user_code.storm_names import check_names


class OverridesChecked:
    """The base of the classes that users derive from. Raises `ConfigError` for a subclass with a method that can't be
    called."""

    __slots__ = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        check_names(cls)
        for name, override, declared_method in _list_overrides(cls):
            _check_override(cls, name, override, declared_method)


def _list_overrides(kind: type) -> Iterator[tuple[str, FunctionType, FunctionType | property]]:
    """Yield the methods of users that override one of the framework, each with its name and the overridden one."""
    overrides, names = dict[str, FunctionType](), set[str]()
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if name in overrides and isinstance(member, FunctionType | property):
                if isinstance(member, property) or function_location(member) is None:
                    yield name, overrides.pop(name), member
            elif name not in names and not name.startswith("_"):
                names.add(name)
                if isinstance(member, FunctionType) and function_location(member) is not None:
                    overrides[name] = member


def _check_override(kind: type, name: str, override: FunctionType, declared_method: FunctionType | property) -> None:
    """Raise `ConfigError` unless a method can be called with the parameters of the one that it overrides."""
    place = f"({function_location(override)})"
    if isinstance(declared_method, property):
        raise ConfigError(f"{kind.__name__}.{name} is read as a property: write @property above it {place}")
    parameters = list(inspect.signature(declared_method).parameters.values())
    # That of the method as it is called: a decorator may pass it further arguments.
    own_signature = inspect.signature(override, follow_wrapped=False)
    try:
        for required_only in (False, True):
            arguments = [p for p in parameters if p.default is p.empty or not required_only]
            keywords = {p.name: None for p in arguments if p.kind is p.KEYWORD_ONLY}
            own_signature.bind(
                *(p for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), **keywords
            )
    except TypeError as error:
        raise ConfigError(
            f"{kind.__name__}.{name}({_list_names(own_signature)}) can't be called as "
            f"{name}({_list_names(inspect.signature(declared_method))}): {error} {place}"
        ) from None


def _list_names(signature: inspect.Signature) -> str:
    """Return the parameters of a method without `self`, their types and their defaults."""
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in list(signature.parameters.values())[1:]]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))[1:-1]
