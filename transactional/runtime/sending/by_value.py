"""Which of a user's modules are sent to other processes by value, because they may not be importable there: modules
beside a script, a test's helpers, anything that is not installed."""

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

_ON_EVERY_WORKER = {"transactional", "spouts", "state", "verifier", "pyspark", "py4j"}
_INSTALLED = {"site-packages", "dist-packages"}


def send_by_value(module: ModuleType) -> bool:
    """Have a module's own classes and functions pickled by value from now on; False if they already are."""
    return bool(_register(module))


def _register(module: ModuleType) -> list[Any]:
    """The picklers for which this is new."""
    picklers = [each for each in _picklers() if module.__name__ not in each.list_registry_pickle_by_value()]
    for pickler in picklers:
        pickler.register_pickle_by_value(module)
    return picklers


@contextmanager
def sent_by_value(value: object) -> Iterator[list[ModuleType]]:
    """Within this context, what pickling `value` takes from user modules is sent by value; returns these modules.

    A module that can't be pickled, because a lock or a connection is used from it, is sent by name as usual.
    """
    sent: dict[ModuleType, list[Any]] = {}
    refused: set[str] = set()
    try:
        while (module := _next(modules_of(value), refused)) is not None:
            sent[module] = _register(module)
            try:
                cloudpickle.dumps(value)
            except Exception:
                _unregister(module, sent.pop(module))
                refused.add(module.__name__)
        yield list(sent)
    finally:
        for module, picklers in sent.items():
            _unregister(module, picklers)


def _unregister(module: ModuleType, picklers: Iterable[Any]) -> None:
    for pickler in picklers:
        pickler.unregister_pickle_by_value(module)


def _next(names: set[str], refused: set[str]) -> ModuleType | None:
    """The next module to send, if any: what is sent uses other modules in turn."""
    known = set.intersection(*(pickler.list_registry_pickle_by_value() for pickler in _picklers()))
    for name in sorted(names - known - refused):
        module = sys.modules.get(name)
        if module is not None and _is_the_users(module):
            return module
    return None


def _is_the_users(module: ModuleType) -> bool:
    """True for a Python module that is neither installed nor part of Python or of this framework. `__main__` is always
    sent by value."""
    file = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] in {"__main__", *_ON_EVERY_WORKER} or file is None:
        return False
    path = Path(file).resolve()
    is_pythons = path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
    return path.suffix == ".py" and path.is_file() and not is_pythons and not _INSTALLED & set(path.parts)


def modules_of(value: object) -> set[str]:
    """The modules that `value` takes classes and functions from, by their names."""
    pickler = _Looking(io.BytesIO())
    pickler.dump(value)
    return pickler.seen


class _Looking(Pickler):
    """Records the modules of everything that it pickles."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.seen: set[str] = set()

    def reducer_override(self, obj: object) -> Any:
        """Called for everything but plain values."""
        if isinstance(obj, ModuleType):
            self.seen.add(obj.__name__)
        elif isinstance(obj, type | FunctionType) and isinstance(obj.__module__, str):
            self.seen.add(obj.__module__)
        return super().reducer_override(obj)


def _picklers() -> tuple[Any, ...]:
    """Spark includes a cloudpickle of its own, which is there once a session is about to be used."""
    sparks = sys.modules.get("pyspark.cloudpickle")
    return (cloudpickle,) if sparks is None else (cloudpickle, sparks)
