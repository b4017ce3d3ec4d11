"""`python -m bench`: every line of docs/performance.md, in under half an hour; ends by itself.

Ours and the peers work in turns, on one Spark and one broker. Each part writes its file as soon as it has a figure, so
that a run that is interrupted keeps what it has. `python -m bench tables`: transaction commits against the size and the
age of their table. `python -m bench gears`: sizes of batches and numbers of partitions, each way to process them.
`python -m bench checkouts OLD NEW`: the same works by two checkouts, in turns.
`python -m bench sinks`: records passed on from Kafka to Kafka. `python -m bench report`: tables, plots and page from
the files alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench import apart, appends, checkouts, gears, growth, page, report, sinks
from bench.contest import Contest
from bench.parts import PARTS, SHORT, WHOLE, Topics, warm_up
from bench.peers import SETTINGS
from bench.results import Results, save
from bench.rounds import Stage
from bench.source import jar_settings
from spouts.local_broker import LocalBroker
from transactional.runtime.spark.session import spark_session

TASKS = 2
Step = tuple[str, Callable[[], None]]
SHORT_OUTPUT = Path("artifacts/performance")
"""A short run does not overwrite what a whole one has found."""
APART: Mapping[str, Callable[[argparse.Namespace, str], None]] = {
    "steady": apart.steady,
    "profile": apart.profile,
    "tables": apart.tables,
    "streams": apart.streams,
    "closing": apart.closing,
    "guarantees": apart.guarantees,
    "lookups": apart.lookups,
}


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few minutes: fewer sizes, rounds and messages")
    every = [*PARTS, *APART]
    parser.add_argument(
        "--parts", type=_words, help=f"some of {','.join(every)}; else all, in a short run all but tables"
    )
    parser.add_argument("--output", type=Path, help=f"where the report goes: {page.FOLDER}, or {SHORT_OUTPUT}")
    parser.add_argument("--directory", type=Path, help="where tables are kept while it runs")
    parser.add_argument("--py-spy", default=apart.py_spy(), help="the profiler's program, where there is one")
    options = parser.parse_args(arguments)
    options.parts = options.parts or [part for part in every if not (options.short and part == "tables")]
    if unknown := set(options.parts) - set(every):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    options.output = options.output or (SHORT_OUTPUT if options.short else page.FOLDER)
    return options


def main(arguments: Sequence[str]) -> None:
    """Run every part that is requested, show all that was measured by now, and write it down.

    A part that fails does not keep the others from running; the program then ends with 1.
    """
    # Where things are on this machine is nobody's business.
    formatted = [Path(each).name if each.startswith("/") else each for each in arguments]
    options, command = options_of(arguments), " ".join(["python -m bench", *formatted])
    console = Console(width=None if sys.stdout.isatty() else report.WIDTH)
    options.output.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        failed = contests(options, command, directory, console)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    steps = [(name, partial(APART[name], options, command)) for name in APART if name in options.parts]
    failed += attempted(steps, console)
    report.show(options.output, console)
    for path in report.save(options.output):
        console.print(f"written: {path}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def contests(options: argparse.Namespace, command: str, directory: Path, console: Console) -> list[str]:
    """The parts with one broker and one Spark; the names of those that failed."""
    wanted, scale = [name for name in PARTS if name in options.parts], SHORT if options.short else WHOLE
    if not wanted:
        return []
    with LocalBroker(directory / "broker") as broker:
        topics = Topics.make(scale, broker.bootstrap, wanted)
        session = spark_session(
            "bench", master=f"local[{TASKS}]", parallelism=TASKS, conf={**SETTINGS, **jar_settings()}
        )
        stage = Stage(session, broker.bootstrap, directory, TASKS)
        console.print("warming up")
        warm_up(stage, topics, scale)

        def run(name: str) -> None:
            part, minutes = PARTS[name]
            contest = Contest(
                stage, Results(name, command), console, monotonic() + minutes * 60, options.output, topics.append
            )
            part(contest, topics, scale)
            save(contest.results.document(), options.output)

        try:
            return attempted([(name, partial(run, name)) for name in wanted], console)
        finally:
            session.stop()


def attempted(steps: Sequence[Step], console: Console) -> list[str]:
    """Do one after the other; the names of those that failed, each of which has said why."""
    failed = []
    for name, step in steps:
        console.print(f"part {name}")
        try:
            step()
        except Exception:
            console.print_exception(max_frames=4)
            failed.append(name)
    return failed


def _words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tables", *arguments]:
            growth.main(arguments)
        case ["gears", *arguments]:
            gears.main(arguments)
        case ["checkouts", *arguments]:
            checkouts.main(arguments)
        case ["sinks", *arguments]:
            sinks.main(arguments)
        case ["appends", *arguments]:
            appends.main(arguments)
        case ["report", *arguments]:
            report.main(arguments)
        case arguments:
            main(arguments)
