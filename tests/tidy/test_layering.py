"""Which module may import what: the layers and the homes of third-party packages, read from the source alone.

A file imports from its own layer or below. `spouts/` and `state/` know transactional's words, pure parts and contracts,
and never each other; `transactional/` knows neither. A third-party package is imported in the files named for it; an
import under TYPE_CHECKING is no dependency on it. Think twice about the design before changing a table.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tidy.files import ROOT, python_files
from tests.tidy.parsing import parsed

WORDS, PURE, CONTRACTS, TOOLS, ENGINE, ADAPTERS, USERS = range(7)

LAYERS = {
    WORDS: ["transactional.attempt", "transactional.batch", "transactional.errors", "transactional.letters"],
    PURE: [
        "transactional.config",
        "transactional.core.coordinator",
        "transactional.engine.cost_estimate",
        "transactional.core.failures",
        "transactional.foreign",
        "transactional.topology.functions",
        "transactional.groupings",
        "transactional.core.invariants",
        "transactional.spark.packing",
        "transactional.core.protocol",
        "transactional.redaction",
        "transactional.schema",
        "transactional.engine.sizing",
        "spouts.planning",
        "state.values",
    ],
    CONTRACTS: [
        "transactional.beyond_python",
        "transactional.bolts",
        "transactional.topology.builder",
        "transactional.dead_letters",
        "transactional.topology.describing",
        "transactional.doctor.findings",
        "transactional.topology.places",
        "transactional.ports",
        "transactional.store",
        "transactional.topology.stages",
        "transactional.commands.status_json",
        "transactional.store_history",
        "transactional.store_rules",
        "transactional.topology.topology",
        "transactional.topology.wiring",
        "spouts.base",
        "state.base",
    ],
    # Small helpers around a library or the machine, for adapters of all three packages.
    TOOLS: [
        "transactional.distribution",
        "transactional.arrow",
        "transactional.delta_errors",
        "transactional.jars",
        "transactional.narrowing",
        "transactional.pools",
        "transactional.syncing",
        "transactional.torn_log",
    ],
    ENGINE: [
        "transactional.engine.timeline",
        "transactional.engine.clock",
        "transactional.execution.committing",
        "transactional.engine.driver",
        "transactional.execution.emitting",
        "transactional.execution.faults",
        "transactional.engine.fencing",
        "transactional.engine.journal",
        "transactional.engine.observing",
        "transactional.engine.letter_spout",
        "transactional.execution.operators",
        "transactional.execution.placing",
        "transactional.execution.pickling",
        "transactional.engine.replay",
        "transactional.core.memory_topology",
        "transactional.engine.run_history",
        "transactional.engine.runner",
        "transactional.execution.spreading",
        "transactional.engine.standby",
        "transactional.testing",
        "transactional.engine.tidying",
        "transactional.engine.troubles",
        "transactional.execution.trying_again",
    ],
    ADAPTERS: [
        "transactional",
        "transactional.spark.by_value",
        "transactional.commands.main",
        "transactional.commands.config",
        "transactional.commands.dead_letters",
        "transactional.commands.doctor",
        "transactional.commands.lifecycle",
        "transactional.commands.options",
        "transactional.commands.reset",
        "transactional.commands.standby",
        "transactional.commands.verify",
        "transactional.spark.cluster_check",
        "transactional.config_sources",
        "transactional.spark.dataframes",
        "transactional.commands.display",
        "transactional.doctor.examine",
        "transactional.doctor.repairs",
        "transactional.doctor.source",
        "transactional.doctor.store",
        "transactional.doctor.start",
        "transactional.doctor.tables",
        "transactional.execution.gathering",
        "transactional.loading",
        "transactional.execution.local_executor",
        "transactional.running",
        "transactional.spark.executor",
        "transactional.spark.jobs",
        "transactional.spark_jvm",
        "transactional.spark_session",
        "transactional.spark.workers",
        "transactional.execution.task_run",
        "transactional.execution.tasks",
        "spouts",
        "spouts.contract_ports",
        "spouts.contract_reader",
        "spouts.contract_spout",
        "spouts.contracts",
        "spouts.kafka.spout",
        "spouts.kafka_admin",
        "spouts.kafka.consumers",
        "spouts.kafka.json_records",
        "spouts.kafka.mirror",
        "spouts.kafka.offsets",
        "spouts.kafka.reader",
        "spouts.kafka.settings",
        "spouts.kafka.start",
        "spouts.kafka.subscription",
        "spouts.kafka.topics",
        "spouts.kafka.translators",
        "spouts.local_broker",
        "spouts.local_broker_jvm",
        "spouts.memory",
        "state",
        "state.combine",
        "state.sql.database",
        "state.dead_letters",
        "state.delta.state",
        "state.delta.small_commit",
        "state.delta.compaction",
        "state.delta.judged",
        "state.delta.loading",
        "state.delta.log",
        "state.delta.log_lookup",
        "state.delta.log_rows",
        "state.delta.log_table",
        "state.delta.opening",
        "state.delta.others",
        "state.delta.owner",
        "state.delta.rewriting",
        "state.delta.delta_rs",
        "state.delta.spark",
        "state.delta.sums",
        "state.delta.staging",
        "state.delta.syncing",
        "state.delta.table",
        "state.delta.upkeep",
        "state.delta.vacuum",
        "state.fenced",
        "state.memory",
        "state.sql.state",
        "state.sql.registry",
        "state.sql.table",
        "state.sql.types",
        "state.store.history",
        "state.store.migrations",
        "state.store.rows",
        "state.store.schema",
        "state.store.sql_store",
        "state.store.statements",
        "state.sums",
        "state.value_limits",
        "verifier",
        "verifier.checker",
        "verifier.delta_log",
        "verifier.findings",
        "verifier.folds",
        "verifier.row_changes",
        "verifier.rows",
        "verifier.source",
        "verifier.storage",
        "verifier.store",
        "verifier.tables",
        "verifier.transactions",
    ],
    # Every module of examples/ belongs here without being listed.
    USERS: [],
}

SPARK = [
    "transactional.spark.cluster_check",
    "transactional.spark.dataframes",
    "transactional.spark.executor",
    "transactional.spark.jobs",
    "transactional.spark_jvm",
    "transactional.spark_session",
]

THIRD_PARTY = {
    "cloudpickle": [
        "transactional.spark.by_value",
        "transactional.execution.pickling",
        "transactional.execution.placing",
        "transactional.execution.spreading",
    ],
    "confluent_kafka": [
        "spouts.kafka.spout",
        "spouts.kafka_admin",
        "spouts.kafka.consumers",
        "spouts.kafka.mirror",
        "spouts.kafka.offsets",
        "spouts.kafka.reader",
        "spouts.kafka.topics",
        "verifier.source",
    ],
    "deltalake": [
        "transactional.doctor.repairs",
        "state.delta.compaction",
        "state.delta.judged",
        "state.delta.loading",
        "state.delta.log",
        "state.delta.others",
        "state.delta.owner",
        "state.delta.delta_rs",
        "state.delta.staging",
        "verifier.storage",
        "state.delta.upkeep",
        "state.delta.vacuum",
    ],
    "pyarrow": [
        "transactional.arrow",
        "transactional.execution.committing",
        "transactional.execution.emitting",
        "transactional.execution.faults",
        "transactional.execution.gathering",
        "transactional.narrowing",
        "transactional.execution.operators",
        "transactional.execution.spreading",
        "transactional.execution.task_run",
        "transactional.execution.trying_again",
        "transactional.spark.dataframes",
        "spouts.kafka.json_records",
        "spouts.contract_reader",
        "spouts.kafka.reader",
        "spouts.kafka.translators",
        "state.combine",
        "state.delta.state",
        "state.delta.small_commit",
        "state.delta.compaction",
        "state.delta.judged",
        "state.delta.log",
        "state.delta.log_lookup",
        "state.delta.log_rows",
        "state.delta.opening",
        "state.delta.rewriting",
        "state.delta.delta_rs",
        "state.delta.spark",
        "state.delta.staging",
        "state.delta.sums",
        "state.delta.table",
        "state.delta.upkeep",
        "state.delta.vacuum",
        "state.fenced",
        "state.sql.state",
        "state.sums",
        "state.value_limits",
        "verifier.rows",
        "verifier.storage",
    ],
    "py4j": ["state.delta.spark"],
    "pyspark": [*SPARK, "transactional.spark.by_value", "state.delta.spark"],
    "rich": ["transactional.commands.display"],
    "sqlalchemy": [
        "state.sql.database",
        "state.sql.state",
        "state.sql.registry",
        "state.sql.table",
        "state.sql.types",
        "state.store.history",
        "state.store.rows",
        "state.store.schema",
        "state.store.sql_store",
        "state.store.statements",
        "verifier.store",
    ],
    "typer": [
        "transactional.commands.main",
        "transactional.commands.config",
        "transactional.commands.dead_letters",
        "transactional.commands.doctor",
        "transactional.commands.lifecycle",
        "transactional.commands.options",
        "transactional.commands.reset",
        "transactional.commands.verify",
    ],
}

# The pure layers are functions of their arguments: no clock, no chance, no thread, no file, no process, no network.
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "sys", "threading"),
    *("datetime", "random", "secrets", "time", "uuid"),
    *("io", "logging", "os", "pathlib", "select", "shutil", "socket", "sqlite3", "tempfile", "urllib"),
}

LAYER_OF = {module: layer for layer, modules in LAYERS.items() for module in modules}
PACKAGES = ("transactional", "spouts", "state", "verifier", "examples")
# The independent checker is worth something only if it shares nothing with what it checks; these ask it.
ASK_THE_VERIFIER = (
    "transactional.commands.verify",
    "transactional.doctor.examine",
    "transactional.doctor.source",
    "transactional.doctor.store",
    "transactional.doctor.tables",
)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, and whether only type checkers or the module run as a command import it."""

    target: str
    for_types: bool = False
    for_command: bool = False


