"""Draw the rooms of a checkout: `python -m tools.draw_rooms [CHECKOUT ...]`, default this one.

A room is what lies in `transactional/`, a folder or a file, or another package. Rooms stand on floors: each above those
that it imports from. Files that hold nothing but imports and names, and packages' own, are doors and no rooms.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tools.checkout import module_name, read_imports, read_modules

PACKAGES = ("transactional", "spouts", "state", "sinks", "verifier", "examples", "bench", "tools")
Graph = Mapping[str, set[str]]


def is_door(module: ast.Module) -> bool:
    """Whether a module holds nothing but imports and the list of its names."""
    return all(
        isinstance(each, ast.Import | ast.ImportFrom | ast.Expr)
        or (isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__")
        for each in module.body
    )


def imports_of(module: ast.Module, modules: Mapping[str, ast.Module]) -> set[str]:
    """Return every module of the product that one imports, wherever the import stands."""
    return {name for name, _ in read_imports(ast.walk(module), modules) if name in modules}


def room_of(name: str) -> str:
    """Return the room of a module: `transactional.model.batch` is in `transactional.model`."""
    return ".".join(name.split(".")[: 2 if name.startswith("transactional.") else 1])


def graph_of_rooms(modules: Mapping[str, ast.Module]) -> Graph:
    """Return the rooms that each room imports from."""
    in_rooms = {
        name for name in modules if name not in PACKAGES and not (name.count(".") == 1 and is_flat_door(name, modules))
    }
    graph: dict[str, set[str]] = {room_of(name): set() for name in in_rooms}
    for name in in_rooms:
        imported = {room_of(each) for each in imports_of(modules[name], modules) if each in in_rooms}
        graph[room_of(name)] |= imported - {room_of(name)}
    return graph


def is_flat_door(name: str, modules: Mapping[str, ast.Module]) -> bool:
    """Whether a file that lies in `transactional/` is a door, or what `python -m` runs."""
    is_folder = any(each.startswith(f"{name}.") for each in modules)
    return name.startswith("transactional.") and not is_folder and (is_door(modules[name]) or name.endswith("__main__"))


def longest_chain(graph: Graph) -> int:
    """Return how many nodes the longest chain of a graph has."""

    @cache
    def height(node: str) -> int:
        return 1 + max((height(each) for each in graph[node]), default=0)

    return max(map(height, graph), default=0)


def floors_of(graph: Graph) -> list[list[str]]:
    """Return the rooms by floor, from the lowest."""
    floors: list[list[str]] = []
    left = dict(graph)
    while left:
        lowest = sorted(room for room, below in left.items() if not below & left.keys())
        if not lowest:
            raise SystemExit(f"these rooms import from each other in a circle: {', '.join(sorted(left))}")
        floors.append(lowest)
        left = {room: below for room, below in left.items() if room not in lowest}
    return floors


def draw(checkout: Path) -> Iterator[str]:
    """Yield the lines of the picture: the floors from the highest to the lowest, then what they are measured by."""
    modules = {module_name(path): module for path, module in read_modules(checkout, PACKAGES).items()}
    graph = graph_of_rooms(modules)
    floors = floors_of(graph)
    for number, rooms in reversed(list(enumerate(floors))):
        yield f"{number:3}  {'  '.join(rooms)}"
    files = {name: imports_of(module, modules) - {name} for name, module in modules.items()}
    arrows = sum(map(len, graph.values()))
    yield f"{len(graph)} rooms, {len(floors)} floors, {arrows} arrows, longest chain of files {longest_chain(files)}"


def main() -> None:
    """Write the picture to the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    for checkout in parser.parse_args().checkouts:
        sys.stdout.write("\n".join(draw(checkout)) + "\n")


if __name__ == "__main__":
    main()
