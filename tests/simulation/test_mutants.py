"""Every wrong coordinator, table, store, source and spout is found within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.simulation.harness import Simulation, SimulationFailed
from tests.simulation.mutants import COORDINATORS, RecordsWhatWasReadTooLate
from tests.simulation.wrong_parts import LINES, SOURCES, SPOUTS, STATES, STORES

SEEDS_MAX = 300


def found(simulations: Iterator[Simulation]) -> bool:
    """Whether one of the runs fails; the rest is not run."""
    for simulation in simulations:
        try:
            simulation.run()
        except SimulationFailed:
            return True
    return False


def bad(part: str, kinds: Iterable[type]) -> list[Any]:
    """A parameter for each wrong part, called by its name."""
    return [pytest.param(part, kind, id=kind.__name__) for kind in kinds]


WRONG = [
    *bad("coordinator", COORDINATORS),
    *bad("state", STATES),
    *bad("line", LINES),
    *bad("store", STORES),
    *bad("source", SOURCES),
    *bad("spout", SPOUTS),
]


@pytest.mark.parametrize(("part", "kind"), WRONG)
def test_what_is_wrong_is_found(part: str, kind: Any) -> None:
    assert found(Simulation(seed, verify=False, **{part: kind}) for seed in range(SEEDS_MAX))


def test_what_was_read_and_is_not_recorded_in_time_is_found_where_coordinator_and_store_are_compared() -> None:
    simulations = [Simulation(seed, coordinator=RecordsWhatWasReadTooLate) for seed in range(20)]
    assert not found(each for each in simulations if not each.replays_exactly)
    with pytest.raises(SimulationFailed, match="the coordinator knows"):
        next(each for each in simulations if each.replays_exactly).run()


def test_the_right_ones_are_not_found_wrong_without_verify_either() -> None:
    assert not found(Simulation(seed, verify=False) for seed in range(20))
