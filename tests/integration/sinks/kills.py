"""Many deaths of `dying_publisher` over one broker: `python -m tests.integration.sinks.kills FOLDER KILLS PROCESSING`.

Results are appended to `FOLDER/kills.jsonl`, one line for each topology that has survived its deaths, so that a loop
that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from spouts.kafka_admin import create_topic
from spouts.local_broker import LocalBroker
from tests.integration.kafka_count import end_lease
from tests.integration.sinks.dying_publisher import POINTS
from tests.integration.sinks.publications import check_publications

DEATHS = 6
"""So often the program of one topology dies, before it is left to live."""
PARTITIONS = 3


def die_often(bootstrap: str, folder: Path, topic: str, processing: str, chance: random.Random) -> Counter[str]:
    """Run a topology through several deaths to its end, and check what it has published. Return the deaths by point."""
    folder.mkdir(parents=True)
    for suffix in ("numbers", "counts"):
        create_topic(bootstrap, f"{topic}-{suffix}", PARTITIONS)
    store_url, deaths = f"sqlite:///{folder}/store.db", Counter[str]()
    points = [*chance.sample(list(POINTS), DEATHS - 1), "at random"]
    for death, point in enumerate([*points, "nowhere"]):
        number = chance.randrange(1, 4)
        planned = "nowhere" if point == "at random" else point
        given = [bootstrap, topic, processing, str(chance.choice((2, 3, 5))), store_url, planned, str(number)]
        module = [sys.executable, "-m", "tests.integration.sinks.dying_publisher"]
        began_s = time.monotonic()
        with open(folder / f"output-{death}", "wb") as output:
            program = subprocess.Popen([*module, *given], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            try:
                code = program.wait(chance.uniform(2, 8) if point == "at random" else 300)
            except subprocess.TimeoutExpired:
                program.kill()
                code = program.wait()
        if code == -signal.SIGKILL:
            deaths[point] += 1
            if (folder / "store.db").exists():
                end_leases(folder, topic)
        else:
            assert code == 0, f"{point}, {number}: exit {code} in {folder}, after {time.monotonic() - began_s:.0f} s"
    check_publications(bootstrap, topic, folder, store_url, PARTITIONS)
    return deaths


def end_leases(folder: Path, topic: str) -> None:
    """End the lease of a killed run; one that was killed before it had a lease has none."""
    try:
        end_lease(folder, topic)
    except Exception as error:
        if "no such table" not in str(error) and not isinstance(error, AssertionError):
            raise


def main(folder: Path, kills: int, processing: str) -> None:
    """Go on until so many deaths are survived."""
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "kills.jsonl"
    lines = [json.loads(line) for line in done.read_text("utf-8").splitlines()] if done.exists() else []
    count = sum(line["deaths"] for line in lines if line["processing"] == processing)
    with LocalBroker() as broker:
        while count < kills:
            seed = random.SystemRandom().randrange(2**31)
            chance, topic = random.Random(seed), f"kills-{seed}"
            deaths = die_often(broker.bootstrap, folder / topic, topic, processing, chance)
            count += deaths.total()
            line = {"processing": processing, "seed": seed, "deaths": deaths.total(), "points": dict(deaths)}
            with done.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            sys.stdout.write(f"{count} deaths survived\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), sys.argv[3])
