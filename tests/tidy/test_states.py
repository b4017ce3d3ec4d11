"""Abilities of states: nothing is probed for, as in `test_spouts`; and what protocols are asked for at run time."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.redis.state import RedisMapState
from state.sql.state import SqlMapState
from tests.tidy.rooms import PACKAGES
from transactional.ports import State

ASKED_FOR = Counter(
    {
        "transactional/engine/history/observing.py": 2,
        "transactional/execution/step_work.py": 1,
        "transactional/topology/places.py": 1,
    }
)
"""Where protocols may still be asked for at run time, and how many at most."""
PROBE = re.compile(r"(isinstance|issubclass|hasattr|getattr|callable)\((type\()?[\w.]*\bstate(\(\))?\)?,")
ALLOWED = {
    "not isinstance(state, State):": "what is no state at all",
    "if isinstance(state, type) else": "a class in place of an instance",
    "if isinstance(state, StaticState):": "what a stream looks up: a table of others",
    "if not isinstance(state, TridentState):": "what a stream looks up: nothing of that",
}


def lines_of(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """The lines of the packages in which it is found, with their files."""
    files = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.py"))]
    lines = [(str(path), line.strip()) for path in files for line in path.read_text().splitlines()]
    return [each for each in lines if pattern.search(each[1])]


def test_no_ability_is_probed_for() -> None:
    assert [each for each in lines_of(PROBE) if not any(known in each[1] for known in ALLOWED)] == []


@pytest.mark.parametrize("line", ["if isinstance(state, DiskState):", 'hasattr(component.state, "bind")'])
def test_a_probe_is_noticed(line: str) -> None:
    assert PROBE.search(line)


def test_no_protocol_is_asked_for_that_was_not_before() -> None:
    found = Counter(path for path, _ in lines_of(re.compile("^@runtime_checkable")))
    assert found <= ASKED_FOR, found - ASKED_FOR


def test_an_optional_ability_is_a_method_of_the_base() -> None:
    tree = ast.parse(Path("transactional/ports/states.py").read_text())
    assert not [each.name for each in tree.body if isinstance(each, ast.ClassDef) and "Protocol" in ast.unparse(each)]


@pytest.mark.parametrize("kind", [DeltaMapState, SqlMapState, RedisMapState, MemoryMapState])
def test_every_state_of_ours_is_one(kind: type) -> None:
    assert issubclass(kind, State)


@pytest.mark.parametrize(
    "name",
    [
        "transactional.ports:TransactionState",
        "transactional.ports:DiskState",
        "transactional.ports.examining:Examinable",
        "transactional.ports.rewinding:RewindableState",
    ],
)
def test_an_old_name_still_is_the_state_and_says_so(name: str) -> None:
    module, _, old = name.partition(":")
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use State of transactional.ports"):
        assert getattr(import_module(module), old) is State


def test_what_never_was_there_is_not_there() -> None:
    assert not hasattr(import_module("transactional.ports"), "Stated")
