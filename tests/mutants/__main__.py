"""`python -m tests.mutants`: plants the wrong variants one at a time, two side by side, and runs tests of the room of
each; `make mutants`.

With `--tier check` these are the tests of `make check`. With `test`, what they have missed meets the files with servers
of its room, as `make test` selects cases of them; with `all`, what is still missed meets the same files in full.

What is known of a variant is kept in `--output`, and not found out again while the variant, its file and the tests that
decide about it are the same. So what did not fit into the budget, or was interrupted, is continued by the same command.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from tests.mutants.planting import ROOT, Variant, problems_of, variants
from tests.mutants.reporting import report, write_table
from tests.mutants.running import Clean, Copy, Result, Results, Tier
from tests.resuming import end_as_ctrl_c_does, say, seconds

SIDE_BY_SIDE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 0 once every variant is caught, or need not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of variants, or parts of their files; by default all")
    parser.add_argument("--tier", type=Tier, choices=list(Tier), default=Tier.CHECK, help="how far to go with each")
    parser.add_argument("--budget", type=seconds, default="40m", help="begin none after so long: 90s, 40m, 2h")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "caught.json", help="the results so far")
    options = parser.parse_args(arguments)
    every = variants()
    if problems := list(problems_of(every)):
        sys.exit("\n".join(problems))
    chosen = [each for each in every if not options.only or any(_is_meant(each, only) for only in options.only)]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.output)
    until_s: float = time.monotonic() + options.budget
    for tier in options.tier.until:
        waiting = [each for each in chosen if results.next_tier(each) is tier]
        say(f"{tier}: {len(waiting)} of {len(chosen)} variants are to be tried; results are in {options.output}")
        for number, (variant, result) in enumerate(run_all(tier, waiting, results, until_s), 1):
            how = ("caught   " if result.caught_by else "SURVIVED ") + ("cut " if result.is_cut else "")
            shown = ", ".join(result.caught_by) or variant.shows
            say(f"{how} {result.took_s:5.0f} s  {number}/{len(waiting)} {variant.name}: {shown}")
    write_table(every, results)
    return report(chosen, results, options.tier)


def run_all(
    tier: Tier, waiting: Sequence[Variant], results: Results, until_s: float
) -> Iterator[tuple[Variant, Result]]:
    """The variants with their results in a tier, as they are known. None is begun after a time."""
    left, running = list(waiting), dict[Future[Result | None], Variant]()
    is_over, clean, free = Event(), Clean(), SimpleQueue[Copy]()

    def tried(variant: Variant) -> Result | None:
        copy = free.get()
        try:
            return copy.tried(variant, tier, clean)
        finally:
            free.put(copy)

    with ExitStack() as stack:
        for number in range(SIDE_BY_SIDE if waiting else 0):
            free.put(stack.enter_context(Copy(number, is_over)))
        pool = stack.enter_context(ThreadPoolExecutor(SIDE_BY_SIDE))
        stack.callback(is_over.set)
        while True:
            while left and len(running) < SIDE_BY_SIDE and time.monotonic() < until_s:
                variant = left.pop(0)
                running[pool.submit(tried, variant)] = variant
            if not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                variant, result = running.pop(ended), ended.result()
                if result is not None:
                    results.add(result)
                    yield variant, result


def _is_meant(variant: Variant, only: str) -> bool:
    return only in (variant.name, variant.file) or variant.file.startswith(f"{only.rstrip('/')}/")


if __name__ == "__main__":
    end_as_ctrl_c_does()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command continues")
