"""Joined windows equal plain Python, whatever happens in their worlds; and they find what is known to be wrong.

Storm row C14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.windows.join_bolt_world import JoinBoltWorld
from tests.windows.join_world import JoinWorld
from tests.windows.test_worlds import NowLate, ReadsItsOwn, in_database, in_delta, in_log, is_found
from tests.windows.world import Parts, run_seeds
from transactional.topology.streams import windowed_joins
from transactional.topology.streams.windowed_joins import JoinWindow, keeps_unmatched
from transactional.topology.windows import join_bolt

join_rows = windowed_joins._join_side

# What the worlds find is planted here; that they find nothing in the code is tests/windows/test_worlds.py.
pytestmark = pytest.mark.sampled(3, tests=True)


@pytest.mark.long("tests/windows/test_worlds.py::test_windows_in_tables_are_the_same")
@pytest.mark.parametrize("make", [in_database, in_delta, in_log])
def test_joins_in_tables_are_the_same(make: Callable[..., Any], tmp_path: Path) -> None:
    parts = Parts(state=lambda _, name, kind: make(tmp_path, name, kind))
    assert run_seeds(3, 1, parts, JoinWorld)["transactions"] > 1


def test_tuples_that_a_dead_attempt_has_kept_are_found() -> None:
    parts = Parts(state=lambda world, name, kind: ReadsItsOwn(table=world.tables[name], kind=kind))
    assert is_found(parts, JoinWorld, known=1)


def test_lateness_that_is_judged_while_processing_is_found() -> None:
    assert is_found(Parts(runner=NowLate), JoinWorld)


def nobody_is_lonely(joined: Any, rows: Any, kind: str, *, width: int) -> Iterator[Any]:
    """As if all joins were inner."""
    return join_rows(joined, rows, "inner", width=width)


def the_newest_only(joined: Any, rows: Any, kind: str, *, width: int) -> Iterator[Any]:
    """One partner is enough."""
    return join_rows(joined, rows[-1:], kind, width=width)


@pytest.mark.parametrize("wrong", [nobody_is_lonely, the_newest_only])
def test_rows_that_are_joined_by_another_rule_are_found(
    wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windowed_joins, "_join_side", wrong)
    assert is_found(world=JoinWorld)


def test_tuples_whose_keys_are_null_and_are_joined_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_joins, "digest", lambda text: "NULL")
    assert is_found(world=JoinWorld)


def test_tuples_that_are_left_out_though_they_are_kept_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_joins, "keeps_unmatched", lambda kinds, number: not keeps_unmatched(kinds, number))
    assert is_found(world=JoinWorld)


def test_sides_that_are_taken_for_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    place_of = JoinWindow._side_number
    monkeypatch.setattr(JoinWindow, "_side_number", lambda self, kept: 1 - place_of(self, kept))
    assert is_found(world=JoinWorld)


def test_windows_that_are_joined_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    of_window = JoinWindow.__call__

    def twice(self: JoinWindow, row: Any) -> Iterator[Any]:
        yield from of_window(self, row)
        yield from of_window(self, row)

    monkeypatch.setattr(JoinWindow, "__call__", twice)
    assert is_found(world=JoinWorld)


def one_partner_is_enough(self: Any, before: Any, tuples: Any) -> Iterator[Any]:
    """As if no two tuples of an input had the same key."""
    return join_tuples(self, before, list({self.own.of(each): each for each in tuples}.values()))


def nobody_waits(self: Any, before: Any, tuples: Any) -> Iterator[Any]:
    """As if all joins were inner."""
    return join_tuples(replace(self, kind="inner"), before, tuples)


join_tuples = join_bolt._Join.join_tuples


@pytest.mark.parametrize("wrong", [one_partner_is_enough, nobody_waits])
def test_a_bolt_that_joins_by_another_rule_is_found(wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_bolt._Join, "join_tuples", wrong)
    assert is_found(world=JoinBoltWorld)
