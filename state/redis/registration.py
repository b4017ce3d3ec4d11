"""The registration of a state's table in Redis: its owner, columns, last writer, expiry and number of rows.

It is one hash beside the rows. `RedisRegistration` creates, checks and hands it over; the script of each write changes
it together with the rows. The recorded number of rows shows if the server has lost or evicted some.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from state.redis.server import Server
from state.redis.values import RowCodec
from state.rows.columns import StateColumns, check_layout
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import SchemaMismatch, StoreMismatch
from transactional.model.names import LAYOUT_VERSION
from transactional.model.schema import Schema

_CREATE: Final = """
local meta = KEYS[1]
if redis.call('EXISTS', meta) == 0 then
  redis.call('HSET', meta, 'layout', ARGV[1], 'key', ARGV[2], 'columns', ARGV[3], 'owner', ARGV[4])
  if ARGV[5] ~= '' then redis.call('HSET', meta, 'expires', ARGV[5]) end
  if ARGV[6] ~= '' then redis.call('HSET', meta, 'store', ARGV[6]) end
end
local found = redis.call('HMGET', meta, 'layout', 'key', 'columns', 'owner', 'expires')
return {found[1], found[2], found[3], found[4], found[5] or ''}
"""
_HAND_OVER: Final = """
local meta, rows = KEYS[1], KEYS[2]
if redis.call('HGET', meta, 'owner') ~= ARGV[1] or redis.call('HLEN', rows) > 0 then return 0 end
redis.call('HSET', meta, 'owner', ARGV[2])
redis.call('HDEL', meta, 'attempt', 'horizons', 'rewound', 'written', 'length', 'store')
if ARGV[3] ~= '' then redis.call('HSET', meta, 'store', ARGV[3]) end
return 1
"""

FIELDS: Final = (
    *("layout", "key", "columns", "owner", "expires", "attempt", "horizons", "rewound", "written", "length"),
    "store",
)


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The transaction that has written rows last. There was no rewind since the writer `since`."""

    txid: TxId
    since: AttemptId

    def to_json(self) -> str:
        """Return the JSON array that is stored: the txid and the attempt id."""
        return json.dumps([self.txid, self.since])


@dataclass(frozen=True, slots=True)
class Registered:
    """What the server has recorded of a table beside its rows."""

    layout: str
    key: str
    columns: str
    owner: str
    expires: str | None
    version: AttemptId | None
    horizons: ExpiryHorizons
    rewound_to: TxId | None
    """The transaction that the last rewind has taken the table back to, None if there was none. Earlier values are not
    stored."""
    last_write: LastWrite | None = None
    """The last write of rows, None if no transaction has written any."""
    rows: int = 0
    """The number of rows that exist."""
    length: int | None = None
    """The recorded number of rows, None if nobody has written yet."""
    store_id: str | None = None
    """The `store_id` that the table was created with, None if there was none."""

    @classmethod
    def parse(cls, fields: list[Any], rows: int) -> Registered | None:
        """Parse the values of `FIELDS`, with the number of rows at the same moment. None: there is no such table."""
        layout, key, columns, owner, expires, attempt, horizons, rewound, last_write, length, store_id = (
            field.decode() if isinstance(field, bytes) else field for field in fields
        )
        if owner is None:
            return None
        version = None if attempt is None else AttemptId(int(attempt))
        return cls(
            layout,
            key,
            columns,
            owner,
            expires,
            version,
            parse_horizons(horizons),
            None if rewound is None else TxId(int(rewound)),
            parse_last_write(last_write),
            rows,
            int(length) if length else None,
            store_id,
        )


def parse_horizons(text: str | None) -> ExpiryHorizons:
    """Parse the stored form of expiry horizons, which is absent if no row expires."""
    if not text:
        return NO_HORIZONS
    txid, current, previous = json.loads(text)
    return ExpiryHorizons(TxId(txid), current, previous)


def parse_last_write(text: str | None) -> LastWrite | None:
    """Parse the stored form of a `LastWrite`, which is absent before the first write."""
    if not text:
        return None
    txid, since = json.loads(text)
    return LastWrite(TxId(txid), AttemptId(since))


