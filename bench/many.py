"""`python -m bench.many`: a transaction of 20,000 messages over few partitions of Kafka and over many, without Spark.

Each row, so many partitions and so many transactions in flight, is measured in a process of its own and kept in
`--output` at once; what is there is not measured again, so the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, perf_counter

from bench import processes
from bench.figures import percentile
from bench.ours import BoundedKafkaSpout
from bench.workload import Workload, zipf
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.batch import BatchMetadata

PARTITIONS, IN_FLIGHT = (4, 64, 128, 512), (1, 3)
MESSAGES, BATCHES, WARM = 20_000, 60, 10
"""The first transactions connect, and are not measured."""
_SELF = (sys.executable, "-m", "bench.many")


class TimedSpout(BoundedKafkaSpout):
    """Notes when it planned, for how long, when each batch was committed, and how many threads there are then."""

    def __init__(self, bootstrap: str, workload: Workload) -> None:
        until = workload.until(workload.messages)
        super().__init__(
            bootstrap, workload.topic, until, fields=("key",), key_type="string", batch_records_max=MESSAGES
        )
        self.planning_ms: list[float] = []
        self.committed_s: list[float] = []
        self.threads = 0

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The next batch."""
        before = perf_counter()
        batch = super().plan(after, replay=replay)
        self.planning_ms.append((perf_counter() - before) * 1e3)
        return batch

    def committed(self, batch: BatchMetadata) -> None:
        """A transaction has ended."""
        self.committed_s.append(perf_counter())
        self.threads = max(self.threads, len(list(Path("/proc/self/task").iterdir())))
        super().committed(batch)


def workload_of(partitions: int) -> Workload:
    """The topic of a row."""
    words = zipf(f"over-{partitions}", BATCHES * MESSAGES, 8_000, 0)
    return Workload(words.topic, words.words, 0, partitions=partitions)


def measured(bootstrap: str, partitions: int, in_flight: int) -> dict[str, float]:
    """One row: from one transaction commit to the next, in milliseconds. Raises `ValueError` if a sum is wrong."""
    workload, process = workload_of(partitions), {"": [os.getpid()]}
    with tempfile.TemporaryDirectory() as folder:
        spout, path = TimedSpout(bootstrap, workload), f"{folder}/counts"
        builder = TransactionalTopologyBuilder("many", "messages", spout)
        builder.set_committer_bolt("counts", DeltaMapState(path, "key string").count()).fields_grouping(
            "messages", "key"
        )
        config = {"max_spout_pending": in_flight, "stop_when_drained": True}
        begun_s = perf_counter()
        run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", master="none", config=config)
        counted = sum(DeltaMapState(path, "key string").read().column("count").to_pylist())
    if counted != workload.messages:
        raise ValueError(f"{counted} messages of {workload.messages} were counted")
    ends_s = spout.committed_s
    taken = [(end - start) * 1e3 for start, end in zip(ends_s[WARM:], ends_s[WARM + 1 :], strict=False)]
    return {
        "p50_ms": percentile(taken, 50),
        "p99_ms": percentile(taken, 99),
        "interval_ms": sum(taken) / len(taken),
        "whole_ms": (ends_s[-1] - begun_s) * 1e3 / len(ends_s),
        "first_ms": (ends_s[0] - begun_s) * 1e3,
        "planning_ms": percentile(spout.planning_ms[WARM:], 50),
        "threads": spout.threads,
        "rss_mib": processes.peaks_mib(process)[""],
    }


def run(options: argparse.Namespace) -> None:
    """Measure what is not there yet, one row after the other."""
    found = json.loads(options.output.read_text("utf-8")) if options.output.exists() else {}
    until_s = monotonic() + options.minutes * 60
    with LocalBroker() as broker:
        for partitions in options.partitions:
            missing = [n for n in IN_FLIGHT if f"{partitions}/{n}" not in found]
            if missing and monotonic() < until_s:
                workload_of(partitions).produce(broker.bootstrap)
            for in_flight in missing:
                if monotonic() < until_s:
                    row = ["--row", broker.bootstrap, str(partitions), str(in_flight)]
                    done = subprocess.run([*_SELF, *row], capture_output=True, text=True, timeout=600, check=False)
                    if done.returncode:
                        raise SystemExit(done.stderr)
                    found[f"{partitions}/{in_flight}"] = json.loads(done.stdout)
                    options.output.write_text(json.dumps(found, indent=1), "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.many", description=__doc__)
    parser.add_argument("--partitions", type=lambda text: [int(each) for each in text.split(",")], default=PARTITIONS)
    parser.add_argument("--minutes", type=float, default=40, help="after so many no row is begun")
    parser.add_argument("--output", type=Path, default=Path("artifacts/many.json"))
    parser.add_argument("--row", nargs=3, help="one row, which this command runs in a process of its own")
    options = parser.parse_args(arguments)
    if options.row:
        bootstrap, partitions, in_flight = options.row
        sys.stdout.write(json.dumps(measured(bootstrap, int(partitions), int(in_flight))))
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        run(options)


if __name__ == "__main__":
    main()
