"""Many seeds one after the other, and what they reached together."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.faults import CONSEQUENCES, RATES_MAX
from tests.simulation.harness import Simulation, SimulationFailed
from tests.simulation.shapes import shape_of
from transactional.core.machine.protocol import LATE, TRANSITIONS, Trigger
from transactional.core.store.progress import Phase


@dataclass(slots=True)
class Sweep:
    """The sum over some seeds."""

    seeds: int = 0
    transactions: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    """In how many seeds each was reached."""

    def run(self, seed: int) -> None:
        """Run one more seed. Raises `SimulationFailed`."""
        result = Simulation(seed).run()
        self.seeds += 1
        self.transactions += result.transactions
        self.reached += result.reached
        self.moves += result.moves
        self.met.update((name for name, number in result.reached.items() if number))
        self.met[f"a world of this shape: {shape_of(seed).value}"] += 1

    def add(self, other: Sweep) -> None:
        self.seeds += other.seeds
        self.transactions += other.transactions
        self.reached += other.reached
        self.moves += other.moves
        self.met += other.met

    def shares(self) -> dict[str, float]:
        """What share of the seeds has met each fault and each consequence, and has each shape."""
        shapes = sorted(name for name in self.met if name.startswith("a world of this shape"))
        return {name: self.met[name] / max(1, self.seeds) for name in (*RATES_MAX, *CONSEQUENCES, *shapes)}

    def counts(self) -> dict[str, int]:
        """Everything that has to be reached, and how often it was: faults, consequences, transitions."""
        names = {name: self.reached[name] for name in (*RATES_MAX, *CONSEQUENCES)}
        return names | {name_of(*move): self.moves[move[0].name, move[1].name] for move in TRANSITIONS}

    def late(self) -> dict[str, int]:
        """How often an event came late, by phase. Some are so rare that only long sweeps see them."""
        order = sorted(LATE, key=lambda move: name_of(*move))
        return {f"late: {name_of(*move)}": self.moves[move[0].name, move[1].name] for move in order}

    def missing(self) -> list[str]:
        """What was never reached."""
        return [name for name, count in self.counts().items() if not count]


def name_of(phase: Phase, trigger: Trigger) -> str:
    return f"{phase.name}: {trigger.value}"


def be_quiet() -> None:
    """A gap in a simulated log is no news, nor is a crash there, whose traceback takes longer to write than a seed."""
    logging.disable(logging.ERROR)


def begin() -> None:
    """What a process does first that runs nothing but seeds."""
    be_quiet()
    # What was imported stays; a world is small, and goes as a whole.
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def run_some(first: int, count: int) -> tuple[Sweep, list[tuple[int, str]]]:
    """Run some seeds; their sum, and those that failed with what there is to say about them."""
    sweep, failed = Sweep(), list[tuple[int, str]]()
    for seed in range(first, first + count):
        try:
            sweep.run(seed)
        except SimulationFailed as failure:
            failed.append((seed, str(failure)))
    return sweep, failed
