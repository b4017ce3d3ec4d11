"""`python -m bench.console_live`: what an open page of the console costs the run beside it.

One run without Spark, whose page is open in every other part of it, as a browser has it open: loaded once, then it gets
events, puts in what they bring, and loads the page again when an event says so. Compared is the processor time of the
whole process per transaction, in adjacent parts. Opening the page is not part of it, and reported apart.

A light run has small batches and bolts that wait; `--rows 20000` makes a busy one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any, Final

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from transactional import TransactionalTopologyBuilder
from transactional.core.protocol import Action, Event, RecordCommit
from transactional.running import console_of_run, run_topology
from transactional.topology.topology import Topology

TARGET: Final = 0.02
SLEEP_S: Final = 0.03
STATIC: Final = ("console.css", "console.js", "charts.js", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")

# In a process of its own, as a browser is. Opens and closes the page as its lines of input say.
VIEWER: Final = """
import sys, threading, urllib.request
from http.cookiejar import CookieJar
url, files = sys.argv[1], sys.argv[2:]
base = url.partition("?")[0]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar()))
load = lambda path: opener.open(base + path, timeout=60).read()
load("?token=" + url.partition("?token=")[2])
def follow(events, counts):
    try:
        for line in events:
            name = line.decode().strip().removeprefix("event: ")
            if name == "changed":
                load("t/words/")
            if name in counts:
                counts[name] += 1
    except Exception:
        pass
for line in sys.stdin:
    if line.strip() == "open":
        for path in ("t/words/", *("static/" + file for file in files)):
            load(path)
        events = opener.open(base + "t/words/changes", timeout=600)
        counts = {"changed": 0, "parts": 0}
        threading.Thread(target=follow, args=(events, counts), daemon=True).start()
        print("opened", flush=True)
    elif line.strip() == "close":
        events.fp.raw._sock.shutdown(2)
        print("closed", flush=True)
    else:
        print(counts["parts"], counts["changed"], flush=True)
        counts.update(changed=0, parts=0)
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run: what a transaction took of the processor, by all of the process and by the console."""

    is_open: bool
    process_ms: float
    console_ms: float
    wall_s: float
    counts: str
    """How many times parts and pages were sent."""


class Parts:
    """An observer that opens and closes the page, and measures between."""

    def __init__(self, viewer: subprocess.Popen[str], pairs: int, transactions: int, settling: int) -> None:
        self._viewer, self._transactions, self._settling = viewer, transactions, settling
        # Each other pair the other way round: whatever grows with the run favors neither.
        self._plan = [is_open for _ in range(-(-pairs // 2)) for is_open in (False, True, True, False)][: 2 * pairs]
        self.found: list[Part] = []
        self.ratios: list[float] = []
        self.shares: list[float] = []
        self.opening_ms: list[float] = []
        self._count, self._is_open = -2 * settling, self._plan[0]
        self._began = (0.0, 0.0, 0.0)

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Count commits."""
        for action in actions:
            if isinstance(action, RecordCommit):
                self._count += 1
                if self._count == 0:
                    self._began = _now()
                elif self._count == self._transactions:
                    self._end()

    def _end(self) -> None:
        if not self._plan:
            return
        process_s, console_s, wall_s = (now - began for now, began in zip(_now(), self._began, strict=True))
        number, is_open = self._transactions, self._plan.pop(0)
        counts = self._ask("counts") if is_open else ""
        self.found.append(Part(is_open, 1e3 * process_s / number, 1e3 * console_s / number, wall_s, counts))
        if len(self.found) % 2 == 0:
            self._compare(*sorted(self.found[-2:], key=lambda part: part.is_open))
        if self._plan and self._plan[0] != is_open:
            before_s = time.process_time()
            self._ask("close" if is_open else "open")
            if not is_open:
                self.opening_ms.append(1e3 * (time.process_time() - before_s))
        self._count = -self._settling

    def _compare(self, closed: Part, opened: Part) -> None:
        self.ratios.append(opened.process_ms / closed.process_ms - 1)
        self.shares.append((opened.console_ms - closed.console_ms) / (closed.process_ms - closed.console_ms))
        sent, loaded = opened.counts.split()
        print(
            f"closed {closed.process_ms:.2f} ms a transaction, open {opened.process_ms:.2f} ms: "
            f"{100 * self.ratios[-1]:+.1f} %; its threads {closed.console_ms:.3f} and {opened.console_ms:.3f} ms: "
            f"{100 * self.shares[-1]:+.2f} %; {opened.wall_s:.0f} s, {sent} times parts, {loaded} pages",
            flush=True,
        )

    def _ask(self, line: str) -> str:
        assert self._viewer.stdin is not None
        assert self._viewer.stdout is not None
        self._viewer.stdin.write(f"{line}\n")
        self._viewer.stdin.flush()
        return self._viewer.stdout.readline().strip()


_ended: dict[int, float] = {}


def _now() -> tuple[float, float, float]:
    """Processor time of the process, of the console's threads, and the time of day."""
    for thread in threading.enumerate():
        if thread.name in ("console", "AnyIO worker thread") and thread.ident is not None:
            try:
                _ended[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            except OSError:  # it has just ended
                continue
    return time.process_time(), sum(_ended.values()), time.monotonic()


def waiting(row: Any) -> tuple[Any, ...]:
    """A bolt that waits for something, once in a batch."""
    if row["number"] == 0:
        threading.Event().wait(SLEEP_S)
    return tuple(row)


def topology_of(rows: int, transactions: int) -> Topology:
    """Words that are counted, so many to a batch."""
    batch = [(f"word {number % 50}", number) for number in range(rows)]
    spout = MemoryTransactionalSpout([batch * transactions], "word string, number long", rows)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_bolt("waiting", waiting, output="word string, number long").shuffle_grouping("spout")
    builder.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("waiting", "word")
    return builder.build()


def measured(rows: int, pairs: int, transactions: int, settling: int) -> Parts:
    """The parts of one run."""
    topology = topology_of(rows, 2 * pairs * (transactions + settling) + settling + 1)
    said = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/store.db"
        with console_of_run(topology, store, "127.0.0.1:0", said.append) as live:
            command = [sys.executable, "-c", VIEWER, said[0].rpartition(" ")[2], *STATIC]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as viewer:
                parts = Parts(viewer, pairs, transactions, settling)
                config = {"stop_when_drained": True, "max_spout_pending": 1}
                run_topology(topology, store=store, master="none", config=config, observers=[live, parts])
                viewer.kill()
    return parts


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20, help="in a batch")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--transactions", type=int, default=150, help="in each part")
    parser.add_argument("--settling", type=int, default=20, help="transactions between two parts")
    options = parser.parse_args(arguments)
    parts = measured(options.rows, options.pairs, options.transactions, options.settling)
    ratios = parts.ratios
    spread = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    print(
        f"an open page costs {100 * fmean(ratios):+.2f} % of processor time per transaction "
        f"(standard error {100 * spread:.2f}, median {100 * median(ratios):+.2f}), "
        f"by the clocks of its threads {100 * fmean(parts.shares):+.2f} %; target {100 * TARGET:.0f} %; "
        f"opening it {parts.opening_ms[0]:.0f} ms the first time, then {median(parts.opening_ms):.0f} ms"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
