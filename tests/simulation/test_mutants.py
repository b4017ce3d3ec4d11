"""Every wrong coordinator and every wrong table is found within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.harness import Simulation, SimulationFailed
from tests.simulation.mutants import COORDINATORS, STATES
from tests.simulation.process import WatchedCoordinator
from tests.simulation.tables import SimulatedState

SEEDS_MAX = 200


def found(simulations: Iterator[Simulation]) -> bool:
    """Whether one of the runs fails; the rest is not run."""
    for simulation in simulations:
        try:
            simulation.run()
        except SimulationFailed:
            return True
    return False


@pytest.mark.parametrize("coordinator", COORDINATORS)
def test_a_wrong_coordinator_is_found(coordinator: type[WatchedCoordinator]) -> None:
    assert found(Simulation(seed, coordinator=coordinator, verify=False) for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("state", STATES)
def test_a_wrong_table_is_found(state: type[SimulatedState]) -> None:
    assert found(Simulation(seed, state=state, verify=False) for seed in range(SEEDS_MAX))


def test_the_right_ones_are_not_found_wrong_without_verify_either() -> None:
    assert not found(Simulation(seed, verify=False) for seed in range(20))
