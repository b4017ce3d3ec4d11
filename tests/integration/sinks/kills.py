"""Many deaths of `dying_publisher` over one broker: `python -m tests.integration.sinks.kills FOLDER KILLS PROCESSING`.

A fourth argument is the kind of the coordinator's store, "sqlite" or "postgres". Results are appended to
`FOLDER/kills.jsonl`, one line for each topology that has survived its deaths, so that a loop that was interrupted
continues.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from spouts.kafka_admin import create_topic
from spouts.local_broker import LocalBroker
from tests.integration.postgres import new_schema, postgres_server
from tests.integration.sinks.dying_publisher import POINTS
from tests.integration.sinks.publications import check_publications
from transactional.core.store import Lease
from transactional.core.store.progress import Progress
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import AttemptId

DEATHS = 6
"""The program of one topology dies so often before it may finish."""
PARTITIONS = 3


def die_often(
    bootstrap: str, folder: Path, topic: str, processing: str, chance: random.Random, store_url: str = ""
) -> Counter[str]:
    """Run a topology through several deaths to its end, and check what it has published. Return the deaths by point.

    Without a `store_url` the store is an SQLite database in the folder.
    """
    folder.mkdir(parents=True)
    for suffix in ("numbers", "counts"):
        create_topic(bootstrap, f"{topic}-{suffix}", PARTITIONS)
    store_url = store_url or f"sqlite:///{folder}/store.db"
    deaths = Counter[str]()
    points = [*chance.sample(list(POINTS), DEATHS - 1), "at random"]
    for death, point in enumerate([*points, "nowhere"]):
        number = chance.randrange(1, 4)
        planned = "nowhere" if point == "at random" else point
        arguments = [bootstrap, topic, processing, str(chance.choice((2, 3, 5))), store_url, planned, str(number)]
        module = [sys.executable, "-m", "tests.integration.sinks.dying_publisher"]
        began_s = time.monotonic()
        with open(folder / f"output-{death}", "wb") as output:
            program = subprocess.Popen([*module, *arguments], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            try:
                code = program.wait(chance.uniform(2, 8) if point == "at random" else 300)
            except subprocess.TimeoutExpired:
                program.kill()
                code = program.wait()
        if code == -signal.SIGKILL:
            deaths[point] += 1
            end_lease(store_url, topic)
        else:
            assert code == 0, f"{point}, {number}: exit {code} in {folder}, after {time.monotonic() - began_s:.0f} s"
    check_publications(bootstrap, topic, folder, store_url, PARTITIONS)
    return deaths


def end_lease(store_url: str, topology_id: str) -> None:
    """End the lease of a killed run, as time would. A run that was killed early has none."""
    with closing(SqlCoordinatorStore(store_url)) as store:
        for status in store.status(topology_id):
            if status.owner is not None:
                store.release(Lease(topology_id, status.epoch, status.owner, Progress(), AttemptId(0)))


def main(folder: Path, kills: int, processing: str, store: str = "sqlite") -> None:
    """Continue until so many deaths are survived."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "kills.jsonl"
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []
    count = sum(line["deaths"] for line in lines if (line["processing"], line["store"]) == (processing, store))
    with ExitStack() as servers:
        bootstrap = servers.enter_context(LocalBroker()).bootstrap
        sockets = servers.enter_context(postgres_server()) if store == "postgres" else None
        while count < kills:
            seed = random.SystemRandom().randrange(2**31)
            topic = f"kills-{seed}"
            store_url = "" if sockets is None else new_schema(sockets, f"kills_{seed}")
            deaths = die_often(bootstrap, folder / topic, topic, processing, random.Random(seed), store_url)
            count += deaths.total()
            line = {"processing": processing, "store": store, "seed": seed, "deaths": deaths.total()}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "points": dict(deaths)}) + "\n")
            sys.stdout.write(f"{count} deaths survived\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), *sys.argv[3:])
