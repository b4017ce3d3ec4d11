"""Finds what the command line names: `MODULE:TOPOLOGY`, and a store by its URL."""

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
from transactional.model.plumbing.tracebacks import user_place
from transactional.model.schema import did_you_mean

if TYPE_CHECKING:
    from transactional.topology.topology import Topology

STORES = "transactional.stores"
_SERVER_URL = "postgresql://HOST/DATABASE"
_WRONG_CALL: Final = re.compile(
    r"^(?:(?P<called>[\w.]+)\(\) (?:got an unexpected keyword argument '(?P<given>\w+)'|missing |takes )"
    r"|Can't instantiate abstract class (?P<kind>\w+) )"
)
"""What Python says of a call that does not fit what is called, or of a class that lacks methods."""
PACKAGES = ("spouts", "state", "verifier")
"""Packages beside `transactional` whose names a user's file may have, too."""


def load_topology(target: str) -> Topology:
    """The `Topology` that `MODULE:NAME` names, or that the function of that name returns. Raises `ConfigError`.

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
    found = getattr(module, name, None)
    if found is None:
        known = [known for known, value in vars(module).items() if isinstance(value, Topology) or callable(value)]
        raise ConfigError(f"module {module_name} has no {name!r}{did_you_mean(name, known)}")
    send_by_value(module)
    topology: Topology | None = _call(found, target) if callable(found) else found
    if topology is None:
        raise ConfigError(f"{target} returned nothing: end it with `return builder.build()`")
    check_topology(target, topology)
    return topology


def check_topology(what: str, topology: Any) -> None:
    """Raise `ConfigError` for anything but a built topology; `what` names it in the message."""
    from transactional.topology.topology import Topology

    if isinstance(topology, Topology):
        return
    if inspect.isroutine(topology):
        raise ConfigError(f"{what} is the function {topology.__name__}, not a Topology: call it, {topology.__name__}()")
    raise ConfigError(f"{what} is a {type(topology).__name__}, not a Topology: did you forget .build()?")


def refuse_hidden_packages() -> None:
    """Raise `ConfigError` if a module of a user, or of another copy of ours, is found in place of one of our packages.

    This checks the path, not what is loaded: on an executor, or in the next process, the user's module would win.
    """
    folder = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        spec = PathFinder.find_spec(name)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        found = [Path(place).resolve() for place in places if place is not None]
        if not found or any(place.is_relative_to(folder / name) for place in found):
            continue
        copy = found[0].parents[1]
        if (copy / Path(__file__).resolve().relative_to(folder)).is_file():
            raise ConfigError(
                f"{copy} is another copy of transactional than the one that runs, {folder}, and comes before it on the "
                "path: workers would run that one. Use its own Python environment, or work in another folder"
            )
        raise ConfigError(f"{found[0]} hides the package {name!r} of transactional: give it another name")


def _call(function: Callable[..., Any], target: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(f"{target} can't be called without arguments: {error}") from error
    with explaining_calls():
        return function()


@contextmanager
def explaining_calls() -> Iterator[None]:
    """Raise a call of the user's that does not fit what it calls as a `ConfigError`, with what that takes."""
    try:
        yield
    except TypeError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        wrong, place = _WRONG_CALL.match(str(error)), user_place(error)
        if wrong is None or place is None or not place.endswith(f":{frame.f_lineno}"):
            raise
        raise ConfigError(f"{error}{_what_is_taken(wrong, {**frame.f_globals, **frame.f_locals})} ({place})") from error


def _what_is_taken(wrong: re.Match[str], names: dict[str, Any]) -> str:
    if kind := names.get(wrong["kind"]):
        missing = (f"{name}({_parameters(getattr(kind, name))})" for name in sorted(kind.__abstractmethods__))
        return f": define {', '.join(missing)}"
    name, _, method = wrong["called"].partition(".")
    called = getattr(names.get(name), method, None) if method else names.get(name)
    if called is None:
        return ""
    taken = _parameters(called).removeprefix("self, ")
    return f"{did_you_mean(wrong['given'] or '', taken.split(', '))}; it takes: {taken}"


def _parameters(called: Any) -> str:
    return ", ".join(inspect.signature(called).parameters) if callable(called) else "self"


def _import(module_name: str, target: str) -> ModuleType:
    try:
        with explaining_calls():
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{target}: {error}; run from the folder that holds it, or install it") from error


def open_existing_store(url: str) -> CoordinatorStore:
    """As `open_store`, for a store that exists: a missing file, or a database of something else, is an error."""
    with closing(open_for_reading(url)) as reader:
        reader.desired("")
    return open_store(url)


def open_for_reading(url: str) -> StoreReader:
    """The store at a URL, for those who only look: nothing is created or brought up to date, whatever is there.

    Raises as `open_store` does, and `ConfigError` if there is no store, at the latest when it is read.
    """
    scheme, _, path = url.partition(":///")
    if url.partition("?")[0] in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise ConfigError(f"{url} is in the memory of the process that uses it; name the file of a store: sqlite:///…")
    if scheme == "sqlite" and not Path(path).is_file():
        raise ConfigError(f"there is no store at {path}: nothing has run with --store {url} from this folder")
    return reader_of(url)


def reader_of(url: str) -> StoreReader:
    """As `open_for_reading`, within a process that has the store open: it may be in the memory of that process.

    A store of another package that offers no `for_reading` is opened as it always is.
    """
    kind = _kind_of(url)
    store: StoreReader = getattr(kind, "for_reading", kind)(url)
    return store


def open_store(url: str) -> CoordinatorStore:
    """The store at a URL: the entry point of group `transactional.stores` named like the URL's scheme.

    Raises `ConfigError` for an unknown scheme or an older store, `StoreTooNew`, `StoreUnavailable`.
    """
    store: CoordinatorStore = _kind_of(url)(url)
    return store


def _kind_of(url: str) -> Any:
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
