"""`python -m tests.proof`: all proofs in parts, each in a process of its own, two at a time; `make proof`.

A part that has passed is not run again while no source changes, so what was interrupted, or failed, is resumed by the
same command. What parts print is kept in `--output`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TextIO

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("transactional", "spouts", "state", "verifier", "examples", "tests", "bench")
TELLING = ("rewinds, ", "crash points, ", "power cuts: ", "seed ", "metrics were scraped", " processes ended by force")
"""Marks of the lines that say what was proved."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that are run together: a long one by itself, others with those of their file."""

    name: str
    tests: tuple[str, ...]

    def file(self, folder: Path) -> Path:
        """What it has printed when it passed."""
        digest = hashlib.sha256("\n".join(self.tests).encode()).hexdigest()[:8]
        words = "".join(letter if letter.isalnum() else "-" for letter in self.name.removeprefix("tests/proof/"))
        return folder / f"{words[:120]}-{digest}.txt"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part has ended."""

    part: Part
    passed: bool
    took_s: float
    text: str

    def __str__(self) -> str:
        how = "passed" if self.passed else "FAILED"
        return "\n    ".join([f"{how} {self.took_s:7.0f} s  {self.part.name}", *told(self.text)])


class Collected:
    """A plugin that keeps what pytest has collected."""

    items: Sequence[pytest.Item] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = list(session.items)


def parts(paths: Sequence[str]) -> list[Part]:
    """All that there is to run."""
    collected = Collected()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(["--proof", "--collect-only", "--quiet", *paths], plugins=[collected])
    if code:
        raise SystemExit(printed.getvalue())
    marks = ("proof", "timeout")
    return grouped((item.nodeid, all(map(item.get_closest_marker, marks))) for item in collected.items)


def grouped(tests: Iterable[tuple[str, bool]]) -> list[Part]:
    """The parts of tests, of which some are long."""
    found = dict[str, list[str]]()
    for name, is_long in tests:
        found.setdefault(name if is_long else name.partition("::")[0], []).append(name)
    return [Part(name, tuple(tests)) for name, tests in found.items()]


def sources() -> str:
    """A digest of all that a proof depends on."""
    digest = hashlib.sha256((ROOT / "requirements.lock").read_bytes())
    for file in sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def told(text: str) -> Iterator[str]:
    """The lines that say what was proved, and pytest's last one."""
    lines = text.splitlines()
    yield from (line for line in lines if any(mark in line for mark in TELLING) and "PASSED" not in line)
    yield from lines[-1:]


def run(part: Part, seed: int, folder: Path) -> Outcome:
    """Run a part, and keep what it prints."""
    command = [sys.executable, "-m", "pytest", "--quiet", "--no-skips", "--proof", f"--seed={seed}", *part.tests]
    began, file = time.monotonic(), part.file(folder)
    unfinished = file.with_suffix(".unfinished")
    with unfinished.open("w+", encoding="utf-8") as output:
        output.write(f"{shlex.join(command)}\n")
        output.flush()
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        text = read(output)
    unfinished.replace(file if code == 0 else file.with_suffix(".failed"))
    return Outcome(part, code == 0, time.monotonic() - began, text)


def read(output: TextIO) -> str:
    """All that is written there."""
    output.seek(0)
    return output.read()


def run_all(waiting: Iterator[Part], seed: int, folder: Path, at_once: int, until: float) -> Iterator[Outcome]:
    """The parts as they end. None is begun after `until`."""
    with ThreadPoolExecutor(at_once) as pool:
        running = set[Future[Outcome]]()
        while True:
            free = at_once - len(running) if time.monotonic() < until else 0
            running |= {pool.submit(run, part, seed, folder) for part in islice(waiting, free)}
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for each in ended:
                yield each.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 0 once every part has passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("paths", nargs="*", default=["tests/proof"], help="files or tests; by default all")
    parser.add_argument("--seed", type=int, default=7, help="what chance chooses in the proofs")
    parser.add_argument("--at-once", type=int, default=2, help="how many parts run side by side")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no part after so many")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts" / "proof", help="what parts print")
    options = parser.parse_args(arguments)
    folder: Path = options.output / f"{sources()}-seed-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    every = parts(options.paths)
    waiting = [part for part in every if not part.file(folder).exists()]
    say(f"{len(every)} parts, {len(every) - len(waiting)} of them have passed already; they print to {folder}")
    began, failed, passed = time.monotonic(), list[str](), len(every) - len(waiting)
    until = began + 60 * options.minutes
    for outcome in run_all(iter(waiting), options.seed, folder, options.at_once, until):
        say(str(outcome))
        passed += outcome.passed
        if not outcome.passed:
            failed.append(outcome.part.name)
    took = f"{(time.monotonic() - began) / 60:.1f} min"
    say(f"{passed} of {len(every)} parts have passed, {len(failed)} have failed, in {took}: seed {options.seed}")
    for name in failed:
        say(f"    FAILED {name}")
    return 0 if passed == len(every) else 1


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # As the module that others would import, not as `__main__`.
    sys.exit(import_module("tests.proof.__main__").main())
