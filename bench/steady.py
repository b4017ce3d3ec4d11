"""`python -m bench.steady`: one topology in a process of its own, for thousands of transactions, or for a profile.

Counts per key, 8,000 keys, on a broker and a Spark of its own. Says what memory the driver took at most after a tenth
of the transactions and after all, and how long the coordinator itself worked for each: everything that its thread does
for events and ticks, the store's writes with full sync included.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter, thread_time
from typing import Any

from bench import machine, processes, sampling, works
from bench.figures import percentile
from bench.ours import Ours, times_of
from bench.peers import SETTINGS
from bench.rounds import Stage
from bench.targets import KEYS
from bench.workload import zipf
from spouts.local_broker import LocalBroker
from transactional import TopologyConfig
from transactional.core.machine.protocol import CommitSucceeded, Event
from transactional.core.ports import JobExecutor
from transactional.core.store import CoordinatorStore
from transactional.operations.launch.running import make_executor
from transactional.operations.loading import open_store
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.leadership import Leadership
from transactional.runtime.spark.session import spark_session
from transactional.topology.topology import Topology

TASKS = 2
WARM = 8
"""Transactions before a profile begins, and before the coordinator's work is looked at."""


class TimedLeadership(Leadership):
    """Notes how long its writes to the store take."""

    spent_s = 0.0

    def write(self, name: str, write: Callable[[], None]) -> None:
        """Make a write."""
        before = perf_counter()
        super().write(name, write)
        self.spent_s += perf_counter() - before


class TimedDriver(TopologyDriver):
    """A driver that notes how long it works itself, in milliseconds per committed transaction.

    `own` is everything that its thread does for events and ticks, `store` the part of it in the store's writes, `cpu`
    the processor time of it: the three by name in `spent_ms`.
    """

    spent_ms: dict[str, list[float]]
    on_commit: Callable[[int], None]
    _own_s = _cpu_s = 0.0
    _depth = 0

    def __init__(
        self, topology: Topology, store: CoordinatorStore, executor: JobExecutor, config: TopologyConfig
    ) -> None:
        super().__init__(topology, store, executor, config)
        self.leadership: TimedLeadership = TimedLeadership(topology, store, config, self.clock)

    def tick(self) -> None:
        """The lease, a look around, and the step that belongs to the tick."""
        with self._timed():
            super().tick()

    def step(self, event: Event) -> None:
        """The time of all events and ticks since the last transaction commit belongs to the next one."""
        with self._timed():
            super().step(event)
        if isinstance(event, CommitSucceeded):
            for name, seconds in (("own", self._own_s), ("store", self.leadership.spent_s), ("cpu", self._cpu_s)):
                self.spent_ms.setdefault(name, []).append(seconds * 1e3)
            self._own_s = self._cpu_s = self.leadership.spent_s = 0.0
            self.on_commit(len(self.spent_ms["own"]))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """The outermost of calls within each other counts."""
        self._depth += 1
        before, cpu_before = perf_counter(), thread_time()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._own_s += perf_counter() - before
                self._cpu_s += thread_time() - cpu_before


class Steady:
    """One run: when it ends, and what is noted on the way."""

    def __init__(self, options: argparse.Namespace, stage: Stage) -> None:
        self.options, self.stage = options, stage
        workload = zipf("words", options.transactions * options.batch, 8_000, 0)
        workload.produce(stage.bootstrap)
        self.ours = Ours(stage, works.per_key(workload, KEYS), "steady", in_flight=options.in_flight)
        self.topology = self.ours.topology(workload.until(workload.messages), options.batch)
        self.marks: dict[int, dict[str, float]] = {}
        self.sampler = sampling.Sampler(options.py_spy, options.seconds, stage.session)
        self.until_s = monotonic() + options.minutes * 60

    def measure(self) -> dict[str, Any]:
        """Run the topology; what was measured."""
        gc.collect()
        processes.reset_peaks(self._parts())
        before = machine.cpu_time()
        store = open_store(self.ours.store)
        try:
            self.driver = self._driver(store)
            started_s = monotonic()
            summary = self.driver.run()
            elapsed_s = monotonic() - started_s
            records = store.attempts(self.ours.topology_id, limit=summary.transactions)
        finally:
            store.close()
        after = machine.cpu_time()
        latencies = [times_of(each, each.committed_at_ms or 0).planned_ms for each in records if each.committed_at_ms]
        return {
            "batch_messages": self.options.batch,
            "in_flight": self.options.in_flight,
            "transactions": summary.transactions,
            "failures": summary.failures,
            "seconds": elapsed_s,
            "peaks_mib": {str(number): peak for number, peak in sorted(self.marks.items())},
            **{f"{name}_ms": _percentiles(spent[WARM:] or spent) for name, spent in self.driver.spent_ms.items()},
            "planned_ms": _percentiles(latencies),
            "profile": self.sampler.profile() if self.options.py_spy else None,
            "others": after.others_share_since(before) if before and after else None,
        }

    def on_commit(self, number: int) -> None:
        """Note the memory after a tenth, start the profile when all is warm, and end in time."""
        ends = monotonic() > self.until_s or self.sampler.has_ended()
        if ends or number in (self.options.transactions // 10, self.options.transactions):
            self.marks[number] = processes.peaks_mib(self._parts())
        if number == WARM and self.options.py_spy:
            self.sampler.start()
        if ends:
            # What is in flight is given up, and with it the workers: so all is noted before.
            self.driver.stop()

    def _driver(self, store: CoordinatorStore) -> TimedDriver:
        in_flight = self.options.in_flight
        config = TopologyConfig(max_spout_pending=in_flight, stop_when_drained=True, attempts_max=1)
        driver = TimedDriver(self.topology, store, make_executor(self.topology, session=self.stage.session), config)
        driver.spent_ms, driver.on_commit = {}, self.on_commit
        return driver

    def _parts(self) -> dict[str, list[int]]:
        return processes.by_part(self.stage.session)


def _percentiles(figures: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": percentile(figures, percent) for percent in (50, 95, 99)}


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.steady", description=__doc__)
    parser.add_argument("--transactions", type=int, default=5_000)
    parser.add_argument("--batch", type=int, default=100, help="messages per transaction")
    parser.add_argument("--in-flight", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5, help="it ends by then, however far it is")
    parser.add_argument("--py-spy", default="", help="the profiler's program: take a profile of some seconds, then end")
    parser.add_argument("--seconds", type=int, default=10, help="how long the profile is")
    parser.add_argument("--directory", type=Path, help="where the table is kept while it runs")
    parser.add_argument("--output", type=Path, required=True, help="the file that takes the figures, as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Start broker and Spark, measure, write down."""
    options = options_of(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as name, LocalBroker() as broker:
        session = spark_session("bench", master=f"local[{TASKS}]", parallelism=TASKS, conf=SETTINGS)
        try:
            found = Steady(options, Stage(session, broker.bootstrap, Path(name), TASKS)).measure()
        finally:
            session.stop()
    options.output.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
