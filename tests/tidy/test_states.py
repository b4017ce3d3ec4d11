"""Abilities of states: nothing is probed for, as in `test_spouts`; and what protocols are asked for at run time."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.redis.state import RedisMapState
from state.sql.state import SqlMapState
from tests.tidy.files import ROOT, python_files
from tests.tidy.parsing import nodes_of, parsed
from tools import counts
from transactional.core.ports import State

LOOKED_FOR_MOST = 8
"""So many places may look at run time whether an object has the methods of a protocol."""
ALLOWED = {"State", "type", "StaticState", "TridentState"}
"""What a user gives may be asked: whether it is a state at all, an instance, and which of those that a stream reads."""


@pytest.fixture(scope="module")
def checkout() -> Any:
    """This checkout, parsed and walked once. Only calls and classes are looked at here."""
    checkout = counts.Checkout(ROOT)
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in python_files(counts.PRODUCT)}
    checkout.modules = {path: parsed(source) for path, source in sources.items()}
    checkout.nodes = {path: [*nodes_of(source), *parsed(source).body] for path, source in sources.items()}
    return checkout


def test_no_ability_is_probed_for(checkout: Any) -> None:
    asked = counts.questions_of_states(checkout)
    assert [each for each in asked if each.split()[-1] not in ALLOWED] == []


@pytest.mark.parametrize(
    "line", ["if isinstance(state, DiskState): pass", 'hasattr(component.state, "bind")', "issubclass(type(state), A)"]
)
def test_a_probe_is_noticed(tmp_path: Path, line: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "asking.py").write_text(line, "utf-8")
    assert len(counts.questions_of_states(counts.Checkout(tmp_path))) == 1


def test_few_protocols_are_looked_for(checkout: Any) -> None:
    assert len(counts.probes(checkout)) <= LOOKED_FOR_MOST


def test_an_optional_ability_is_a_method_of_the_base() -> None:
    tree = ast.parse(Path("transactional/core/ports/states.py").read_text())
    assert not [each.name for each in tree.body if isinstance(each, ast.ClassDef) and "Protocol" in ast.unparse(each)]


@pytest.mark.parametrize("kind", [DeltaMapState, SqlMapState, RedisMapState, MemoryMapState])
def test_every_state_of_ours_is_one(kind: type) -> None:
    assert issubclass(kind, State)
