"""How log records are written to a stream: as sentences for people, or one line of JSON each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import Any, Final, TextIO

from transactional.model.plumbing.redaction import REDACTED, is_secret, without_login

Fields = MutableMapping[str, Any]

DEPTH_MAX: Final = 8
"""What lies deeper in a field, or holds itself, is written as Python shows it."""


class LogFormat(StrEnum):
    """How a log is written."""

    HUMAN = "human"
    JSON = "json"


def log_handler(stream: TextIO, format: LogFormat) -> logging.Handler:
    """A handler that writes each record, of whatever library, as one line without secrets."""
    import structlog  # not for a process that writes no log

    handler = logging.StreamHandler(stream)
    renderer = structlog.processors.JSONRenderer() if format is LogFormat.JSON else _sentence
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.EventRenamer("message", "_event"),
                structlog.processors.format_exc_info,
                without_secrets,
                renderer,
            ],
        )
    )
    return handler


def without_secrets(logger: object, method: str, fields: Fields) -> Fields:
    """A record's fields, without what must not be written."""
    return {name: REDACTED if is_secret(name) else _safe(value) for name, value in fields.items()}


def _safe(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, however deep a secret lies in it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return without_login(value)
    if isinstance(value, Mapping) and depth < DEPTH_MAX:
        return {
            without_login(str(name)): REDACTED if is_secret(str(name)) else _safe(each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset) and depth < DEPTH_MAX:
        return [_safe(each, depth + 1) for each in value]
    return without_login(repr(value))


def _sentence(logger: object, method: str, fields: Fields) -> str:
    """Time, level and message on one line; the lines of a traceback follow it after a bar."""
    text = _printable(f"{fields['timestamp'][:19]}Z {fields['level']:<8} {fields['message']}")
    trace = fields.get("exception", "")
    return "\n".join([text, *(f"    | {_printable(line)}" for line in trace.splitlines())])


def _printable(text: str) -> str:
    """One line, in which nothing controls a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
