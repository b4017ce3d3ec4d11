"""A room is a layer, and so is a folder within it: a file imports from below. Read from the source alone.

Doors are what users import, and no file of ours. A third-party package has its homes; an import under TYPE_CHECKING is
no dependency on one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.tidy.parsing import lines_for_types, nodes_of
from tests.tidy.rooms import (
    ASK_THE_VERIFIER,
    ASKS_THE_DISK,
    DOORS,
    FILES_MAX,
    FOR_ADAPTERS,
    FOR_DOORS,
    FOR_SINKS,
    HOMES,
    IMPURE,
    PACKAGES,
    PURE,
    ROOMS,
)
from tools.checkout import module_name, read_imports

ROOT = Path(__file__).parents[2]


FILES = {
    module_name(path.relative_to(ROOT)): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
}


def room_of(module: str) -> str:
    """The folder of a module, or the doors, or what `python -m` runs."""
    if module.endswith(".__main__"):
        return "programs"
    is_package = module in FILES and FILES[module].name == "__init__.py"
    return "doors" if module in DOORS else module if is_package else module.rpartition(".")[0]


def folder_of(room: str, folder: str) -> str:
    """As modules are named: `kafka/clients` of `spouts` is `spouts.kafka.clients`."""
    return (room if folder == "." else f"{room}/{folder}").replace("/", ".")


PLACES = {
    folder_of(room, folder): (number, place)
    for number, (room, order) in enumerate((*ROOMS.items(), ("programs", ((".",),))))
    for place, folders in enumerate(order)
    for folder in folders
}
"""Where each folder stands: its room, counted from below, and its place in it."""


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """Every module that a source imports, wherever it stands, and whether for type checkers only."""
    guarded = lines_for_types(source)
    return ((name, line in guarded) for name, line in read_imports(nodes_of(source), FILES))


def of_ours(module: str, target: str) -> str | None:
    """What is wrong with `module` importing our own `target`, None when nothing is."""
    here, there = room_of(module), room_of(target)
    own, theirs = module.split(".")[0], target.split(".")[0]
    if here not in PLACES or there not in PLACES or target not in FILES:
        return f"{target} is in no room: there is no such file, or ROOMS does not name its folder"
    if there == "doors" and here not in ("doors", "examples", "programs"):
        return f"{target} is a door, for users: import from where the name is defined"
    if own != theirs and "verifier" in (own, theirs):
        asks = here in ASK_THE_VERIFIER
        return None if asks else f"{own}/ and {theirs}/ share nothing: the checker is independent"
    if (
        own in ("spouts", "state", "sinks")
        and theirs != own
        and there not in FOR_ADAPTERS | (FOR_DOORS if here == "doors" else set())
        and not (own == "sinks" and there in FOR_SINKS)
    ):
        return f"{own}/ knows itself and what adapters import, not {there}"
    if own == "transactional" and theirs in ("spouts", "state", "sinks"):
        return f"transactional/ may not know {theirs}/"
    if here != there and PLACES[there] >= PLACES[here]:
        return f"{here} may not import {target}: {there} is not below it"
    return None


def complaints(module: str, source: str) -> list[str]:
    """Everything that is wrong with the imports of one module."""
    found = set[str]()
    for target, for_types in imports(source):
        package = target.split(".")[0]
        if target.startswith("."):
            found.add("relative imports hide the room: name the module in full")
        elif package in PACKAGES:
            found.add(of_ours(module, target) or "")
        elif package in sys.stdlib_module_names:
            if package in IMPURE and {module, room_of(module)} & PURE and module not in ASKS_THE_DISK:
                found.add(f"{package} is not for pure files")
        elif (
            not for_types
            and room_of(module) != "examples"
            and not {module, room_of(module)} & HOMES.get(package, set())
        ):
            found.add(f"{package} may be imported in {sorted(HOMES.get(package, ['no file of ours']))} only")
    return [f"{module}: {text}" for text in sorted(found - {""})]


def test_every_import_respects_the_rooms() -> None:
    found = [text for module, path in FILES.items() for text in complaints(module, path.read_text("utf-8"))]
    assert not found, "\n".join(["imports against the rooms:", *found])


def test_no_room_is_a_hall() -> None:
    rooms = (path for path in FILES.values() if path.name not in ("__init__.py", "__main__.py"))
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in rooms)
    halls = {room: files for room, files in sizes.items() if files > FILES_MAX[room.partition("/")[0]]}
    assert halls == {}, f"divide them: a folder has at most so many files: {FILES_MAX}"


def test_there_is_no_circle_not_even_for_types() -> None:
    ours = {m: {t for t, _ in imports(path.read_text("utf-8")) if t in FILES and t != m} for m, path in FILES.items()}
    try:
        TopologicalSorter(ours).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other in a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("transactional.core.machine.coordinator", "import time", "not for pure files"),
        (
            "transactional.core.machine.coordinator",
            "from transactional.runtime.engine import driver",
            "is not below it",
        ),
        ("transactional.model.attempt", "def f():\n    from transactional.core import ports", "is not below it"),
        ("transactional.topology.builder", "from transactional.runtime.tasks import items", "is not below it"),
        ("transactional.runtime.engine.driver", "import transactional.errors", "is a door"),
        ("transactional.core.ports.split", "import transactional.core.machine.window_assignment", "is not below it"),
        ("transactional.runtime.sending.packing", "from transactional.runtime.engine import driver", "is not below it"),
        ("transactional.runtime.engine.driver", "from spouts.base import PartitionedSpout", "may not know spouts/"),
        ("state.delta.state", "import spouts.planning", "knows itself and what adapters import"),
        ("state.delta.state", "import transactional.core.machine.protocol", "knows itself and what adapters import"),
        ("state.delta.state", "from .small_commit import data_files", "relative"),
        ("state.rows.stored_value", "import pyarrow.compute", ""),
        ("verifier.rows", "from transactional.model.batch import BatchMetadata", "the checker is independent"),
        (
            "transactional.operations.loading",
            "from verifier.evidence.findings import Kind",
            "the checker is independent",
        ),
        ("transactional.core.store.sql.sql_store", "import requests", "no file of ours"),
        ("state.delta.state", "import state.unheard_of", "in no room"),
    ],
)
def test_a_wrong_import_is_reported(module: str, source: str, expected: str) -> None:
    assert expected in "\n".join(complaints(module, source))
