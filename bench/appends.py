"""`python -m bench appends`: rows of 1 KB appended from Kafka to a Delta table, ours beside Structured Streaming.

Three rounds in turns on one broker; both append each row once. *backlog* appends what waits in a topic. *latency* sends
rows at half the speed of that backlog, and notes when the Delta version with them is there; *quarter* sends a quarter.
*added* is the time of the same transactions without a sink and with one. *growth* appends small transactions to one
table, up to 10,000 versions with 10,000,000 rows or until its time is over, and compares the first with the last. Each
row is kept at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from bench import machine, page
from bench.added import TimedSpout, measure_added
from bench.append_programs import AVRO, JSON, ROW_BYTES, send
from bench.append_sheets import COLUMNS, append_rows
from bench.figures import percentile
from bench.report import WIDTH
from bench.results import heading, save
from bench.rounds import WrongResult
from bench.sink_programs import PARTITIONS, now_us
from bench.sinks import OURS, SPARK, Process
from sinks import DeltaSink
from spouts.kafka_admin import create_topic, delete_topic
from spouts.local_broker import LocalBroker
from spouts.local_broker_jvm import end_watched, start_watched
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.runtime.spark.session import DELTA_JARS

SYSTEMS, FORMS = (OURS, SPARK), (JSON, AVRO)
LOADS = {"latency": 1 / 2, "quarter": 1 / 4}
"""The rates at which rows are sent, as shares of the backlog's speed."""
PARTS = ("backlog", *LOADS, "added", "growth")
PROBE = 0
"""The number of the rows that are sent until the first one is in the table."""
_PROBE_S, _START_S, _SILENT_S, _POLL_S = 0.25, 120.0, 60.0, 0.005
_FIRST_VERSIONS = 1_000
GROWTH_ROWS = 1_000
"""The rows of a transaction in a table that grows."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A backlog has `backlog_rows`, of which a transaction takes `batch`.

    `growth_versions` and `growth_seconds` bound the table that grows, whichever is reached first.
    """

    backlog_rows: int
    batch: int
    seconds: float
    warm_seconds: float
    rounds: int
    added_transactions: int
    growth_versions: int
    growth_seconds: float


WHOLE = Scale(
    *(1_000_000, 50_000),
    seconds=15,
    warm_seconds=10,
    rounds=3,
    added_transactions=200,
    growth_versions=10_000,
    growth_seconds=900,
)
SHORT = Scale(
    *(200_000, 20_000),
    seconds=4,
    warm_seconds=2,
    rounds=1,
    added_transactions=20,
    growth_versions=400,
    growth_seconds=30,
)


