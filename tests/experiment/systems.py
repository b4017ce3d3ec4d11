"""The two systems as the experiment sees them: start, lose the leader, how far is it, what does the table hold."""

from __future__ import annotations

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import tables
from tests.experiment import ours, peer
from tests.experiment.load import PARTITIONS
from tests.experiment.machines import kill_machine
from tests.experiment.timeline import Reached
from tests.integration.programs import CLI, SPARK_DEFAULTS, Program
from transactional.core.store import AttemptRecord
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.clock import SystemClock

ROOT = Path(__file__).parents[2]
CONF = f"{SPARK_DEFAULTS}spark.executor.memory 768m\nspark.driver.memory 1g\nspark.cores.max {PARTITIONS}\n"
BATCH = 100_000
POLL_S = 0.25
LEASE_MS = 3_000
ENDED_MAX = 10
"""So often a driver may end by itself; then it is not started again."""
LEADS = f"leading topology {ours.TOPOLOGY} from"


class System(ABC):
    """One of the two. `folder` holds its table; `clock_offset_s` is what its times have to lose to be the load's."""

    name: str

    def __init__(self, folder: Path, master: str, bootstrap: str, topic: str) -> None:
        self.folder, self.master = folder, master
        (folder / "conf").mkdir(parents=True)
        (folder / "conf" / "spark-defaults.conf").write_text(CONF, "utf-8")
        self._environment: Mapping[str, str] = {
            "BOOTSTRAP": bootstrap,
            "TOPIC": topic,
            "BATCH": str(BATCH),
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "JDK_JAVA_OPTIONS": "",
        }
        self._programs = ExitStack()

    @abstractmethod
    def start(self) -> None:
        """Start it, and return when it works."""

    @abstractmethod
    def kill_leader(self) -> None:
        """SIGKILL to the process that leads, and to its JVM; what replaces it starts at once."""

    @abstractmethod
    def committed(self, since_s: float) -> list[Reached]:
        """What was committed when, in seconds after the wall-clock time `since_s`."""

    @abstractmethod
    def failed_at(self, since_s: float) -> list[float]:
        """When attempts failed, or queries ended."""

    @abstractmethod
    def reached(self) -> Sequence[int]:
        """How far it is, per partition."""

    def await_positions(self, positions: Sequence[int], timeout_s: float) -> float:
        """Wait until it has committed so far; the seconds that took."""
        began = time.monotonic()
        while any(here < there for here, there in zip(self.reached(), positions, strict=True)):
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"{self.name} is at {self.reached()} after {timeout_s} s, not at {positions}")
            threading.Event().wait(POLL_S)
        return time.monotonic() - began

    def counts(self) -> dict[str, int]:
        """What its table holds."""
        return tables.read_counts(str(self.folder / "counts"))

    def stop(self) -> None:
        """End its processes."""
        self._programs.close()

    def _start(self, command: Sequence[str]) -> Program:
        return self._programs.enter_context(Program(command, self.folder, **self._environment))


class Ours(System):
    """A leader and a standby, each with a Spark of its own, over one store."""

    name = "transactional"

    def __init__(self, folder: Path, master: str, bootstrap: str, topic: str, store: str) -> None:
        super().__init__(folder, master, bootstrap, topic)
        self.store = store

    def start(self) -> None:
        self._leader = self._one()
        self._leader.await_line(LEADS)
        self._standby = self._one()

    def kill_leader(self) -> None:
        kill_machine(self._leader)
        self._leader, self._standby = self._standby, self._one()

    def committed(self, since_s: float) -> list[Reached]:
        positions: Sequence[int] = [0] * PARTITIONS
        found = []
        for each in self._attempts():
            if each.committed_at_ms is not None:
                positions = _by_index(each.batch, positions)
                found.append(Reached(each.committed_at_ms / 1000 - since_s, positions))
        return found

    def failed_at(self, since_s: float) -> list[float]:
        return [each.failed_at_ms / 1000 - since_s for each in self._attempts() if each.failed_at_ms is not None]

    def reached(self) -> Sequence[int]:
        committed = [each for each in self._attempts(limit=20) if each.phase == "committed"]
        return _by_index(committed[-1].batch, [0] * PARTITIONS) if committed else (0,) * PARTITIONS

    def _one(self) -> Program:
        settings = ["--set", f"lease_ms={LEASE_MS}", "--set", "max_spout_pending=2"]
        run = [*CLI, "run", f"{ours.__name__}:build", "--store", self.store, "--standby", "--master", self.master]
        return self._start([*run, *settings])

    def _attempts(self, limit: int = 1_000_000) -> Sequence[AttemptRecord]:
        store = SqlCoordinatorStore(self.store)
        try:
            return store.attempts(ours.TOPOLOGY, limit=limit)[::-1]
        finally:
            store.close()


def _by_index(batch: BatchMetadata, before: Sequence[int]) -> tuple[int, ...]:
    found = list(before)
    for partition, until in batch.positions().items():
        found[partition.index] = int(until)
    return tuple(found)


class Peer(System):
    """Structured Streaming, whose driver a supervisor starts again at once."""

    name = "Structured Streaming"

    def start(self) -> None:
        self._ended_at: list[float] = []
        self._killed = 0
        self._stopped = threading.Event()
        self._driver = self._one()
        self._supervisor = threading.Thread(target=self._supervise)
        self._supervisor.start()

    def kill_leader(self) -> None:
        self._killed += 1
        kill_machine(self._driver)

    def committed(self, since_s: float) -> list[Reached]:
        commits = sorted((self.folder / peer.CHECKPOINT / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        return [Reached(path.stat().st_mtime - since_s, self._positions(path.name)) for path in commits]

    def failed_at(self, since_s: float) -> list[float]:
        return [at - since_s for at in self._ended_at]

    def reached(self) -> Sequence[int]:
        commits = self.committed(0)
        return commits[-1].positions if commits else (0,) * PARTITIONS

    def stop(self) -> None:
        self._stopped.set()
        kill_machine(self._driver)
        self._supervisor.join()
        super().stop()

    def _one(self) -> Program:
        return self._start([sys.executable, "-m", peer.__name__, self.master])

    def _supervise(self) -> None:
        while True:
            self._driver.wait(timeout_s=86_400)
            if self._stopped.is_set():
                return
            self._ended_at.append(SystemClock().wall_ms() / 1000)
            if len(self._ended_at) > self._killed + ENDED_MAX:
                sys.stdout.write(f"{self.name} ends by itself again and again:\n{self._driver.text}\n")
                return
            self._driver = self._one()

    def _positions(self, batch: str) -> tuple[int, ...]:
        offsets = json.loads((self.folder / peer.CHECKPOINT / "offsets" / batch).read_text("utf-8").splitlines()[-1])
        return tuple(offsets[str(partition)] for partition in range(PARTITIONS))
