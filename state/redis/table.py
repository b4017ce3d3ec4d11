"""The rows of a state in Redis: each write is one script, which compares the version before it writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from state.fence import WriteRefused
from state.redis.registration import (
    FIELDS,
    RedisRegistration,
    Registered,
    Written,
    check_rows,
    keys_of,
    written_horizons,
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
    """The rows of one write."""

    pairs: Sequence[bytes] = ()
    """Keys, each followed by its row."""
    gone: Sequence[bytes] = ()
    own: Sequence[bytes] = ()
    """The keys that a replay of the transaction has to roll back."""
    scored: Sequence[Any] = ()
    """Times by which rows go, each followed by its key."""
    unscored: Sequence[bytes] = ()
    has_rows: bool = False

    def arguments(self) -> list[Any]:
        """As the script takes them, in the order in which it writes them."""
        counts = (len(self.own), len(self.pairs) // 2, len(self.gone), len(self.scored) // 2, len(self.unscored))
        what = "rows" if self.has_rows else "version"
        return [what, *counts, *self.own, *self.pairs, *self.gone, *self.scored, *self.unscored]


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
        both = [*columns.key.names, *columns.values.names]
        self._goes_by = None if columns.expires is None else both.index(columns.expires)
        self._gains_horizons = False
        self._codec = self._registration.codec
        self._loaded: AttemptId | None = None
        self._written: Written | None = None
        self._dangling = set[bytes]()
        """Keys that are noted somewhere, and have no row, as a write has left them that ended in the middle."""
        self._write = server.client.register_script(WRITE)

    def open(self, store_id: str | None = None) -> None:
        """Create the table, or check the one that is there (see `RedisRegistration`).

        Raises `ConfigError` for a user who may not use one of the commands, before anything is written.
        """
        self._server.try_commands(self._keys)
        self._gains_horizons = self._registration.create_or_check(store_id)

    def created_for(self) -> str | None:
        """The `store_id` that it was created with."""
        found = self._registration.find()
        return None if found is None else found.store_id

    def check(self) -> Registered | None:
        """What is there (see `RedisRegistration`). Changes nothing."""
        return self._registration.check()

    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        """The attempt id of the table's last writer, and its horizons.

        Raises `StoreMismatch` if it is older than what was read or written before, or rows are gone: then the server
        has lost writes.
        """
        found, before = self._registration.find(), self._loaded
        if found is None or found.owner != self._owner:
            now = "no longer there" if found is None else f"that of {found.owner} now"
            raise StoreMismatch(
                f"state {self._name} was the table of {self._owner} and is {now}: the server has lost it, in a "
                "failover or a restart, or somebody has deleted it; restore it"
            )
        version = found.version
        if before is not None and (version is None or version < before):
            raise StoreMismatch(
                f"state {self._name} of {self._owner} was at version {before} and is at {version} now: the server has "
                "lost writes that it had confirmed, in a failover or a restart; restore a newer copy of the table"
            )
        check_rows(found, self._name)
        self._loaded, self._written = version, found.written
        return version, found.horizons

    def rewound_to(self) -> TxId:
        """As it is noted with the version."""
        found = self._registration.find()
        return TxId(0) if found is None else found.rewound_to or TxId(0)

    # --- reading ----------------------------------------------------------------------------------------------------

    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """Rows by key; all, as of one moment."""
        if keys is not None:
            return self._by_key(set(), {self._codec.key_bytes(key): key for key in keys})
        with self._server.raising_ours():
            found: Mapping[bytes, bytes] = self._server.client.hgetall(self._rows)
        return {self._codec.key_of(key): self._codec.row_of(row) for key, row in found.items()}

    def rows_between(self, column: str, after: int | None, until: int) -> Rows:
        """Those that go by a time in the range, or have been changed last; all, unless rows expire by that column."""
        if column != self._columns.expires or self._gains_horizons:
            return self.rows()
        return self._by_key(self._due(after, until) | self._own(), {})

    def tombstones_and_rows_since(self, since: TxId | None) -> Rows:
        """Those that the newest transaction has changed."""
        return self._by_key(self._own(), {})

    def rows_to_change(
        self, keys: Collection[Key], *, since: TxId | None, deletes: bool, expired: tuple[str, int] | None
    ) -> Rows:
        """All of these at once."""
        others = self._own() | (set() if expired is None else self._due(None, expired[1]))
        return self._by_key(others, {self._codec.key_bytes(key): key for key in keys})

    def _by_key(self, noted: set[bytes], keys: Mapping[bytes, Key]) -> dict[Key, StoredValue]:
        stored = self._stored(noted | keys.keys())
        self._dangling = noted - stored.keys()
        return {keys[key] if key in keys else self._codec.key_of(key): row for key, row in stored.items()}

    def visible_rows(self, committed_txid: TxId | None, expires: str | None) -> pa.Table:
        """Key and value columns as of a committed transaction; None: of the newest one. Without what has expired by
        this column."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._registration.meta, FIELDS)
            together.hgetall(self._rows)
            told, stored = together.execute()
        registered = self._registration.found(told, len(stored))
        if registered is not None:
            check_rows(registered, self._name)
        found = {self._codec.key_of(key): self._codec.row_of(row) for key, row in stored.items()}
        newest = max((row.txid for row in found.values()), default=TxId(0))
        if registered is not None and registered.written is not None:
            newest = registered.written.txid  # not what an attempt has left that ended in the middle of its write
        until = newest if committed_txid is None else committed_txid
        rows = to_table(((key, row.value_for_reader(until)) for key, row in found.items()), self._columns)
        if expires is None or registered is None:
            return rows
        return select_unexpired(rows, expires, registered.horizons.for_reader(committed_txid))

    def _stored(self, keys: Iterable[bytes]) -> dict[bytes, StoredValue]:
        asked, found = list(keys), dict[bytes, StoredValue]()
        for start in range(0, len(asked), READ_AT_ONCE):
            part = asked[start : start + READ_AT_ONCE]
            with self._server.raising_ours():
                rows = self._server.client.hmget(self._rows, part)
            found |= {key: self._codec.row_of(row) for key, row in zip(part, rows, strict=True) if row is not None}
        return found

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Write rows and version by one script."""
        rows = ScriptRows(scored=self._scores_at_first()) if change is None else self._script_rows(write, change())
        written = self._noted(write)
        meta: dict[str, Any] = {"attempt": int(write.version), "written": "" if written is None else written.text()}
        if write.horizons is not None:
            meta["horizons"] = written_horizons(write.horizons)
        if self._gains_horizons:
            meta["expires"] = self._columns.expires
        if write.rewound_to is not None:
            meta["rewound"] = int(write.rewound_to)
        last = [part for pair in meta.items() for part in pair]
        try:
            with self._server.writing():
                over = "" if write.expected_version is None else int(write.expected_version)
                given = [self._owner, over, int(write.version), *rows.arguments(), *last]
                is_written, *found = self._write(self._keys, given)
        except ConfigError:
            self._server.try_commands(self._keys)  # it knows which command is refused
            raise
        except WriteFailed as error:
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_written:
            owner, version = (part.decode() for part in found)
            raise WriteRefused(f"another writer came between: {owner}, version {version}", is_conflict=True)
        self._loaded, self._written, self._gains_horizons = write.version, written, False

    def _script_rows(self, write: RowWrite, changes: Changes) -> ScriptRows:
        names = {key: self._codec.key_bytes(key) for key in changes.new_rows}
        kept = {key: row for key, row in changes.new_rows.items() if row is not None}
        put, gone = changes.changed_rows, [names[key] for key in changes.deleted_keys]
        own = [names[key] for key, row in kept.items() if row.txid == write.txid]
        # A write that ended in the middle has left rows whose times are those of before, or the other way round.
        timed = put | {key: row for key, row in kept.items() if row.txid in (write.txid, row.prev_txid)}
        times = self._times({names[key]: (key, row) for key, row in timed.items()})
        scored = [*self._scores_at_first(), *(part for key, at in times.items() for part in (at, key))]
        unscored = [*(names[key] for key in names if key not in kept), *(self._dangling - set(names.values()))]
        if self._goes_by is not None:
            unscored += [names[key] for key in timed if names[key] not in times]
        if 2 * len(put) + len(gone) + len(own) + len(scored) + len(unscored) > ARGUMENTS_MAX:
            raise SchemaMismatch(
                f"state {self._name}: a transaction that changes {len(names)} rows does not fit into one command of "
                "Redis; limit the batches to 300,000 keys, or keep the state in Delta"
            )
        pairs = [part for key, row in put.items() for part in (names[key], self._codec.row_bytes(row))]
        return ScriptRows(pairs, gone, own, scored, unscored, has_rows=True)

    def _noted(self, write: RowWrite) -> Written | None:
        """What a write notes of the transaction that has written rows last."""
        known = self._written
        if write.is_rewind:
            known = known and replace(known, since=write.version)
        txid = write.txid if write.rewound_to is None else write.rewound_to
        if txid is None:
            return known
        return Written(txid, write.version if known is None else known.since)

    # --- when rows go -----------------------------------------------------------------------------------------------

    def _own(self) -> set[bytes]:
        """The keys that the newest transaction has changed."""
        with self._server.raising_ours():
            found: set[bytes] = self._server.client.smembers(self._changed)
        return found

    def _due(self, after: int | None, until: int) -> set[bytes]:
        """The keys of rows that go by a time in a range, and maybe of a few more: a score is a double."""
        low = "-inf" if after is None else after - SCORE_MARGIN_US
        with self._server.raising_ours():
            return set(self._server.client.zrangebyscore(self._expiry, low, until + SCORE_MARGIN_US))

    def _times(self, rows: Mapping[bytes, tuple[Key, StoredValue]]) -> dict[bytes, int]:
        """The times by which rows go that have one, in microseconds since 1970."""
        if self._goes_by is None:
            return {}
        there = ((name, key, row.value) for name, (key, row) in rows.items() if row.value is not ABSENT)
        times = ((name, (*key, *values)[self._goes_by]) for name, key, values in there)
        return {name: (at - EPOCH) // MICROSECOND for name, at in times if at is not None}

    def _scores_at_first(self) -> list[Any]:
        """Of all rows, if they expire from this write on."""
        if not self._gains_horizons:
            return []
        names = {self._codec.key_bytes(key): (key, row) for key, row in self.rows().items()}
        return [part for key, at in self._times(names).items() for part in (at, key)]
