"""`python -m bench.backlog`: a backlog is caught up with, and then followed, in one run and one journal.

A topic holds so many messages when the run begins, and a producer continues to write a few thousand a second. What was
committed when, how late, and where it was processed is kept in `docs/performance/backlog.json`, and drawn.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import median
from time import monotonic

from confluent_kafka import Producer

from bench import page
from bench.figures import percentile
from bench.gear_rows import MASTER, TASKS, VOCABULARY, now_s
from bench.results import heading, save
from bench.rounds import WrongResult
from bench.workload import VALUE_BYTES, Workload, zipf
from spouts import OpaqueKafkaSpout
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder, start_topology
from transactional.core.machine.protocol import Action, CommitSucceeded, Event, RecordAttempt
from transactional.model.attempt import TransactionAttempt
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.runtime.engine.history.observing import Observer

BATCH, EACH_S, PARTITIONS = 200_000, 5_000, 4
WIDTH, HEIGHT, LEFT, GAP = 860, 360, 70, 40


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: when it was planned and committed, in seconds since the run began; its messages; its place."""

    planned_s: float
    committed_s: float
    messages: int
    place: str


class Commits:
    """An observer that notes them."""

    def __init__(self) -> None:
        self.began_s, self.found = now_s(), list[Commit]()
        self._planned = dict[TransactionAttempt, tuple[float, int]]()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Called after the actions that follow an event were performed."""
        at_s = now_s() - self.began_s
        for action in actions:
            if isinstance(action, RecordAttempt):
                self._planned[action.attempt] = at_s, sum(map(len, action.batch.ranges.values()))
        if isinstance(event, CommitSucceeded) and event.attempt in self._planned:
            planned_s, messages = self._planned.pop(event.attempt)
            self.found.append(Commit(planned_s, at_s, messages, event.report.processing.partition(":")[0]))


class Following:
    """A producer that writes `EACH_S` messages a second, from the words of the backlog, until it is stopped."""

    def __init__(self, bootstrap: str, workload: Workload) -> None:
        self.written = Counter[str]()
        self._workload, self._stopped = workload, threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0})
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        began_s, written, words = monotonic(), 0, self._workload.words
        while not self._stopped.wait(0.005):
            until = int((monotonic() - began_s) * EACH_S)
            for number in range(written, until):
                word = words[number % len(words)]
                self._producer.produce(self._workload.topic, bytes(VALUE_BYTES), word, partition=number % PARTITIONS)
                self.written[word] += 1
            written = until
            self._producer.poll(0)

    def stop(self) -> None:
        """Write no more, and wait until all of it is in the topic."""
        self._stopped.set()
        self._thread.join()
        self._producer.flush(60)


def run(messages: int, follow_s: float) -> tuple[list[Commit], dict[str, float]]:
    """The transactions of a run, and what they come to. Raises `WrongResult` unless the table holds every message."""
    with LocalBroker() as broker, tempfile.TemporaryDirectory(prefix="backlog-") as folder:
        workload = zipf("backlog", messages, VOCABULARY, 0)
        workload.produce(broker.bootstrap)
        spout = OpaqueKafkaSpout(
            broker.bootstrap, [workload.topic], fields=("key",), key_type="string", batch_records_max=BATCH
        )
        builder = TransactionalTopologyBuilder("backlog", "messages", spout, parallelism=TASKS)
        state = DeltaMapState(Path(folder, "counts"), "key string")
        builder.set_committer_bolt("counts", state.count()).fields_grouping("messages", "key")
        config = {"processing": "auto", "idle_pause_ms": 5}
        following, commits = Following(broker.bootstrap, workload), Commits()
        with closing(JournalWriter(Path(folder, "journal"))) as journal:
            observers: list[Observer] = [commits, journal]
            store = f"sqlite:///{folder}/store.db"
            with start_topology(builder.build(), store=store, config=config, master=MASTER, observers=observers) as run:
                until_s = None
                while until_s is None or monotonic() < until_s:
                    threading.Event().wait(0.2)
                    if until_s is None and sum(each.messages for each in list(commits.found)) >= messages:
                        until_s = monotonic() + follow_s
                following.stop()
                threading.Event().wait(2)
                summary = run.stop()
        counts = Counter(workload.words) + following.written
        table = DeltaMapState(Path(folder, "counts"), "key string").read()
        found = dict(zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True))
        if found != dict(counts) or summary.failures:
            raise WrongResult(f"backlog: the table differs from the topic, or {summary.failures} attempts failed")
    return commits.found, figures(commits.found, messages)


def figures(commits: Sequence[Commit], messages: int) -> dict[str, float]:
    """How fast the backlog was read, and how late what came afterwards was committed."""
    total, caught_up = 0, commits[-1]
    for each in commits:
        total += each.messages
        if total >= messages:
            caught_up = each
            break
    after = [each for each in commits if each.planned_s > caught_up.committed_s + 1 and each.messages]
    latencies = [1e3 * (each.committed_s - each.planned_s) for each in after]
    return {
        "messages": messages,
        "first_s": commits[0].committed_s,
        "caught_up_s": caught_up.committed_s,
        "speed": messages / (caught_up.committed_s - commits[0].planned_s),
        "followed": len(after),
        "p50_ms": median(latencies),
        "p99_ms": percentile(latencies, 99),
        "places": len({each.place for each in commits}),
    }


def draw(commits: Sequence[Commit], found: dict[str, float]) -> str:
    """Messages and milliseconds of each transaction over time, on logarithmic scales, as SVG."""
    end_s = commits[-1].committed_s
    half = (HEIGHT - 3 * GAP) / 2
    title = (
        f"{found['messages']:,.0f} messages are caught up with in {found['caught_up_s']:.0f} s "
        f"({found['speed']:,.0f} a second), then followed: p50 {found['p50_ms']:.0f} ms"
    )
    sizes = [(each.committed_s, each.messages, each.place) for each in commits if each.messages]
    times = [(each.committed_s, 1e3 * (each.committed_s - each.planned_s), each.place) for each in commits]
    body = [
        *_panel("messages of a transaction", sizes, GAP, half, end_s, (1, 1e6)),
        *_panel("milliseconds from planned to committed", times, 2 * GAP + half, half, end_s, (1, 1e4)),
        _text(LEFT, HEIGHT - 12, f"seconds since the start: 0 to {end_s:.0f}; blue: in workers, orange: on Spark"),
    ]
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, back, _text(10, 20, title, 'font-weight="bold"'), *body, "</svg>", ""])


def _panel(
    name: str,
    points: Sequence[tuple[float, float, str]],
    top: float,
    height: float,
    end_s: float,
    scale: tuple[float, float],
) -> list[str]:
    low, high = map(math.log10, scale)

    def at(value: float) -> float:
        return top + height * (high - math.log10(max(value, scale[0]))) / (high - low)

    lines = [_text(LEFT, top - 6, name)]
    for power in range(int(low), int(high) + 1):
        y = at(10**power)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        lines.append(_text(10, y + 4, f"{10**power:,}"))
    for second, value, place in points:
        x = LEFT + (WIDTH - LEFT - 20) * second / end_s
        colour = "#c8643c" if place == "on Spark" else "#2f6f9f"
        lines.append(f'<circle cx="{x:.1f}" cy="{at(value):.1f}" r="1.5" fill="{colour}"/>')
    return lines


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, keep, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--follow", type=float, default=30, help="seconds to follow after the backlog")
    parser.add_argument("--output", type=Path, default=page.FOLDER)
    options = parser.parse_args(arguments)
    commits, found = run(options.messages, options.follow)
    sys.stdout.write(json.dumps(found) + "\n")
    save(
        {**heading("backlog", "python -m bench.backlog"), **found, "commits": list(map(asdict, commits))},
        options.output,
    )
    (options.output / "backlog.svg").write_text(draw(commits, found), "utf-8")


if __name__ == "__main__":
    main()
