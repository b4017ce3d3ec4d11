"""The stored names stay as they are, each in one place: nobody types one by hand."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.tidy.parsing import parsed
from transactional.model import names

ROOT = Path(__file__).parents[3]
OURS = [path for package in ("transactional", "spouts", "state", "sinks") for path in (ROOT / package).rglob("*.py")]
MARKS = (
    *("#compaction", "#repair", "/joining", "dead-letters", "compacted_files", "added_files"),
    *("transactional.owner", "transactional.combine", "transactional.logCommits", "transactional.schemaVersion"),
    *("transactional.features", "transactional.expires", "#horizon", "#previous-horizon"),
)


def test_the_names_are_those_of_tables_and_stores_that_exist() -> None:
    owner = names.owner_of("orders", "totals")
    stored = [owner, names.compaction_of(owner), names.repair_of(owner), names.joining_of("totals"), names.DEAD_LETTERS]
    assert stored == [
        "orders/totals",
        "orders/totals#compaction",
        "orders/totals#repair",
        "totals/joining",
        "dead-letters",
    ]
    assert (names.OWNER_PROPERTY, names.COMBINE_PROPERTY) == ("transactional.owner", "transactional.combine")
    assert names.LOG_COMMITS_PROPERTY == "transactional.logCommits"
    assert names.SCHEMA_VERSION_PROPERTY == "transactional.schemaVersion"
    horizons = (names.horizon_of(owner), names.previous_horizon_of(owner), names.horizon_txid_of(owner))
    assert horizons == (f"{owner}#horizon", f"{owner}#previous-horizon", f"{owner}#horizon-txid")
    features = (names.STAGED_FEATURE, names.DELETES_FEATURE)
    assert (names.FEATURES_PROPERTY, features) == ("transactional.features", ("staged", "deletes"))
    notes = (names.OWNER_NOTE, names.COMPACTED_FILES_NOTE, names.ADDED_FILES_NOTE)
    assert notes == ("owner", "compacted_files", "added_files")


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_stands_in_the_module_of_names_alone(mark: str) -> None:
    found = [str(path.relative_to(ROOT)) for path in OURS if any(mark in text for text in strings(path))]
    assert found == ["transactional/model/names.py"]


@functools.cache
def strings(path: Path) -> list[str]:
    """The strings of a file that are no docstrings."""
    tree = parsed(path.read_text("utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said]
    return [value for value in found if isinstance(value, str)]
