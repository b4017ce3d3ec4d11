"""What could run code out of data is imported where it is argued for, and nowhere else (see docs/security.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.files import ROOT, python_files
from tests.tidy.parsing import Looked, nodes_of

PACKAGES = ("transactional", "spouts", "state", "sinks", "verifier")

MAY_PICKLE = {
    "transactional.runtime.sending.by_value": "how modules are sent to executors; nothing is read",
    "transactional.runtime.executors.spark.dataframes": "what tasks of a Spark job send to the driver",
    "transactional.runtime.tasks.operator_factory": "a copy of a bolt within one process",
    "transactional.model.user_code.picklable": "whether a value can be sent, and a copy of it within one process",
    "transactional.runtime.tasks.pickling": "instances of bolts, from the tasks of a Spark job",
    "transactional.runtime.executors.workers.executor": "work for the driver's own processes",
    "transactional.runtime.executors.workers.pool": "the answers of the driver's own processes",
    "transactional.runtime.executors.workers.serving": "work from the driver, over a socket that nobody else has",
    "transactional.runtime.executors.spark.executor": "a task's input, from the driver's own job",
    "transactional.runtime.tasks.tuple_routing": "a copy of a custom grouping within one process",
}
DANGEROUS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "jsonpickle"}
EVALUATES = {"eval", "exec", "compile", "__import__"}


def modules() -> Iterator[tuple[str, list[Looked]]]:
    """Name and nodes of every module of the framework."""
    for package in PACKAGES:
        for path in python_files((package,)):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield name, nodes_of(path.read_text(encoding="utf-8"))


def imports(nodes: list[Looked]) -> Iterator[str]:
    """The first part of every module that is imported, and `pyspark.cloudpickle` as cloudpickle."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).split(".")[0]
            yield from (alias.name for alias in node.names)


def test_pickle_is_used_where_it_is_argued_for() -> None:
    found = {name for name, nodes in modules() if DANGEROUS & set(imports(nodes))}
    assert found == set(MAY_PICKLE)


def test_nothing_evaluates_text() -> None:
    called = {
        (name, node.func.id)
        for name, nodes in modules()
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EVALUATES
    }
    assert called == set()


def test_what_is_looked_for_is_found() -> None:
    text = "from pyspark import cloudpickle as sparks\nimport marshal.x\nfrom pickle import loads\n"
    assert set(imports(nodes_of(text))) >= {"cloudpickle", "marshal", "pickle"}
