"""The open table of a state in Redis: each write is one script, which compares the version before it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from state.columns import StateColumns
from state.expiring import NO_FLOORS, Floors, in_range
from state.fence import WriteRefused
from state.redis.server import Server, WriteFailed
from state.redis.values import RowCodec
from state.sums import SumCheck
from state.updates import rows_of, table_of_rows
from state.value_limits import ValueLimits
from state.values import OpaqueValue, combined_values
from transactional.absent import ABSENT
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.errors import SchemaMismatch, StoreMismatch
from transactional.schema import Schema

LAYOUT: Final = "1"
"""The version of the layout of a state's keys in Redis."""
ARGUMENTS_MAX: Final = 1_000_000
"""Redis takes 1,048,576 in one command."""
READ_AT_ONCE: Final = 10_000

_WRITE: Final = """
local meta, rows, changed = KEYS[1], KEYS[2], KEYS[3]
local found = redis.call('HMGET', meta, 'owner', 'attempt')
if found[1] ~= ARGV[1] or (found[2] or '') ~= ARGV[2] then return {0, found[1] or '', found[2] or ''} end
redis.call('HSET', meta, 'attempt', ARGV[3])
if ARGV[4] == 'version' then return {1} end
redis.call('DEL', changed)
local at = 7
local function each(count, width, call)
  local last = at + count * width - 1
  while at <= last do
    local stop = math.min(at + 3999, last)
    call(at, stop)
    at = stop + 1
  end
end
each(tonumber(ARGV[5]), 2, function(first, last)
  redis.call('HSET', rows, unpack(ARGV, first, last))
end)
each(tonumber(ARGV[6]), 1, function(first, last)
  redis.call('HDEL', rows, unpack(ARGV, first, last))
end)
each(#ARGV - at + 1, 1, function(first, last)
  redis.call('SADD', changed, unpack(ARGV, first, last))
end)
return {1}
"""
_CREATE: Final = """
local meta = KEYS[1]
if redis.call('EXISTS', meta) == 1 then return redis.call('HMGET', meta, 'layout', 'key', 'columns', 'owner') end
redis.call('HSET', meta, 'layout', ARGV[1], 'key', ARGV[2], 'columns', ARGV[3], 'owner', ARGV[4])
return {ARGV[1], ARGV[2], ARGV[3], ARGV[4]}
"""
_HAND_OVER: Final = """
local meta, rows = KEYS[1], KEYS[2]
if redis.call('HGET', meta, 'owner') ~= ARGV[1] or redis.call('HLEN', rows) > 0 then return 0 end
redis.call('HSET', meta, 'owner', ARGV[2])
redis.call('HDEL', meta, 'attempt')
return 1
"""


