"""`python -m bench.console_pages`: what the console's pages cost over a store with a long past.

30,000 attempts at transactions of a topology with 30 components and 200 partitions, some of them failed, some with dead
letters, and a month of minutes, in SQLite. `transactional ui` shows them; measured is the processor time of its
process, per page: for the first time, and again.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from state.store.sql_store import SqlCoordinatorStore
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.engine.clock import SystemClock
from transactional.store import AttemptRecord
from transactional.store.history import RunAbout
from transactional.store.progress import Phase

TARGET_MS: Final = 100
COMPONENTS, PARTITIONS, ATTEMPTS, MINUTES = 30, 200, 30_000, 43_200
TIMES: Final = 20
"""So many transactions are made one by one; the rest are copies."""
EACH_MS: Final = 4_000
PHASES: Final = ("planning", "processing", "waiting", "committing")
PAGES: Final = (
    *("", "?charts=hour", "?charts=day", "?charts=month", "attempts", "attempts?phase=failed", "transactions/15000"),
    *("partitions", "states", "runs", "configuration", "letters", "doctor"),
)


def described() -> dict[str, Any]:
    """The topology, as a run describes it: bolts in a row."""
    names = [f"component-{number}" for number in range(COMPONENTS)]
    inputs = [[], *([{"source": name, "stream": "default", "grouping": "shuffle", "fields": []}] for name in names)]
    phases = ["processing"] * (COMPONENTS - 1) + ["commit"]
    told = [
        {"id": name, "kind": "Bolt", "parallelism": 4, "phase": phase, "inputs": given}
        for name, phase, given in zip(names, phases, inputs, strict=False)
    ]
    return {"topology": "words", "components": told}


def details_of(number: int) -> dict[str, Any]:
    """What a run notes of a transaction."""
    edges = [[f"component-{at}", "default", f"component-{at + 1}", 200] for at in range(COMPONENTS - 1)]
    state = {"rows": 200, "bytes": 90_000, "version": number, "folded": number - 3, "ms": 40, "at": 3}
    letters = {"letters": 3, "letters_of": {"component-7": 3}} if number % 10 == 0 else {"letters": 0}
    lags = [["words", index, 1_000 + index] for index in range(50)]
    return {"lag": 55_000, "lags": lags, "edges": edges, "states": {"component-29": state}, **letters}


def batch_of(txid: int) -> BatchMetadata:
    """A record of each partition."""
    ranges = {PartitionId("words", index): OffsetRange(Offset(txid - 1), Offset(txid)) for index in range(PARTITIONS)}
    return BatchMetadata(ranges).with_digests({partition: Digest(1, 7, 1) for partition in ranges})


def fill(file: Path) -> None:
    """A store with a long past that has ended just now."""
    began_ms = SystemClock().wall_ms() - EACH_MS * (ATTEMPTS // (TIMES + 1) + 1)
    fingerprint = {"spout": {"kind": "memory"}, "committers": {"component-29": {"table": "/tables/words"}}}
    with closing(SqlCoordinatorStore(f"sqlite:///{file}")) as store:
        about = RunAbout("0.1.0", described(), {"lease_ms": 15_000}, {})
        lease = store.acquire("words", fingerprint, owner="bench", lease_ms=60_000, name=None, about=about)
        store.record_start(lease, fingerprint)
        attempt_id = int(lease.fence_id)
        for number in range(1, TIMES + 1):
            at_ms = began_ms + EACH_MS // TIMES * number
            for fails in (True, False) if number == TIMES // 2 else (False,):
                attempt_id += 1
                attempt, batch = TransactionAttempt(TxId(number), AttemptId(attempt_id)), batch_of(number)
                record = AttemptRecord(attempt, "processing", batch, None, at_ms, at_ms + 5, None, None, None, None)
                store.record_attempt(lease, record, forget_later=False)
                if fails:
                    store.record_failure(lease, attempt, Phase.PROCESSING, "ValueError: no", at_ms=at_ms + 90)
                    continue
                store.record_commit(
                    lease,
                    attempt,
                    batch,
                    processed_at_ms=at_ms + 125,
                    started_at_ms=at_ms + 130,
                    at_ms=at_ms + 180,
                    details=details_of(number),
                )
        store.release(lease)
    multiply(file)


def multiply(file: Path) -> None:
    """Copies of what was made one by one, later and later; and minutes."""
    copies, attempts = ATTEMPTS // (TIMES + 1), TIMES + 1
    with closing(sqlite3.connect(file)) as connection, connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(transactional_attempts)")]
        shifts = {"attempt_id": attempts, "txid": TIMES}
        shifts |= {name: EACH_MS for name in names if name.endswith("_at_ms")}
        shifted = ", ".join(f"{name} + {shifts[name]} * k" if name in shifts else name for name in names)
        connection.execute(
            f"WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < {copies}) "
            f"INSERT INTO transactional_attempts ({', '.join(names)}) SELECT {shifted} FROM transactional_attempts, n"
        )
        connection.execute(
            f"UPDATE transactional_topologies SET committed_txid = committed_txid + {TIMES * copies}, "
            f"committed_attempt_id = committed_attempt_id + {attempts * copies}, "
            f"attempt_id = attempt_id + {attempts * copies}"
        )
        chance, now_ms, rows = random.Random(7), SystemClock().wall_ms(), list[tuple[Any, ...]]()
        for ago in range(MINUTES):
            spent = {phase: chance.randrange(60_000) for phase in PHASES}
            latencies, phases = json.dumps([20] * 15), json.dumps(spent)
            fixed = ("words", now_ms - 60_000 * (ago + 1), 1, 300, 60_000, 2, latencies, 9_000, 60, phases)
            rows.append((*fixed, *spent.values()))
        places = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO transactional_minutes VALUES ({places})", rows)


@contextmanager
def served(file: Path) -> Iterator[Callable[[str], float]]:
    """`transactional ui`; the function loads a page, and returns the milliseconds that it cost the process."""
    command = [sys.executable, "-m", "transactional.commands.main", "ui", "--port", "0", "--store", f"sqlite:///{file}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition(" ")[2].strip()
            opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
            opener.open(url, timeout=60).read()

            def load(page: str) -> float:
                before = used_ms(process.pid)
                opener.open(f"{url.partition('?')[0]}t/words/{page}", timeout=60).read()
                return used_ms(process.pid) - before

            yield load
        finally:
            process.terminate()


def used_ms(pid: int) -> float:
    """The processor time of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes, one after the other")
    options = parser.parse_args(arguments)
    first, again = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "store.db")
        for _ in range(options.rounds):
            with served(Path(folder) / "store.db") as load:
                for page in PAGES:
                    first[page].append(load(page))
                    again[page].append(load(page))
    print(f"processor time, first … median … most of {options.rounds}; target {TARGET_MS} ms")
    for page in PAGES:
        shown = [f"{min(each):5.0f} … {median(each):3.0f} … {max(each):3.0f} ms" for each in (first[page], again[page])]
        print(f"{page or 'overview':24} the first time {shown[0]}, again {shown[1]}")


if __name__ == "__main__":
    main(sys.argv[1:])
