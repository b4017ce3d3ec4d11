"""Count what the house is measured by: `python -m tools.counts [CHECKOUT ...]`, a column for each checkout.

The default is this checkout. With `--places` the places are listed that each figure is made of.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from tools.checkout import read_modules

PRODUCT = ("transactional", "state", "spouts", "verifier")
PREVIOUS = ("prev", "rolled_back")
"""What the names of a row's previous version have in them."""
PORTS = "transactional/core/ports/"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Places = list[str]


class Checkout:
    """The Python files of one checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The product's modules by path."""
        return {path.as_posix(): module for path, module in read_modules(self.folder, PRODUCT).items()}

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """Return the nodes of the product's modules by path, walked once."""
        return {path: list(ast.walk(module)) for path, module in self.modules.items()}

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The product's classes by name."""
        return {node.name: node for nodes in self.nodes.values() for node in nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def ports(self) -> dict[str, ast.ClassDef]:
        """The classes of the product's ports by name."""
        modules = [module for path, module in self.modules.items() if path.startswith(PORTS)]
        return {node.name: node for module in modules for node in module.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def protocols(self) -> set[str]:
        """The classes that are protocols."""
        return {name for name, node in self.classes.items() if "Protocol" in bases_of(node)}

    def places(self, folder: str, is_one: Callable[[ast.AST], bool]) -> Iterator[tuple[str, ast.AST]]:
        """The nodes of a folder's modules that are one, each with its place."""
        for path, nodes in self.nodes.items():
            if path.startswith(folder):
                yield from ((f"{path}:{node.lineno}", node) for node in nodes if is_one(node))  # type: ignore[attr-defined]


def names_in(node: ast.AST) -> Iterator[str]:
    """The identifiers and texts of a node."""
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name


def bases_of(node: ast.ClassDef) -> set[str]:
    """The names of a class' bases, without what they are bases of."""
    heads = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {
        head.id if isinstance(head, ast.Name) else head.attr
        for head in heads
        if isinstance(head, ast.Name | ast.Attribute)
    }


def methods_of(node: ast.ClassDef) -> set[str]:
    """The names of the methods and properties that a class defines itself."""
    return {each.name for each in node.body if isinstance(each, Function)}


def called(node: ast.AST) -> str:
    """The name of what a call calls."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def modules_of(places: Places) -> Places:
    """The modules in which there are places."""
    return sorted({place.split(":")[0] for place in places})


def ways_of_a_commit(checkout: Checkout) -> Places:
    """The ways of a Delta commit that the contract suite writes by: the names of its tables `WAYS` and `BY_SPARK`."""
    module = ast.parse((checkout.folder / "tests/contract/writing.py").read_text())
    tables = [node for node in module.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    ways = [node.value for node in tables if {"WAYS", "BY_SPARK"} & set(names_in(node.targets[0]))]
    return [ast.unparse(key) for way in ways if isinstance(way, ast.Dict) for key in way.keys if key]


def opaque_rules(checkout: Checkout) -> Places:
    """The modules of states that choose between a row's values and its previous ones, by whose transaction it is."""

    def chooses(node: ast.AST) -> bool:
        is_text = isinstance(node, ast.JoinedStr) and any("CASE" in name for name in names_in(node))
        if not (is_text or isinstance(node, ast.IfExp) or called(node) in ("if_else", "case", "choose")):
            return False
        return any(part in name for name in names_in(node) for part in PREVIOUS)

    return modules_of([place for place, _ in checkout.places("state", chooses)])


def combine_rules(folder: str) -> Callable[[Checkout], Places]:
    """The modules of a folder that look at a combine word to see what it does."""

    def looks(node: ast.AST) -> bool:
        match node:
            case ast.Compare(comparators=[ast.Constant(value="sum")]) | ast.MatchValue(value=ast.Constant(value="sum")):
                return True
            case ast.Dict(keys=keys):
                words = {key.value for key in keys if isinstance(key, ast.Constant)}
                return {"sum", "min", "max"} <= words
        return False

    return lambda checkout: modules_of([place for place, _ in checkout.places(folder, looks)])


def names_of_a_delta_state(checkout: Checkout) -> Places:
    """Return the names that `DeltaMapState` and its bases define."""
    names, left = set[str](), ["DeltaMapState"]
    while left:
        if (node := checkout.classes.get(left.pop())) is not None and node.name not in checkout.ports:
            names |= methods_of(node)
            left += bases_of(node)
    return sorted(names)


def names_beside_the_port(checkout: Checkout) -> Places:
    """Return those of these names that no port defines."""
    ports = {name for node in checkout.ports.values() for name in methods_of(node)}
    return sorted(set(names_of_a_delta_state(checkout)) - ports)


def methods_of_port(name: str) -> Callable[[Checkout], Places]:
    """Return the figure of the methods and properties of a port's class, without those of its parts."""
    return lambda checkout: sorted(methods_of(checkout.ports[name]))


def probes(checkout: Checkout) -> Places:
    """Where a program looks at run time whether an object has the methods of a protocol."""

    def looks(node: ast.AST) -> bool:
        return called(node) == "isinstance" and bool(set(names_in(node.args[1])) & checkout.protocols)  # type: ignore[attr-defined]

    return [place for folder in PRODUCT for place, _ in checkout.places(f"{folder}/", looks)]


def questions_of_states(checkout: Checkout) -> Places:
    """Where a program looks at run time what a state is or has, and what it looks for."""

    def is_question(node: ast.AST) -> bool:
        if called(node) not in ("isinstance", "issubclass", "hasattr", "getattr", "callable"):
            return False
        asked = ast.unparse(node.args[0]).removeprefix("type(").rstrip("()")  # type: ignore[attr-defined]
        return asked.rpartition(".")[2] == "state"

    return [
        " ".join([place, *map(ast.unparse, node.args[1:])])  # type: ignore[attr-defined]
        for folder in PRODUCT
        for place, node in checkout.places(f"{folder}/", is_question)
    ]


def lines_of(*folders: str) -> Callable[[Checkout], int]:
    """The lines of Python in these folders."""
    return lambda checkout: sum(
        len(path.read_text().splitlines()) for name in folders for path in (checkout.folder / name).rglob("*.py")
    )


FIGURES: dict[str, Callable[[Checkout], Places | int]] = {
    "ways of a Delta commit": ways_of_a_commit,
    "modules of states that state the opaque rule": opaque_rules,
    "modules of states that combine two values": combine_rules("state"),
    "and of the verifier": combine_rules("verifier"),
    "methods of Spout": methods_of_port("Spout"),
    "methods of State": methods_of_port("State"),
    "names of DeltaMapState with its bases": names_of_a_delta_state,
    "and without those of a port": names_beside_the_port,
    "protocols to look for at run time": lambda checkout: sorted(
        name
        for name in checkout.protocols
        if "runtime_checkable" in map(ast.unparse, checkout.classes[name].decorator_list)
    ),
    "places that look": probes,
    "questions of states": questions_of_states,
    "lines of the product": lines_of(*PRODUCT),
    "lines of bench": lines_of("bench"),
    "lines of tests": lines_of("tests"),
}


def main() -> None:
    """Print a row for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    parser.add_argument("--places", action="store_true", help="list what each figure is made of")
    options = parser.parse_args()
    checkouts = [Checkout(folder) for folder in options.checkouts]
    for name, figure in FIGURES.items():
        found = [figure(checkout) for checkout in checkouts]
        print(f"{name:60}", *(f"{each if isinstance(each, int) else len(each):8,}" for each in found))
        if options.places:
            for each in found:
                print(*(f"    {place}" for place in (each if isinstance(each, list) else [])), sep="\n")


if __name__ == "__main__":
    main()
