"""What one row of `python -m bench gears` measures: a system, a batch size, partitions, transactions in flight.

Each row is a program of its own that begins cold: the time to its first commit, which is counted from the call that
runs it, includes the start of the JVM, of its Python workers and of the consumers. It prints its figures as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench import machine, processes
from bench.figures import percentile
from bench.ours import BoundedKafkaSpout
from bench.peers import SETTINGS, ExpertRecipe, SparkMerge
from bench.raw import elapsed_s
from bench.rounds import Counting, Stage, WrongResult, check_counts
from bench.source import jar_settings
from bench.workload import Workload, zipf
from bench.works import per_key
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.spark.session import spark_session

TASKS = 2
MASTER = f"local[{TASKS}]"
VOCABULARY = 8_000
FEW, MANY, MANY_BATCH = 4, (64, 128, 512), 20_000
"""Partitions, and the size of the batches that are read from many."""
BATCHES: Mapping[int, int] = {1: 300, 100: 300, 1_000: 1_000, 20_000: 60, 200_000: 20}
"""How many transactions of each size: of a thousand messages as many as the 99th percentile takes."""
RAW = "raw"
PEERS_MOST = 60
"""Of a peer, which takes a second for each."""
PEERS: Mapping[str, type[SparkMerge | ExpertRecipe]] = {"merge": SparkMerge, "expert": ExpertRecipe}
OURS: Mapping[str, tuple[str, str]] = {
    "none": ("none", "spark"),
    "spark": (MASTER, "spark"),
    "auto": (MASTER, "auto"),
    "workers": ("none", "workers"),
}
"""Where our batches are processed: by the master, and by the option `processing`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the sheet. `batch` is in messages."""

    system: str
    batch: int
    partitions: int
    in_flight: int

    @property
    def batches(self) -> int:
        """How many are measured, with those at the beginning."""
        return min(BATCHES[self.batch], PEERS_MOST if self.system in PEERS else BATCHES[self.batch])

    @property
    def warm(self) -> int:
        """How many at the beginning are left out of everything but the time to the first commit."""
        return max(2, min(10, self.batches // 10))

    @property
    def messages(self) -> int:
        """All of them."""
        return self.batch * self.batches


def now_s() -> float:
    """Seconds since 1970."""
    return SystemClock().wall_ms() / 1e3


def topic_of(partitions: int) -> Workload:
    """The topic with so many partitions, without its words: those take a second to draw."""
    return Workload(f"over-{partitions}", (), 0, partitions=partitions)


def filled(topic: Workload) -> Workload:
    """The same with its words; all rows over it read from its beginning."""
    most = max(size * number for size, number in BATCHES.items() if topic.partitions == FEW or size <= MANY_BATCH)
    return replace(topic, words=zipf(topic.topic, most, VOCABULARY, 0).words)


@dataclass(frozen=True, slots=True)
class Course:
    """When it began, and when batches were planned and committed, in seconds since 1970, in order; and what it took."""

    begun_s: float
    planned_s: Sequence[float]
    committed_s: Sequence[float]
    planning_ms: Sequence[float] = ()
    cost: Mapping[str, float] = field(default_factory=dict)


def figures(row: Row, course: Course) -> dict[str, float]:
    """The row's figures: latency from planned to committed, interval from one transaction commit to the next.

    `speed` is in messages a second after the warm transactions, `whole_speed` from the first plan to the last commit.
    """
    ends, warm = course.committed_s, row.warm
    latencies = [(end - start) * 1e3 for start, end in zip(course.planned_s, ends, strict=True)][warm:]
    gaps = [(end - start) * 1e3 for start, end in zip(ends[warm - 1 :], ends[warm:], strict=False)]
    found = {
        "first_s": ends[0] - course.begun_s,
        "p50_ms": percentile(latencies, 50),
        "p99_ms": percentile(latencies, 99),
        "interval_ms": sum(gaps) / len(gaps),
        "interval_p50_ms": percentile(gaps, 50),
        "interval_p99_ms": percentile(gaps, 99),
        "speed": row.batch * len(gaps) * 1e3 / sum(gaps),
        "whole_speed": row.messages / (ends[-1] - course.planned_s[0]),
        **course.cost,
    }
    return found | ({"planning_ms": percentile(course.planning_ms[warm:], 50)} if course.planning_ms else {})


def cost() -> dict[str, float]:
    """The largest memory so far, in MiB, and the threads, of this process and all Python processes below it; of the
    JVM below it the memory only."""
    python, java = processes.below()
    peaks_mib = processes.peaks_mib({"python": python, "jvm": java})
    return {"python_mib": peaks_mib["python"], "jvm_mib": peaks_mib["jvm"], "threads": processes.threads(python)}


class TimedSpout(BoundedKafkaSpout):
    """Notes when it had planned each batch, how long that took, and when each was committed."""

    def __init__(self, bootstrap: str, topic: Workload, row: Row, **options: Any) -> None:
        super().__init__(bootstrap, topic.topic, topic.until(row.messages), batch_records_max=row.batch, **options)
        self.row = row
        self.planned_s: list[float] = []
        self.planning_ms: list[float] = []
        self.committed_s: list[float] = []
        self.cost: Mapping[str, float] = {}

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The next batch."""
        before = now_s()
        batch = super().plan(after, replay=replay)
        if batch is not None:
            self.planned_s.append(now_s())
            self.planning_ms.append((self.planned_s[-1] - before) * 1e3)
        return batch

    def committed(self, batch: BatchMetadata) -> None:
        """A transaction has ended."""
        self.committed_s.append(now_s())
        if len(self.committed_s) == self.row.batches:  # while all processes still live
            self.cost = cost()
        super().committed(batch)


