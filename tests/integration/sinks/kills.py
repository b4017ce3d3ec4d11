"""Many deaths of programs with sinks: `python -m tests.integration.sinks.kills PROGRAM FOLDER KILLS PROCESSING`.

The program is "publisher", "appender" or "sender". A fifth argument is the kind of the coordinator's store, "sqlite" or
"postgres". Results are appended to `FOLDER/kills.jsonl`, one line for each topology that has survived its deaths, so a
loop that was interrupted continues.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import ExitStack
from pathlib import Path

from spouts.local_broker import LocalBroker
from tests.integration.postgres import new_schema, postgres_server
from tests.integration.sinks.appended_rows import make_appender
from tests.integration.sinks.deaths import die_often
from tests.integration.sinks.publications import make_publisher
from tests.integration.sinks.sent_records import make_sender

MAKERS = {
    "publisher": make_publisher,
    "appender": lambda _, *arguments: make_appender(*arguments),
    "sender": make_sender,
}


def main(program: str, folder: Path, kills: int, processing: str, store: str = "sqlite") -> None:
    """Continue until so many deaths are survived."""
    folder.mkdir(parents=True, exist_ok=True)
    results, kind = folder / "kills.jsonl", {"program": program, "processing": processing, "store": store}
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []
    count = sum(line["deaths"] for line in lines if line | kind == line)
    with ExitStack() as servers:
        bootstrap = "" if program == "appender" else servers.enter_context(LocalBroker()).bootstrap
        sockets = servers.enter_context(postgres_server()) if store == "postgres" else None
        while count < kills:
            seed = random.SystemRandom().randrange(2**31)
            store_url = "" if sockets is None else new_schema(sockets, f"kills_{seed}")
            topology_id = f"kills-{seed}"
            victim = MAKERS[program](bootstrap, folder / topology_id, topology_id, processing, store_url)
            deaths = die_often(victim, random.Random(seed))
            count += deaths.total()
            line = {**kind, "seed": seed, "deaths": deaths.total(), "points": dict(deaths)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            sys.stdout.write(f"{count} deaths survived\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute(), int(sys.argv[3]), *sys.argv[4:])
