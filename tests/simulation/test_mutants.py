"""Every wrong coordinator, table, store, source and spout is found within a bounded number of seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from tests.simulation.harness import NONE, Simulation, SimulationFailed
from tests.simulation.mutants import COORDINATORS, RecordsWhatWasReadTooLate
from tests.simulation.shapes import SHAPES, Shape, shape_of
from tests.simulation.wrong_expiring import EXPIRING
from tests.simulation.wrong_parts import LINES, SOURCES, SPOUTS, STATES, STORES, JoinsAtOnce
from tests.simulation.wrong_reliable import RELIABLE_COORDINATORS, RELIABLE_EXECUTORS
from tests.simulation.wrong_segments import SEGMENTED, STAGING, TELLING

SEEDS_MAX = 300
WORLDS: dict[type, Mapping[str, float]] = {
    JoinsAtOnce: {
        "a committer joins": 0.05,
        "the process crashes": 0.05,
        "a process that fences stands still": 0.3,
        "a second coordinator is started": 0.02,
    }
}
"""The faults that have to meet before it shows, where they rarely do by themselves."""
OF_SHAPES: dict[type, Collection[Shape]] = {
    **dict.fromkeys((*RELIABLE_COORDINATORS, *RELIABLE_EXECUTORS), (Shape.AT_LEAST_ONCE, Shape.AT_MOST_ONCE)),
    **dict.fromkeys((*SEGMENTED, *STAGING), (Shape.STAGED,)),
    **dict.fromkeys(TELLING, (Shape.CHANGES,)),
    **dict.fromkeys(EXPIRING, (Shape.EXPIRING,)),
}
"""The shapes in which it can show; the seeds of others are not tried."""


KNOWN: dict[str, int] = {
    "ListsAfterItLoads": 286,
    "ForgetsThatOthersLead": 278,
    "ForgetsDeletesOnAReplay": 185,
    "JoinsAtOnce": 158,
    "StartsAtTheEnd": 122,
    "FencesBlindly": 104,
    "RemovesBeforeItCompares": 74,
    "CommitsACompactionOverWhatHasChanged": 58,
    "ReplacesWhatItKnows": 58,
    "LeavesNothingToRollBack": 41,
    "KeepsWhatADeadAttemptDeletedAway": 41,
    "LeavesLaterOnesAlive": 41,
    "RemovesByTheNewHorizon": 37,
    "CountsTheHorizonOfADeadAttempt": 37,
    "CommitsWhatIsNotThere": 34,
    "DoesNotRecordWhatIsSetAside": 32,
    "FinishesAJobThatWasRepeated": 31,
    "SkipsWhatComesAgain": 27,
    "ForgetsWhichHaveFailed": 27,
    "ForgetsThoseOfEarlierBatches": 27,
    "MovesTheVersionFirst": 24,
    "AddsToWhatIsThere": 14,
    "StartsTheNextBeforeItRecords": 12,
    "ForgetsWhereItBegan": 12,
    "StartsAttemptsAnew": 11,
    "SkipsWhatFailsTooOften": 10,
    "ReportsBothOfTwo": 10,
    "RebasesOverAnOptimize": 10,
    "AsksATransactionalSpoutAgain": 8,
    "TellsNoLosses": 7,
    "RepeatsWhatMayHaveBeenGiven": 7,
    "ReadsOneMore": 7,
    "ForgetsWhatIsInFlight": 7,
    "CountsNoEmptiedBatch": 7,
    "KeepsRowsOfDeadAttempts": 6,
    "KeepsSegmentsOfDeadAttempts": 6,
    "AddsToWhatHasExpired": 5,
    "TellsWhatIsNotWritten": 4,
    "TellsOverADeadAttempt": 4,
    "TellsOfTheBatchAlone": 4,
    "EmptiesWhatHasFailed": 3,
    "WritesNothingForNothing": 2,
    "NamesFilesByTransaction": 2,
    "LetsEverybodyWrite": 2,
    "AddsACompactionToItsRange": 2,
    "ReadsByTheWritersHandle": 1,
    "SkipsEveryReplay": 1,
    "ReadsWhatADeadAttemptHasLeft": 1,
    "NeverWritesTwice": 1,
    "DrawsIdsPerLease": 1,
}
"""Seeds that have found some of them, the soonest, and are tried first where none is remembered. One that does not any
more costs time, and nothing else."""


def found(simulations: Iterable[Simulation]) -> int | None:
    """The seed of the first run that fails; the rest is not run."""
    for simulation in simulations:
        try:
            simulation.run()
        except SimulationFailed:
            return simulation.seed
    return None


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
    *bad("coordinator", RELIABLE_COORDINATORS),
    *bad("reliable", RELIABLE_EXECUTORS),
    *bad("segmented", SEGMENTED),
    *bad("staging", STAGING),
    *bad("state", TELLING),
    *bad("expiring", EXPIRING),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("part", "kind"), WRONG)
def test_what_is_wrong_is_found(part: str, kind: Any, request: pytest.FixtureRequest) -> None:
    """The seed that has found it the last time is tried first."""
    known, world = getattr(request.config, "cache", None), WORLDS.get(kind, NONE)
    last = KNOWN.get(kind.__name__, 0)
    last = known.get(f"simulation/{kind.__name__}", last) if known else last
    shapes = OF_SHAPES.get(kind, SHAPES)
    seeds = [last, *(seed for seed in range(SEEDS_MAX) if seed != last and shape_of(seed) in shapes)]
    seed = found(Simulation(seed, verify=False, always=world, **{part: kind}) for seed in seeds)
    assert seed is not None
    if known:
        known.set(f"simulation/{kind.__name__}", seed)


def test_what_is_known_to_be_found_is_tried() -> None:
    assert set(KNOWN) <= {str(each.id) for each in WRONG}


def test_what_was_read_and_is_not_recorded_in_time_is_found_where_coordinator_and_store_are_compared() -> None:
    simulations = [Simulation(seed, coordinator=RecordsWhatWasReadTooLate) for seed in range(10)]
    assert found(each for each in simulations if not each.replays_exactly) is None
    with pytest.raises(SimulationFailed, match="the coordinator knows"):
        next(each for each in simulations if each.replays_exactly).run()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 20, 5))
@pytest.mark.parametrize("kind", WORLDS)
def test_the_right_one_is_not_found_wrong_in_that_world(kind: type, first: int) -> None:
    assert found(Simulation(seed, always=WORLDS[kind]) for seed in range(first, first + 5)) is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_the_right_ones_are_not_found_wrong_without_verify_either(first: int) -> None:
    assert found(Simulation(seed, verify=False) for seed in range(first, first + 5)) is None
