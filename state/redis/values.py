"""What a state keeps in Redis, as text: keys, and rows with what they were before. Values come back unchanged."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from state.values import OpaqueValue
from transactional.absent import ABSENT
from transactional.attempt import TxId
from transactional.bolts import Key
from transactional.errors import ConfigError
from transactional.schema import Field, Schema

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


class RowCodec:
    """Keys and rows of a state to bytes, and back. Raises `ConfigError` for columns that it can't store."""

    def __init__(self, key: Schema, values: Schema, table: str) -> None:
        self._key = [_codec(field, table) for field in key]
        self._values = [_codec(field, table) for field in values]
        floats = [field.type in ("float", "double") for field in key]
        self._key_out = [_without_sign if is_float else to for is_float, (to, _) in zip(floats, self._key, strict=True)]

    def key_bytes(self, key: Key) -> bytes:
        """A key: the same bytes for equal keys."""
        return _dumped([None if v is None else to(v) for v, to in zip(key, self._key_out, strict=True)])

    def key_of(self, stored: bytes) -> Key:
        """The inverse."""
        return self._read(json.loads(stored), self._key)

    def row_bytes(self, row: OpaqueValue) -> bytes:
        """A row: values, txid, previous values, txid of those; no values for a tombstone."""
        value = None if row.value is ABSENT else self._written(row.value)
        before = None if row.prev_txid is None else self._written(row.prev_value)
        return _dumped([value, row.txid, before, row.prev_txid])

    def row_of(self, stored: bytes) -> OpaqueValue:
        """The inverse."""
        value, txid, before, prev_txid = json.loads(stored)
        return OpaqueValue(
            ABSENT if value is None else self._read(value, self._values),
            None if before is None else self._read(before, self._values),
            TxId(txid),
            None if prev_txid is None else TxId(prev_txid),
        )

    def _written(self, values: Sequence[Any]) -> list[Any]:
        return [None if v is None else to(v) for v, (to, _) in zip(values, self._values, strict=True)]

    @staticmethod
    def _read(values: Sequence[Any], codecs: Sequence[tuple[Convert, Convert]]) -> tuple[Any, ...]:
        return tuple(None if v is None else back(v) for v, (_, back) in zip(values, codecs, strict=True))


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
