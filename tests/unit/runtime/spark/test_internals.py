"""Canaries: the private names of PySpark that `transactional.runtime.spark.internals` uses are there, for it alone."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pyspark
import pytest

from tests.tidy.parsing import parsed

ROOT = Path(__file__).parents[4]
HOME = "transactional/runtime/spark/internals.py"
PRIVATE = {
    *("_gateway", "_ensure_initialized", "_active_spark_context", "_jsparkSession"),
    *("_temp_dir", "_jvm", "_jsc", "_jrdd", "_jrdd_deserializer", "_jdf", "_jc", "_load_from_socket"),
}
USED = [
    ("pyspark.SparkContext", "_gateway", "to see whether this process has a JVM already"),
    ("pyspark.SparkContext", "_ensure_initialized", "to have PySpark take the JVM that was started for it"),
    ("pyspark.SparkContext", "_active_spark_context", "to see whether a session runs"),
    ("pyspark.SparkContext", "_jvm", "to look Java's classes up"),
    ("pyspark.java_gateway", "launch_gateway", "to start the JVM with stderr of our own"),
    ("pyspark.util", "_load_from_socket", "to read what a job returns"),
    ("pyspark.sql.udf", "UserDefinedFunction", "to make a function over Arrow batches without pandas"),
    ("pyspark.util", "PythonEvalType", "to say that the function is over Arrow batches"),
    ("pyspark.util.PythonEvalType", "SQL_MAP_ARROW_ITER_UDF", "to say that the function is over Arrow batches"),
    ("pyspark.daemon", "traceback", "to keep idle workers from printing a traceback when they end"),
    ("py4j.protocol", "Py4JError", "to catch what a call into the JVM raises"),
]
SET_BY = [
    ("pyspark.SparkContext", "_temp_dir", "to leave what tasks send where PySpark has its temporary files"),
    ("pyspark.SparkContext", "_jsc", "to run jobs, and to see whether the session still runs"),
    ("pyspark.core.rdd.RDD", "_jrdd", "to hand an RDD to Spark's scheduler"),
    ("pyspark.core.rdd.RDD", "_jrdd_deserializer", "to read what a job returns"),
    ("pyspark.sql.classic.dataframe.DataFrame", "_jdf", "to apply a function over Arrow batches"),
    ("pyspark.sql.classic.column.Column", "_jc", "to apply a function over Arrow batches"),
    ("pyspark.sql.SparkSession", "_jsparkSession", "to tell a classic session from one of Spark Connect"),
]
"""Attributes of objects, which their classes' code sets."""
ARGUMENTS = [
    ("pyspark.java_gateway.launch_gateway", "popen_kwargs"),
    ("pyspark.SparkContext._ensure_initialized", "gateway"),
    ("pyspark.util._load_from_socket", "serializer"),
]


def found(path: str) -> object:
    """A module, or what is in one."""
    try:
        return importlib.import_module(path)
    except ImportError:
        where, _, name = path.rpartition(".")
        return getattr(found(where), name)


def gone(where: str, name: str, why: str) -> str:
    """What the one who updates PySpark reads."""
    return (
        f"PySpark {pyspark.__version__} no longer has {where}.{name}, which is used {why}. It was no public name: see "
        f"what replaces it, and change {HOME}"
    )


@pytest.mark.parametrize(("where", "name", "why"), USED)
def test_pyspark_has_a_name_that_is_used(where: str, name: str, why: str) -> None:
    assert hasattr(found(where), name), gone(where, name, why)


@pytest.mark.parametrize(("where", "name", "why"), SET_BY)
def test_pyspark_sets_an_attribute_that_is_used(where: str, name: str, why: str) -> None:
    kind = found(where)
    assert isinstance(kind, type)
    assert hasattr(kind, name) or f"self.{name}" in inspect.getsource(kind), gone(where, name, why)


@pytest.mark.parametrize(("function", "argument"), ARGUMENTS)
def test_pyspark_takes_an_argument_that_is_given(function: str, argument: str) -> None:
    given = found(function)
    assert callable(given)
    assert argument in inspect.signature(given).parameters, gone(function, argument, "as an argument")


def test_a_name_that_is_gone_is_reported_in_a_sentence() -> None:
    with pytest.raises(AssertionError, match=r"no longer has pyspark\.SparkContext\._gone, which is used to see"):
        test_pyspark_has_a_name_that_is_used("pyspark.SparkContext", "_gone", "to see")


def test_nobody_else_uses_a_private_name() -> None:
    files = [path for package in ("transactional", "state", "spouts") for path in (ROOT / package).rglob("*.py")]
    uses = [(str(path.relative_to(ROOT)), name) for path in files for name in names_in(path) if name in PRIVATE]
    assert {path for path, _ in uses} == {HOME}, uses
    assert {name for _, name in uses} | {"_jsparkSession"} == PRIVATE


def names_in(path: Path) -> list[str]:
    """The attributes and imported names in a file."""
    nodes = list(ast.walk(parsed(path.read_text("utf-8"))))
    attributes = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    return attributes + [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
