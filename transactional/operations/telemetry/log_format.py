"""Writes log records to a stream: as sentences for people, or one line of JSON each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import Any, Final, TextIO

from transactional.model.plumbing.redaction import REDACTED, is_secret, without_login

Fields = MutableMapping[str, Any]

DEPTH_MAX: Final = 8
"""The depth of a field up to which it is written as JSON; deeper values are written as Python shows them."""


class LogFormat(StrEnum):
    """The format of a log: sentences for people, or JSON."""

    HUMAN = "human"
    JSON = "json"


def log_handler(stream: TextIO, format: LogFormat) -> logging.Handler:
    """Return a handler that writes each record, of whatever library, as one line without secrets."""
    import structlog  # not for a process that writes no log

    handler = logging.StreamHandler(stream)
    renderer = structlog.processors.JSONRenderer() if format is LogFormat.JSON else _format_sentence
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
    """Return a record's fields with secrets replaced."""
    return {name: REDACTED if is_secret(name) else _without_nested_secrets(content) for name, content in fields.items()}


def _without_nested_secrets(content: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it, without the secrets at any depth."""
    if content is None or isinstance(content, bool | int | float):
        return content
    if isinstance(content, str):
        return without_login(content)
    if isinstance(content, Mapping) and depth < DEPTH_MAX:
        return {
            without_login(str(name)): REDACTED if is_secret(str(name)) else _without_nested_secrets(part, depth + 1)
            for name, part in content.items()
        }
    if isinstance(content, list | tuple | set | frozenset) and depth < DEPTH_MAX:
        return [_without_nested_secrets(part, depth + 1) for part in content]
    return without_login(repr(content))


def _format_sentence(logger: object, method: str, fields: Fields) -> str:
    """Format time, level and message as one line; the lines of a traceback follow it after a bar."""
    text = _printable(f"{fields['timestamp'][:19]}Z {fields['level']:<8} {fields['message']}")
    trace = fields.get("exception", "")
    return "\n".join([text, *(f"    | {_printable(line)}" for line in trace.splitlines())])


def _printable(text: str) -> str:
    """Return a text as one line without control characters."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
