"""Leaders that are killed and stopped at chance moments, one after another, each with a standby behind it."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from random import Random

from deltalake import DeltaTable

from state import DeltaMapState
from tests.integration.programs import CLI, Program
from tests.integration.tables import counts
from tests.proof.arriving import ArrivingWords
from tests.proof.soaking import LEASE_MS, OPTIONS, SPREAD, TOPOLOGY, expected_buckets, first_key
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import Fenced
from transactional.model.names import compaction_of

LEADS = f"leading topology {TOPOLOGY} from"
LEASE_S = LEASE_MS / 1000
STANDS_STILL_S = 60
"""A backlog that takes long is read to its end, as long as it gets shorter."""
STARTS = Path(__file__).parents[2]


class Soak:
    """One topology that is never left alone. `folder` holds its store and tables; `spout` is the kind of its spout,
    `counter` what counts its words; in `workers` there are more processes to kill."""

    def __init__(
        self,
        folder: Path,
        words: ArrivingWords,
        *,
        spout: str,
        seed: int,
        counter: str = "committer",
        workers: bool = False,
    ) -> None:
        self.folder, self.words, self.chance, self.counter = folder, words, Random(seed), counter
        self.workers = workers
        self.environment: Mapping[str, str] = {
            "BOOTSTRAP": words.bootstrap,
            "TOPIC": words.topic,
            "SPOUT": spout,
            "COUNTER": counter,
            "PYTHONPATH": str(STARTS),
        }
        self.done: Counter[str] = Counter()
        self.running: tuple[Program, ...] = ()
        """The leader, and the standby behind it, as far as they are started at this moment."""
        self.programs = ExitStack()

    def disturb(self, times: int) -> None:
        """Kill or stop so many processes, while data keeps arriving and partitions are added; each way comes early."""
        self.running = (self._start(),)
        self.leader.await_line(LEADS)
        self.running = (self.leader, self._start())
        added_at = set(self.chance.sample(range(times), k=min(4, times)))
        kinds = [self._kill, self._kill_two, self._stop, *([self._kill_worker] if self.workers else [])]
        weights = [6, 2, 2, 20][: len(kinds)]
        firsts = self.chance.sample(kinds, k=len(kinds))
        while (number := self.done.total()) < times:
            if number in added_at:
                added_at.discard(number)
                self.words.add_partition()
            threading.Event().wait(self.chance.random() * 1.2)
            (firsts.pop() if firsts else self.chance.choices(kinds, weights)[0])()

    def drain(self) -> None:
        """Read what is left, in peace."""
        self.words.end()
        self.standby.kill()
        self.leader.kill()
        last, before = self._start("--until-drained"), -1
        while not last.ends_within(STANDS_STILL_S):
            committed = self.committed()
            assert committed > before, f"stands still after transaction {committed}:\n{last.text}"
            before = committed
        assert last.wait() == 0, last.text
        self.programs.close()

    def check(self) -> str:
        """Every table is a plain count of what was committed in Kafka, the store's ranges are whole. What was done."""
        found = self._check_keys() if self.counter == "spread" else self._check_words()
        with closing(SqlCoordinatorStore(f"sqlite:///{self.folder}/store.db")) as store:
            attempts = store.attempts(TOPOLOGY, limit=1_000_000)[::-1]
        committed = [each for each in attempts if each.phase == "committed"]
        assert [each.attempt.txid for each in committed] == list(range(1, len(committed) + 1))
        for one, next_one in pairwise(committed):
            assert all(next_one.batch.ranges[p].start == until for p, until in one.batch.positions().items())
        assert sum(each.rows or 0 for each in committed) == self.words.counts.total()
        how = ", ".join(f"{count} {name}" for name, count in sorted(self.done.items()))
        return (
            f"{self.done.total()} processes ended by force ({how}); {self.words.counts.total():,} records, "
            f"{self.words.aborted} of {self.words.aborted + self.words.committed} Kafka transactions aborted; "
            f"{len(committed)} transactions by {len(attempts)} attempts: exact{found}"
        )

    def counted(self) -> dict[str, int]:
        """What was done, in numbers."""
        return {"kills and stops": self.done.total(), "records": self.words.counts.total()}

    def _check_words(self) -> str:
        assert counts(self.folder / "per-word", "word") == dict(self.words.counts)
        wanted = expected_buckets(self.words.counts)
        found = {bucket: words for bucket, words in counts(self.folder / "per-bucket", "bucket").items() if words}
        assert found == dict(wanted)
        return ""

    def _check_keys(self) -> str:
        """Each of a word's keys has come as often as the word, and compactions were committed: up to where."""
        table = self.folder / "per-key"
        rows = DeltaMapState(table, "key long", "count long").read()
        found = dict(zip(rows["key"].to_pylist(), rows["count"].to_pylist(), strict=True))
        wanted = self.words.counts.items()
        assert found == {first_key(word) + number: times for word, times in wanted for number in range(SPREAD)}
        compacted = DeltaTable(table).transaction_version(compaction_of(f"{TOPOLOGY}/per-key"))
        assert compacted is not None
        return f"; {len(found):,} keys, compacted up to transaction {compacted}"

    def committed(self) -> int:
        """The last transaction committed."""
        with closing(SqlCoordinatorStore(f"sqlite:///{self.folder}/store.db")) as store:
            [status] = store.status(TOPOLOGY)
        return status.committed_txid

    @property
    def leader(self) -> Program:
        """The process that leads, or led until now."""
        return self.running[0]

    @property
    def standby(self) -> Program:
        """The process that leads next."""
        return self.running[1]

    def close(self) -> None:
        """End what still runs."""
        self.programs.close()

    def _start(self, *options: str) -> Program:
        settings = [part for option in OPTIONS for part in ("--set", option)]
        where = ["local[2]", "--set", "processing=auto"] if self.workers else ["none"]
        store = ["--store", "sqlite:///store.db", "--standby", "--metrics", "127.0.0.1:0", "--master", *where]
        command = [*CLI, "run", "tests.proof.soaking:build", *store, *settings, *options]
        return self.programs.enter_context(Program(command, self.folder, **self.environment))

    def _kill(self) -> None:
        """The leader; the standby leads then."""
        self.leader.kill()
        self.done["SIGKILL"] += 1
        self._take_over()

    def _kill_worker(self) -> None:
        """A worker of the leader, or stop it: then its attempt makes no progress, and is given up."""
        workers = [pid for pid in children_of(self.leader.pid) if is_worker(pid)]
        if workers:
            how = self.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(workers), how)
                self.done[f"{how.name} of a worker"] += 1

    def _kill_two(self) -> None:
        """The leader, and the one that takes over about when it does: while it takes the lease or fences the tables."""
        self.leader.kill()
        threading.Event().wait(LEASE_S * (0.6 + 0.8 * self.chance.random()))
        self.standby.kill()
        self.done["SIGKILL"] += 2
        self.running = (self.leader, self._start())
        self._take_over()

    def _stop(self) -> None:
        """The leader stands still for longer than its lease, and goes on when another one leads: it is shut out."""
        stopped = self.leader
        os.kill(stopped.pid, signal.SIGSTOP)
        self.done["SIGSTOP"] += 1
        if not led_within(self.standby, 4 * LEASE_S):
            # It holds SQLite's lock: nobody else can write until it goes on, and it may go on as the leader.
            os.kill(stopped.pid, signal.SIGCONT)
            if not led_within(self.standby, 2 * LEASE_S):
                return
        else:
            threading.Event().wait(self.chance.random())
            os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait(timeout_s=30) == Fenced.exit_code, stopped.text
        assert "TX401" in stopped.text, stopped.text
        self.running = (self.standby, self._start())

    def _take_over(self) -> None:
        self.standby.await_line(LEADS)
        self.running = (self.standby, self._start())


def children_of(pid: int) -> list[int]:
    """Those of all threads of a process; none if it has ended."""
    with suppress(OSError):
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for file in files for child in file.read_text().split()]
    return []


def is_worker(pid: int) -> bool:
    """Whether it is a worker process of a driver, and no other one that a driver has started."""
    with suppress(OSError):
        return b"transactional.runtime.executors.workers.serving" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def led_within(program: Program, seconds: float) -> bool:
    """Whether a standby comes to lead in so many seconds."""
    try:
        program.await_line(LEADS, timeout_s=seconds)
    except AssertionError:
        assert not program.ends_within(0), program.text
        return False
    return True
