"""Loads a topology named as `MODULE:TOPOLOGY`, and opens a store by its URL."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from transactional.core.store import CoordinatorStore, StoreReader
from transactional.model.errors import ConfigError
from transactional.model.plumbing.entry_points import entry_points_of
from transactional.model.plumbing.tracebacks import error_location
from transactional.model.schema import did_you_mean

if TYPE_CHECKING:
    from transactional.topology.topology import Topology

STORES = "transactional.stores"
_SERVER_URL = "postgresql://HOST/DATABASE"
_WRONG_CALL: Final = re.compile(
    r"^(?:(?P<called>[\w.]+)\(\) (?:got an unexpected keyword argument '(?P<given>\w+)'|missing |takes )"
    r"|Can't instantiate abstract class (?P<kind>\w+) )"
)
"""Python's message for a call that does not fit the signature, or for a class that lacks methods."""
PACKAGES = ("spouts", "state", "sinks", "verifier")
"""Packages that are installed with `transactional`, and whose names a user's file may have, too."""


def load_topology(target: str) -> Topology:
    """Load the `Topology` that `MODULE:NAME` names, or that the function of that name returns. Raises `ConfigError`.

    The module's own classes and functions are sent to executors by value, so it need not be installed there.
    """
    # Imported here, so that a command that only opens a store need not wait for Arrow.
    from transactional.runtime.sending.by_value import send_by_value
    from transactional.topology.topology import Topology

    module_name, _, name = target.partition(":")
    if not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{target!r} is not of the form MODULE:TOPOLOGY, such as words:build")
    sys.path.insert(0, os.getcwd())
    refuse_hidden_packages()
    module = _import(module_name, target)
    named_object = getattr(module, name, None)
    if named_object is None:
        names = [
            name_in_module
            for name_in_module, member in vars(module).items()
            if isinstance(member, Topology) or callable(member)
        ]
        raise ConfigError(f"module {module_name} has no {name!r}{did_you_mean(name, names)}")
    send_by_value(module)
    topology: Topology | None = _call(named_object, target) if callable(named_object) else named_object
    if topology is None:
        raise ConfigError(f"{target} returned nothing: end it with `return builder.build()`")
    check_topology(target, topology)
    return topology


def check_topology(description: str, topology: Any) -> None:
    """Raise `ConfigError` for anything but a built topology; the message begins with `description`."""
    from transactional.topology.topology import Topology

    if isinstance(topology, Topology):
        return
    if inspect.isroutine(topology):
        raise ConfigError(
            f"{description} is the function {topology.__name__}, not a Topology: call it, {topology.__name__}()"
        )
    raise ConfigError(f"{description} is a {type(topology).__name__}, not a Topology: did you forget .build()?")


def refuse_hidden_packages() -> None:
    """Raise `ConfigError` if a module of a user, or of another copy of ours, is found in place of one of our packages.

    This checks the path, not what is loaded: on an executor, or in the next process, the user's module would win.
    """
    folder = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        spec = PathFinder.find_spec(name)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        package_paths = [Path(place).resolve() for place in places if place is not None]
        if not package_paths or any(place.is_relative_to(folder / name) for place in package_paths):
            continue
        copy = package_paths[0].parents[1]
        if (copy / Path(__file__).resolve().relative_to(folder)).is_file():
            raise ConfigError(
                f"{copy} is another copy of transactional than the one that runs, {folder}, and comes before it on the "
                "path: workers would run that one. Use its own Python environment, or work in another folder"
            )
        raise ConfigError(f"{package_paths[0]} hides the package {name!r} of transactional: give it another name")


def _call(function: Callable[..., Any], target: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(f"{target} can't be called without arguments: {error}") from error
    with explaining_calls():
        return function()


@contextmanager
def explaining_calls() -> Iterator[None]:
    """Turn a `TypeError` of a user's call that does not fit the signature into a `ConfigError` with the signature."""
    try:
        yield
    except TypeError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        wrong, place = _WRONG_CALL.match(str(error)), error_location(error)
        if wrong is None or place is None or not place.endswith(f":{frame.f_lineno}"):
            raise
        raise ConfigError(
            f"{error}{_describe_signature(wrong, {**frame.f_globals, **frame.f_locals})} ({place})"
        ) from error


def _describe_signature(wrong: re.Match[str], names: dict[str, Any]) -> str:
    if kind := names.get(wrong["kind"]):
        missing = (f"{name}({_list_parameters(getattr(kind, name))})" for name in sorted(kind.__abstractmethods__))
        return f": define {', '.join(missing)}"
    name, _, method = wrong["called"].partition(".")
    called = getattr(names.get(name), method, None) if method else names.get(name)
    if called is None:
        return ""
    parameters = _list_parameters(called).removeprefix("self, ")
    return f"{did_you_mean(wrong['given'] or '', parameters.split(', '))}; it takes: {parameters}"


def _list_parameters(called: Any) -> str:
    return ", ".join(inspect.signature(called).parameters) if callable(called) else "self"


def _import(module_name: str, target: str) -> ModuleType:
    try:
        with explaining_calls():
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{target}: {error}; run from the folder that holds it, or install it") from error


def open_existing_store(url: str) -> CoordinatorStore:
    """Open a store that exists already. Raises `ConfigError` for a missing file or a database of something else, and
    otherwise as `open_store` does."""
    with closing(open_for_reading(url)) as reader:
        reader.desired("")
    return open_store(url)


def open_for_reading(url: str) -> StoreReader:
    """Open the store at a URL for reading only: nothing is created or changed.

    Raises as `open_store` does, and `ConfigError` if there is no store, at the latest when it is read.
    """
    scheme, _, path = url.partition(":///")
    if url.partition("?")[0] in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise ConfigError(f"{url} is in the memory of the process that uses it; name the file of a store: sqlite:///…")
    if scheme == "sqlite" and not Path(path).is_file():
        raise ConfigError(f"there is no store at {path}: nothing has run with --store {url} from this folder")
    return open_beside_writer(url)


def open_beside_writer(url: str) -> StoreReader:
    """Open a store for reading in a process that has it open, so that the store may be in that process's memory.

    A store of another package that has no `for_reading` is opened for writing, too.
    """
    kind = _load_store_class(url)
    store: StoreReader = getattr(kind, "for_reading", kind)(url)
    return store


def open_store(url: str) -> CoordinatorStore:
    """Open the store at a URL with the entry point of group `transactional.stores` named like the URL's scheme.

    Raises `ConfigError` for an unknown scheme or an older store, `StoreTooNew`, `StoreUnavailable`.
    """
    store: CoordinatorStore = _load_store_class(url)(url)
    return store


def _load_store_class(url: str) -> Any:
    if "://" not in url:
        raise ConfigError(f"the store {url!r} is no URL: did you mean sqlite:///{url}? Another kind is {_SERVER_URL}")
    scheme = url.partition(":")[0].partition("+")[0]
    stores = entry_points_of(STORES)
    if scheme not in stores:
        raise ConfigError(
            f"no store for {scheme!r} URLs; known: {', '.join(sorted(stores)) or '(none: is transactional installed?)'}"
            f"{did_you_mean(scheme, stores)}. Pass sqlite:///FILE or {_SERVER_URL}"
        )
    refuse_hidden_packages()
    return stores[scheme].load()
