"""`python -m bench.grid`: throughput over keys in a batch and keys in the table, ours in its layouts beside the peers.

    python -m bench.grid --points 1e5:1e6,1e6:1e6 --minutes 30

Each point runs in a process of its own, with a Spark of its own: all systems fill a table, then work in turns, round
by round, and at the end every table is checked. A point's figures are written after each round; a point that has its
rounds is not measured again: a run which was interrupted, or has no time left, is continued by the same command.
A system that does not end a round in its time is left out from then on, and named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow.compute as pc
from pyspark.errors import StreamingQueryException

from bench import machine, processes
from bench.grid_systems import Course, ExpertOnGrid, MergeOnGrid, OursOnGrid
from bench.peers import SETTINGS
from bench.results import Results, heading, save
from bench.rounds import Round, Stage, WrongResult
from bench.timed_table import compactions_in
from state import LogLayout
from transactional.runtime.spark.session import spark_session

KEYS, TABLES = (1_000, 100_000, 1_000_000, 10_000_000), (10_000, 1_000_000, 100_000_000)
FIRST = ((100_000, 1_000_000), (1_000_000, 1_000_000), (1_000, 10_000), (1_000, 1_000_000))
"""Those that say most are measured first."""
TASKS, IN_FLIGHT = 2, 3
ROUNDS = 5
COMPACTIONS = 3
"""So often a log is compacted in a point's rounds."""
OUTPUT = Path("docs/performance")
System = OursOnGrid | MergeOnGrid | ExpertOnGrid
Point = tuple[int, int]


def batches_of(keys: int) -> int:
    """How many batches a round has, where nobody says."""
    return 20 if keys <= 10_000 else 5 if keys <= 100_000 else 2 if keys <= 1_000_000 else 1


def every_point() -> list[Point]:
    """Keys in a batch, and in the table: of which there are at least as many. Those that say most first."""
    points = [(keys, max(keys, table)) for table in TABLES for keys in KEYS]
    return list(dict.fromkeys([*FIRST, *sorted(points, key=lambda point: point[0] * point[1])]))


# --- one point --------------------------------------------------------------------------------------------------------


