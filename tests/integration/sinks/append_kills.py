"""Many deaths of `dying_appender`: `python -m tests.integration.sinks.append_kills FOLDER KILLS PROCESSING`.

Between two lives others maintain the table: they compact its files and delete what is not part of it. Results are
appended to `FOLDER/kills.jsonl`, one line for each topology that has survived its deaths, so that a loop that was
interrupted continues.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from deltalake import DeltaTable

from tests.integration.sinks.dying_appender import POINTS, ROWS, STARTS
from tests.integration.sinks.dying_publisher import BAD
from tests.integration.sinks.kills import DEATHS, end_lease
from tests.integration.tables import counts, rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore


def die_often(folder: Path, topology_id: str, processing: str, chance: random.Random) -> Counter[str]:
    """Run a topology through several deaths to its end, and check what it has appended. Return the deaths by point."""
    folder.mkdir(parents=True)
    store_url, deaths = f"sqlite:///{folder}/store.db", Counter[str]()
    points = [*chance.sample(list(POINTS), DEATHS - 1), "at random"]
    for death, point in enumerate([*points, "nowhere"]):
        # A sink is opened once in a life; with a higher number the program would live to its end.
        number = 1 if point in STARTS else chance.randrange(1, 4)
        take = chance.choice((2, 3, 5))
        staged = chance.choice(("staged", "by the driver"))
        planned = "nowhere" if point == "at random" else point
        module = [sys.executable, "-m", "tests.integration.sinks.dying_appender"]
        began_s = time.monotonic()
        with open(folder / f"output-{death}", "wb") as output:
            program = subprocess.Popen(
                [*module, topology_id, processing, str(take), staged, planned, str(number)],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = program.wait(chance.uniform(2, 8) if point == "at random" else 300)
            except subprocess.TimeoutExpired:
                program.kill()
                code = program.wait()
        if code == -signal.SIGKILL:
            deaths[point] += 1
            if (folder / "store.db").exists():
                end_lease(store_url, topology_id)
        else:
            assert code == 0, f"{point}, {number}: exit {code} in {folder}, after {time.monotonic() - began_s:.0f} s"
        if chance.random() < 0.5 and DeltaTable.is_deltatable(str(folder / "events")):
            maintain(folder / "events")
    check_rows(folder, topology_id, store_url)
    return deaths


def maintain(table_folder: Path) -> None:
    """Compact the table, and delete at once whatever is no part of it, as others may."""
    table = DeltaTable(str(table_folder))
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def check_rows(folder: Path, topology_id: str, store_url: str) -> None:
    """Each good row is in the table once, with a committed transaction; nothing waits."""
    good = [row for row in ROWS if row[1] not in BAD]
    appended = DeltaTable(str(folder / "events")).to_pyarrow_table().to_pylist()
    assert Counter((row["word"], row["number"], row["event_time"]) for row in appended) == Counter(good)
    assert all(row["event_time_day"] == row["event_time"].date() for row in appended)
    assert counts(folder / "counts", "word") == Counter(word for word, _, _ in good)
    assert len(rows(folder / "letters", "txid")) == len(BAD)
    with closing(SqlCoordinatorStore(store_url)) as store:
        progress = store.sinks(topology_id)
        [status] = store.status(topology_id)
    assert {name: sink.waiting for name, sink in progress.items()} == {"events": 0}
    assert {row["txid"] for row in appended} <= set(range(1, status.committed_txid + 1))


def main(folder: Path, kills: int, processing: str) -> None:
    """Continue until so many deaths are survived."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "kills.jsonl"
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []
    count = sum(line["deaths"] for line in lines if line["processing"] == processing)
    while count < kills:
        seed = random.SystemRandom().randrange(2**31)
        deaths = die_often(folder / f"kills-{seed}", f"kills-{seed}", processing, random.Random(seed))
        count += deaths.total()
        line = {"processing": processing, "seed": seed, "deaths": deaths.total(), "points": dict(deaths)}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        sys.stdout.write(f"{count} deaths survived\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), int(sys.argv[2]), sys.argv[3])
