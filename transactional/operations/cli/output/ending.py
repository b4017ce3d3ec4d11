"""Ends a command with an exit code, and shows warnings in one line."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import NoReturn

from transactional.model.errors import LOOK, CommitStuck, TransactionalError
from transactional.model.plumbing.pools import await_calls
from transactional.model.plumbing.redaction import without_login
from transactional.model.plumbing.tracebacks import traceback_text


def leave(error: TransactionalError) -> NoReturn:
    """End the process with the exit code of an error that was reported."""
    sys.stderr.flush()
    if isinstance(error, CommitStuck):
        os._exit(error.exit_code)  # a thread that can't be cancelled would keep the process alive
    raise SystemExit(error.exit_code) from None


def end(code: str | int | None) -> NoReturn:
    """End the process with an exit code, which it might not have if the interpreter ended threads within delta-rs."""
    if not await_calls() and isinstance(code, int):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def exit_with_traceback(error: BaseException) -> NoReturn:
    """End the process with an error that is none of the framework's, with its traceback."""
    sys.stderr.write(without_login(f"{traceback_text(error)}\n"))
    sys.stderr.flush()
    raise SystemExit(LOOK) from None


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Write one of Python's warnings as a line on stderr."""
    sys.stderr.write(f"warning: {without_login(str(message))}\n")


class WithoutLogins(logging.Formatter):
    """Formats log records for a command that writes no log: without the logins in them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message and its traceback, without logins."""
        return without_login(super().format(record))


def show_warnings_briefly() -> None:
    """Show each of Python's warnings as one line, and log records without the logins in them."""
    warnings.showwarning = show_warning
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(WithoutLogins())
