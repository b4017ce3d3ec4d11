"""A long sweep has to strike with every fault, and to reach every consequence and every transition, or it fails."""

from __future__ import annotations

import sys

import pytest

from tests.simulation import __main__ as command
from tests.simulation.sweep import Sweep


def test_what_is_missing_is_reported() -> None:
    nothing = Sweep()
    assert "the process crashes" in nothing.missing()
    assert "PLANNING: batch planned" in nothing.missing()
    assert "late: WAITING: batch planned" in nothing.late()


@pytest.mark.parametrize(("seeds", "code"), [(command.LONG, 1), (command.LONG - 1, 0)])
def test_a_long_sweep_that_has_not_reached_everything_fails(
    seeds: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    incomplete = Sweep(seeds=seeds)
    incomplete.reached["the process crashes"] += 1
    monkeypatch.setattr(command, "run_all", lambda first, count, jobs: (incomplete, []))
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", str(seeds)])
    assert command.main() == code
    assert ("never reached: planning fails, " in capsys.readouterr().out) == bool(code)


def test_a_seed_that_fails_fails_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_all", lambda first, count, jobs: (Sweep(), [7]))
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "10"])
    assert command.main() == 1
