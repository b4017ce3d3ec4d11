"""`run --log`: the log of a run on stderr, in place of the display."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from transactional.model.errors import LOOK, TransactionalError
from transactional.operations.cli.output.ending import leave
from transactional.operations.telemetry.log_format import LogFormat, log_handler
from transactional.operations.telemetry.run_log import LOGGER, RunLog

LOGGERS = ("transactional", "state", "spouts", "sinks")
"""The loggers whose records of level INFO are written, too; of others, only warnings are."""


class StderrLog:
    """A context in which everything is logged on stderr. An error that ends it is logged, too, and ends the process
    with its exit code."""

    def __init__(self, format: LogFormat) -> None:
        self._handler = log_handler(sys.stderr, format)
        self._levels: dict[str, int] = {}
        self._run_log: RunLog | None = None

    def observe_run(self, topology_id: str) -> RunLog:
        """Return the observer that logs a run."""
        self._run_log = RunLog(topology_id)
        return self._run_log

    def __enter__(self) -> StderrLog:
        logging.getLogger().addHandler(self._handler)
        for name in LOGGERS:
            self._levels[name] = logging.getLogger(name).level
            logging.getLogger(name).setLevel(logging.INFO)
        logging.captureWarnings(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._report(error)
        finally:
            logging.captureWarnings(False)
            logging.getLogger().removeHandler(self._handler)
            for name, level in self._levels.items():
                logging.getLogger(name).setLevel(level)

    def _report(self, error: BaseException | None) -> None:
        log = logging.getLogger(LOGGER)
        if isinstance(error, TransactionalError):
            if self._run_log is None or self._run_log.ended_with is not error:
                text = next(iter(str(error).splitlines()), "")
                log.error("%s: %s", error.code, text, extra={"_event": "failed", "code": error.code, "reason": text})
            leave(error)
        if isinstance(error, Exception):
            log.critical("an unexpected error: %r", error, exc_info=error, extra={"_event": "crashed"})
            raise SystemExit(LOOK) from None
