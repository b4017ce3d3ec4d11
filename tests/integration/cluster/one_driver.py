"""One driver on a cluster for the topologies of several tests, one after another: to start Spark and the workers of its
executors costs more than what such a test looks at.

`python -m tests.integration.cluster.one_driver MASTER REQUESTS`: each line of the pipe is JSON of a folder, of
`MODULE:FUNCTION`, which gets the Spark session, and of variables.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.programs import Program
from tests.integration.signals import send
from transactional.spark_session import spark_session

ENDED = "ended well"


class OneDriver:
    """The test's side. The driver has all cores, until it is closed; the next topology starts another one."""

    def __init__(self, folder: Path, master: str) -> None:
        self._folder, self._master = folder, master
        self._requests = str(folder / "requests")
        os.mkfifo(self._requests)
        self._program: Program | None = None

    @contextmanager
    def running(self, target: str, folder: Path, **variables: str) -> Iterator[list[str]]:
        """While a topology runs in a folder, which has to end well; yields the lines that it prints. Where something
        goes wrong, the driver is killed: nobody gets what is left."""
        self._program = program = self._program or self._start()
        lines, begins = list[str](), len(program.lines)
        send(self._requests, json.dumps([str(folder), target, variables]))
        try:
            yield lines
            assert program.await_line("^ended ")[0] in ENDED, program.text
            lines += program.lines[begins:]
        except BaseException:
            sys.stdout.write(f"{program.text}\n")
            self.close()
            raise

    def _start(self) -> Program:
        command = [sys.executable, "-m", "tests.integration.cluster.one_driver", self._master, self._requests]
        return Program(command, self._folder)

    def close(self) -> None:
        """Kill it, if there is one."""
        if self._program is not None:
            self._program.close()
            self._program = None


def main(master: str, requests: str) -> None:
    session = spark_session("one driver", master=master)
    # For writing too: so there is no end of file between two tests.
    with os.fdopen(os.open(requests, os.O_RDWR)) as lines:
        for line in lines:
            folder, target, variables = json.loads(line)
            os.chdir(folder)
            os.environ.update(variables)
            module, _, name = target.partition(":")
            try:
                getattr(importlib.import_module(module), name)(session)
            except BaseException:
                traceback.print_exc()
                print("ended badly", flush=True)
            else:
                print(ENDED, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