@dataclass
class Measuring:
    """A point that is being measured."""

    course: Course
    rounds: int
    batches: int
    output: Path
    results: Results
    unfinished: list[str] = field(default_factory=list)

    def run(self, systems: Sequence[System], stage: Stage) -> None:
        """Fill, let all work in turns, check. Raises `WrongResult`."""
        left = [each for each in systems if self._fills(each)]
        until = self.course.fills
        for number in range(1, self.rounds + 1):
            until += self.batches
            left = [each for each in left if self._works(each, until, stage, number)]
        for each in left:
            check(each, self.course, until)
            compactions = f", {compactions_in(Path(each.path))} compactions" if each.name.startswith("ours-log") else ""
            self.results.checked.append(f"{each.name}: {self.course.table:,} keys{compactions}")
        self._write()

    def _fills(self, system: System) -> bool:
        return self._in_time(system, lambda: [system.fill()]) is not None

    def _works(self, system: System, until: int, stage: Stage, number: int) -> bool:
        processes.reset_peaks(processes.by_part(stage.session))
        before = machine.cpu_time()
        times = self._in_time(system, lambda: system.run(self._until(until), self.course.keys))
        if times is None:
            return False
        after = machine.cpu_time()
        round_ = Round(
            work=f"table-{self.course.table}",
            system=system.name,
            batch_messages=self.course.keys,
            messages=self.course.keys * self.batches,
            batches=tuple(times),
            others_share=after.others_share_since(before) if before and after else None,
            peaks_mib=processes.peaks_mib(processes.by_part(stage.session)),
        )
        self.results.rounds.append(round_)
        self._write()
        print(f"{number} {system.name:14} {round_.messages_per_second:12,.0f} messages/s", flush=True)
        return True

    def _until(self, number: int) -> dict[int, int]:
        return dict.fromkeys(range(self.course.tasks), number)

    def _in_time(self, system: System, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (TimeoutError, StreamingQueryException) as error:
            self.unfinished.append(f"{system.name}: {str(error).splitlines()[0]}")
            print(self.unfinished[-1], flush=True)
            self._write()
            return None

    def _write(self) -> None:
        document = self.results.document()
        kept = {name: document[name] for name in ("others_share", "summaries", "ratios", "rounds", "checked")}
        point = {"keys": self.course.keys, "table": self.course.table, "unfinished": self.unfinished, **kept}
        self.output.write_text(json.dumps(point), "utf-8")


def check(system: System, course: Course, until: int) -> None:
    """Raise `WrongResult` unless a table has every key once, and all that was counted."""
    rows = system.rows()
    keys, messages = rows["key"], course.messages(until)
    found = (len(keys), pc.count_distinct(keys).as_py(), pc.sum(rows["count"]).as_py())
    # Which keys they are, and that each has its own count: two sums would agree by chance only.
    weighed = _weighed(rows["key"], rows["count"])
    wanted = (course.table, course.table, messages)
    expected = sum(_weight(course, number) for number in range(until))
    if found != wanted or weighed != expected:
        raise WrongResult(f"{system.name}: {found} instead of {wanted}; weighed {weighed} instead of {expected}")


def _weight(course: Course, number: int) -> int:
    return sum(pc.sum(part["key"]).as_py() for task in range(course.tasks) for part in course.part(number, task))


def _weighed(keys: Any, counts: Any) -> int:
    return int(pc.sum(pc.multiply_checked(keys, counts)).as_py())


def systems_of(stage: Stage, course: Course, batches: int) -> list[System]:
    """By turns: each of ours beside a peer. In all rounds there are so many batches."""
    compactions = LogLayout(compact_after=max(1, batches // COMPACTIONS))
    by_driver = LogLayout(compact_after=compactions.compact_after, staged_bytes=None)
    return [
        OursOnGrid(stage, course, "auto", "ours-auto", in_flight=IN_FLIGHT),
        ExpertOnGrid(stage, course),
        OursOnGrid(stage, course, compactions, "ours-log", in_flight=IN_FLIGHT),
        MergeOnGrid(stage, course),
        OursOnGrid(stage, course, by_driver, "ours-log-driver", in_flight=IN_FLIGHT),
    ]


def measure(options: argparse.Namespace) -> None:
    """One point in this process. Raises `WrongResult`."""
    keys, table = options.point
    course, rounds = Course(keys, table, TASKS), options.rounds
    batches = options.batches or batches_of(course.keys)
    session = spark_session("grid", master=f"local[{TASKS}]", parallelism=TASKS, conf=SETTINGS)
    stage = Stage(session, "", options.directory, TASKS)
    every = systems_of(stage, course, batches * rounds)
    systems = [each for each in every if not options.systems or each.name in options.systems]
    try:
        Measuring(course, rounds, batches, options.found, Results("grid", "")).run(systems, stage)
    finally:
        session.stop()


# --- all of them ------------------------------------------------------------------------------------------------------


def is_done(found: dict[str, Any], rounds: int) -> bool:
    """Whether a point has its rounds: of every system that could finish them."""
    return bool(found.get("checked")) and len(found["rounds"]) >= rounds * len(found["checked"])


def run_all(options: argparse.Namespace) -> None:
    """Measure what is missing, as long as there is time."""
    path, until_s = options.output / "grid.json", monotonic() + options.minutes * 60
    known = json.loads(path.read_text("utf-8"))["points"] if path.exists() else []
    points = {(each["keys"], each["table"]): each for each in known}
    for point in options.points:
        if point in points and is_done(points[point], options.rounds) and not options.again:
            continue
        left_s = until_s - monotonic()
        if left_s <= 0:
            print(f"time is up: {_named(point)} is left out", flush=True)
            continue
        print(_named(point), flush=True)
        found = _apart(point, options, left_s)
        if found is None:
            continue
        points[point] = {**found, "load": options.load} if options.load else found
        document = {**heading("grid", options.command), "points": [points[each] for each in sorted(points)]}
        save(document, options.output)


def _apart(point: Point, options: argparse.Namespace, left_s: float) -> dict[str, Any] | None:
    """A point in a process of its own: what it has found, as far as it came."""
    folder = Path(tempfile.mkdtemp(prefix="grid-", dir=options.directory))
    output = folder / "found.json"
    arguments = ["--point", f"{point[0]}:{point[1]}", "--rounds", str(options.rounds), "--found", str(output)]
    arguments += ["--batches", str(options.batches)] if options.batches else []
    arguments += ["--systems", ",".join(options.systems)] if options.systems else []
    try:
        subprocess.run(
            [sys.executable, "-m", "bench.grid", *arguments, "--directory", str(folder)], check=False, timeout=left_s
        )
    except subprocess.TimeoutExpired:
        print(f"time is up within {_named(point)}", flush=True)
    try:
        return json.loads(output.read_text("utf-8")) if output.exists() else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _named(point: Point) -> str:
    return f"{point[0]:,} keys a batch, {point[1]:,} in the table"


def _points(text: str) -> list[Point]:
    return [_point(each) for each in text.split(",")]


def _point(text: str) -> Point:
    keys, table = (int(float(part)) for part in text.split(":"))
    return keys, max(keys, table)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main(arguments: Sequence[str]) -> None:
    """Measure, and write down."""
    parser = argparse.ArgumentParser(prog="python -m bench.grid", description=__doc__)
    parser.add_argument("--points", type=_points, default=every_point(), help="keys in a batch:keys in the table, …")
    parser.add_argument("--systems", type=_words, default=[], help="some of them; else all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batches", type=int, help="in each round; else fewer the more keys they have")
    parser.add_argument("--minutes", type=float, default=60, help="after so long nothing more is begun or waited for")
    parser.add_argument("--again", action="store_true", help="also points that are measured")
    parser.add_argument("--load", default="", help="what else the machine did, in words")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--directory", type=Path, help="where tables are kept while it runs")
    parser.add_argument("--point", type=_point, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.command = " ".join(["python -m bench.grid", *(Path(a).name if a[:1] == "/" else a for a in arguments)])
    if options.point:
        measure(options)
    else:
        run_all(options)


if __name__ == "__main__":
    # Executors look classes up in the module that has them, which is not the program.
    import_module("bench.grid").main(sys.argv[1:])
