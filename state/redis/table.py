"""The open table of a state in Redis: each write is one script, which compares the version before it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from state.fence import WriteRefused
from state.going_back import undone_by
from state.redis.registration import (
    FIELDS,
    LAYOUT_WITH_FLOORS,
    RedisRegistration,
    Registered,
    Written,
    check_rows,
    keys_of,
    written_floors,
)
from state.redis.scripts import WRITE
from state.redis.server import Server, WriteFailed
from state.redis.values import EPOCH, MICROSECOND
from state.rows.columns import StateColumns
from state.rows.expiring import NO_FLOORS, Floors, alive, in_range, is_expired
from state.rows.sums import SumCheck
from state.rows.value_limits import ValueLimits
from state.updates import rows_of, table_of_rows
from state.values import OpaqueValue, combined_values
from transactional.absent import ABSENT
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.errors import BeyondKept, ConfigError, SchemaMismatch, StoreMismatch
from transactional.ports.rewinding import RewindTarget
from transactional.schema import Schema

ARGUMENTS_MAX: Final = 1_000_000
"""Redis takes 1,048,576 in one command."""
READ_AT_ONCE: Final = 10_000
SCORE_MARGIN_US: Final = 2_000
"""A double near the limit of a long is so far from it, at most."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one write does beside moving the version on."""

    pairs: Sequence[bytes] = ()
    """Keys, each followed by its row."""
    gone: Sequence[bytes] = ()
    own: Sequence[bytes] = ()
    """The keys that a replay of the transaction has to roll back."""
    scored: Sequence[Any] = ()
    """Times by which rows go, each followed by its key."""
    unscored: Sequence[bytes] = ()
    has_rows: bool = False
    txid: TxId | None = None
    """The transaction that is written, or undone; None: none is."""
    rewound: TxId | None = None
    """The transaction that the table goes back to."""

    def arguments(self) -> list[Any]:
        """As the script takes them, in the order in which it writes them."""
        counts = (len(self.own), len(self.pairs) // 2, len(self.gone), len(self.scored) // 2, len(self.unscored))
        what = "rows" if self.has_rows else "version"
        return [what, *counts, *self.own, *self.pairs, *self.gone, *self.scored, *self.unscored]


class FencedRedisTable:
    """A hash of rows, the set of the keys that the newest transaction has changed, and a hash with owner and version.

    `name` is what messages call the state.
    """

    def __init__(self, server: Server, table: str, columns: StateColumns, *, owner: str, name: str) -> None:
        self._server, self._columns, self._owner, self._name = server, columns, owner, name
        self._keys = keys_of(table)
        _, self._rows, self._changed, self._expiry = self._keys
        self._registration = RedisRegistration(server, table, columns, owner=owner, name=name)
        both = [*columns.key.names, *columns.values.names]
        self._goes_by = None if columns.expires is None else both.index(columns.expires)
        self._floors, self._gains_floors = NO_FLOORS, False
        self._codec = self._registration.codec
        self._limits = ValueLimits(name)
        self._loaded: AttemptId | None = None
        self._written: Written | None = None
        self._write = server.client.register_script(WRITE)

    def create_or_check(self, store_id: str | None = None) -> None:
        """Create the table, or check the one that is there (see `RedisRegistration`).

        Raises `ConfigError` for a user who may not use one of the commands, before anything is written.
        """
        self._server.try_commands(self._keys)
        self._gains_floors = self._registration.create_or_check(store_id)

    def created_for(self) -> str | None:
        """The `store_id` that it was created with."""
        found = self._registration.find()
        return None if found is None else found.store_id

    # --- the version ------------------------------------------------------------------------------------------------

    def judge(self) -> AttemptId | None:
        """Read the attempt id of the table's last writer.

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
        self._loaded, self._floors, self._written = version, found.floors, found.written
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
        """As `rows`, of those whose column lies in a range; all are read, unless rows expire by that column."""
        if column != self._columns.expires or self._gains_floors:
            return in_range(self.rows(before), column, after, until)
        found = self._stored(self._due(after, until) | self._own())
        return in_range(self._as_table(found.items(), before), column, after, until)

    def floors(self) -> Floors:
        """What was found with the version, or written since."""
        return self._floors

    def visible(self, committed_txid: TxId | None, expires: str | None) -> pa.Table:
        """The same as of a committed transaction; None: of the newest one. Without what has expired by this column."""
        with self._server.raising_ours(), self._server.client.pipeline(transaction=True) as together:
            together.hmget(self._registration.meta, FIELDS)
            together.hgetall(self._rows)
            told, stored = together.execute()
        registered = self._registration.found(told, len(stored))
        if registered is not None:
            check_rows(registered, self._name)
        found = {key: self._codec.row_of(row) for key, row in stored.items()}
        newest = max((row.txid for row in found.values()), default=TxId(0))
        if registered is not None and registered.written is not None:
            newest = registered.written.txid  # not what an attempt has left that ended in the middle of its write
        until = newest if committed_txid is None else committed_txid
        rows = self._table_of((key, row.visible_at(until)) for key, row in found.items())
        if expires is None or registered is None:
            return rows
        return alive(rows, expires, registered.floors.at(committed_txid))

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
        self._limits.check(rows, len(self._columns.key))
        values = self._columns.values
        check = SumCheck(self._name, values, [combine[name] for name in values.names])
        width = len(self._columns.key)
        given = {self._codec.key_bytes(row[:width]): row for row in rows_of(rows)}
        due = set[bytes]() if floors is None or floors.before is None else self._due(None, floors.before)
        others = (self._own() | due) - given.keys()
        stored = self._stored(given.keys() | others)
        before = {key: self._left(key, row, attempt.txid, floors) for key, row in stored.items()}
        after = {key: self._applied(before.get(key), attempt.txid, row, check, floors) for key, row in given.items()}
        # What only a dead attempt has changed goes back, what has expired or the last transaction has deleted goes.
        for key in others:
            row = before.get(key)
            after[key] = None if row is None or row.value is ABSENT else row
        self._send(attempt.attempt_id, attempt.txid, stored, after, floors)

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, floors: Floors | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        txid = None if attempt is None else attempt.txid
        self._run(attempt_id, floors, Changes(scored=self._scores_at_first(), txid=txid))

    def go_back(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the transaction after the target's, and write the fence. Raises `WriteRefused`, `BeyondKept`."""
        self._written = self._written and replace(self._written, since=fence_id)
        at = self.undone(self._registration.find(), target)
        if at is None:
            return self._run(fence_id, None, Changes())
        own = self._own()
        stored = self._stored(own)
        after = dict.fromkeys(own) | {key: row.roll_back(at) if row.txid == at else row for key, row in stored.items()}
        floor = self._floors.at(target.txid)
        floors = None if self._columns.expires is None else Floors(target.txid, floor, floor)
        return self._send(fence_id, at, stored, after, floors, rewound=target.txid)

    def check(self) -> Registered | None:
        """What is there (see `RedisRegistration`). Changes nothing."""
        return self._registration.check()

    def undone(self, found: Registered | None, target: RewindTarget) -> TxId | None:
        """The transaction whose rows go back to what was before; None: there is none. Raises `BeyondKept`."""
        at = None if found is None else undone_by(found.version, found.rewound_to or TxId(0), target, self._name)
        if at is not None and any(row.txid > at for row in self._stored(self._own()).values()):
            raise BeyondKept(
                f"state {self._name} is at transaction {at}, and an attempt at the next one has ended in the middle of "
                f"its write; its rows know only what was before it: the table can't go back to transaction "
                f"{target.txid}. Go back to {at}, or start the topology, which repeats the write"
            )
        return at

    def _left(self, key: bytes, row: OpaqueValue, txid: TxId, floors: Floors | None) -> OpaqueValue | None:
        """A row without what an earlier attempt at this transaction has done; None if it has none, or has expired
        before."""
        left = row.roll_back(txid) if row.txid == txid else row
        if left is None or left.value is ABSENT or floors is None or self._goes_by is None:
            return left
        return None if is_expired(self._expiry_of(key, left), floors.before) else left

    def _expiry_of(self, key: bytes, row: OpaqueValue) -> datetime | None:
        assert self._goes_by is not None
        width, place = len(self._columns.key), self._goes_by
        found: datetime | None = self._codec.key_of(key)[place] if place < width else row.value[place - width]
        return found

    def _applied(
        self, stored: OpaqueValue | None, txid: TxId, row: Sequence[Any], check: SumCheck, floors: Floors | None
    ) -> Any:
        width, until = len(self._columns.key), len(self._columns.key) + len(self._columns.values)
        if any(row[until:]):
            return None if stored is None else stored.apply(txid, lambda _: ABSENT)
        key: Key = tuple(row[:width])

        def update(stored: Any) -> tuple[Any, ...]:
            is_gone = stored is ABSENT or self._has_expired(key, stored, floors)
            before = ABSENT if is_gone else stored
            values = combined_values(check.combine, before, row[width:until])
            check.check(key, before, row[width:until], values)
            return values

        return OpaqueValue.first(txid, update(ABSENT)) if stored is None else stored.apply(txid, update)

    def _has_expired(self, key: Key, values: Sequence[Any], floors: Floors | None) -> bool:
        if floors is None or self._goes_by is None:
            return False
        return is_expired((*key, *values)[self._goes_by], floors.floor)

    def _send(
        self,
        attempt_id: AttemptId,
        txid: TxId,
        stored: Mapping[bytes, OpaqueValue],
        after: Mapping[bytes, OpaqueValue | None],
        floors: Floors | None,
        rewound: TxId | None = None,
    ) -> None:
        kept = {key: row for key, row in after.items() if row is not None}
        put = {key: row for key, row in kept.items() if row != stored.get(key)}
        gone = [key for key, row in after.items() if row is None and key in stored]
        own = [key for key, row in kept.items() if row.txid == txid]
        # A write that ended in the middle has left rows whose times are those of before, or the other way round.
        timed = put | {key: row for key, row in kept.items() if txid == row.txid or row.prev_txid == row.txid}
        scored, unscored = self._scores(timed), [*(after.keys() - kept.keys()), *self._without_time(timed)]
        if self._gains_floors:
            scored = [*self._scores_at_first(), *scored]
        if 2 * len(put) + len(gone) + len(own) + len(scored) + len(unscored) > ARGUMENTS_MAX:
            raise SchemaMismatch(
                f"state {self._name}: a transaction that changes {len(after)} rows does not fit into one command of "
                "Redis; limit the batches to 300,000 keys, or keep the state in Delta"
            )
        pairs = [part for key, row in put.items() for part in (key, self._codec.row_bytes(row))]
        self._run(attempt_id, floors, Changes(pairs, gone, own, scored, unscored, True, txid, rewound))

    def _run(self, attempt_id: AttemptId, floors: Floors | None, changes: Changes) -> None:
        loaded = "" if self._loaded is None else int(self._loaded)
        written = self._noted(attempt_id, changes)
        meta: dict[str, Any] = {"attempt": int(attempt_id), "written": "" if written is None else written.text()}
        if floors is not None:
            meta["floors"] = written_floors(floors)
        if self._gains_floors:
            meta |= {"layout": LAYOUT_WITH_FLOORS, "expires": self._columns.expires}
        if changes.rewound is not None:
            meta["rewound"] = int(changes.rewound)
        last = [part for pair in meta.items() for part in pair]
        try:
            with self._server.writing():
                given = [self._owner, loaded, int(attempt_id), *changes.arguments(), *last]
                is_written, *found = self._write(self._keys, given)
        except ConfigError:
            self._server.try_commands(self._keys)  # it knows which command is refused
            raise
        except WriteFailed as error:
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_written:
            owner, version = (part.decode() for part in found)
            raise WriteRefused(f"another writer came between: {owner}, version {version}", is_conflict=True)
        self._loaded, self._floors, self._gains_floors = attempt_id, floors or self._floors, False
        self._written = written

    def _noted(self, attempt_id: AttemptId, changes: Changes) -> Written | None:
        """What a write notes of the transaction that has written rows last."""
        known = self._written
        txid = changes.txid if changes.rewound is None else changes.rewound
        if txid is None:
            return known and replace(known, by=attempt_id)
        return Written(attempt_id, txid, attempt_id if known is None else known.since)

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

    def _scores(self, rows: Mapping[bytes, OpaqueValue]) -> list[Any]:
        """Pairs of the time by which a row goes, in microseconds since 1970, and its key."""
        if self._goes_by is None:
            return []
        times = ((key, self._expiry_of(key, row)) for key, row in rows.items() if row.value is not ABSENT)
        return [part for key, at in times if at is not None for part in ((at - EPOCH) // MICROSECOND, key)]

    def _without_time(self, rows: Mapping[bytes, OpaqueValue]) -> list[bytes]:
        scored = set(self._scores(rows)[1::2])
        return [] if self._goes_by is None else [key for key in rows if key not in scored]

    def _scores_at_first(self) -> list[Any]:
        """Of all rows, if they expire from this write on."""
        return self._scores(self._all()) if self._gains_floors else []
