"""A loop of deaths: a program is started again and again, and dies at one of its points, until it may finish."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from transactional.core.store import Lease
from transactional.core.store.progress import Progress
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import AttemptId

DEATHS = 6
"""The program of one topology dies so often before it may finish."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A topology whose program kills itself at one of its points, and what must hold of it in the end.

    The module is run in the folder, with these arguments: the topology's id, its processing, the size of its batches,
    the URL of its store, the point and its number, and those that `draw_arguments` returns. With the point "nowhere" it
    lives until everything is done. A replay after a death is a batch of another size.
    """

    module: str
    points: Collection[str]
    topology_id: str
    folder: Path
    check: Callable[[], None]
    processing: str
    store_url: str
    draw_arguments: Callable[[random.Random, str], Sequence[str]] = lambda *_: ()
    """Draws arguments of the life that ends at a point. The last one's is "nowhere": then nothing kills the program."""
    points_of_start: Collection[str] = ()
    """The points to which a life comes once."""
    maintain: Callable[[random.Random], None] = lambda _: None
    """What others do to the target between two lives."""


def die_often(victim: Victim, chance: random.Random, planned_deaths: int = DEATHS) -> Counter[str]:
    """Run a topology through several deaths to its end, and check it. Return the deaths by point."""
    deaths = Counter[str]()
    points = [*chance.sample(list(victim.points), planned_deaths - 1), "at random"]
    for life, point in enumerate([*points, "nowhere"]):
        # With a higher number the program would live to its end.
        number = 1 if point in victim.points_of_start else chance.randrange(1, 4)
        arguments = [
            *(victim.topology_id, victim.processing, str(chance.choice((2, 3, 5))), victim.store_url),
            *("nowhere" if point == "at random" else point, str(number)),
            *victim.draw_arguments(chance, point),
        ]
        began_s = time.monotonic()
        code = _live(victim, arguments, life, chance.uniform(2, 8) if point == "at random" else None)
        if code == -signal.SIGKILL and point != "nowhere":
            deaths[point] += 1
            end_lease(victim.store_url, victim.topology_id)
        else:
            elapsed_s = time.monotonic() - began_s
            assert code == 0, f"{point}, {number}: exit {code} in {victim.folder}, life {life}, after {elapsed_s:.0f} s"
        victim.maintain(chance)
    victim.check()
    return deaths


def _live(victim: Victim, arguments: Sequence[str], life: int, lives_s: float | None) -> int:
    """Run the program once, for so many seconds at most, and return its exit code."""
    with open(victim.folder / f"output-{life}", "wb") as output:
        command = [sys.executable, "-m", victim.module, *arguments]
        program = subprocess.Popen(command, cwd=victim.folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            return program.wait(lives_s or 300)
        except subprocess.TimeoutExpired:
            program.kill()
            code = program.wait()
            assert lives_s is not None, f"it hangs: {victim.folder}, life {life}"
            return code


def end_lease(store_url: str, topology_id: str) -> None:
    """End the lease of a killed run, as time would. A run that was killed early has none."""
    with closing(SqlCoordinatorStore(store_url)) as store:
        for status in store.status(topology_id):
            if status.owner is not None:
                store.release(Lease(topology_id, status.epoch, status.owner, Progress(), AttemptId(0)))
