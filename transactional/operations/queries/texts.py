"""Values as text: the arguments of a question in a command line or an address, and answers as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from transactional.model.errors import ConfigError
from transactional.topology.topology import Query

_WHOLE = ("byte", "short", "int", "long")
_BOOLEANS = {"true": True, "false": False}


def values_of(query: Query, texts: Sequence[str]) -> tuple[Any, ...]:
    """The values of a question's fields, one text for each. Raises `ConfigError` that names the field."""
    if len(texts) != len(query.fields):
        raise ConfigError(f"query {query.name!r} takes {len(query.fields)} values, '{query.fields}'; got {len(texts)}")
    return tuple(_value(query, field.name, field.type, text) for field, text in zip(query.fields, texts, strict=True))


def _value(query: Query, name: str, type_: str, text: str) -> Any:
    try:
        return _parsed(type_, text)
    except (ValueError, InvalidOperation, RecursionError):
        raise ConfigError(f"query {query.name!r}: {text[:100]!r} is no {type_}, which field {name!r} is") from None


def _parsed(type_: str, text: str) -> Any:
    if type_ == "string":
        return text
    if type_ in _WHOLE:
        return int(text)
    if type_ in ("float", "double"):
        return float(text)
    if type_ == "boolean":
        return _boolean(text)
    if type_ == "timestamp":
        return datetime.fromisoformat(text)
    if type_ == "date":
        return date.fromisoformat(text)
    if type_.startswith("decimal"):
        return Decimal(text)
    if type_ == "binary":
        return base64.b64decode(text, validate=True)
    return json.loads(text)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes in base64, times in ISO 8601 and UTC, decimals and what is no number as text."""
    match value:
        case dict():
            return {str(name): plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case datetime():
            return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).isoformat()
        case date():
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
    return value
