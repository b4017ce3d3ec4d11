"""One driver on a cluster for the topologies of several tests, one after another: to start Spark and the workers of its
executors costs more than what such a test looks at.

`python -m tests.integration.cluster.one_driver MASTER REQUESTS NAME=VALUE …`, the last ones being configuration of the
session: each line of the pipe is JSON of a folder, of `MODULE:FUNCTION`, which gets the session, and of variables.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.integration.programs import Program
from tests.integration.signals import send
from transactional.runtime.spark.session import spark_session

WELL = "well"


class OneDriver:
    """The test's side. The driver has all cores, until it is closed or a topology needs a session with another
    configuration: then another one is started."""

    def __init__(self, folder: Path, master: str) -> None:
        self._folder, self._master = folder, master
        self._requests = str(folder / "requests")
        os.mkfifo(self._requests)
        self._program: Program | None = None
        self._conf: Sequence[str] = ()

    @contextmanager
    def running(self, target: str, folder: Path, conf: Sequence[str] = (), **variables: str) -> Iterator[list[str]]:
        """While a topology runs in a folder, which has to end well; yields the lines that it prints. Where something
        goes wrong, the driver is killed: nobody gets what is left. `conf` is of the session, each `NAME=VALUE`."""
        program = self._with(conf)
        lines, begins = list[str](), len(program.lines)
        send(self._requests, json.dumps([str(folder), target, variables]))
        try:
            yield lines
            assert program.await_line("^ended (.+)")[1] == WELL
            lines += program.lines[begins:]
        except BaseException:
            sys.stdout.write(f"{program.text}\n")
            self.close()
            raise

    def run(self, target: str, folder: Path, conf: Sequence[str] = (), **variables: str) -> None:
        """Run a topology to its end, which has to be good."""
        with self.running(target, folder, conf, **variables):
            pass

    @contextmanager
    def dying(self, target: str, folder: Path, conf: Sequence[str] = (), **variables: str) -> Iterator[None]:
        """While a topology runs whose driver is killed at the end."""
        self._with(conf)
        send(self._requests, json.dumps([str(folder), target, variables]))
        yield
        self.close()

    def _with(self, conf: Sequence[str]) -> Program:
        if self._conf != conf:
            self.close()
        if self._program is None:
            command = [sys.executable, "-m", "tests.integration.cluster.one_driver", self._master, self._requests]
            self._program, self._conf = Program([*command, *conf], self._folder), conf
        return self._program

    def close(self) -> None:
        """Kill it, if there is one."""
        if self._program is not None:
            self._program.close()
            self._program = None


def main(master: str, requests: str, *conf: str) -> None:
    session = spark_session("one driver", master=master, conf=dict(each.split("=", 1) for each in conf))
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
                how = "badly"
            else:
                how = WELL
            sys.stdout.write(f"ended {how}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
