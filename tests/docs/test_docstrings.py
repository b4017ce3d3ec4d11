"""Every public name and each of its methods says what it does, and has its place in the reference."""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, NewType

import pytest

import spouts
import state
import transactional
from tools.make_reference import PAGES

PACKAGES = (transactional, spouts, state)
SIMPLE = ("AttemptId", "TxId", "ABSENT", "OpaqueValue")
"""Whole numbers with a name, the one value that stands for none, and a second name: told where they are used."""


def public_names() -> list[tuple[str, Any]]:
    """Every name in the `__all__` of a package, with what it stands for."""
    return [(f"{package.__name__}.{name}", getattr(package, name)) for package in PACKAGES for name in package.__all__]


def reference_names() -> list[tuple[str, Any]]:
    """Every name that has a section on a page of the reference."""
    paths = [path.rsplit(".", 1) for page in PAGES.values() for path in page.names]
    return [(name, getattr(importlib.import_module(module), name)) for module, name in paths]


NAMES = public_names() + reference_names()


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines by itself."""
    for name, value in vars(owner).items():
        if not name.startswith("_") and isinstance(value, property | classmethod | staticmethod | type(members)):
            yield name, getattr(owner, name) if isinstance(value, classmethod | staticmethod) else value


def silent(name: str, value: Any) -> list[str]:
    """The name, and those of its methods, that say nothing of themselves. What overrides a method may leave it out."""
    if isinstance(value, NewType) or not (inspect.isclass(value) or inspect.isfunction(value)):
        return []
    without = [] if says_something(value) else [name]
    if inspect.isclass(value):
        own = [] if issubclass(value, enum.Enum) else list(members(value))
        without += [f"{name}.{member}" for member, method in own if not told(value, member, method)]
    return without


def told(owner: type, member: str, method: Any) -> bool:
    """Whether a method, or the one that it overrides or fulfils, has a docstring."""
    return bool(inspect.getdoc(method)) or any(
        inspect.getdoc(vars(base)[member]) for base in owner.__mro__ if member in vars(base)
    )


def says_something(value: Any) -> bool:
    """Whether there is a docstring that somebody wrote: a dataclass without one is given its signature."""
    text: str = vars(value).get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or ""
    is_signature = inspect.isclass(value) and is_dataclass(value) and text.startswith(f"{value.__name__}(")
    return bool(text) and not is_signature


@pytest.mark.parametrize(("name", "value"), NAMES, ids=[name for name, _ in NAMES])
def test_a_public_name_and_its_methods_say_what_they_do(name: str, value: Any) -> None:
    assert silent(name, value) == []


def test_every_public_name_is_in_the_reference() -> None:
    shown = {name.rsplit(".", 1)[1] for page in PAGES.values() for name in page.names}
    elsewhere = {name for name in transactional.__all__ if issubclass_of_error(getattr(transactional, name))}
    known = shown | elsewhere | set(SIMPLE)
    assert [name for name, _ in public_names() if name.rsplit(".", 1)[1] not in known] == []


def issubclass_of_error(value: Any) -> bool:
    """Errors have a page of their own."""
    return inspect.isclass(value) and issubclass(value, Exception)


class Said:
    """Says what it is."""

    def does(self) -> None:
        """Say what it does."""

    @property
    def has(self) -> int:
        return 1


def test_what_says_nothing_is_found() -> None:
    assert silent("Said", Said) == ["Said.has"]
