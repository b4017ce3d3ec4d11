"""Runs pages and `transactional …` without a new interpreter for each: a process that has imported all of it forks.

`python -m tests.docs.forking` reads what is to be run, a line of JSON each: the words, the folder, the environment, and
the file that takes what is printed. It answers each with a line: the exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

IMPORTED = (
    *(
        "transactional.operations.cli.main",
        "transactional.runtime.executors.local",
        "transactional.testing",
        "spouts",
        "state",
        "verifier",
    ),
    *("transactional.core.store.sql.sql_store", "tests.docs.run_page"),
)


@dataclass(frozen=True, slots=True)
class Done:
    """What a child did."""

    code: int
    printed: str


class Forking:
    """The way to a process that forks."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests, self._answers = requests, answers

    def run(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Done:
        """Run something in a child of that process."""
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
            self._requests.write(json.dumps([list(words), str(folder), dict(environment), output.name]) + "\n")
            self._requests.flush()
            return Done(int(self._answers.readline()), output.read())


def of_a_new_process() -> tuple[Forking, subprocess.Popen[str]]:
    """A process that forks pages and commands; it ends with its input."""
    command = [sys.executable, "-m", "tests.docs.forking"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    return Forking(process.stdin, process.stdout), process


def of_a_fork() -> Forking:
    """The same as a fork of this process, as it is now; in the children this returns never."""
    (requests, to_ask), (to_answer, answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(to_ask)
        os.close(to_answer)
        with os.fdopen(requests, "r") as given, os.fdopen(answers, "w") as answered:
            words = serve(given, answered)
        os._exit(0) if words is None else begin(words)
    os.close(requests)
    os.close(answers)
    return Forking(os.fdopen(to_ask, "w"), os.fdopen(to_answer, "r"))


def serve(requests: IO[str], answers: IO[str]) -> list[str] | None:
    """Fork for each request; returns its words in the child, None when there are no more."""
    for line in requests:
        words, folder, environment, output = json.loads(line)
        child = os.fork()
        if child == 0:
            become(Path(folder), environment, output)
            return list(words)
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()
    return None


def become(folder: Path, environment: dict[str, str], output: str) -> None:
    """Take the place of a new process, as a shell would start it."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    written, nothing = os.open(output, os.O_WRONLY), os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)


def begin(words: list[str]) -> None:
    """Do what the words say, and end the process: at once, for taking apart all that was imported takes long."""
    code: object = 1
    try:
        do(words)
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
    except BaseException:
        traceback.print_exc()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else bool(code))


def do(words: list[str]) -> None:
    sys.argv = words
    if words[0] == "transactional":
        from transactional.operations.cli import main as cli

        # As for an installed script; the folder is not on the path of its own accord.
        sys.path[0] = str(Path(sys.executable).parent)
        cli.main()
    else:
        from tests.docs import run_page

        commands = of_a_fork()
        warnings.simplefilter("error")
        run_page.main(commands)


def main() -> None:
    """The command line."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a child would copy all that it looks through
    words = serve(sys.stdin, sys.stdout)
    if words is not None:
        begin(words)


if __name__ == "__main__":
    main()
