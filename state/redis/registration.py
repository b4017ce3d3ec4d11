"""Whose table in Redis it is, what is in it, who has written it last, and by what its rows expire."""

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
class Written:
    """Which transaction has written rows last. Since the writer `since` each has come after the one before it, without
    a rewind in between."""

    txid: TxId
    since: AttemptId

    def text(self) -> str:
        """As it is stored."""
        return json.dumps([self.txid, self.since])


@dataclass(frozen=True, slots=True)
class Registered:
    """What the server has of a table, beside its rows."""

    layout: str
    key: str
    columns: str
    owner: str
    expires: str | None
    version: AttemptId | None
    horizons: ExpiryHorizons
    rewound_to: TxId | None
    """The transaction that it was taken back to last, before which nothing is known of it; None: it never was."""
    written: Written | None = None
    """None: no transaction has written rows yet."""
    rows: int = 0
    """How many there are."""
    length: int | None = None
    """How many there have to be; None: nobody has written yet."""
    store_id: str | None = None
    """The one that it was created with; None: it had none."""

    @classmethod
    def of(cls, found: list[Any], rows: int) -> Registered | None:
        """From the values of `FIELDS`, and the number of rows at the same moment; None: there is no such table."""
        layout, key, columns, owner, expires, attempt, horizons, rewound, written, length, store_id = (
            part.decode() if isinstance(part, bytes) else part for part in found
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
            read_horizons(horizons),
            None if rewound is None else TxId(int(rewound)),
            read_written(written),
            rows,
            int(length) if length else None,
            store_id,
        )


def read_horizons(written: str | None) -> ExpiryHorizons:
    """What a table has recorded of horizons."""
    if not written:
        return NO_HORIZONS
    txid, current, previous = json.loads(written)
    return ExpiryHorizons(TxId(txid), current, previous)


def read_written(written: str | None) -> Written | None:
    """What the last writer has noted of the transaction."""
    if not written:
        return None
    txid, since = json.loads(written)
    return Written(TxId(txid), AttemptId(since))


def check_rows(found: Registered, name: str) -> None:
    """Raise `StoreMismatch` if rows are gone, or have come, without a write of the state. `name` is what messages call
    it."""
    if found.length not in (None, found.rows):
        raise StoreMismatch(
            f"state {name} has {found.rows} rows and has noted that it has {found.length}: the server has evicted or "
            "expired them, or somebody has deleted or added some; restore the table and the coordinator's store from "
            "one moment"
        )


def written_horizons(horizons: ExpiryHorizons | None) -> str:
    """What is recorded of horizons; nothing if rows do not expire."""
    return "" if horizons is None else json.dumps([horizons.txid, horizons.current, horizons.previous])


class RedisRegistration:
    """A state's claim to a table. `name` is what messages call the state."""

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._name, self.owner, self.expires = server, name, owner, columns.expires
        self.meta, self._rows, *_ = keys_of(table)
        self._wanted = (str(columns.key), str(columns.shown))
        self.codec = RowCodec(columns.key, columns.values, name)
        """Of rows as they are in what was found last."""

    def find(self) -> Registered | None:
        """What is there. Changes nothing."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self.meta, FIELDS)
            together.hlen(self._rows)
            return self.found(*together.execute())

    def found(self, answer: list[Any], rows: int) -> Registered | None:
        """What is there: the values of `FIELDS`, and the number of rows at the same moment."""
        found = Registered.of(answer, rows)
        self._has_shape = found is not None and self.codec.arrange(Schema.parse(found.key), Schema.parse(found.columns))
        return found

    def check(self) -> Registered | None:
        """What is there, if it is this state's; None: nothing is, or it is empty and may become this state's.

        Raises `SchemaMismatch` for a table of another shape, `StoreMismatch` for one with rows of another owner, or one
        of whose rows some are gone.
        """
        found = self.find()
        if found is None:
            return None
        self._check_shape(found)
        if found.owner == self.owner:
            check_rows(found, self._name)
            return found
        if found.rows or found.length:
            raise self._anothers(found.owner)
        return None

    def create_or_check(self, store_id: str | None = None) -> bool:
        """Create the table, or check the one that is there. True: its rows are to expire from the next write on.
        `store_id` is recorded by one that is created.

        Raises as `check` does.
        """
        with self._server.raising_ours():
            declared = (str(LAYOUT_VERSION), *self._wanted, self.owner, self.expires or "")
            self._server.client.eval(_CREATE, 1, self.meta, *declared, store_id or "")
        found = self.find()
        assert found is not None
        self._check_shape(found)
        if found.owner != self.owner:
            with self._server.raising_ours():
                arguments = (self.meta, self._rows, found.owner, self.owner, store_id or "")
                is_ours = not found.length and self._server.client.eval(_HAND_OVER, 2, *arguments)
            if not is_ours:
                raise self._anothers(found.owner)
        return self.expires is not None and found.expires is None

    def _anothers(self, owner: str) -> StoreMismatch:
        return StoreMismatch(
            f"state {self._name} has rows, written by {owner} and not by {self.owner}: it is another topology's table; "
            "give each topology its own, or start with an empty one"
        )

    def _check_shape(self, found: Registered) -> None:
        check_layout(found.layout, f"state {self._name}")
        if found.expires is not None and found.expires != self.expires:
            now = f"expires={self.expires!r}" if self.expires is not None else "no expires="
            raise SchemaMismatch(
                f"state {self._name} has rows that expire by the column {found.expires!r}, and is declared with {now}: "
                f"declare expires={found.expires!r}, or use another table"
            )
        if not self._has_shape:
            raise SchemaMismatch(
                f"state {self._name} was created with the key '{found.key}' and the columns '{found.columns}'; the "
                f"state needs the key '{self._wanted[0]}' and the columns '{self._wanted[1]}': use another table, or "
                "declare the existing columns"
            )


def keys_of(table: str) -> tuple[str, str, str, str]:
    """The names of a table's keys in Redis: owner and version, rows, what the newest transaction has changed, and where
    rows expire by what time.

    The braces keep them in one slot.
    """
    return f"{{{table}}}:meta", f"{{{table}}}:rows", f"{{{table}}}:changed", f"{{{table}}}:expiry"
