"""Sends a user's modules to other processes by value if they may not be importable there.

These are modules that are not installed, such as modules beside a script or a test's helpers. The modules are found by
pickling a value and recording where its classes and functions come from.
"""

from __future__ import annotations

import io
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:  # cloudpickle ships no types; its pickler is one of pickle's
    from pickle import Pickler
else:
    from cloudpickle import Pickler

_ON_EVERY_WORKER = {"transactional", "spouts", "state", "sinks", "verifier", "pyspark", "py4j"}
_INSTALLED = {"site-packages", "dist-packages"}


def send_by_value(module: ModuleType) -> bool:
    """Have a module's own classes and functions pickled by value from now on. Returns False if they already are."""
    return bool(_register(module))


def _register(module: ModuleType) -> list[Any]:
    """Register a module to be pickled by value. Returns the picklers that did not have it."""
    picklers = [pickler for pickler in _picklers() if module.__name__ not in pickler.list_registry_pickle_by_value()]
    for pickler in picklers:
        pickler.register_pickle_by_value(module)
    return picklers


@contextmanager
def sending_by_value(value: object) -> Iterator[list[ModuleType]]:
    """Within this context, pickle the classes and functions of `value` from user modules by value. Returns these
    modules.

    A module that can't be pickled, because a lock or a connection of it is used, is sent by name as usual.
    """
    registered: dict[ModuleType, list[Any]] = {}
    refused: set[str] = set()
    try:
        while (module := _next_user_module(modules_of(value), refused)) is not None:
            registered[module] = _register(module)
            try:
                cloudpickle.dumps(value)
            except Exception:
                _unregister(module, registered.pop(module))
                refused.add(module.__name__)
        yield list(registered)
    finally:
        for module, picklers in registered.items():
            _unregister(module, picklers)


def _unregister(module: ModuleType, picklers: Iterable[Any]) -> None:
    for pickler in picklers:
        pickler.unregister_pickle_by_value(module)


def _next_user_module(names: set[str], refused: set[str]) -> ModuleType | None:
    """The next module to send, if any: what is sent uses other modules in turn."""
    known = set.intersection(*(pickler.list_registry_pickle_by_value() for pickler in _picklers()))
    for name in sorted(names - known - refused):
        module = sys.modules.get(name)
        if module is not None and _is_user_module(module):
            return module
    return None


def _is_user_module(module: ModuleType) -> bool:
    """Return whether a Python module is neither installed nor part of Python or of this framework. `__main__` is always
    sent by value."""
    file = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] in {"__main__", *_ON_EVERY_WORKER} or file is None:
        return False
    path = Path(file).resolve()
    is_standard = path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
    return path.suffix == ".py" and path.is_file() and not is_standard and not _INSTALLED & set(path.parts)


def modules_of(value: object) -> set[str]:
    """Return the names of the modules with the classes and functions of `value`."""
    pickler = _ModuleRecorder(io.BytesIO())
    pickler.dump(value)
    return pickler.modules


class _ModuleRecorder(Pickler):
    """Records the modules of all classes and functions that it pickles."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.modules: set[str] = set()

    def reducer_override(self, obj: object) -> Any:
        """Record the module of an object. Called for everything but plain values."""
        if isinstance(obj, ModuleType):
            self.modules.add(obj.__name__)
        elif isinstance(obj, type | FunctionType) and isinstance(obj.__module__, str):
            self.modules.add(obj.__module__)
        return super().reducer_override(obj)


def _picklers() -> tuple[Any, ...]:
    """Return cloudpickle, and Spark's own copy of it if PySpark has been imported."""
    spark_cloudpickle = sys.modules.get("pyspark.cloudpickle")
    return (cloudpickle,) if spark_cloudpickle is None else (cloudpickle, spark_cloudpickle)
