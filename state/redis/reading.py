"""A table in Redis that is only read: as it was when it was pinned, or a refusal once it has moved on too far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from state.columns import StateColumns
from state.expiring import NO_FLOORS, alive
from state.redis.registration import FIELDS, RedisRegistration, Registered, keys_of
from state.redis.server import Server
from state.redis.values import RowCodec
from state.updates import rows_of, table_of_rows
from state.values import OpaqueValue
from transactional.absent import ABSENT
from transactional.attempt import AttemptId, TxId
from transactional.errors import OperatingError
from transactional.schema import Schema


class RedisReader:
    """Reads the table of one owner. `name` is what messages call the state.

    The server keeps no versions: what a row was is known as long as one transaction at most has changed it since. Of
    keys that may be deleted or expire nothing is known once the table has been written again.
    """

    has_history = False

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._columns, self._name = server, columns, name
        self._registration = RedisRegistration(server, table, columns, owner=owner, name=name)
        self._codec = RowCodec(columns.key, columns.values, name)
        self._meta, self._rows, *_ = keys_of(table)
        self._pinned: AttemptId | None = None
        self._floors = NO_FLOORS

    def pin(self, txid: TxId | None = None) -> None:
        """Note who has written the table last; older transactions than that are not there."""
        self.release()
        found = self._registration.check()
        if found is None or found.version is None:
            raise OperatingError(f"state {self._name} has no table yet: no transaction has written it")
        self._pinned, self._floors = found.version, found.floors

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction. Raises `OperatingError`."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._meta, FIELDS)
            together.hgetall(self._rows)
            told, stored = together.execute()
        return self._as_of(txid, told, stored)

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys. Raises `OperatingError`."""
        asked = [self._codec.key_bytes(key) for key in (rows_of(keys) if self._columns.key else [()])]
        if not asked:
            return self._table([])
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._meta, FIELDS)
            together.hmget(self._rows, asked)
            told, found = together.execute()
        return self._as_of(txid, told, {key: row for key, row in zip(asked, found, strict=True) if row is not None})

    def _as_of(self, txid: TxId, told: list[object], stored: Mapping[bytes, bytes]) -> pa.Table:
        assert self._pinned is not None, "pin() comes first"
        registered, rows = Registered.of(told), {key: self._codec.row_of(row) for key, row in stored.items()}
        if registered is None or registered.version != self._pinned:
            self._check_known(txid, rows)
        there = ((key, row.visible_at(txid)) for key, row in rows.items())
        found = self._table((*self._codec.key_of(key), *values) for key, values in there if values is not ABSENT)
        expires = self._columns.expires
        return found if expires is None else alive(found, expires, self._floors.at(txid))

    def _check_known(self, txid: TxId, rows: Mapping[bytes, OpaqueValue]) -> None:
        """Raise `OperatingError` unless what each row was is known, though others have written since it was pinned."""
        goes = self._columns.deletes or self._columns.expires is not None
        if goes or any(row.txid > txid and (row.prev_txid or 0) > txid for row in rows.values()):
            raise OperatingError(
                f"state {self._name} has moved on from transaction {txid} while it was read, and Redis keeps no older "
                "versions; query it again"
            )

    def _table(self, rows: Iterable[tuple[object, ...]]) -> pa.Table:
        return table_of_rows(list(rows), Schema((*self._columns.key, *self._columns.values)))

    def release(self) -> None:
        """Let go of what is pinned."""
        self._pinned, self._floors = None, NO_FLOORS

    def close(self) -> None:
        """Close the connection."""
        self.release()
        self._server.close()
