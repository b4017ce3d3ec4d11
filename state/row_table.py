"""Tables whose rows are Python values: `RowStore` is the port to a kind of storage, `RowTable` a table over it.

A new state with keys and values needs a `RowStore` and a subclass of `TableState`. `RowTable` reads from the store the
rows that a transaction may change, lets `OpaqueRule` compute the new ones, and lets the store write them together with
the version. What a row becomes is never decided by a store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from state.declared import DeclaredTable
from state.fence import TableWrite
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, select_range, select_unexpired
from state.rows.going_back import transaction_undone_by
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.python_rows import rows_of, table_of_rows
from state.rows.stored_value import StoredValue
from state.rows.sums import SumCheck
from state.rows.value_limits import ValueLimits
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import BeyondKept
from transactional.model.user_code.overrides import OverridesChecked
from transactional.model.user_code.tuples import Key


@dataclass(frozen=True, slots=True)
class RowWrite:
    """A write to a store. It is refused unless the table has `expected_version`, and gives it the version `version`.

    `txid` is the transaction that is written, None for a fence. `horizons` are recorded; None: the recorded ones stay.
    With `is_rewind` the write takes the table back to transaction `rewound_to`; None: it is there already.
    """

    expected_version: AttemptId | None
    version: AttemptId
    txid: TxId | None = None
    horizons: ExpiryHorizons | None = None
    is_rewind: bool = False
    rewound_to: TxId | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows before and after a write: `stored` as they are in the table, `new_rows` by key as the write leaves them,
    None for a row that does not exist then."""

    stored: Rows
    new_rows: Mapping[Key, StoredValue | None]

    @property
    def changed_rows(self) -> dict[Key, StoredValue]:
        """The rows to insert or replace."""
        return {key: row for key, row in self.new_rows.items() if row is not None and row is not self.stored.get(key)}

    @property
    def deleted_keys(self) -> list[Key]:
        """The keys whose rows have to be removed."""
        return [key for key, row in self.new_rows.items() if row is None and key in self.stored]


Change: TypeAlias = Callable[[], Changes]
"""Computes the changes from the stored rows. A store that has transactions calls it within the write."""


