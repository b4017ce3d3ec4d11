"""Reads a table in Redis from outside a run, as of the transaction that was pinned.

Redis stores one previous value of each row. So a reader is refused once the table has moved on too far to show what the
rows were at the pinned transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from state.redis.registration import FIELDS, RedisRegistration, Registered, check_row_count, keys_of
from state.redis.server import Server
from state.rows.columns import StateColumns
from state.rows.expiring import select_unexpired
from state.rows.python_rows import rows_of, table_of_rows
from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError


class RedisReader:
    """Reads the table of one owner. `name` is what messages call the state.

    The server has no versions of the table: each row has its value and the one before its last transaction. Rows that a
    transaction deletes, or that have expired for it, are removed by the next one. So where keys can be removed, the
    absence of a row means something only until the table is two transactions further.
    """

    has_history = False

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._columns, self._name = server, columns, name
        self._registration = RedisRegistration(server, table, columns, owner=owner, name=name)
        self._codec = self._registration.codec
        self._meta, self._rows, *_ = keys_of(table)
        self._pinned: Registered | None = None

    def pin(self, txid: TxId | None = None) -> None:
        """Pin the table at its last writer. Older transactions can't be read."""
        self.release()
        registered = self._registration.check()
        if registered is None or registered.version is None:
            raise OperatingError(f"state {self._name} has no table yet: no transaction has written it")
        self._pinned = registered

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows as of transaction `txid`. Raises `OperatingError`."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._meta, FIELDS)
            together.hgetall(self._rows)
            fields, stored = together.execute()
        return self._as_of(txid, self._registration.parse(fields, len(stored)), stored, is_everything=True)

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return, as `rows` does, the rows with these keys. Raises `OperatingError`."""
        names = [self._codec.key_bytes(key) for key in (rows_of(keys) if self._columns.key else [()])]
        if not names:
            return self._table([])
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._meta, FIELDS)
            together.hlen(self._rows)
            together.hmget(self._rows, names)
            fields, rows, stored = together.execute()
        return self._as_of(txid, self._registration.parse(fields, rows), dict(zip(names, stored, strict=True)))

    def _as_of(
        self,
        txid: TxId,
        current: Registered | None,
        stored: Mapping[bytes, bytes | None],
        *,
        is_everything: bool = False,
    ) -> pa.Table:
        assert self._pinned is not None, "pin() comes first"
        if current is not None:
            check_row_count(current, self._name)
        rows = {key: self._row_of(row) for key, row in stored.items()}
        is_same = current is not None and current.version == self._pinned.version
        if not is_same and not (current and self._is_known(txid, current, rows, is_everything=is_everything)):
            raise OperatingError(
                f"state {self._name} has moved on from transaction {txid} while it was read, and Redis keeps no older "
                "versions; query it again"
            )
        values_of = ((key, row.value_for_reader(txid)) for key, row in rows.items() if row is not None)
        table = self._table((*self._codec.key_of(key), *values) for key, values in values_of if values is not ABSENT)
        expires = self._columns.expires
        return table if expires is None else select_unexpired(table, expires, self._pinned.horizons.for_reader(txid))

    def _row_of(self, stored: bytes | None) -> StoredValue | None:
        return None if stored is None else self._codec.row_of(stored)

    def _is_known(
        self, txid: TxId, current: Registered, rows: Mapping[bytes, StoredValue | None], *, is_everything: bool
    ) -> bool:
        """Return whether the rows as of transaction `txid` are known, though others have written since `pin`."""
        pinned = self._pinned
        assert pinned is not None
        if current.owner != pinned.owner or current.rewound_to != pinned.rewound_to:
            return False
        if current.last_write is not None and pinned.last_write is not None:
            if current.last_write.since != pinned.last_write.since:
                return False
            may_be_removed = current.last_write.txid > txid + 1
        else:
            may_be_removed = True
        may_be_removed = may_be_removed and (self._columns.deletes or self._columns.expires is not None)
        if may_be_removed and is_everything:
            return False
        return all(_has_value_of(row, txid, may_be_removed=may_be_removed) for row in rows.values())

    def _table(self, rows: Iterable[tuple[object, ...]]) -> pa.Table:
        return table_of_rows(list(rows), self._columns.visible)

    def release(self) -> None:
        """Forget the transaction that was pinned."""
        self._pinned = None

    def close(self) -> None:
        """Close the connection to the server."""
        self.release()
        self._server.close()


def _has_value_of(row: StoredValue | None, txid: TxId, *, may_be_removed: bool) -> bool:
    """Return whether a row, or its absence, shows its value as of transaction `txid`. With `may_be_removed` the row of
    then may have been removed since."""
    if row is None or (row.txid > txid and row.prev_txid is None):
        return not may_be_removed
    return row.txid <= txid or (row.prev_txid or 0) <= txid