def check_row_count(registered: Registered, name: str) -> None:
    """Raise `StoreMismatch` if rows were removed or added without a write of the state, which messages call `name`."""
    if registered.length not in (None, registered.rows):
        raise StoreMismatch(
            f"state {name} has {registered.rows} rows and has noted that it has {registered.length}: "
            "the server has evicted or expired them, or somebody has deleted or added some; restore the table and "
            "the coordinator's store from "
            "one moment"
        )


def format_horizons(horizons: ExpiryHorizons | None) -> str:
    """Return the stored form of expiry horizons, empty if rows do not expire."""
    return "" if horizons is None else json.dumps([horizons.txid, horizons.current, horizons.previous])


class RedisRegistration:
    """Creates and checks the registration of a state's table. `name` is what messages call the state."""

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._name, self.owner, self.expires = server, name, owner, columns.expires
        self.meta, self._rows, *_ = keys_of(table)
        self._declared = (str(columns.key), str(columns.visible))
        self.codec = RowCodec(columns.key, columns.values, name)
        """The codec for rows in the column order of the registration that was read last."""

    def find(self) -> Registered | None:
        """Return the registration, None if there is no table. Changes nothing."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self.meta, FIELDS)
            together.hlen(self._rows)
            return self.parse(*together.execute())

    def parse(self, fields: list[Any], rows: int) -> Registered | None:
        """Parse the values of `FIELDS` (see `Registered.parse`), and let the codec follow the order of columns."""
        registered = Registered.parse(fields, rows)
        self._has_same_columns = registered is not None and self.codec.arrange(
            Schema.parse(registered.key), Schema.parse(registered.columns)
        )
        return registered

    def check(self) -> Registered | None:
        """Return the registration of this state's table. None if there is no table, or an empty one of another owner,
        which may become this state's.

        Raises `SchemaMismatch` for a table with other columns, `StoreMismatch` for one with rows of another owner, or
        with another number of rows than is recorded.
        """
        registered = self.find()
        if registered is None:
            return None
        self._check_columns(registered)
        if registered.owner == self.owner:
            check_row_count(registered, self._name)
            return registered
        if registered.rows or registered.length:
            raise self._foreign_owner_error(registered.owner)
        return None

    def create_or_check(self, store_id: str | None = None) -> bool:
        """Create the table, which records the `store_id`, or check the existing one. Return whether its rows begin to
        expire with the next write. Raises as `check` does.
        """
        with self._server.raising_ours():
            arguments = (str(LAYOUT_VERSION), *self._declared, self.owner, self.expires or "")
            self._server.client.eval(_CREATE, 1, self.meta, *arguments, store_id or "")
        registered = self.find()
        assert registered is not None
        self._check_columns(registered)
        if registered.owner != self.owner:
            with self._server.raising_ours():
                arguments = (self.meta, self._rows, registered.owner, self.owner, store_id or "")
                is_ours = not registered.length and self._server.client.eval(_HAND_OVER, 2, *arguments)
            if not is_ours:
                raise self._foreign_owner_error(registered.owner)
        return self.expires is not None and registered.expires is None

    def _foreign_owner_error(self, owner: str) -> StoreMismatch:
        return StoreMismatch(
            f"state {self._name} has rows, written by {owner} and not by {self.owner}: it is another topology's table; "
            "give each topology its own, or start with an empty one"
        )

    def _check_columns(self, registered: Registered) -> None:
        check_layout(registered.layout, f"state {self._name}")
        if registered.expires is not None and registered.expires != self.expires:
            declaration = f"expires={self.expires!r}" if self.expires is not None else "no expires="
            raise SchemaMismatch(
                f"state {self._name} has rows that expire by the column {registered.expires!r}, and is declared with "
                f"{declaration}: "
                f"declare expires={registered.expires!r}, or use another table"
            )
        if not self._has_same_columns:
            raise SchemaMismatch(
                f"state {self._name} was created with the key '{registered.key}' and the columns "
                f"'{registered.columns}'; the state needs the key '{self._declared[0]}' and the columns "
                f"'{self._declared[1]}': "
                "use another table, or declare the existing columns"
            )


def keys_of(table: str) -> tuple[str, str, str, str]:
    """Return the names of a table's keys in Redis: those of its registration, of its rows, of the keys that the newest
    transaction has changed, and of the times by which rows expire. The braces keep them in one slot.
    """
    return f"{{{table}}}:meta", f"{{{table}}}:rows", f"{{{table}}}:changed", f"{{{table}}}:expiry"
