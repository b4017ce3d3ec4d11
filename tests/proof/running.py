"""Runs parts of the proof, each in a process of its own.

What dies in these proofs are processes, and power cuts are made up from the file operations that were seen: the disk
below proves nothing, and takes half of the time. So a part writes to memory, and keeps to a processor of its own, where
the threads of libraries need not wake each other on another. The soaks, with their servers, have the disk and the
machine; they go one after the other. What a part that failed has written is kept beside what it has printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

import pytest

from tests.processes import keep_to_one_processor
from tests.proof.loading import LINE, VARIABLE
from tests.proof.parts import Part
from tests.resuming import ROOT, write_whole

MEMORY = Path("/dev/shm")  # A folder of its own is made there.
NEEDED_BYTES = 4 << 30
"""What has to be free in memory for parts to write there."""
STARTED: set[subprocess.Popen[bytes]] = set()
"""The processes of the parts that run now."""


@dataclass(frozen=True, slots=True)
class Proved:
    """What a part's tests have proved: lines to read, numbers to add up, and what it took of processors."""

    lines: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    processors_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part has ended; `loaded` are the files of the repository that its processes have loaded."""

    part: Part
    passed: bool
    took_s: float
    text: str
    proved: Proved = field(default_factory=Proved)
    loaded: frozenset[str] = field(default=frozenset())

    def __str__(self) -> str:
        how = "passed" if self.passed else "FAILED"
        lines = [*self.proved.lines, *self.text.splitlines()[-1:]]
        return "\n    ".join([f"{how} {self.took_s:7.0f} s  {self.part.name}", *lines])


def add_line() -> None:
    """Have the Pythons of this environment name the files that they load, where they are asked to. Such files are read
    in the order of their names, and that of the project, which makes our modules known, comes before this one."""
    file = Path(sysconfig.get_path("purelib"), "tests_proof.pth")
    if not file.exists() or file.read_text(encoding="utf-8") != LINE:
        write_whole(file, LINE)


def command(part: Part, seed: int, proved: Path) -> list[str]:
    """What runs the part."""
    options = ["--quiet", "--no-skips", "--proof", f"--seed={seed}", f"--proved={proved}"]
    return [sys.executable, "-m", "pytest", *options, *part.tests]


def run(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
    """Run a part, and keep what it prints; if it fails, what it has written too."""
    began, file = time.monotonic(), part.file(folder)
    unfinished, failed, files = (file.with_suffix(f".{suffix}") for suffix in ("unfinished", "failed", "files"))
    with unfinished.open("w+", encoding="utf-8") as output, tempfile.TemporaryDirectory(dir=where(part)) as scratch:
        Path(scratch).chmod(0o711)  # PostgreSQL's server is another user where root runs the tests.
        proved, loaded = Path(scratch, "proved.json"), Path(scratch, "loaded")
        line = command(part, seed, proved)
        output.write(f"{shlex.join(line)}\n")
        output.flush()
        surroundings = os.environ | {"TMPDIR": scratch, VARIABLE: str(loaded)}
        process = subprocess.Popen(line, cwd=ROOT, env=surroundings, stdout=output, stderr=subprocess.STDOUT)
        STARTED.add(process)
        if not part.has_servers:
            keep_to_one_processor(processor, process.pid)
        code = process.wait()
        STARTED.discard(process)
        text = read(output)
        if code != pytest.ExitCode.INTERRUPTED:
            shutil.rmtree(files, ignore_errors=True)
            failed.unlink(missing_ok=True)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
            with contextlib.suppress(
                shutil.Error
            ):  # What somebody deletes meanwhile is missing there; all else is not.
                shutil.copytree(scratch, files, symlinks=True, ignore=special)
        said = Proved(**json.loads(proved.read_text(encoding="utf-8"))) if proved.exists() else Proved()
        names = frozenset(loaded.read_text(encoding="utf-8").splitlines() if loaded.exists() else ())
    unfinished.replace(file if code == 0 else failed)
    return Outcome(part, code == 0, time.monotonic() - began, text, said, names)


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


def run_all(
    waiting: Sequence[Part], seed: int, folder: Path, at_once: int, fits: Callable[[Part], bool]
) -> Generator[Outcome]:
    """The parts as they end, begun in their order; none that doesn't fit into what is left of the time."""
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
            while len(running) < at_once and (part := next(next_of(left, running.values(), fits), None)):
                left.remove(part)
                running[pool.submit(on_one_of_them, part)] = part
            if not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                yield ended.result()


def next_of(waiting: Iterable[Part], running: Iterable[Part], fits: Callable[[Part], bool]) -> Iterator[Part]:
    """Those that can be begun now: not two that have servers at once."""
    busy = any(part.has_servers for part in running)
    return (part for part in waiting if not (busy and part.has_servers) and fits(part))


def interrupt(running: Iterable[Future[Outcome]]) -> None:
    """Interrupt parts, once each, and wait for them: their tests end the servers that they have started."""
    left = set(running)
    while left:
        for process in [*STARTED]:
            STARTED.discard(process)
            process.send_signal(signal.SIGINT)
        left = wait(left, timeout=1).not_done
