"""What a state keeps in Redis, as text: keys, and rows with what they were before. Values come back unchanged."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema
from transactional.model.user_code.tuples import Key

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND: Final = datetime.timedelta(microseconds=1)
Convert = Callable[[Any], Any]
"""A value that is not NULL, to JSON or back."""


def _same(value: Any) -> Any:
    return value


def _without_sign(value: float) -> float:
    """Zero and minus zero are one key."""
    return value + 0.0


_PLAIN: Final[tuple[Convert, Convert]] = (_same, _same)
_CODECS: Final[dict[str, tuple[Convert, Convert]]] = {
    **dict.fromkeys(("string", "boolean", "byte", "short", "int", "long"), _PLAIN),
    "float": (float, float),
    "double": (float, float),
    "binary": (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "date": (lambda value: value.isoformat(), datetime.date.fromisoformat),
    "timestamp": (lambda value: (value - EPOCH) // MICROSECOND, lambda us: EPOCH + us * MICROSECOND),
}


def _codec(field: Field, table: str) -> tuple[Convert, Convert]:
    if field.type.startswith("decimal"):
        return str, Decimal
    if field.type not in _CODECS:
        raise ConfigError(
            f"state {table}: column {field.name!r} is a {field.type}, which a state in Redis can't store; use its "
            "parts as columns, or a state in Delta"
        )
    return _CODECS[field.type]


class _Columns:
    """Some columns: their values to a list for JSON, and back. The list has the order of the table."""

    def __init__(self, fields: Schema, codecs: Sequence[tuple[Convert, Convert]]) -> None:
        self._names, self._codecs = fields.names, dict(zip(fields.names, codecs, strict=True))
        self.arrange(self._names)

    def arrange(self, names: Sequence[str]) -> None:
        """Take these columns for what is in the list."""
        self._there = [self._names.index(name) for name in names]
        self._here = [names.index(name) for name in self._names]
        self._to = [self._codecs[name][0] for name in names]
        self._back = [self._codecs[name][1] for name in names]

    def written(self, values: Sequence[Any]) -> list[Any]:
        """A list of the values, which come in the order of the state."""
        return [None if (v := values[at]) is None else to(v) for at, to in zip(self._there, self._to, strict=True)]

    def read(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """The inverse."""
        values = [None if v is None else back(v) for v, back in zip(stored, self._back, strict=True)]
        return tuple(values[at] for at in self._here)


class RowCodec:
    """Keys and rows of a state to bytes, and back. Raises `ConfigError` for columns that it can't store."""

    def __init__(self, key: Schema, values: Schema, table: str) -> None:
        self._shape = {*key}, {*values}
        codecs = [_codec(field, table) for field in key]
        floats = [field.type in ("float", "double") for field in key]
        of_key = [
            (_without_sign if is_float else to, back) for is_float, (to, back) in zip(floats, codecs, strict=True)
        ]
        self._key, self._values = _Columns(key, of_key), _Columns(values, [_codec(field, table) for field in values])

    def arrange(self, key: Schema, columns: Schema) -> bool:
        """From now on read and write the columns in the order of a table. False: it has others."""
        values = [field for field in columns if field not in {*key}]
        if ({*key}, {*values}) != self._shape:
            return False
        self._key.arrange(key.names)
        self._values.arrange([field.name for field in values])
        return True

    def key_bytes(self, key: Key) -> bytes:
        """A key: the same bytes for equal keys."""
        return _dumped(self._key.written(key))

    def key_of(self, stored: bytes) -> Key:
        """The inverse."""
        return self._key.read(json.loads(stored))

    def row_bytes(self, row: StoredValue) -> bytes:
        """A row: values, txid, previous values, txid of those; no values for a tombstone."""
        value = None if row.value is ABSENT else row.value
        parts = [_if_any(self._values.written, each) for each in (value, row.prev_value)]
        return _dumped([parts[0], row.txid, parts[1], row.prev_txid])

    def row_of(self, stored: bytes) -> StoredValue:
        """The inverse."""
        value, txid, before, prev_txid = json.loads(stored)
        read = self._values.read
        return StoredValue(ABSENT if value is None else read(value), _if_any(read, before), TxId(txid), prev_txid)


def _if_any(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
