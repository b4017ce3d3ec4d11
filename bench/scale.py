"""`python -m bench.scale`: what large batches and large tables cost, each over thirty transactions with folds in them.

    python -m bench.scale --parts commits,memory --minutes 30

Commits of staged files in an old table; the driver's memory and time over the keys of a batch, its executors in
processes of their own; one, two and four executors in turns; tables of a million and of a hundred million keys. Each
measurement runs in a process of its own, is written down as it ends, and is not taken again: the same command continues
a run that was interrupted, or had no time left. What peers do beside ours the grid has: `python -m bench.grid --points
1e6:1e6 --batches 6 --again`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bench import machine
from bench.results import heading, save

OUTPUT = Path("docs/performance")
TRANSACTIONS, FOLD_AFTER = 30, 12
"""So many transactions have at least two folds among them."""
EXECUTORS, ROUNDS = (1, 2, 4), 3
LONG = 120
"""So many with several executors: each has a JVM and Python workers, which are slow at first."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: a program that prints its figures, a line of JSON for each table."""

    name: str
    arguments: tuple[str, ...]


def cases(part: str) -> Iterator[Case]:
    """The measurements of a part, the short ones first."""
    fold = ("--fold-after", str(FOLD_AFTER))
    common = ("--transactions", str(TRANSACTIONS), *fold)
    keys = ("bench.keys", "--way", "all staged", *fold)
    match part:
        case "commits":
            yield Case("commits", ("bench.commits", "--versions", "10000", *common))
        case "memory":
            for size in ("1e3", "1e5", "1e6", "1e7"):
                yield Case(size, (*keys, "--transactions", str(TRANSACTIONS), "--keys", size, "--master", cluster(2)))
        case "executors":
            for round_ in range(1, ROUNDS + 1):
                for number in EXECUTORS:
                    more = ("--transactions", str(LONG), "--keys", "1e6", "--master", cluster(number))
                    yield Case(f"{number} in round {round_}", (*keys, *more))
        case "tables":
            for work in ("count", "read-modify-write"):
                yield Case(work, ("bench.many_keys", "--keys", "1e6,1e8", "--works", work))


PARTS = ("commits", "memory", "executors", "tables")


def cluster(executors: int) -> str:
    """Executors of a core each, in processes of their own."""
    return f"local-cluster[{executors},1,1024]"


def run_all(options: argparse.Namespace) -> None:
    """Measure what is missing, as long as there is time."""
    path, until_s = options.output / "scale.json", monotonic() + options.minutes * 60
    known = json.loads(path.read_text("utf-8"))["figures"] if path.exists() else []
    figures = {(each["part"], each["case"]): each for each in known}
    for part in options.parts:
        for case in cases(part):
            if (part, case.name) in figures and not options.again:
                continue
            if (left_s := until_s - monotonic()) <= 0:
                print(f"time is up: {part}, {case.name} is left out", flush=True)
                continue
            if (found := taken(case, left_s)) is None:
                continue
            load = {"load": options.load} if options.load else {}
            figures[part, case.name] = {"part": part, "case": case.name, **load, **found}
            save({**heading("scale", options.command), "figures": list(figures.values())}, options.output)


def taken(case: Case, left_s: float) -> dict[str, Any] | None:
    """A measurement, and how long it took; None where it has failed, or did not end in time."""
    print(" ".join(case.arguments), flush=True)
    began, before = monotonic(), machine.cpu_time()
    try:
        done = subprocess.run(
            [sys.executable, "-m", *case.arguments], stdout=subprocess.PIPE, text=True, check=False, timeout=left_s
        )
    except subprocess.TimeoutExpired:
        print("time is up within it", flush=True)
        return None
    after = machine.cpu_time()
    if done.returncode:
        print(f"it failed with {done.returncode}", flush=True)
        return None
    print(done.stdout, end="", flush=True)
    others = after.others_share_since(before) if before and after else None
    return {
        "command": " ".join(["python -m", *case.arguments]),
        "took_s": monotonic() - began,
        "others_share": others,
        "tables": lines_of(done.stdout),
    }


def lines_of(text: str) -> list[Mapping[str, Any]]:
    """The lines of JSON that a program has printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def main(arguments: Sequence[str]) -> None:
    """Measure, and write down."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS, help="some of them; else all")
    parser.add_argument("--minutes", type=float, default=60, help="after so long nothing more is begun or waited for")
    parser.add_argument("--again", action="store_true", help="also what is measured")
    parser.add_argument("--load", default="", help="what else the machine did, in words")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.command = " ".join(["python -m bench.scale", *(Path(a).name if a[:1] == "/" else a for a in arguments)])
    run_all(options)


if __name__ == "__main__":
    main(sys.argv[1:])
