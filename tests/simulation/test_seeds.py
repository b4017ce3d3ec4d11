"""The coordinator, driver and store under faults: every seed must end with all tables right and all records committed.

To run one seed with its event log: `python -m tests.simulation --seed N --log`.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import log_of
from tests.simulation.faults import CONSEQUENCES, RATES_MAX
from tests.simulation.harness import Simulation, SimulationFailed
from tests.simulation.mutants import StartsAttemptsAnew
from tests.simulation.sweep import Sweep, run_some
from transactional.core.machine.protocol import TRANSITIONS

ROOT = Path(__file__).parents[2]
CHUNK = 25
SEEDS = 500
"""Of `make test-all`, which are always the same; `make proof` has 10,000 others."""


@functools.cache
def swept(first: int) -> tuple[Sweep, list[tuple[int, str]]]:
    """Once for all tests."""
    return run_some(first, CHUNK)


@pytest.mark.sampled(SEEDS // CHUNK)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds(first: int) -> None:
    sweep, failed = swept(first)
    assert failed == []
    assert sweep.transactions > CHUNK


def test_most_is_reached_by_a_few_seeds() -> None:
    sweep, failed = swept(0)
    assert failed == []
    assert len(sweep.missing()) < 0.2 * (len(RATES_MAX) + len(CONSEQUENCES) + len(TRANSITIONS))


@pytest.mark.long("test_most_is_reached_by_a_few_seeds")
def test_all_is_reached_by_those_of_make_test() -> None:
    """Every fault, every consequence and every transition. If it no longer is, take more seeds."""
    total = Sweep()
    for first in range(0, SEEDS, CHUNK):
        total.add(swept(first)[0])
    assert total.missing() == []


def test_one_seed_is_one_event_log_to_the_byte() -> None:
    """Also in another process, where sets and dictionaries of strings have another order."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3", "--seeds", "3", "--log"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, text=True).stdout
    assert there.count("\n") > 300
    assert there == "".join(f"seed {seed}\n{log_of(seed)}\n" for seed in range(3, 6))


def test_another_seed_is_another_run() -> None:
    first, second = Simulation(1), Simulation(2)
    first.run()
    second.run()
    assert first.text() != second.text()


def first_failure() -> tuple[Simulation, SimulationFailed]:
    """Of a coordinator that is known to be wrong."""
    for seed in range(20):
        simulation = Simulation(seed, coordinator=StartsAttemptsAnew, verify=False)
        try:
            simulation.run()
        except SimulationFailed as failure:
            return simulation, failure
    raise AssertionError("not found")


def test_a_failure_names_its_seed_and_shows_the_end_of_its_log() -> None:
    simulation, failure = first_failure()
    message = str(failure)
    assert message.startswith(f"seed {simulation.seed} (")
    assert "\nthe last lines of its event log:\n" in message
    assert message.endswith(simulation.text(last=10))
