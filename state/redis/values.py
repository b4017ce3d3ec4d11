"""The JSON form of keys and rows in Redis: a row has its values and the previous ones, each with its transaction.

Every value comes back unchanged. Columns are stored by position, in the order that the table was created with.
"""

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
"""Turns a value that is not NULL into JSON's, or back."""


def _copy_unchanged(column_value: Any) -> Any:
    return column_value


def _unify_zeros(number: float) -> float:
    """Return zero for minus zero: they are one key."""
    return number + 0.0


_PLAIN: Final[tuple[Convert, Convert]] = (_copy_unchanged, _copy_unchanged)
_CODECS: Final[dict[str, tuple[Convert, Convert]]] = {
    **dict.fromkeys(("string", "boolean", "byte", "short", "int", "long"), _PLAIN),
    "float": (float, float),
    "double": (float, float),
    "binary": (lambda content: base64.b64encode(content).decode(), base64.b64decode),
    "date": (datetime.date.isoformat, datetime.date.fromisoformat),
    "timestamp": (lambda time: (time - EPOCH) // MICROSECOND, lambda us: EPOCH + us * MICROSECOND),
}


def _codec_for(field: Field, table: str) -> tuple[Convert, Convert]:
    if field.type.startswith("decimal"):
        return str, Decimal
    if field.type not in _CODECS:
        raise ConfigError(
            f"state {table}: column {field.name!r} is a {field.type}, which a state in Redis can't store; use its "
            "parts as columns, or a state in Delta"
        )
    return _CODECS[field.type]


class _ColumnCodec:
    """Turns the values of columns into a list for JSON, and back. The list has the order of the table."""

    def __init__(self, fields: Schema, codecs: Sequence[tuple[Convert, Convert]]) -> None:
        self._names, self._codecs = fields.names, dict(zip(fields.names, codecs, strict=True))
        self.arrange(self._names)

    def arrange(self, names: Sequence[str]) -> None:
        """Let the list have the columns in this order."""
        self._state_positions = [self._names.index(name) for name in names]
        self._list_positions = [names.index(name) for name in self._names]
        self._encoders = [self._codecs[name][0] for name in names]
        self._decoders = [self._codecs[name][1] for name in names]

    def encode(self, values: Sequence[Any]) -> list[Any]:
        """Return the list for values in the order of the state."""
        pairs = zip(self._state_positions, self._encoders, strict=True)
        return [_convert_unless_null(encode, values[position]) for position, encode in pairs]

    def decode(self, stored: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values, in the order of the state, for a list."""
        values = [_convert_unless_null(decode, v) for v, decode in zip(stored, self._decoders, strict=True)]
        return tuple(values[position] for position in self._list_positions)


class RowCodec:
    """Turns keys and rows of a state into bytes, and back. Raises `ConfigError` for columns that it can't store."""

    def __init__(self, key: Schema, values: Schema, table: str) -> None:
        self._fields = {*key}, {*values}
        codecs = [_codec_for(field, table) for field in key]
        floats = [field.type in ("float", "double") for field in key]
        key_codecs = [
            (_unify_zeros if is_float else encode, decode)
            for is_float, (encode, decode) in zip(floats, codecs, strict=True)
        ]
        self._key = _ColumnCodec(key, key_codecs)
        self._values = _ColumnCodec(values, [_codec_for(field, table) for field in values])

    def arrange(self, key: Schema, columns: Schema) -> bool:
        """Read and write the columns in the order of a table from now on. Return whether the table has the same."""
        values = [field for field in columns if field not in {*key}]
        if ({*key}, {*values}) != self._fields:
            return False
        self._key.arrange(key.names)
        self._values.arrange([field.name for field in values])
        return True

    def key_bytes(self, key: Key) -> bytes:
        """Return the bytes of a key, which are the same for equal keys."""
        return _json_bytes(self._key.encode(key))

    def key_of(self, stored: bytes) -> Key:
        """Return the key with these bytes."""
        return self._key.decode(json.loads(stored))

    def row_bytes(self, row: StoredValue) -> bytes:
        """Return the bytes of a row: values (null in a tombstone), txid, previous values, their txid."""
        encode = self._values.encode
        values = _convert_unless_null(encode, None if row.value is ABSENT else row.value)
        return _json_bytes([values, row.txid, _convert_unless_null(encode, row.prev_value), row.prev_txid])

    def row_of(self, stored: bytes) -> StoredValue:
        """Return the row with these bytes."""
        values, txid, previous_values, prev_txid = json.loads(stored)
        decode = self._values.decode
        row = ABSENT if values is None else decode(values)
        return StoredValue(row, _convert_unless_null(decode, previous_values), TxId(txid), prev_txid)


def _convert_unless_null(convert: Convert, stored: Any) -> Any:
    return None if stored is None else convert(stored)


def _json_bytes(row: Sequence[Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()
