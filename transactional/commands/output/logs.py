"""`run --log`: the log of a run on stderr, instead of what is displayed; and how a command ends with an error."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from types import TracebackType
from typing import NoReturn

from transactional.errors import LOOK, CommitStuck, TransactionalError
from transactional.plumbing.pools import have_calls_ended
from transactional.plumbing.redaction import without_login
from transactional.plumbing.tracebacks import traceback_text
from transactional.telemetry.log_format import LogFormat, log_handler
from transactional.telemetry.run_log import LOGGER, RunLog

OURS = ("transactional", "state", "spouts")
"""The loggers of which more than warnings are written."""


def leave(error: TransactionalError) -> NoReturn:
    """End the process with the exit code of an error that was reported."""
    sys.stderr.flush()
    if isinstance(error, CommitStuck):
        os._exit(error.exit_code)  # a thread that can't be cancelled would keep the process alive
    raise SystemExit(error.exit_code) from None


def end(code: str | int | None) -> NoReturn:
    """End the process with an exit code, which it might not have if the interpreter ended threads within delta-rs."""
    if not have_calls_ended() and isinstance(code, int):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


class Logs:
    """While it is entered everything is logged on stderr, an error that ends the block as well; that ends the process
    with the error's exit code."""

    def __init__(self, format: LogFormat) -> None:
        self._handler = log_handler(sys.stderr, format)
        self._levels: dict[str, int] = {}
        self._run_log: RunLog | None = None

    def of_run(self, topology_id: str) -> RunLog:
        """The observer that logs a run."""
        self._run_log = RunLog(topology_id)
        return self._run_log

    def __enter__(self) -> Logs:
        logging.getLogger().addHandler(self._handler)
        for name in OURS:
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


def leave_unexpectedly(error: BaseException) -> NoReturn:
    """End the process with an error that is none of the framework's, with its traceback."""
    sys.stderr.write(without_login(f"{traceback_text(error)}\n"))
    sys.stderr.flush()
    raise SystemExit(LOOK) from None


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning of Python's, as one line."""
    sys.stderr.write(f"warning: {without_login(str(message))}\n")


class WithoutLogins(logging.Formatter):
    """How records are shown by a command that writes no log."""

    def format(self, record: logging.LogRecord) -> str:
        """The message and its traceback."""
        return without_login(super().format(record))


def show_warnings_briefly() -> None:
    """Show Python's warnings as one line each, and what is logged without logins."""
    warnings.showwarning = show_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(WithoutLogins())
