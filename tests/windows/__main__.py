"""`python -m tests.windows --seeds 3000`: many worlds of windows, and what they have reached."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.windows.bolt_world import BoltWorld
from tests.windows.cascade_world import CascadeWorld
from tests.windows.count_world import CountWorld
from tests.windows.join_bolt_world import JoinBoltWorld
from tests.windows.join_world import JoinWorld
from tests.windows.world import World, run_seeds

CHUNK = 100
WORLDS = {
    "time": World,
    "bolts": BoltWorld,
    "counts": CountWorld,
    "cascades": CascadeWorld,
    "joins": JoinWorld,
    "join-bolts": JoinBoltWorld,
}


def main() -> None:
    """Run them, and tell how it goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=3_000, help="how many")
    parser.add_argument("--of", choices=WORLDS, default="time", help="which windows")
    given = parser.parse_args()
    reached: Counter[str] = Counter()
    began_s = time.monotonic()
    for first in range(given.seed, given.seed + given.seeds, CHUNK):
        reached += run_seeds(first, min(CHUNK, given.seed + given.seeds - first), None, WORLDS[given.of])
        sys.stdout.write(f"{first - given.seed + CHUNK} worlds in {time.monotonic() - began_s:.0f} s\n")
        sys.stdout.flush()
    for name, count in sorted(reached.items()):
        sys.stdout.write(f"{count:>10,}  {name}\n")


main()
