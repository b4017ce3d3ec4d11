"""`python -m tests.proof`: all proofs in parts, each in a process of its own, two at a time; `make proof`.

A part that has passed is not run again while no source changes, so what was interrupted, or failed, is resumed by the
same command. What parts print is kept in `--output`.

What dies in these proofs are processes, and power cuts are made up from the file operations that were seen: the disk
below proves nothing, and takes half of the time. So a part writes to memory, and keeps to a processor of its own, where
the threads of libraries need not wake each other on another. The soaks, with their servers, have the disk and the
machine; they go one after the other. What a part that failed has written is kept beside what it has printed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

import pytest

from tests.processes import keep_to_one_processor

ROOT = Path(__file__).parents[2]
SOURCES = ("transactional", "spouts", "state", "verifier", "examples", "tests", "bench")
TELLING = ("rewinds, ", "crash points, ", "power cuts: ", "seed ", "metrics were scraped", " processes ended by force")
"""Marks of the lines that say what was proved."""
MEMORY = Path("/dev/shm")  # A folder of its own is made there.
NEEDED_BYTES = 4 << 30
"""What has to be free in memory for parts to write there."""
STARTED: set[subprocess.Popen[bytes]] = set()
"""The processes of the parts that run now."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that are run together: a long one by itself, others with those of their file."""

    name: str
    tests: tuple[str, ...]

    @property
    def has_servers(self) -> bool:
        """Whether it needs more than a processor, and the disk."""
        return "test_soak.py" in self.name

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


def command(part: Part, seed: int) -> list[str]:
    """What runs the part."""
    return [sys.executable, "-m", "pytest", "--quiet", "--no-skips", "--proof", f"--seed={seed}", *part.tests]


def run(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
    """Run a part, and keep what it prints; if it fails, what it has written too."""
    began, file, line = time.monotonic(), part.file(folder), command(part, seed)
    unfinished, files = file.with_suffix(".unfinished"), file.with_suffix(".files")
    shutil.rmtree(files, ignore_errors=True)
    with unfinished.open("w+", encoding="utf-8") as output, tempfile.TemporaryDirectory(dir=where(part)) as scratch:
        Path(scratch).chmod(0o711)  # PostgreSQL's server is another user where root runs the tests.
        output.write(f"{shlex.join(line)}\n")
        output.flush()
        surroundings = os.environ | {"TMPDIR": scratch}
        process = subprocess.Popen(line, cwd=ROOT, env=surroundings, stdout=output, stderr=subprocess.STDOUT)
        STARTED.add(process)
        if not part.has_servers:
            keep_to_one_processor(processor, process.pid)
        code = process.wait()
        STARTED.discard(process)
        text = read(output)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
            with contextlib.suppress(
                shutil.Error
            ):  # What somebody deletes meanwhile is missing there; all else is not.
                shutil.copytree(scratch, files, symlinks=True, ignore=special)
    unfinished.replace(file if code == 0 else file.with_suffix(".failed"))
    return Outcome(part, code == 0, time.monotonic() - began, text)


def special(folder: str, names: Iterable[str]) -> set[str]:
    """Sockets and pipes, which can't be copied."""
    paths = {name: Path(folder, name) for name in names}
    return {name for name, path in paths.items() if path.is_socket() or path.is_fifo()}


def where(part: Part) -> Path | None:
    """The folder for what a part writes; None: that of the system."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > NEEDED_BYTES
    return MEMORY if has_room and not part.has_servers else None


def read(output: TextIO) -> str:
    """All that is written there."""
    output.seek(0)
    return output.read()


def run_all(waiting: Sequence[Part], seed: int, folder: Path, at_once: int, until: float) -> Generator[Outcome]:
    """The parts as they end. None is begun after `until`."""
    left, processors = list(waiting), SimpleQueue[int]()
    for number in range(at_once):
        processors.put(number)

    def on_one_of_them(part: Part) -> Outcome:
        processor = processors.get()
        try:
            return run(part, seed, folder, processor)
        finally:
            processors.put(processor)

    running = dict[Future[Outcome], Part]()
    with ThreadPoolExecutor(at_once) as pool, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(interrupt, running)
        while True:
            while left and len(running) < at_once and time.monotonic() < until:
                part = next_of(left, has_servers=not any(part.has_servers for part in running.values()))
                left.remove(part)
                running[pool.submit(on_one_of_them, part)] = part
            if not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                yield ended.result()


def interrupt(running: Iterable[Future[Outcome]]) -> None:
    """Interrupt parts, once each, and wait for them: their tests end the servers that they have started."""
    left = set(running)
    while left:
        for process in [*STARTED]:
            STARTED.discard(process)
            process.send_signal(signal.SIGINT)
        left = wait(left, timeout=1).not_done


def next_of(waiting: Sequence[Part], *, has_servers: bool) -> Part:
    """The first that has servers, or that has none; the first one of all where there is no such part."""
    return next((part for part in waiting if part.has_servers is has_servers), waiting[0])


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
    for outcome in run_all(waiting, options.seed, folder, options.at_once, until):
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
    # Both end it as Ctrl-C does; a shell has what it runs in the background, and so all parts, ignore the first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # As the module that others would import, not as `__main__`.
    try:
        sys.exit(import_module("tests.proof.__main__").main())
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
