"""`python -m bench sinks`: records passed on from Kafka to Kafka, ours beside Structured Streaming and Kafka Streams.

Three rounds in turns on one broker. Ours and Kafka Streams pass each record on once, Structured Streaming at least
once. A row of latency sends records at a rate and notes when a reader of committed records sees them: from when a
record was sent and, for ours, from when its transaction was planned, after which tasks read it. A row of throughput
passes on a backlog. Last, the same transactions with a sink and without one: one after the other, and with pauses in
which the sink publishes. Each row is kept at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Message, TopicPartition
from rich.console import Console
from rich.table import Table

from bench import page
from bench.added import measure_added
from bench.figures import percentile
from bench.report import WIDTH
from bench.results import heading, save
from bench.rounds import WrongResult
from bench.sink_programs import (
    PARTITIONS,
    now_us,
    number_of,
    send,
    sent_us,
    store_url,
    streams_command,
    topology_id,
)
from bench.sink_sheets import COLUMNS, sink_rows
from sinks import KafkaSink
from spouts.kafka_admin import create_topic
from spouts.local_broker import LocalBroker
from spouts.local_broker_jvm import end_watched, start_watched
from transactional import TransactionalTopologyBuilder
from transactional.core.store.rules import COMMITTED
from transactional.operations.loading import open_store
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.spark.session import DELTA_JARS

OURS, SPARK, STREAMS = "ours", "spark", "streams"
SYSTEMS = (OURS, SPARK, STREAMS)
Process = subprocess.Popen[bytes]
PROBE = 0
"""The number of the records that are sent until the first one comes through."""
_PROBE_S, _START_S, _SILENT_S = 0.25, 120.0, 60.0
_FETCHED_MAX, _ATTEMPTS_MAX = 10_000, 100_000
_PAUSE_S = 0.1
"""The time between two transactions of a row with pauses. What a sink publishes meanwhile takes half of it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. `rates` are records a second, and the most that a transaction takes.

    A backlog is as large as `backlog_transactions` of that size. At `backlog_rate` or more no headers are read, which
    would cost the reader half of its time.
    """

    rates: Sequence[int]
    seconds: float
    warm_seconds: float
    backlog_transactions: int
    rounds: int
    added_transactions: int
    backlog_rate: int = 200_000


WHOLE = Scale(
    (1_000, 20_000, 200_000), seconds=10, warm_seconds=5, backlog_transactions=20, rounds=3, added_transactions=100
)
SHORT = Scale((1_000,), seconds=4, warm_seconds=2, backlog_transactions=20, rounds=1, added_transactions=20)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest transaction, in records, and how many transactions of ours may be in flight.

    One keeps latency short, for a second one waits for it; several keep both processors busy with a backlog.
    """

    batch: int
    in_flight: int


@dataclass(slots=True)
class Seen:
    """The records that a reader has seen, probes left out: when each was sent and seen, its number, and its transaction
    if that is read.

    Records are parsed when all have come: a reader that parses them takes half of a processor from what is measured.
    """

    sent_us: array[int] = field(default_factory=lambda: array("q"))
    seen_us: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    txids: array[int] = field(default_factory=lambda: array("q"))
    count: int = 0
    """The number of records that have come, probes included."""
    unparsed: list[tuple[Sequence[bytes], int, Sequence[int]]] = field(default_factory=list)

    def add(self, records: Sequence[bytes], seen_us: int, txids: Sequence[int] = ()) -> None:
        """Note records that were seen now, with their transactions or without them."""
        self.count += len(records)
        self.unparsed.append((records, seen_us, txids))

    def parse(self) -> None:
        """Parse the records that were noted."""
        for records, seen_us, txids in self.unparsed:
            for record, txid in zip_longest(records, txids):
                if (number := number_of(record)) != PROBE:
                    self.numbers.append(number)
                    self.sent_us.append(sent_us(record))
                    self.seen_us.append(seen_us)
                    self.txids.extend(() if txid is None else (txid,))
        self.unparsed.clear()

    def check(self, count: int, *, exactly: bool) -> None:
        """Raise `WrongResult` unless each number from 1 to `count` has come, and, with `exactly`, once."""
        marks = bytearray(count + 1)
        for number in self.numbers:
            marks[number] = 1
        distinct = sum(marks)
        if distinct != count or (exactly and len(self.numbers) != count):
            raise WrongResult(f"{count} records were sent; {len(self.numbers)} came, {distinct} of them different")

    def latency(self, warm_us: int) -> dict[str, float]:
        """Milliseconds from sent to visible, of the records that were sent after the first `warm_us`."""
        first_us = min(self.sent_us) + warm_us
        pairs = zip(self.sent_us, self.seen_us, strict=True)
        times_ms = [(seen_us - sent_us) / 1e3 for sent_us, seen_us in pairs if sent_us >= first_us]
        return {"p50_ms": percentile(times_ms, 50), "p99_ms": percentile(times_ms, 99)}

    def latency_since_planned(self, warm_us: int, planned_us: Mapping[int, int]) -> dict[str, float]:
        """Milliseconds from the planning of a transaction until its records are visible, of the same records."""
        first_us = min(self.sent_us) + warm_us
        records = zip(self.sent_us, self.seen_us, self.txids, strict=True)
        times_ms = [(seen_us - planned_us[txid]) / 1e3 for sent_us, seen_us, txid in records if sent_us >= first_us]
        return {"consumed_p50_ms": percentile(times_ms, 50), "consumed_p99_ms": percentile(times_ms, 99)}

    def speed(self) -> float:
        """Records a second from the first that was visible to the last; those of the first moment are not counted."""
        first_us, last_us = min(self.seen_us), max(self.seen_us)
        later = sum(seen_us > first_us for seen_us in self.seen_us)
        return later * 1e6 / max(1, last_us - first_us)