def layer_of(module: str) -> int | None:
    """The module's layer; None when it stands in no row of the table."""
    return USERS if module.split(".")[0] == "examples" else LAYER_OF.get(module)


def module_of(path: Path) -> str:
    """`state/delta/state.py` is `state.delta.state`, `state/__init__.py` is `state`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_files() -> dict[str, Path]:
    """Every module of the packages and its file."""
    return {module_of(path): path for package in PACKAGES for path in python_files((package,))}


MODULES = {*LAYER_OF, *source_files()}


def guarded_lines(tree: ast.Module, guard: str) -> set[int]:
    """The lines under the top-level `if`s whose test names the guard."""
    ifs = (node for node in tree.body if isinstance(node, ast.If) and guard in ast.unparse(node.test))
    return {line for node in ifs for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def targets(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports; of `from a import b`: `a.b` if that is a module of ours."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def imported(source: str) -> Iterator[Import]:
    """Every import of a source, wherever it stands."""
    tree = parsed(source)
    for_types, for_command = guarded_lines(tree, "TYPE_CHECKING"), guarded_lines(tree, "__main__")
    for node in ast.walk(tree):
        for target in targets(node):
            line = getattr(node, "lineno", 0)
            yield Import(target, for_types=line in for_types, for_command=line in for_command)


def internal_complaint(module: str, target: str) -> str | None:
    """What is wrong with `module` importing our own `target`."""
    own, theirs = module.split(".")[0], target.split(".")[0]
    layer, target_layer = layer_of(module), layer_of(target)
    if layer is None or target_layer is None:
        return f"{target if layer is not None else module} stands in no layer: add it to LAYERS"
    if target_layer > layer:
        return f"layer {layer} may not import {target} of layer {target_layer}"
    if target in PACKAGES and layer < USERS:
        return f"import from the module that defines the name, not from {target}: a package's front is for users"
    if own != theirs and "verifier" in (own, theirs):
        asks = own == "examples" or module in ASK_THE_VERIFIER
        return None if asks else f"{own}/ and {theirs}/ share nothing: the checker is independent"
    if own != theirs and own == "transactional":
        return f"transactional/ may not know {theirs}/"
    if own != theirs and {own, theirs} == {"spouts", "state"}:
        return f"{own}/ and {theirs}/ may not know each other"
    if own in ("spouts", "state") and theirs == "transactional" and target_layer > TOOLS:
        return f"{own}/ may import transactional's layers 0 to {TOOLS} only, {target} is of layer {target_layer}"
    return None


def complaint(module: str, each: Import) -> str | None:
    """What is wrong with an import of `module`, None when it may stand there."""
    package = each.target.split(".")[0]
    layer = layer_of(module)
    if each.target.startswith("."):
        return "relative imports hide the layer: name the module in full"
    if package in PACKAGES:
        return internal_complaint(module, each.target)
    if package in sys.stdlib_module_names:
        impure = package in IMPURE and layer in (WORDS, PURE) and not each.for_command
        return f"{package} is not for the pure layers" if impure else None
    if package not in THIRD_PARTY and layer != USERS:
        return f"{package} is in no row of THIRD_PARTY"
    if layer == USERS or each.for_types or module in THIRD_PARTY[package]:
        return None
    return f"{package} may be imported in {', '.join(THIRD_PARTY[package])} only"


def complaints(module: str, source: str) -> list[str]:
    """Everything that is wrong with the imports of one module."""
    if layer_of(module) is None:
        return [f"{module}: stands in no layer: add it to LAYERS"]
    found = (complaint(module, each) for each in imported(source))
    return sorted({f"{module}: {text}" for text in found if text is not None})


def test_every_import_respects_the_layers() -> None:
    found = [text for module, path in source_files().items() for text in complaints(module, path.read_text())]
    assert not found, "\n".join(["imports against the layers:", *found])


def test_the_tables_name_only_modules_that_exist() -> None:
    listed = {*LAYER_OF, *(module for modules in THIRD_PARTY.values() for module in modules)}
    missing = sorted(listed - set(source_files()))
    assert not missing, "rows without a file, remove them or write it: " + ", ".join(missing)


def test_every_allowed_package_is_used_where_it_is_allowed() -> None:
    used = {
        (each.target.split(".")[0], module)
        for module, path in source_files().items()
        for each in imported(path.read_text())
    }
    allowed = {(package, module) for package, modules in THIRD_PARTY.items() for module in modules}
    unused = [f"{package} in {module}" for package, module in sorted(allowed - used)]
    assert not unused, "allowed but not imported, take it out of the row: " + ", ".join(unused)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("transactional.core.coordinator", "import time", "not for the pure layers"),
        ("transactional.core.coordinator", "from transactional.engine.driver import TopologyDriver", "may not import"),
        ("transactional.attempt", "def f():\n    from transactional import ports", "may not import"),
        ("transactional.engine.driver", "from spouts.base import Spout", "may not know spouts/"),
        ("state.delta.state", "import spouts.planning", "may not know each other"),
        ("state.delta.state", "from transactional.engine.driver import TopologyDriver", "layers 0 to 3 only"),
        ("state.delta.state", "from transactional import TxId", "import from the module"),
        ("state.delta.state", "from .values import OpaqueValue", "relative"),
        ("state.values", "import pyarrow.compute", "may be imported in"),
        ("state.values", "if TYPE_CHECKING:\n    from state.delta.state import DeltaMapState", "may not import"),
        ("verifier.rows", "from transactional.batch import BatchMetadata", "the checker is independent"),
        ("transactional.engine.driver", "from verifier.findings import Kind", "may not import"),
        ("transactional.loading", "from verifier.findings import Kind", "the checker is independent"),
        ("state.store.sql_store", "import requests", "no row of THIRD_PARTY"),
        ("state.unheard_of", "", "stands in no layer"),
        ("state.delta.state", "import state.unheard_of", "stands in no layer"),
    ],
)
def test_a_wrong_import_is_told(module: str, source: str, expected: str) -> None:
    assert expected in "\n".join(complaints(module, source))


def test_right_imports_are_left_alone() -> None:
    assert complaints("state.store.sql_store", "import sqlalchemy.exc\nfrom transactional.attempt import TxId") == []
    assert (
        complaints("transactional.ports", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow")
        == []
    )
    assert complaints("transactional.core.protocol", "if __name__ == '__main__':\n    import sys") == []
    assert (
        complaints(
            "transactional.commands.main", "import os, typer\nfrom transactional.engine.driver import TopologyDriver"
        )
        == []
    )
    assert complaints("examples.words", "import pyarrow\nfrom transactional import TxId\nimport state.values") == []
