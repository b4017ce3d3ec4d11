"""One word count at three guarantees, over the same faults: prints what was lost, and what was counted twice.

`python -m examples.guarantees`. Each level runs in a process of its own, which a bolt kills with SIGKILL, twice, and
which is started again; bolts fail on some words, before they have counted them and after; with `--master 'local[2,4]'`
a worker of Spark dies as well. `--svg FILE` draws what came of it.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from spouts import MemoryTransactionalSpout
from state import SqlMapState
from transactional import BasicBolt, OutputCollector, Topology, TopologyConfig, TopologyContext, Tuple, run_topology
from transactional.reliable import TopologyBuilder

LEVELS = ("at-most-once", "at-least-once", "exactly-once")
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox")
FAULTS = ("fails-before", "fails-after", "kills-before", "kills-after", "worker-dies")
LINES = [[(f"{WORDS[n % 6]} {WORDS[n * n % 5]} {WORDS[(n + p) % 4]}",) for n in range(40)] for p in range(2)]
for _place, _fault in enumerate(FAULTS):
    LINES[_place % 2][7 * _place + 3] = (f"ant {_fault} elk",)
EXPECTED = Counter(word for lines in LINES for (line,) in lines for word in line.split())


class Split(BasicBolt):
    """A line to its words."""

    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        for word in tuple.line.split():
            collector.emit(word)


class Faulty(BasicBolt):
    """Passes words on, and lets each fault happen once: before it has worked on its word, or after."""

    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        self.folder, self.driver = context.options["folder"], context.options["driver"]

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if tuple.word.endswith("before") or tuple.word == "worker-dies":
            self.fail_once(tuple.word)
        self.work(tuple.word, collector)
        if tuple.word.endswith("after"):
            self.fail_once(tuple.word)

    def work(self, word: str, collector: OutputCollector) -> None:
        """Emit the word, which a state behind this bolt counts."""
        collector.emit(word)

    def fail_once(self, fault: str) -> None:
        """Cause a fault, unless it has happened before."""
        try:
            Path(self.folder, fault).touch(exist_ok=False)
        except FileExistsError:
            return
        if fault.startswith("kills"):
            os.kill(self.driver, signal.SIGKILL)
        if fault == "worker-dies" and os.getpid() != self.driver:
            os._exit(1)
        raise ConnectionError("the service does not answer")


class Count(Faulty):
    """Counts by a side effect, which no transaction takes back: a line in a file."""

    output = ""

    def work(self, word: str, collector: OutputCollector) -> None:
        with Path(self.folder, "counted").open("a", encoding="utf-8") as file:
            file.write(f"{word}\n")


def build(level: str, folder: Path) -> Topology:
    """The word count at one level."""
    builder = TopologyBuilder("words", guarantee=level)
    builder.set_spout("lines", MemoryTransactionalSpout(LINES, fields="line string", take=5), 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    if level == "exactly-once":
        builder.set_bolt("faulty", Faulty(), 2).fields_grouping("split", "word")
        state = SqlMapState(f"sqlite:///{folder}/counts.db", "counts", key="word string")
        builder.set_committer_bolt("count", state.count()).fields_grouping("faulty", "word")
    else:
        builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return builder.build(options={"folder": str(folder), "driver": os.getpid()})


def counted(level: str, folder: Path) -> Counter[str]:
    """Return the counts of a level."""
    if level == "exactly-once":
        rows = SqlMapState(f"sqlite:///{folder}/counts.db", "counts", "word string", "count long").read().to_pylist()
        return Counter({row["word"]: row["count"] for row in rows})
    return Counter((folder / "counted").read_text("utf-8").split())


def run(level: str, folder: Path, master: str) -> Counter[str]:
    """Run a level until its source is drained, however often it is killed; return what it has counted."""
    command = [sys.executable, "-m", "examples.guarantees", "--level", level, "--folder", str(folder)]
    while subprocess.run([*command, "--master", master], stderr=subprocess.DEVNULL, check=False).returncode:
        pass
    return counted(level, folder)


def summary(level: str, counts: Counter[str]) -> str:
    """Return a line with the errors of a level."""
    missing, surplus = (EXPECTED - counts).total(), (counts - EXPECTED).total()
    right = sum(counts[word] == number for word, number in EXPECTED.items())
    return f"{level:14} {missing:3} lost, {surplus:3} too many; {right:2} of {len(EXPECTED)} words have the right count"


def svg(counts_by_level: dict[str, Counter[str]]) -> str:
    """Return a picture of the errors by level and word: lost below the line, too many above it."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 430" font-family="sans-serif" font-size="12">']
    parts.append('<rect width="760" height="430" fill="#ffffff"/>')
    for row, (level, counts) in enumerate(counts_by_level.items()):
        middle = 75 + 140 * row
        parts.append(f'<text x="10" y="{middle - 50}" font-weight="bold">{summary(level, counts)}</text>')
        parts.append(f'<line x1="10" x2="750" y1="{middle}" y2="{middle}" stroke="#888888"/>')
        for place, word in enumerate(EXPECTED):
            error = max(-8, min(8, counts[word] - EXPECTED[word]))
            left, top, colour = 20 + 66 * place, middle - max(error, 0) * 5, "#c8643c" if error < 0 else "#2f6f9f"
            parts.append(f'<rect x="{left}" y="{top}" width="40" height="{abs(error) * 5}" fill="{colour}"/>')
            parts.append(
                f'<text x="{left}" y="{middle + 56}" font-size="9">{word} {counts[word] - EXPECTED[word]:+d}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def levels(master: str) -> Iterator[tuple[str, Counter[str]]]:
    """Run all levels, one after the other."""
    for level in LEVELS:
        with TemporaryDirectory() as folder:
            yield level, run(level, Path(folder), master)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", default="none")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--level", choices=LEVELS, help="run one level in --folder, once")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.level:
        config = TopologyConfig(stop_when_drained=True, retry_pause_ms=10, lease_ms=1_000, max_spout_pending=2)
        store = f"sqlite:///{options.folder}/store.db"
        run_topology(build(options.level, options.folder), store=store, config=config, master=options.master)
        return
    counts_by_level = {}
    for level, counts in levels(options.master):
        counts_by_level[level] = counts
        print(summary(level, counts), flush=True)
    if options.svg:
        options.svg.write_text(svg(counts_by_level), "utf-8")


if __name__ == "__main__":
    main()
