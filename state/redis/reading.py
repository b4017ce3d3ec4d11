"""A table in Redis that is only read: as it was when it was pinned, or a refusal once it has moved on too far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from state.redis.registration import FIELDS, RedisRegistration, Registered, check_rows, keys_of
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

    The server keeps no versions: of each row it is known what it was before the transaction that has changed it last.
    Rows that one transaction deletes, or that have expired by it, are removed by the next one: of keys that may go all
    is known until the table is two transactions further, and after that what the rows themselves say.
    """

    has_history = False

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._columns, self._name = server, columns, name
        self._registration = RedisRegistration(server, table, columns, owner=owner, name=name)
        self._codec = self._registration.codec
        self._meta, self._rows, *_ = keys_of(table)
        self._pinned: Registered | None = None

    def pin(self, txid: TxId | None = None) -> None:
        """Note who has written the table last; older transactions than that are not there."""
        self.release()
        found = self._registration.check()
        if found is None or found.version is None:
            raise OperatingError(f"state {self._name} has no table yet: no transaction has written it")
        self._pinned = found

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction. Raises `OperatingError`."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._meta, FIELDS)
            together.hgetall(self._rows)
            told, stored = together.execute()
        return self._as_of(txid, self._registration.found(told, len(stored)), stored, is_everything=True)

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys. Raises `OperatingError`."""
        asked = [self._codec.key_bytes(key) for key in (rows_of(keys) if self._columns.key else [()])]
        if not asked:
            return self._table([])
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._meta, FIELDS)
            together.hlen(self._rows)
            together.hmget(self._rows, asked)
            told, rows, found = together.execute()
        return self._as_of(txid, self._registration.found(told, rows), dict(zip(asked, found, strict=True)))

    def _as_of(
        self, txid: TxId, now: Registered | None, stored: Mapping[bytes, bytes | None], *, is_everything: bool = False
    ) -> pa.Table:
        assert self._pinned is not None, "pin() comes first"
        if now is not None:
            check_rows(now, self._name)
        rows = {key: self._row_of(row) for key, row in stored.items()}
        is_same = now is not None and now.version == self._pinned.version
        if not is_same and not (now and self._is_known(txid, now, rows, is_everything=is_everything)):
            raise OperatingError(
                f"state {self._name} has moved on from transaction {txid} while it was read, and Redis keeps no older "
                "versions; query it again"
            )
        there = ((key, row.value_for_reader(txid)) for key, row in rows.items() if row is not None)
        found = self._table((*self._codec.key_of(key), *values) for key, values in there if values is not ABSENT)
        expires = self._columns.expires
        return found if expires is None else select_unexpired(found, expires, self._pinned.horizons.for_reader(txid))

    def _row_of(self, stored: bytes | None) -> StoredValue | None:
        return None if stored is None else self._codec.row_of(stored)

    def _is_known(
        self, txid: TxId, now: Registered, rows: Mapping[bytes, StoredValue | None], *, is_everything: bool
    ) -> bool:
        """Whether it is known what each row was after a transaction, though others have written since it was pinned."""
        then = self._pinned
        assert then is not None
        if now.owner != then.owner or now.rewound_to != then.rewound_to:
            return False
        if now.written is not None and then.written is not None:
            if now.written.since != then.written.since:
                return False
            may_be_gone = now.written.txid > txid + 1
        else:
            may_be_gone = True
        may_be_gone = may_be_gone and (self._columns.deletes or self._columns.expires is not None)
        if may_be_gone and is_everything:
            return False
        return all(_is_told(row, txid, may_be_gone=may_be_gone) for row in rows.values())

    def _table(self, rows: Iterable[tuple[object, ...]]) -> pa.Table:
        return table_of_rows(list(rows), self._columns.shown)

    def release(self) -> None:
        """Let go of what is pinned."""
        self._pinned = None

    def close(self) -> None:
        """Close the connection."""
        self.release()
        self._server.close()


def _is_told(row: StoredValue | None, txid: TxId, *, may_be_gone: bool) -> bool:
    """Whether a row, or that there is none, says what was there after a transaction. `may_be_gone`: the row of then may
    have been removed."""
    if row is None or (row.txid > txid and row.prev_txid is None):
        return not may_be_gone
    return row.txid <= txid or (row.prev_txid or 0) <= txid
