"""`python -m tests.proof`: the parts of the proof that are stale, two at a time, for as long as a budget; `make proof`.

A part is stale when what it stands on has changed: the modules that its processes loaded when it passed, as far as its
tests can reach them by their imports, and what is installed. First come those that failed, then those that never
passed, then the stale ones, oldest first. One that has passed over the code as it is is not run again, but with another
`--seed`. How each has ended is noted at once, so the next call continues where this one ends, or is interrupted. What
parts print is kept in `--output`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tests.proof.entries import Proof
from tests.proof.parts import Digests, Part, parts
from tests.proof.record import Record, alone, commit_of
from tests.proof.running import add_line, run_all
from tests.resuming import ROOT, end_as_ctrl_c_does, say, seconds

SEED = 7
"""What parts are run with where none is given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 0 where no part has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("only", nargs="*", help="how the names of parts begin; by default all")
    parser.add_argument("--budget", type=seconds, default="40m", help="begin none that takes longer: 90s, 40m, 2h")
    parser.add_argument("--seed", type=int, help=f"what chance chooses in the proofs; by default {SEED}")
    parser.add_argument("--at-once", type=int, default=2, help="how many parts run side by side")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "proof", help="what parts print")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "proof.json", help="how parts have ended")
    options = parser.parse_args(arguments)
    until_s: float = time.monotonic() + options.budget
    options.output.mkdir(parents=True, exist_ok=True)
    with alone(options.record.parent):
        every = parts()
        record = Record(options.record, every, Digests(), commit_of())
        add_line()
        chosen = [part for part in every if not options.only or part.name.startswith(tuple(options.only))]
        waiting = record.waiting(chosen, options.seed)
        say(f"{len(waiting)} of {len(every)} parts are to be run; they print to {options.output}")
        passed, failed = list[str](), list[str]()

        def fits(part: Part) -> bool:
            return record.proof.takes_s(part.name) <= until_s - time.monotonic()

        seed = SEED if options.seed is None else options.seed
        for outcome in run_all(waiting, seed, options.output, options.at_once, fits):
            say(str(outcome))
            (passed if outcome.passed else failed).append(outcome.part.name)
            if outcome.passed and (objection := record.objection(outcome)):
                say(f"    not noted: {objection}")
            else:
                record.note(outcome, seed)
        say(f"{len(passed)} have passed, {len(failed)} have failed; {length(record.proof, options.at_once)}")
    for name in failed:
        say(f"    FAILED {name}")
    return 1 if failed else 0


def length(proof: Proof, at_once: int) -> str:
    """How long all parts take, as they did last."""
    minutes = round(sum(map(proof.takes_s, proof.parts)) / at_once / 60)
    return f"all parts take {minutes // 60} h {minutes % 60:02} min, {at_once} at a time"


if __name__ == "__main__":
    end_as_ctrl_c_does()
    # As the module that others would import, not as `__main__`.
    try:
        sys.exit(import_module("tests.proof.__main__").main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command continues")