class FencedRedisTable:
    """A hash of rows, the set of the keys that the newest transaction has changed, and a hash with owner and version.

    `name` is what messages call the state.
    """

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._columns, self._owner, self._name = server, columns, owner, name
        self._keys = keys_of(table)
        self._meta, self._rows, self._changed = self._keys
        self._codec = RowCodec(columns.key, columns.values, name)
        self._limits = ValueLimits(name)
        self._loaded: AttemptId | None = None
        self._write = server.client.register_script(_WRITE)

    # --- creation ---------------------------------------------------------------------------------------------------

    def create_or_check(self) -> None:
        """Create the table, or check the one that is there.

        Raises `SchemaMismatch` for one of another shape, `StoreMismatch` for one with rows of another owner.
        """
        client = self._server.client
        wanted = (LAYOUT, str(self._columns.key), str(Schema((*self._columns.key, *self._columns.values))))
        with self._server.raising_ours():
            found = client.eval(_CREATE, 1, self._meta, *wanted, self._owner)
        layout, *shape, owner = (part.decode() if isinstance(part, bytes) else str(part) for part in found)
        if layout != LAYOUT:
            raise SchemaMismatch(
                f"state {self._name} has version {layout} of the state's layout, this release knows {LAYOUT}; run the "
                "release of transactional that wrote it, or a newer one"
            )
        if tuple(shape) != wanted[1:]:
            raise SchemaMismatch(
                f"state {self._name} was created with the key '{shape[0]}' and the columns '{shape[1]}'; the state "
                f"needs the key '{wanted[1]}' and the columns '{wanted[2]}': use another table, or declare the "
                "existing columns"
            )
        if owner != self._owner:
            with self._server.raising_ours():
                is_ours = client.eval(_HAND_OVER, 2, self._meta, self._rows, owner, self._owner)
            if not is_ours:
                raise StoreMismatch(
                    f"state {self._name} has rows, written by {owner} and not by {self._owner}: it is another "
                    "topology's table; give each topology its own, or start with an empty one"
                )

    # --- the version ------------------------------------------------------------------------------------------------

    def judge(self) -> AttemptId | None:
        """Read the attempt id of the table's last writer.

        Raises `StoreMismatch` if it is older than what was read or written before: then the server has lost writes.
        """
        with self._server.raising_ours():
            owner, found = self._server.client.hmget(self._meta, ["owner", "attempt"])
        before = self._loaded
        if owner is None or owner.decode() != self._owner:
            now = "no longer there" if owner is None else f"that of {owner.decode()} now"
            raise StoreMismatch(
                f"state {self._name} was the table of {self._owner} and is {now}: the server has lost it, in a "
                "failover or a restart, or somebody has deleted it; restore it"
            )
        version = None if found is None else AttemptId(int(found))
        if before is not None and (version is None or version < before):
            raise StoreMismatch(
                f"state {self._name} of {self._owner} was at version {before} and is at {version} now: the server has "
                "lost writes that it had confirmed, in a failover or a restart; restore a newer copy of the table"
            )
        self._loaded = version
        return version

    def version(self) -> AttemptId | None:
        """The attempt id that was found last, or written since."""
        return self._loaded

    # --- reading ----------------------------------------------------------------------------------------------------

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns as they were before a transaction, of the rows with a wanted key."""
        keys = rows_of(wanted) if self._columns.key else [()]
        found = self._stored({self._codec.key_bytes(key) for key in keys})
        return self._as_table(found.items(), before)

    def rows(self, before: TxId) -> pa.Table:
        """Key and value columns of all rows as they were before a transaction."""
        return self._as_table(self._all().items(), before)

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those whose column lies in a range; all are read."""
        return in_range(self.rows(before), column, after, until)

    def floors(self) -> Floors:
        """None: rows do not expire."""
        return NO_FLOORS

    def visible(self, committed_txid: TxId | None) -> pa.Table:
        """The same as of a committed transaction; None: of the newest one."""
        found = self._all()
        newest = max((row.txid for row in found.values()), default=TxId(0))
        until = newest if committed_txid is None else committed_txid
        rows = ((key, row.visible_at(until)) for key, row in found.items())
        return self._table_of(rows)

    def _as_table(self, found: Iterable[tuple[bytes, OpaqueValue]], before: TxId) -> pa.Table:
        return self._table_of((key, row.before(before)) for key, row in found)

    def _table_of(self, rows: Iterable[tuple[bytes, Any]]) -> pa.Table:
        there = [(*self._codec.key_of(key), *values) for key, values in rows if values is not ABSENT]
        return table_of_rows(there, Schema((*self._columns.key, *self._columns.values)))

    def _all(self) -> dict[bytes, OpaqueValue]:
        """All rows, as of one moment."""
        with self._server.raising_ours():
            found: Mapping[bytes, bytes] = self._server.client.hgetall(self._rows)
        return {key: self._codec.row_of(row) for key, row in found.items()}

    def _stored(self, keys: Iterable[bytes]) -> dict[bytes, OpaqueValue]:
        asked, found = list(keys), dict[bytes, OpaqueValue]()
        for start in range(0, len(asked), READ_AT_ONCE):
            part = asked[start : start + READ_AT_ONCE]
            with self._server.raising_ours():
                rows = self._server.client.hmget(self._rows, part)
            found |= {key: self._codec.row_of(row) for key, row in zip(part, rows, strict=True) if row is not None}
        return found

    # --- writing ----------------------------------------------------------------------------------------------------

    def apply(
        self,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        *,
        is_replay: bool,
        floors: Floors | None = None,
    ) -> None:
        """Write rows and version, and roll back what a dead attempt has left. Raises `WriteRefused`."""
        assert floors is None, f"rows of state {self._name} do not expire"
        self._limits.check(rows, len(self._columns.key))
        values = self._columns.values
        check = SumCheck(self._name, values, [combine[name] for name in values.names])
        width = len(self._columns.key)
        given = {self._codec.key_bytes(row[:width]): row for row in rows_of(rows)}
        with self._server.raising_ours():
            changed: set[bytes] = self._server.client.smembers(self._changed)
        stored = self._stored(given.keys() | changed)
        after = {key: self._applied(stored.get(key), attempt.txid, row, check) for key, row in given.items()}
        # What only a dead attempt has changed goes back, and what the last transaction has deleted goes.
        after |= {key: row.roll_back(attempt.txid) for key, row in stored.items() if key not in given}
        self._send(attempt.attempt_id, attempt.txid, stored, after)

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, floors: Floors | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        del attempt, floors
        self._run(attempt_id, ["version"])

    def _applied(self, stored: OpaqueValue | None, txid: TxId, row: Sequence[Any], check: SumCheck) -> Any:
        width, until = len(self._columns.key), len(self._columns.key) + len(self._columns.values)
        if any(row[until:]):
            return None if stored is None else stored.apply(txid, lambda _: ABSENT)
        key: Key = tuple(row[:width])

        def update(before: Any) -> tuple[Any, ...]:
            values = combined_values(check.combine, before, row[width:until])
            check.check(key, before, row[width:until], values)
            return values

        return OpaqueValue.first(txid, update(ABSENT)) if stored is None else stored.apply(txid, update)

    def _send(
        self,
        attempt_id: AttemptId,
        txid: TxId,
        stored: Mapping[bytes, OpaqueValue],
        after: Mapping[bytes, OpaqueValue | None],
    ) -> None:
        put = {key: row for key, row in after.items() if row is not None and row != stored.get(key)}
        gone = [key for key, row in after.items() if row is None and key in stored]
        own = [key for key, row in after.items() if row is not None and row.txid == txid]
        if 2 * len(put) + len(gone) + len(own) > ARGUMENTS_MAX:
            raise SchemaMismatch(
                f"state {self._name}: a transaction that changes {len(after)} rows does not fit into one command of "
                "Redis; limit the batches to 300,000 keys, or keep the state in Delta"
            )
        pairs = [part for key, row in put.items() for part in (key, self._codec.row_bytes(row))]
        self._run(attempt_id, ["rows", len(put), len(gone), *pairs, *gone, *own])

    def _run(self, attempt_id: AttemptId, arguments: Sequence[Any]) -> None:
        loaded = "" if self._loaded is None else int(self._loaded)
        try:
            with self._server.writing():
                is_written, *found = self._write(self._keys, [self._owner, loaded, int(attempt_id), *arguments])
        except WriteFailed as error:
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_written:
            owner, version = (part.decode() for part in found)
            raise WriteRefused(f"another writer came between: {owner}, version {version}", is_conflict=True)
        self._loaded = attempt_id


def keys_of(table: str) -> tuple[str, str, str]:
    """The names of a table's keys in Redis: owner and version, rows, what the newest transaction has changed.

    The braces keep them in one slot.
    """
    return f"{{{table}}}:meta", f"{{{table}}}:rows", f"{{{table}}}:changed"