class OurRow:
    """The topology of a row, in a run of its own: a count by `key`."""

    def __init__(
        self, row: Row, bootstrap: str, folder: Path, *, topic: Workload | None = None, key: str = "key"
    ) -> None:
        self.row, self.bootstrap, self.name, self.key = row, bootstrap, row.system, key
        self.topic, self.path, self.folder = topic or topic_of(row.partitions), str(folder / "counts"), folder
        self.options: dict[str, Any] = {"fields": ("key",), "key_type": "string"}

    def course(self) -> Course:
        """Run until all is read. Raises `WrongResult` if an attempt failed."""
        spout = TimedSpout(self.bootstrap, self.topic, self.row, **self.options)
        builder = TransactionalTopologyBuilder("gears", "messages", spout, parallelism=TASKS)
        counts = DeltaMapState(self.path, f"{self.key} string").count()
        builder.set_committer_bolt("counts", counts).fields_grouping("messages", self.key)
        master, processing = OURS[self.row.system]
        config = {"max_spout_pending": self.row.in_flight, "stop_when_drained": True, "processing": processing}
        store, begun_s = f"sqlite:///{self.folder}/store.db", now_s()
        summary = run_topology(builder.build(), store=store, config=config, master=master)
        if summary.failures:
            raise WrongResult(f"{self.row}: {summary.failures} attempts failed")
        return Course(begun_s, spout.planned_s, spout.committed_s, spout.planning_ms, spout.cost)

    def counts(self) -> dict[str, int]:
        """The table's contents."""
        found = DeltaMapState(self.path, f"{self.key} string").read()
        return dict(zip(found[self.key].to_pylist(), found["count"].to_pylist(), strict=True))


def measured(row: Row, bootstrap: str) -> dict[str, Any]:
    """The figures of a row. Raises `WrongResult` if the table does not hold exactly what was produced."""
    before = machine.cpu_time()
    with tempfile.TemporaryDirectory(prefix="gears-") as folder:
        found = _raw(row, bootstrap) if row.system == RAW else _counted(row, bootstrap, Path(folder))
    after = machine.cpu_time()
    others = after.others_share_since(before) if before and after else None
    return {**asdict(row), **found, "others_share": others}


def _raw(row: Row, bootstrap: str) -> dict[str, float]:
    workload = topic_of(row.partitions)
    ranges = {partition: (0, end) for partition, end in workload.until(row.messages).items()}
    speed = row.messages / elapsed_s(bootstrap, workload.topic, ranges, TASKS)
    return {"speed": speed, "whole_speed": speed}


def _counted(row: Row, bootstrap: str, folder: Path) -> dict[str, Any]:
    system, course = (_peer if row.system in PEERS else _our)(row, bootstrap, folder)
    workload = filled(topic_of(row.partitions))
    check_counts(system, per_key(workload, "gears").expected(workload.until(row.messages)))
    return figures(row, course)


def _our(row: Row, bootstrap: str, folder: Path) -> tuple[Counting, Course]:
    system = OurRow(row, bootstrap, folder)
    return system, system.course()


def _peer(row: Row, bootstrap: str, folder: Path) -> tuple[Counting, Course]:
    # A peer reads its topic to the end, so it has one with no more messages than it is to read.
    workload = filled(topic_of(row.partitions)).copy(bootstrap, uuid4().hex, row.messages)
    workload.append(bootstrap, 0, row.messages)
    begun_s = now_s()
    session = spark_session("gears", master=MASTER, parallelism=TASKS, conf={**SETTINGS, **jar_settings()})
    system = PEERS[row.system](Stage(session, bootstrap, folder, TASKS), per_key(workload, "gears"), "row")
    batches = system.run(workload.until(row.messages), row.batch)
    planned_s = [(each.ended_at_ms - each.planned_ms) / 1e3 for each in batches]
    return system, Course(begun_s, planned_s, [each.ended_at_ms / 1e3 for each in batches], cost=cost())


def main(arguments: Sequence[str]) -> None:
    """`python -m bench.gear_rows BOOTSTRAP SYSTEM BATCH PARTITIONS IN_FLIGHT`."""
    bootstrap, system, *numbers = arguments
    row = Row(system, *map(int, numbers))
    sys.stdout.write(json.dumps(measured(row, bootstrap)))


if __name__ == "__main__":
    from bench.gear_rows import main as in_its_module  # executors look classes up where they are

    in_its_module(sys.argv[1:])
