"""The rows of a state in Redis, as a `RowStore`: each write is one script, which compares the version first.

The script writes rows first and the version last, and a server that dies in its middle has written some of them. So a
set records which keys the newest transaction has changed, and the next write rolls them back. A sorted set has the
times by which rows expire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from state.fence import WriteRefused
from state.redis.registration import (
    FIELDS,
    LastWrite,
    RedisRegistration,
    Registered,
    check_row_count,
    format_horizons,
    keys_of,
)
from state.redis.scripts import WRITE
from state.redis.server import Server, WriteFailed
from state.redis.values import EPOCH, MICROSECOND
from state.row_table import Change, Changes, RowStore, RowWrite, to_table
from state.rows.columns import StateColumns
from state.rows.expiring import ExpiryHorizons, select_unexpired
from state.rows.opaque_rule import Rows
from state.rows.stored_value import StoredValue
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import ConfigError, SchemaMismatch, StoreMismatch
from transactional.model.user_code.tuples import Key

ARGUMENTS_MAX: Final = 1_000_000
"""Redis takes 1,048,576 in one command."""
READ_AT_ONCE: Final = 10_000
SCORE_MARGIN_US: Final = 2_000
"""A double near the limit of a long is so far from it, at most."""


@dataclass(frozen=True, slots=True)
class ScriptRows:
    """The rows of one write, as the script takes them."""

    pairs: Sequence[bytes] = ()
    """Keys, each followed by its row."""
    deleted: Sequence[bytes] = ()
    changed: Sequence[bytes] = ()
    """The keys that a replay of the transaction has to roll back."""
    scored: Sequence[Any] = ()
    """Times by which rows expire, each followed by its key."""
    unscored: Sequence[bytes] = ()
    has_rows: bool = False

    def arguments(self) -> list[Any]:
        """Return the arguments of the script, in the order in which it writes them."""
        counts = (len(self.changed), len(self.pairs) // 2, len(self.deleted), len(self.scored) // 2, len(self.unscored))
        mode = "rows" if self.has_rows else "version"
        return [mode, *counts, *self.changed, *self.pairs, *self.deleted, *self.scored, *self.unscored]


class RedisRows(RowStore):
    """A hash of rows, the set of the keys that the newest transaction has changed, and a hash with owner and version.

    `name` is what messages call the state.
    """

    writes_in_parts = True

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._columns, self._owner, self._name = server, columns, owner, name
        self._keys = keys_of(table)
        _, self._rows, self._changed, self._expiry = self._keys
        self._registration = RedisRegistration(server, table, columns, owner=owner, name=name)
        names = [*columns.key.names, *columns.values.names]
        self._expiry_index = None if columns.expires is None else names.index(columns.expires)
        self._gains_horizons = False
        self._codec = self._registration.codec
        self._loaded: AttemptId | None = None
        self._last_write: LastWrite | None = None
        self._dangling = set[bytes]()
        """Keys without a row that are in the sets: a write that ended in its middle has left them there."""
        self._write = server.client.register_script(WRITE)

    def open(self, store_id: str | None = None) -> None:
        """Create the table, or check the one that is there (see `RedisRegistration`).

        Raises `ConfigError` for a user who may not use one of the commands, before anything is written.
        """
        self._server.try_commands(self._keys)
        self._gains_horizons = self._registration.create_or_check(store_id)

    def created_for(self) -> str | None:
        """Return the `store_id` that the table was created with."""
        registered = self._registration.find()
        return None if registered is None else registered.store_id

    def check(self) -> Registered | None:
        """Return the checked registration (see `RedisRegistration`). Changes nothing."""
        return self._registration.check()

    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        """Return the attempt id of the table's last writer, and the expiry horizons.

        Raises `StoreMismatch` if the version is older than one that was read or written before, or rows are missing:
        then the server has lost writes.
        """
        registered, last_version = self._registration.find(), self._loaded
        if registered is None or registered.owner != self._owner:
            state = "no longer there" if registered is None else f"that of {registered.owner} now"
            raise StoreMismatch(
                f"state {self._name} was the table of {self._owner} and is {state}: the server has lost it, in a "
                "failover or a restart, or somebody has deleted it; restore it"
            )
        version = registered.version
        if last_version is not None and (version is None or version < last_version):
            raise StoreMismatch(
                f"state {self._name} of {self._owner} was at version {last_version} and is at {version} now: "
                "the server has lost writes that it had confirmed, in a failover or a restart; restore a newer copy "
                "of the table"
            )
        check_row_count(registered, self._name)
        self._loaded, self._last_write = version, registered.last_write
        return version, registered.horizons

    def rewound_to(self) -> TxId:
        """Return the transaction that is recorded beside the version."""
        registered = self._registration.find()
        return TxId(0) if registered is None else registered.rewound_to or TxId(0)

    # --- reading ----------------------------------------------------------------------------------------------------

    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """Return the rows with these keys; None: all rows, as of one moment."""
        if keys is not None:
            return self._by_key(set(), {self._codec.key_bytes(key): key for key in keys})
        with self._server.raising_ours():
            stored: Mapping[bytes, bytes] = self._server.client.hgetall(self._rows)
        return {self._codec.key_of(key): self._codec.row_of(row) for key, row in stored.items()}

    def rows_between(self, column: str, after: int | None, until: int) -> Rows:
        """Return the rows that expire by a time in the range, and those of the newest transaction; all rows, unless
        they expire by that column."""
        if column != self._columns.expires or self._gains_horizons:
            return self.rows()
        return self._by_key(self._find_expiring(after, until) | self._read_changed(), {})

    def tombstones_and_rows_since(self, since: TxId | None) -> Rows:
        """Return the rows that the newest transaction has changed."""
        return self._by_key(self._read_changed(), {})

    def rows_to_change(
        self, keys: Collection[Key], *, since: TxId | None, deletes: bool, expired: tuple[str, int] | None
    ) -> Rows:
        """Return all of these by one request for rows."""
        names = self._read_changed() | (set() if expired is None else self._find_expiring(None, expired[1]))
        return self._by_key(names, {self._codec.key_bytes(key): key for key in keys})

    def _by_key(self, recorded: set[bytes], keys: Mapping[bytes, Key]) -> dict[Key, StoredValue]:
        stored = self._read_rows(recorded | keys.keys())
        self._dangling = recorded - stored.keys()
        return {keys[key] if key in keys else self._codec.key_of(key): row for key, row in stored.items()}

    def visible_rows(self, committed_txid: TxId | None, expires: str | None) -> pa.Table:
        """Return key and value columns as of a committed transaction, None: of the newest one. Rows that have expired
        by the column `expires` are left out."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._registration.meta, FIELDS)
            together.hgetall(self._rows)
            fields, stored = together.execute()
        registered = self._registration.parse(fields, len(stored))
        if registered is not None:
            check_row_count(registered, self._name)
        rows = {self._codec.key_of(key): self._codec.row_of(row) for key, row in stored.items()}
        newest = max((row.txid for row in rows.values()), default=TxId(0))
        if registered is not None and registered.last_write is not None:
            newest = registered.last_write.txid  # an attempt that ended in the middle of its write has left later rows
        until = newest if committed_txid is None else committed_txid
        table = to_table(((key, row.value_for_reader(until)) for key, row in rows.items()), self._columns)
        if expires is None or registered is None:
            return table
        return select_unexpired(table, expires, registered.horizons.for_reader(committed_txid))

    def _read_rows(self, keys: Iterable[bytes]) -> dict[bytes, StoredValue]:
        names, rows = list(keys), dict[bytes, StoredValue]()
        for start in range(0, len(names), READ_AT_ONCE):
            part = names[start : start + READ_AT_ONCE]
            with self._server.raising_ours():
                stored = self._server.client.hmget(self._rows, part)
            rows |= {key: self._codec.row_of(row) for key, row in zip(part, stored, strict=True) if row is not None}
        return rows

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Write rows and version by one script."""
        rows = ScriptRows(scored=self._first_scores()) if change is None else self._script_rows(write, change())
        last_write = self._last_write_after(write)
        last_write_text = "" if last_write is None else last_write.to_json()
        meta: dict[str, Any] = {"attempt": int(write.version), "written": last_write_text}
        if write.horizons is not None:
            meta["horizons"] = format_horizons(write.horizons)
        if self._gains_horizons:
            meta["expires"] = self._columns.expires
        if write.rewound_to is not None:
            meta["rewound"] = int(write.rewound_to)
        fields = [part for pair in meta.items() for part in pair]
        try:
            with self._server.writing():
                expected = "" if write.expected_version is None else int(write.expected_version)
                arguments = [self._owner, expected, int(write.version), *rows.arguments(), *fields]
                is_written, *current = self._write(self._keys, arguments)
        except ConfigError:
            self._server.try_commands(self._keys)  # it knows which command is refused
            raise
        except WriteFailed as error:
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_written:
            owner, version = (part.decode() for part in current)
            raise WriteRefused(f"another writer came between: {owner}, version {version}", is_conflict=True)
        self._loaded, self._last_write, self._gains_horizons = write.version, last_write, False

    def _script_rows(self, write: RowWrite, changes: Changes) -> ScriptRows:
        names = {key: self._codec.key_bytes(key) for key in changes.new_rows}
        rows = {key: row for key, row in changes.new_rows.items() if row is not None}
        changed_rows, deleted = changes.changed_rows, [names[key] for key in changes.deleted_keys]
        changed = [names[key] for key, row in rows.items() if row.txid == write.txid]
        # A write that ended in its middle has left new rows with the times of the old ones, or the other way round.
        timed = changed_rows | {key: row for key, row in rows.items() if row.txid in (write.txid, row.prev_txid)}
        times = self._expiry_times({names[key]: (key, row) for key, row in timed.items()})
        scored = [*self._first_scores(), *(part for key, us in times.items() for part in (us, key))]
        unscored = [*(names[key] for key in names if key not in rows), *(self._dangling - set(names.values()))]
        if self._expiry_index is not None:
            unscored += [names[key] for key in timed if names[key] not in times]
        if 2 * len(changed_rows) + len(deleted) + len(changed) + len(scored) + len(unscored) > ARGUMENTS_MAX:
            raise SchemaMismatch(
                f"state {self._name}: a transaction that changes {len(names)} rows does not fit into one command of "
                "Redis; limit the batches to 300,000 keys, or keep the state in Delta"
            )
        pairs = [part for key, row in changed_rows.items() for part in (names[key], self._codec.row_bytes(row))]
        return ScriptRows(pairs, deleted, changed, scored, unscored, has_rows=True)

    def _last_write_after(self, write: RowWrite) -> LastWrite | None:
        """Return what a write records as the last write of rows."""
        last_write = self._last_write
        if write.is_rewind:
            last_write = last_write and replace(last_write, since=write.version)
        txid = write.txid if write.rewound_to is None else write.rewound_to
        if txid is None:
            return last_write
        return LastWrite(txid, write.version if last_write is None else last_write.since)

    # --- expiry ----------------------------------------------------------------------------------------------------

    def _read_changed(self) -> set[bytes]:
        """Return the keys that the newest transaction has changed."""
        with self._server.raising_ours():
            names: set[bytes] = self._server.client.smembers(self._changed)
        return names

    def _find_expiring(self, after: int | None, until: int) -> set[bytes]:
        """Return the keys of rows whose expiry is in a range, and maybe of a few more: a score is a double."""
        low = "-inf" if after is None else after - SCORE_MARGIN_US
        with self._server.raising_ours():
            return set(self._server.client.zrangebyscore(self._expiry, low, until + SCORE_MARGIN_US))

    def _expiry_times(self, rows: Mapping[bytes, tuple[Key, StoredValue]]) -> dict[bytes, int]:
        """Return the times by which rows expire, of those that do, in microseconds since 1970."""
        if self._expiry_index is None:
            return {}
        existing = ((name, key, row.value) for name, (key, row) in rows.items() if row.value is not ABSENT)
        times = ((name, (*key, *values)[self._expiry_index]) for name, key, values in existing)
        return {name: (time - EPOCH) // MICROSECOND for name, time in times if time is not None}

    def _first_scores(self) -> list[Any]:
        """Return the expiry times of all rows, with their keys, if rows begin to expire with this write."""
        if not self._gains_horizons:
            return []
        names = {self._codec.key_bytes(key): (key, row) for key, row in self.rows().items()}
        return [part for key, us in self._expiry_times(names).items() for part in (us, key)]