class Reader:
    """Reads a topic as it grows, committed records only; with `reads_txids` their headers with the transaction, too."""

    def __init__(self, bootstrap: str, topic: str, *, reads_txids: bool = False) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "bench-reader"}
        settings |= {"isolation.level": "read_committed", "enable.auto.commit": False, "fetch.wait.max.ms": 5}
        settings["fetch.queue.backoff.ms"] = 1  # by default a reader that is behind waits for seconds
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        self.seen, self._reads_txids = Seen(), reads_txids

    def read(self) -> None:
        """Note the records that are visible now, or within a few milliseconds."""
        messages = self._consumer.consume(1, 0.05)
        messages += self._consumer.consume(_FETCHED_MAX, 0) if messages else []
        seen_us = now_us()
        records = [message for message in messages if message.error() is None]
        self.seen.add(list(map(_content, records)), seen_us, list(map(_txid, records)) if self._reads_txids else ())

    def read_until(self, is_done: Callable[[], bool], process: Process) -> None:
        """Read on. Raises `WrongResult` if the process that passes records on has ended, or nothing comes."""
        count, since_s = -1, time.monotonic()
        while not is_done():
            self.read()
            if count != (count := self.seen.count):
                since_s = time.monotonic()
            elif time.monotonic() - since_s > (_SILENT_S if count else _START_S) or process.poll() is not None:
                raise WrongResult(f"no record came for {time.monotonic() - since_s:.0f} s, after {count}")

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def _content(message: Message) -> bytes:
    content = message.value()
    assert isinstance(content, bytes)
    return content


def _txid(message: Message) -> int:
    headers = dict(message.headers() or ())
    txid = headers["txid"]
    assert isinstance(txid, bytes)
    return int(txid)


@contextmanager
def passing_on(
    system: str, bootstrap: str, topics: tuple[str, str], limits: Limits, log: Path
) -> Iterator[tuple[Process, str]]:
    """Let a system pass records on from the first topic to the second, in a process of its own, with its folder."""
    with tempfile.TemporaryDirectory(prefix="sinks-", ignore_cleanup_errors=True) as folder:
        if system == STREAMS:
            command = streams_command(bootstrap, *topics, folder)
        else:
            program = [sys.executable, "-m", "bench.sink_programs"]
            command = [*program, system, bootstrap, *topics, folder, str(limits.batch), str(limits.in_flight)]
        process = start_watched(command, log)
        try:
            yield process, folder
        finally:
            end_watched(process)


def new_topics(bootstrap: str) -> tuple[str, str]:
    """Create two empty topics."""
    names = [f"{kind}-{uuid4().hex[:12]}" for kind in ("source", "target")]
    for name in names:
        create_topic(bootstrap, name, PARTITIONS, {"segment.bytes": str(2**30)})
    return names[0], names[1]


def latency(system: str, rate: int, bootstrap: str, scale: Scale, log: Path) -> dict[str, Any]:
    """Send records at a rate; how long each took to be visible, and how many a second were."""
    topics, count = new_topics(bootstrap), int(rate * (scale.warm_seconds + scale.seconds))
    reads_txids = system == OURS and rate < scale.backlog_rate
    reader = Reader(bootstrap, topics[1], reads_txids=reads_txids)
    with passing_on(system, bootstrap, topics, Limits(rate, in_flight=1), log) as (process, folder):
        probed_s, probes = 0.0, 0

        def probe() -> bool:
            nonlocal probed_s, probes
            if time.monotonic() - probed_s > _PROBE_S:
                send(bootstrap, topics[0], PROBE, PROBE + 1, 0)
                probed_s, probes = time.monotonic(), probes + 1
            return reader.seen.count > 0

        reader.read_until(probe, process)
        numbers = ["1", str(count + 1), str(rate)]
        sender = subprocess.Popen([sys.executable, "-m", "bench.sink_programs", "send", bootstrap, topics[0], *numbers])
        try:
            _read_all(reader, count, system, process, probes)
        finally:
            sender.kill()
            sender.wait()
            reader.close()
        planned_us = read_planned_us(topics[1], folder) if reads_txids else {}
    warm_us = int(scale.warm_seconds * 1e6)
    since_planned = reader.seen.latency_since_planned(warm_us, planned_us) if planned_us else {}
    return {**reader.seen.latency(warm_us), **since_planned, "speed": reader.seen.speed()}


