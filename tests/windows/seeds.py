"""The seeds whose worlds are tests: few, and together they meet whatever may be drawn, and all that may happen.

Among them are those that find the wrong parts which a test plants. `python -m tests.windows` runs thousands.
"""

from __future__ import annotations

from tests.windows.bolt_world import BoltWorld
from tests.windows.cascade_world import CascadeWorld
from tests.windows.count_world import CountWorld
from tests.windows.join_bolt_world import JoinBoltWorld
from tests.windows.join_world import JoinWorld
from tests.windows.world import World

SEEDS: dict[type[World], tuple[int, ...]] = {
    World: (30, 27, 1, 0, 4, 5, 14, 17, 18, 34),
    BoltWorld: (14, 2, 3, 4, 5),
    CountWorld: (1, 20, 0, 3, 4, 6, 7, 10),
    CascadeWorld: (8, 1, 0, 2, 3, 4, 5, 27, 35),
    JoinWorld: (0, 7, 2, 3, 4, 5),
    JoinBoltWorld: (0, 7, 2, 3, 4, 5),
}
"""The first one of a kind is run by `make check`."""
MANY = 100
"""So many worlds of a kind draw whatever may be drawn."""
ALWAYS = ("is_opaque", "in_flight", "commit_steps", "step_ms")
TIMES = (*ALWAYS, "by_transaction", "tick_ms", "idle_after_s", "max_delay_s")
CHOICES: dict[type[World], tuple[str, ...]] = {
    World: TIMES,
    BoltWorld: TIMES,
    CountWorld: ALWAYS,
    CascadeWorld: (*TIMES, "outer", "on"),
    JoinWorld: (*TIMES, "how", "keeps_all"),
    JoinBoltWorld: (*TIMES, "how", "keeps_all", "key"),
}
"""Attributes that are drawn, besides windows and faults."""
FAULTS = ("crash after a write", "crash before a write", "crash between two steps", "failure", "a partition appears")
BY_TIME = ("late tuples", "windows closed", "transactions without a tuple", "waited for a partition without a record")
JOINS = (*FAULTS, *BY_TIME, "pairs", "without a partner")
WINDOWS = (*FAULTS, *BY_TIME, "windows open", "sessions became one", "tasks close windows")
HAPPENINGS: dict[type[World], tuple[str, ...]] = {
    World: WINDOWS,
    BoltWorld: (*FAULTS, *BY_TIME, "windows open"),
    CountWorld: (*FAULTS, "windows closed", "windows open"),
    CascadeWorld: (*WINDOWS, "outer windows closed", "top windows closed", "outer sessions cut"),
    JoinWorld: JOINS,
    JoinBoltWorld: JOINS,
}
"""What worlds of a kind have to go through, by its name in `World.reached`."""


def situations(world: World) -> set[tuple[str, object]]:
    """What was drawn for a world."""
    windows = (world.length_s, world.every_s) if world.gap_s is None else (world.gap_s, world.longest_s)
    if isinstance(world, CountWorld):
        windows = world.length, world.every
    faults = world.crash_rate > 0, world.failure_rate > 0
    choices = {(name, getattr(world, name)) for name in CHOICES[type(world)]}
    return {("window", windows), ("faults", faults), *choices}
