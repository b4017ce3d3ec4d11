"""Names that were imported from a module and have another now: they still work, with a `DeprecationWarning`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module that had these names; each is now `<module>:<name>`."""

    def lookup(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, now = names[name].partition(":")
        text = f"{module}.{name} is deprecated: use {now} of {home}, which has its methods"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), now)

    return lookup