@dataclass(slots=True)
class TableReader:
    """Waits for versions of a Delta table as a reader does that polls, and reads its files afterwards."""

    folder: Path
    rows: int = 0
    _version: int = 0
    _arrivals: list[tuple[int, str]] = field(default_factory=list)

    def poll(self) -> None:
        """Note the versions that have come, and the number of their rows."""
        while (entry := self.folder / "_delta_log" / f"{self._version:020}.json").exists():
            visible_us = now_us()
            for line in entry.read_text("utf-8").splitlines():
                added = json.loads(line).get("add")
                if added is not None and added["dataChange"]:  # compacted files have rows that were there
                    self._arrivals.append((visible_us, unquote(added["path"])))
                    self.rows += json.loads(added["stats"])["numRecords"]
            self._version += 1

    def wait(self, is_done: Callable[[], bool], process: Process) -> None:
        """Poll until it is done. Raises `WrongResult` if the process has ended, or no row comes."""
        count, since_s = self.rows, time.monotonic()
        while not is_done():
            self.poll()
            if count != (count := self.rows):
                since_s = time.monotonic()
            elif time.monotonic() - since_s > (_SILENT_S if count else _START_S) or process.poll() is not None:
                raise WrongResult(f"no row came for {time.monotonic() - since_s:.0f} s, after {count}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)

    def read(self, count: int) -> pa.Table:
        """Return `sent_us` and `visible_us` of all rows but probes, once each number from 1 to `count` came once."""
        tables = list[pa.Table]()
        for visible_us, path in self._arrivals:
            table = pq.read_table(self.folder / path, columns=["number", "sent_us"], partitioning=None)
            tables.append(table.append_column("visible_us", pa.repeat(pa.scalar(visible_us, pa.int64()), len(table))))
        rows = pa.concat_tables(tables)
        rows = rows.filter(pc.not_equal(rows["number"], PROBE))
        distinct = pc.count_distinct(rows["number"]).as_py()
        if (len(rows), distinct) != (count, count) or pc.max(rows["number"]).as_py() != count:
            raise WrongResult(f"{count} rows were sent; {len(rows)} are in the table, {distinct} of them different")
        return rows


@contextmanager
def appending(
    system: str, bootstrap: str, topic: str, form: str, limits: tuple[int, int], log: Path
) -> Iterator[tuple[Process, TableReader]]:
    """Let a system append a topic to a table, in a process of its own. `limits` are rows and transactions."""
    with tempfile.TemporaryDirectory(prefix="appends-", ignore_cleanup_errors=True) as folder:
        program = [sys.executable, "-m", "bench.append_programs", system]
        process = start_watched([*program, bootstrap, topic, form, folder, *map(str, limits)], log)
        try:
            yield process, TableReader(Path(folder, "table"))
        finally:
            end_watched(process)


@contextmanager
def new_topic(bootstrap: str) -> Iterator[str]:
    """Create an empty topic, and delete it in the end."""
    name = f"rows-{uuid4().hex[:12]}"
    create_topic(bootstrap, name, PARTITIONS, {"segment.bytes": str(2**28)})
    try:
        yield name
    finally:
        delete_topic(bootstrap, name)


def append_backlog(system: str, bootstrap: str, topic: str, form: str, scale: Scale, log: Path) -> dict[str, float]:
    """Append a backlog. Return the megabytes a second between the first version with rows and the last."""
    with appending(system, bootstrap, topic, form, (scale.batch, 3), log) as (process, reader):
        reader.wait(lambda: reader.rows >= scale.backlog_rows, process)
        reader.poll()
        visible_us = reader.read(scale.backlog_rows)["visible_us"]
    first_us, last_us = pc.min(visible_us).as_py(), pc.max(visible_us).as_py()
    later = pc.sum(pc.greater(visible_us, first_us)).as_py()
    return {"mb_per_s": later * ROW_BYTES / max(1, last_us - first_us)}


def append_at_rate(system: str, rate: int, bootstrap: str, form: str, scale: Scale, log: Path) -> dict[str, float]:
    """Send rows at a rate. Return how long they took until the version with them was there, and the cores that were
    busy meanwhile with sending, with the broker and with appending."""
    count = int(rate * (scale.warm_seconds + scale.seconds))
    with (
        new_topic(bootstrap) as topic,
        appending(system, bootstrap, topic, form, (scale.batch, 2), log) as (process, reader),
    ):
        probes, probed_s = 0, 0.0

        def probe() -> bool:
            nonlocal probes, probed_s
            if reader.rows == 0 and time.monotonic() - probed_s > _PROBE_S:
                send(bootstrap, topic, form, range(PROBE, PROBE + 1), 0)
                probes, probed_s = probes + 1, time.monotonic()
            return reader.rows > 0

        reader.wait(probe, process)
        before = machine.cpu_time()
        arguments = [bootstrap, topic, form, "1", str(count + 1), str(rate)]
        sender = start_watched([sys.executable, "-m", "bench.append_programs", "send", *arguments], log)
        try:
            reader.wait(lambda: reader.rows >= count + probes, process)
            reader.poll()
            after = machine.cpu_time()
            rows = reader.read(count)
        finally:
            end_watched(sender)
    warm_us = pc.min(rows["sent_us"]).as_py() + int(scale.warm_seconds * 1e6)
    rows = rows.filter(pc.greater_equal(rows["sent_us"], warm_us))
    times_ms = pc.divide(pc.subtract(rows["visible_us"], rows["sent_us"]).cast(pa.float64()), 1e3)
    p50_ms, p99_ms = pc.quantile(times_ms, [0.5, 0.99], interpolation="nearest").to_pylist()
    used = {"busy_cores": after.own_cores_since(before)} if before and after else {}
    return {"rate_mb_per_s": rate * ROW_BYTES / 1e6, "p50_ms": p50_ms, "p99_ms": p99_ms, **used}


def measure_added_rows(rows: int, scale: Scale, _log: Path) -> dict[str, float]:
    """The same transactions without a sink and with one."""
    tuples = [(f"word-{number % 1_000}", f"{number:0900}") for number in range(rows)]

    def add_sink(builder: TransactionalTopologyBuilder, folder: str) -> None:
        builder.set_sink("table", DeltaSink(f"{folder}/table")).local_or_shuffle_grouping("rows")

    return measure_added(tuples, "word string, payload string", scale.added_transactions, add_sink)


def measure_growth(scale: Scale, _log: Path) -> dict[str, float]:
    """Append small transactions to one table, each a version of its own. Compare the first with the last.

    A run continues the one before, so that each part of a tenth also measures a start.
    """
    tuples = [(number, f"word-{number % 1_000}") for number in range(GROWTH_ROWS)]
    step = min(_FIRST_VERSIONS, scale.growth_versions // 4)
    medians_ms, starts_s, began_s = list[float](), list[float](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="appends-", ignore_cleanup_errors=True) as folder:
        while (count := len(medians_ms) * step) < scale.growth_versions:
            if time.monotonic() - began_s > scale.growth_seconds:
                break
            spout = TimedSpout([tuples * (count + step)], "number long, word string", take=GROWTH_ROWS)
            builder = TransactionalTopologyBuilder("growth", "rows", spout)
            builder.set_sink("table", DeltaSink(f"{folder}/table")).local_or_shuffle_grouping("rows")
            # One transaction waits at most, so that none is published together with another one.
            config = {"stop_when_drained": True, "max_spout_pending": 1, "sink_pending_max": 1}
            started_s = time.perf_counter()
            run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", config=config, master="none")
            starts_s.append(spout.committed_s[0] - started_s)
            medians_ms.append(1e3 * percentile([end - start for start, end in pairwise(spout.committed_s)], 50))
        reader = TableReader(Path(folder, "table"))
        reader.poll()
    if reader.rows != len(medians_ms) * step * GROWTH_ROWS:
        raise WrongResult(f"{len(medians_ms) * step} transactions were appended; the table has {reader.rows} rows")
    figures: dict[str, float] = {"versions": len(medians_ms) * step, "rows": reader.rows}
    figures |= {"first_ms": medians_ms[0], "last_ms": medians_ms[-1], "growth": medians_ms[-1] / medians_ms[0]}
    return {**figures, "first_start_ms": 1e3 * starts_s[0], "last_start_ms": 1e3 * starts_s[-1]}


@dataclass(slots=True)
class Measuring:
    """A run of the benchmark: its rows so far, which are saved after each, and the names of those that failed."""

    output: Path
    command: str
    console: Console
    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def measure(
        self, part: str, form: str, system: str, number: int, act: Callable[[Path], Mapping[str, float]]
    ) -> Any:
        """Measure one row, and return its figures. None if it has failed, which is printed with the end of its log."""
        log = self.folder / f"{part}-{form}-{system}-{number}.log"
        log.touch()
        try:
            figures = act(log)
        except WrongResult as error:
            self.failures.append(f"{part} {form} {system}: {error}")
            self.console.print(self.failures[-1], *log.read_text("utf-8").splitlines()[-5:], sep="\n")
            return None
        self.rows.append({"what": part, "form": form, "system": system, "round": number, **figures})
        save({**heading("appends", self.command), "rows": self.rows}, self.output)
        self.console.print(f"round {number}: {part} {form} {system}: {figures}")
        return figures


def measure_round(run: Measuring, number: int, bootstrap: str, scale: Scale, options: argparse.Namespace) -> None:
    """Measure all parts but growth once, the systems in turns."""
    loads = [load for load in LOADS if load in options.parts]
    for form in FORMS if loads or "backlog" in options.parts else ():
        speeds = dict[str, float]()
        with new_topic(bootstrap) as topic:
            send(bootstrap, topic, form, range(1, scale.backlog_rows + 1), 0)
            for system in options.systems:
                act = partial(append_backlog, system, bootstrap, topic, form, scale)
                figures = run.measure("backlog", form, system, number, act)
                speeds |= {} if figures is None else {system: figures["mb_per_s"]}
        for load, (system, speed) in product(loads, speeds.items()):
            rate = int(speed * 1e6 / ROW_BYTES * LOADS[load])
            run.measure(load, form, system, number, partial(append_at_rate, system, rate, bootstrap, form, scale))
    for rows in (100, 1_000) if "added" in options.parts and OURS in options.systems else ():
        run.measure("added", f"{rows:,} rows", OURS, number, partial(measure_added_rows, rows, scale))


def show(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a line for each row over its rounds."""
    table = Table(*COLUMNS, title="Appends", title_justify="left")
    for line in append_rows(rows):
        table.add_row(*line)
    console.print(table)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m bench appends", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few minutes: one round, few rows")
    parser.add_argument("--systems", type=words, default=SYSTEMS, help=f"some of {','.join(SYSTEMS)}")
    parser.add_argument("--parts", type=words, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help=f"{WHOLE.rounds}, in a short run {SHORT.rounds}")
    parser.add_argument("--output", type=Path, help="the folder of appends.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure every row, as often as there are rounds, and write all down. A row that fails is said, and left out."""
    options = _options(arguments)
    scale = SHORT if options.short else WHOLE
    output = options.output or (Path("artifacts/performance") if options.short else page.FOLDER)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    command = " ".join(["python -m bench appends", *(["--short"] if options.short else [])])
    DELTA_JARS.files()  # downloads are not measured
    with tempfile.TemporaryDirectory(prefix="appends-") as folder, LocalBroker(heap_mb=1024) as broker:
        run = Measuring(output, command, console, Path(folder))
        for number in range(1, (options.rounds or scale.rounds) + 1):
            measure_round(run, number, broker.bootstrap, scale, options)
    with tempfile.TemporaryDirectory(prefix="appends-") as folder:
        run.folder = Path(folder)
        if "growth" in options.parts and OURS in options.systems:
            run.measure("growth", f"{GROWTH_ROWS:,} rows", OURS, 1, partial(measure_growth, scale))
    show(run.rows, console)
    if run.failures:
        raise SystemExit(f"failed: {'; '.join(run.failures)}")


if __name__ == "__main__":
    main(sys.argv[1:])
