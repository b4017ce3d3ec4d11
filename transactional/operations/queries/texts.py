"""Parses the values of a question in a command line or an address, and turns answers into JSON."""

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


def parse_values(query: Query, texts: Sequence[str]) -> tuple[Any, ...]:
    """Parse the values of a question's fields, one text for each. Raises a `ConfigError` that names the field."""
    if len(texts) != len(query.fields):
        raise ConfigError(f"query {query.name!r} takes {len(query.fields)} values, '{query.fields}'; got {len(texts)}")
    return tuple(
        _parse_value(query, field.name, field.type, text) for field, text in zip(query.fields, texts, strict=True)
    )


def _parse_value(query: Query, name: str, type_: str, text: str) -> Any:
    try:
        return _parse_text(type_, text)
    except (ValueError, InvalidOperation, RecursionError):
        raise ConfigError(f"query {query.name!r}: {text[:100]!r} is no {type_}, which field {name!r} is") from None


def _parse_text(type_: str, text: str) -> Any:
    if type_ == "string":
        return text
    if type_ in _WHOLE:
        return int(text)
    if type_ in ("float", "double"):
        return float(text)
    if type_ == "boolean":
        return _parse_boolean(text)
    if type_ == "timestamp":
        return datetime.fromisoformat(text)
    if type_ == "date":
        return date.fromisoformat(text)
    if type_.startswith("decimal"):
        return Decimal(text)
    if type_ == "binary":
        return base64.b64decode(text, validate=True)
    return json.loads(text)


def _parse_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def to_json_value(cell: Any) -> Any:
    """Return a value as JSON has it: bytes in base64, times in ISO 8601 and UTC, decimals and NaN as text."""
    match cell:
        case dict():
            return {str(name): to_json_value(entry) for name, entry in cell.items()}
        case list() | tuple():
            return [to_json_value(entry) for entry in cell]
        case bytes():
            return base64.b64encode(cell).decode()
        case float() if not math.isfinite(cell):
            return str(cell)
        case datetime():
            return (cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)).isoformat()
        case date():
            return cell.isoformat()
        case Decimal() | timedelta():
            return str(cell)
    return cell