class RowStore(OverridesChecked, ABC):
    """Where the rows of a table and its version are stored. It decides nothing about rows. Used by one thread.

    All methods that read raise `OperatingError`, or `ConfigError` where the storage refuses for good.
    """

    writes_in_parts: ClassVar[bool] = False
    """Whether a write may end after some of its rows, before its version."""
    drops_with_rows: ClassVar[bool] = True
    """Whether each write removes the expired rows, found by `rows_between`; otherwise `drop_expired` removes them."""

    def open(self, store_id: str | None = None) -> None:
        """Create the table, which records the `store_id` (see `StoreRecord`), or check the one that is there."""

    def created_for(self) -> str | None:
        """Return the `store_id` that the table was created with; None: none was recorded."""
        return None

    @abstractmethod
    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        """Return the attempt that wrote the table last, None if none has, and the recorded expiry horizons."""

    @abstractmethod
    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """Return the rows with these keys, of those that exist; None: all rows."""

    def rows_between(self, column: str, after: int | None, until: int) -> Rows:
        """Return the rows for which `after < column <= until` is true now, or was before their last transaction; maybe
        more. Times in microseconds since 1970; `after` None: from the beginning."""
        return self.rows()

    def tombstones_and_rows_since(self, since: TxId | None) -> Rows:
        """Return the tombstones, and with `since` the rows that this transaction or a later one has written. There may
        be more rows among them, of keys that no other writer changes meanwhile."""
        return self.rows()

    def rows_to_change(
        self, keys: Collection[Key], *, since: TxId | None, deletes: bool, expired: tuple[str, int] | None
    ) -> Rows:
        """Return the rows that a transaction may change, if possible by one request: those with these keys; with
        `since`, or where keys may be deleted, `tombstones_and_rows_since`; and with `expired`, a column and a horizon,
        the rows whose time is not after the horizon."""
        matching_rows = {} if expired is None else {**self.rows_between(expired[0], None, expired[1])}
        if since is not None or deletes:
            matching_rows |= self.tombstones_and_rows_since(since)
        return {**matching_rows, **self.rows([key for key in keys if key not in matching_rows])}

    @abstractmethod
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Compare the version, write the rows and the version, in one step that happens or does not.

        Raises `WriteRefused` if the version is another one, or it is not known whether it was written.
        """

    def drop_expired(self, expected_version: AttemptId | None, column: str, horizon: int, txid: TxId) -> None:
        """Remove the rows whose `column` is at or before the horizon, and that were written before transaction `txid`.
        Do nothing if the table has another version."""

    def rewound_to(self) -> TxId:
        """Return the transaction that the last rewind has taken the table back to; nothing before it is known."""
        return TxId(0)


class RowTable:
    """The open table of a state whose rows are in a `RowStore` (see `FencedTable`)."""

    def __init__(
        self,
        store: RowStore,
        declared: DeclaredTable,
        rule: type[OpaqueRule] = OpaqueRule,
    ) -> None:
        self.store, self._columns, self._name, self._rule = store, declared.columns, declared.table, rule
        self._limits = declared.value_limits or ValueLimits(declared.table)
        self._loaded: AttemptId | None = None
        self._horizons = NO_HORIZONS

    def created_for(self) -> str | None:
        """Return the `store_id` that the table was created with."""
        return self.store.created_for()

    def read_and_check_version(self) -> AttemptId | None:
        """Load the version; the next write is refused if the table has another one by then."""
        self._loaded, self._horizons = self.store.version()
        return self._loaded

    def version(self) -> AttemptId | None:
        """Return the version that was loaded last, or written since."""
        return self._loaded

    def horizons(self) -> ExpiryHorizons:
        """Return the expiry horizons of that version."""
        return self._horizons

    # --- reading ------------------------------------------------------------------------------------------------

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return key and value columns of the rows with these keys, as they were before transaction `txid`."""
        return self._rows_before(txid, self.store.rows(rows_of(keys) if self._columns.key else [()]))

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows, as they were before transaction `txid`."""
        return self._rows_before(txid, self.store.rows())

    def rows_between(self, txid: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """Return, as `rows` does, the rows with `after < column <= until`."""
        matching_rows = self._rows_before(txid, self.store.rows_between(column, after, until))
        return select_range(matching_rows, column, after, until)

    def visible_rows(self, committed_txid: TxId | None) -> pa.Table:
        """Return key and value columns of the rows for a reader who sees nothing after a transaction; None: for a
        reader who sees everything."""
        (_, horizons), rows = self.store.version(), self.store.rows()
        values = [
            row.value if committed_txid is None else row.value_for_reader(committed_txid) for row in rows.values()
        ]
        table, expires = to_table(zip(rows, values, strict=True), self._columns), self._columns.expires
        return table if expires is None else select_unexpired(table, expires, horizons.for_reader(committed_txid))

    def _rows_before(self, txid: TxId, rows: Rows) -> pa.Table:
        return to_table(((key, row.value_before(txid)) for key, row in rows.items()), self._columns)

    # --- writing ------------------------------------------------------------------------------------------------

    def apply(self, write: TableWrite) -> None:
        """Write the rows and the version, and roll back rows of a dead attempt. Raises `WriteRefused`."""
        assert not write.staged, f"state {self._name} stages no files"
        attempt, horizons, values = write.attempt, write.horizons, self._columns.values
        width, until = len(self._columns.key), len(self._columns.visible)
        self._limits.check(write.rows, width)
        incoming_rows = {row[:width]: ABSENT if any(row[until:]) else row[width:until] for row in rows_of(write.rows)}
        check = SumCheck(self._name, values, [write.combine[name] for name in values.names])
        rule = self._rule(self._columns, attempt.txid, check, horizons or NO_HORIZONS)

        since = attempt.txid if write.is_replay or self.store.writes_in_parts else None
        expires, horizon = self._columns.expires, rule.horizons.previous
        is_dropped = self.store.drops_with_rows
        expired = (expires, horizon) if expires is not None and horizon is not None and is_dropped else None

        def change() -> Changes:
            stored = self.store.rows_to_change(
                incoming_rows.keys(), since=since, deletes=self._columns.deletes, expired=expired
            )
            return Changes(stored, rule.apply(stored, incoming_rows))

        self._write(RowWrite(self._loaded, attempt.attempt_id, attempt.txid, horizons), change)

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        self._write(RowWrite(self._loaded, attempt_id, None if attempt is None else attempt.txid, horizons))

    def drop_expired(self, committed_txid: TxId) -> None:
        """Remove the rows that had expired for the transaction before the newest one, if the newest is committed. Rows
        that the newest has written stay, as a rewind may need their previous values. Raises `OperatingError`,
        `ConfigError`."""
        horizons, expires = self._horizons, self._columns.expires
        if horizons.txid == committed_txid and horizons.previous is not None and expires is not None:
            self.store.drop_expired(self._loaded, expires, horizons.previous, committed_txid)

    def _write(self, write: RowWrite, change: Change | None = None) -> None:
        self.store.write(write, change)
        self._loaded, self._horizons = write.version, write.horizons or self._horizons

    # --- going back ---------------------------------------------------------------------------------------------

    def transaction_to_undo(self, version: AttemptId | None, target: RewindTarget) -> TxId | None:
        """Return the transaction that a rewind to the target undoes, None if there is none. Raises `BeyondKept`."""
        txid = transaction_undone_by(version, self.store.rewound_to(), target, self._name)
        if txid is None or not self.store.writes_in_parts:
            return txid
        if any(row.txid > txid for row in self.store.tombstones_and_rows_since(TxId(txid + 1)).values()):
            raise BeyondKept(
                f"state {self._name} is at transaction {txid}, and an attempt at the next one has ended in the "
                f"middle of its write; its rows know only what was before it: the table can't go back to transaction "
                f"{target.txid}. Go back to {txid}, or start the topology, which repeats the write"
            )
        return txid

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the transaction after the target's, and write the fence. Raises `WriteRefused`, `BeyondKept`."""
        txid = self.transaction_to_undo(self._loaded, target)
        if txid is None:
            return self._write(RowWrite(self._loaded, fence_id, is_rewind=True))
        horizon = self._horizons.for_reader(target.txid)
        horizons = None if self._horizons == NO_HORIZONS else ExpiryHorizons(target.txid, horizon, horizon)

        def change() -> Changes:
            stored = self.store.tombstones_and_rows_since(txid)
            return Changes(
                stored, {key: row.roll_back(txid) if row.txid == txid else row for key, row in stored.items()}
            )

        write = RowWrite(self._loaded, fence_id, txid, horizons, is_rewind=True, rewound_to=target.txid)
        return self._write(write, change)


def to_table(rows: Iterable[tuple[Key, Any]], columns: StateColumns) -> pa.Table:
    """Return key and value columns of the rows whose values are not `ABSENT`."""
    existing_rows = [(*key, *values) for key, values in rows if values is not ABSENT]
    return table_of_rows(existing_rows, columns.visible)