def read_planned_us(target: str, folder: str) -> dict[int, int]:
    """Return when each transaction of ours was planned, by the clock of `now_us`."""
    offset_us = SystemClock().wall_ms() * 1_000 - now_us()
    with closing(open_store(store_url(folder))) as store:
        attempts = store.times(topology_id(target), limit=_ATTEMPTS_MAX, phases=(COMMITTED,))
    return {attempt.attempt.txid: attempt.planned_at_ms * 1_000 - offset_us for attempt in attempts}


def throughput(system: str, batch: int, bootstrap: str, scale: Scale, log: Path) -> dict[str, Any]:
    """Pass on a backlog; how many records a second were visible."""
    topics, count = new_topics(bootstrap), batch * scale.backlog_transactions
    send(bootstrap, topics[0], 1, count + 1, 0)
    reader = Reader(bootstrap, topics[1])
    try:
        with passing_on(system, bootstrap, topics, Limits(batch, in_flight=3), log) as (process, _):
            _read_all(reader, count, system, process)
    finally:
        reader.close()
    return {"speed": reader.seen.speed()}


def _read_all(reader: Reader, count: int, system: str, process: Process, probes: int = 0) -> None:
    reader.read_until(lambda: reader.seen.count >= count + probes, process)
    reader.read()  # a record that came twice
    reader.seen.parse()
    reader.seen.check(count, exactly=system != SPARK)


def added(records: int, bootstrap: str, scale: Scale, pause_s: float = 0) -> dict[str, float]:
    """The same transactions without a sink and with one."""
    tuples = [(f"word-{number % 1_000}", b"." * 100) for number in range(records)]
    sink = KafkaSink(bootstrap, new_topics(bootstrap)[1], value="payload")

    def add_sink(builder: TransactionalTopologyBuilder, _folder: str) -> None:
        builder.set_sink("out", sink).shuffle_grouping("rows")

    return measure_added(tuples, "word string, payload binary", scale.added_transactions, add_sink, pause_s)


def rows_of(scale: Scale, systems: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """What, which system, and how many records: each row of a round, those that are compared beside each other."""
    for rate in scale.rates:
        yield from (("latency", system, rate) for system in systems)
    for batch in scale.rates:
        # Kafka Streams has no size of a transaction: it commits by time.
        yield from (
            ("throughput", system, batch) for system in systems if system != STREAMS or batch == scale.rates[-1]
        )
    for what in ("added", "paced"):
        yield from ((what, OURS, rate) for rate in scale.rates if rate < 200_000 and OURS in systems)


def measure(row: tuple[str, str, int], bootstrap: str, scale: Scale, log: Path) -> Mapping[str, float]:
    """Measure one row. Raises `WrongResult` if a record is missing, or came twice where it may not."""
    what, system, records = row
    if what in ("added", "paced"):
        return added(records, bootstrap, scale, _PAUSE_S if what == "paced" else 0)
    return (latency if what == "latency" else throughput)(system, records, bootstrap, scale, log)


def show(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a line for each row over its rounds."""
    table = Table(*COLUMNS, title="Sinks", title_justify="left")
    for line in sink_rows(rows):
        table.add_row(*line)
    console.print(table)


def main(arguments: Sequence[str]) -> None:
    """Measure every row, as often as there are rounds, and write all down. A row that fails is said, and left out."""
    parser = argparse.ArgumentParser(prog="python -m bench sinks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a minute or two: one rate, one round, few records")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"some of {','.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, help=f"{WHOLE.rounds}, in a short run {SHORT.rounds}")
    parser.add_argument("--output", type=Path, help="the folder of sinks.json")
    options = parser.parse_args(arguments)
    scale = SHORT if options.short else WHOLE
    output = options.output or (Path("artifacts/performance") if options.short else page.FOLDER)
    console, failed, rows = Console(width=None if sys.stdout.isatty() else WIDTH), list[str](), list[dict[str, Any]]()
    command = " ".join(["python -m bench sinks", *(["--short"] if options.short else [])])
    DELTA_JARS.files()  # downloads are not measured
    with LocalBroker(heap_mb=1024) as broker, tempfile.TemporaryDirectory(prefix="sinks-") as folder:
        for number in range(1, (options.rounds or scale.rounds) + 1):
            for row in rows_of(scale, options.systems.split(",")):
                what, system, records = row
                log = Path(folder) / f"{what}-{system}-{records}-{number}.log"
                try:
                    figures = measure(row, broker.bootstrap, scale, log)
                except WrongResult as error:
                    failed.append(f"{what} {system} {records}: {error}")
                    console.print(failed[-1], *log.read_text("utf-8").splitlines()[-5:], sep="\n")
                    continue
                rows.append({"what": what, "system": system, "records": records, "round": number, **figures})
                save({**heading("sinks", command), "rows": rows}, output)
                console.print(f"round {number}: {what} {system} {records:,}: {figures}")
    show(rows, console)
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
