"""Tables whose rows are Python values: `RowStore` is what a kind of storage has to have, `RowTable` what follows.

A new state with keys and values needs a store and a subclass of `TableState`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from state.fence import TableWrite
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, select_range, select_unexpired
from state.rows.going_back import undone_by
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.python_rows import rows_of, table_of_rows
from state.rows.stored_value import StoredValue
from state.rows.sums import SumCheck
from state.rows.value_limits import ValueLimits
from transactional.core.ports.rewinding import RewindTarget
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import BeyondKept
from transactional.model.user_code.tuples import Key


@dataclass(frozen=True, slots=True)
class RowWrite:
    """A write to a store: `over` is the version that the table has to have, `version` the one that it has afterwards.

    `txid` is the transaction that is written, None for a fence. `horizons` are recorded; None: the recorded ones stay.
    With `goes_back` a rewind takes the table back, to transaction `rewound_to`; None: it is there already.
    """

    over: AttemptId | None
    version: AttemptId
    txid: TxId | None = None
    horizons: ExpiryHorizons | None = None
    goes_back: bool = False
    rewound_to: TxId | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows as they were stored, and as they are to be: None where there is to be none."""

    stored: Rows
    after: Mapping[Key, StoredValue | None]

    @property
    def put(self) -> dict[Key, StoredValue]:
        """The rows that have to be written."""
        return {key: row for key, row in self.after.items() if row is not None and row is not self.stored.get(key)}

    @property
    def gone(self) -> list[Key]:
        """The keys whose rows have to be removed."""
        return [key for key, row in self.after.items() if row is None and key in self.stored]


Change: TypeAlias = Callable[[], Changes]
"""What is to be written, by what is stored; called within the write, where a store has transactions."""


class RowStore(ABC):
    """Where rows lie, with the version of their table. It has no rule of its own. For one thread.

    All that reads raises `OperatingError`, or `ConfigError` where the storage refuses.
    """

    writes_in_parts: ClassVar[bool] = False
    """Whether a write may end after some of its rows, before its version."""
    drops_with_rows: ClassVar[bool] = True
    """Whether what has expired goes with each write, found by `rows_between`; else by `drop_expired`, now and then."""

    def open(self, store_id: str | None = None) -> None:  # noqa: B027 - optional
        """Create the table, which records the `store_id` (see `State.set_store_id`), or check the one that is there."""

    def created_for(self) -> str | None:
        """The `store_id` that the table was created with; None: none was recorded."""
        return None

    @abstractmethod
    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        """The attempt that has written the table last, None if none has, and what it has recorded of horizons."""

    @abstractmethod
    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """The rows with these keys, of those that exist; None: all."""

    def rows_between(self, column: str, after: int | None, until: int) -> Rows:
        """The rows for which `after < column <= until` is true now, or was before their last transaction; maybe more.
        Times in microseconds since 1970; `after` None: from the beginning."""
        return self.rows()

    def unsettled(self, since: TxId | None) -> Rows:
        """The rows that are tombstones, and with `since` those that this transaction or a later one has written; maybe
        more, of keys that others do not write meanwhile."""
        return self.rows()

    def touched(
        self, keys: Collection[Key], *, since: TxId | None, deletes: bool, past: tuple[str, int] | None
    ) -> Rows:
        """What a transaction may change: the rows with these keys; with `since`, and where keys may be deleted, what is
        `unsettled`; and with `past`, a column and a time, the rows whose time is not later. One request, if it can."""
        others = {} if past is None else {**self.rows_between(past[0], None, past[1])}
        if since is not None or deletes:
            others |= self.unsettled(since)
        return {**others, **self.rows([key for key in keys if key not in others])}

    @abstractmethod
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Compare the version, write the rows and the version, in one step that happens or does not.

        Raises `WriteRefused` if the version is another one, or it is not known whether it was written.
        """

    def drop_expired(self, over: AttemptId | None, column: str, horizon: int, txid: TxId) -> None:  # noqa: B027 - optional
        """Remove the rows whose time is at or below a horizon, and that were written before a transaction; nothing, if
        the version is another one."""

    def rewound_to(self) -> TxId:
        """The transaction that a rewind has taken the table back to last, beyond which nothing is known of it."""
        return TxId(0)


class RowTable:
    """The open table of a state whose rows are in a store (see `FencedTable`). `name` is what messages call it."""

    def __init__(
        self,
        store: RowStore,
        columns: StateColumns,
        name: str,
        limits: ValueLimits | None = None,
        rule: type[OpaqueRule] = OpaqueRule,
    ) -> None:
        self.store, self._columns, self._name, self._rule = store, columns, name, rule
        self._limits = limits or ValueLimits(name)
        self._loaded: AttemptId | None = None
        self._horizons = NO_HORIZONS

    def created_for(self) -> str | None:
        """The `store_id` that it was created with."""
        return self.store.created_for()

    def read_and_check_version(self) -> AttemptId | None:
        """Load the version, over which is written from now on."""
        self._loaded, self._horizons = self.store.version()
        return self._loaded

    def version(self) -> AttemptId | None:
        """The version that was loaded last, or written since."""
        return self._loaded

    def horizons(self) -> ExpiryHorizons:
        """What was loaded with it, or written since."""
        return self._horizons

    # --- reading ------------------------------------------------------------------------------------------------

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns as they were before a transaction, of the rows with a wanted key."""
        return self._before(before, self.store.rows(rows_of(wanted) if self._columns.key else [()]))

    def rows(self, before: TxId) -> pa.Table:
        """Key and value columns of all rows as they were before a transaction."""
        return self._before(before, self.store.rows())

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those with `after < column <= until`."""
        found = self._before(before, self.store.rows_between(column, after, until))
        return select_range(found, column, after, until)

    def visible(self, committed_txid: TxId | None) -> pa.Table:
        """Key and value columns of all rows for a reader who must not see what comes after a transaction; None: who
        sees everything."""
        (_, horizons), rows = self.store.version(), self.store.rows()
        seen = [row.value if committed_txid is None else row.value_for_reader(committed_txid) for row in rows.values()]
        found, expires = table_of(zip(rows, seen, strict=True), self._columns), self._columns.expires
        return found if expires is None else select_unexpired(found, expires, horizons.for_reader(committed_txid))

    def _before(self, txid: TxId, rows: Rows) -> pa.Table:
        return table_of(((key, row.value_before(txid)) for key, row in rows.items()), self._columns)

    # --- writing ------------------------------------------------------------------------------------------------

    def apply(self, write: TableWrite) -> None:
        """Write rows and version, and roll back what a dead attempt has left. Raises `WriteRefused`."""
        assert not write.staged, f"state {self._name} stages no files"
        attempt, horizons, values = write.attempt, write.horizons, self._columns.values
        width, until = len(self._columns.key), len(self._columns.shown)
        self._limits.check(write.rows, width)
        coming = {row[:width]: ABSENT if any(row[until:]) else row[width:until] for row in rows_of(write.rows)}
        check = SumCheck(self._name, values, [write.combine[name] for name in values.names])
        rule = self._rule(self._columns, attempt.txid, check, horizons or NO_HORIZONS)

        since = attempt.txid if write.is_replay or self.store.writes_in_parts else None
        expires, horizon = self._columns.expires, rule.horizons.previous
        past = None if expires is None or horizon is None or not self.store.drops_with_rows else (expires, horizon)

        def change() -> Changes:
            stored = self.store.touched(coming.keys(), since=since, deletes=self._columns.deletes, past=past)
            return Changes(stored, rule.apply(stored, coming))

        self._write(RowWrite(self._loaded, attempt.attempt_id, attempt.txid, horizons), change)

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        self._write(RowWrite(self._loaded, attempt_id, None if attempt is None else attempt.txid, horizons))

    def drop_expired(self, committed_txid: TxId) -> None:
        """Remove the rows that had expired for the transaction before the newest one, if that is committed; those that
        it has written itself stay, as a rewind may need what was before. Raises `OperatingError`, `ConfigError`."""
        horizons, expires = self._horizons, self._columns.expires
        if horizons.txid == committed_txid and horizons.previous is not None and expires is not None:
            self.store.drop_expired(self._loaded, expires, horizons.previous, committed_txid)

    def _write(self, write: RowWrite, change: Change | None = None) -> None:
        self.store.write(write, change)
        self._loaded, self._horizons = write.version, write.horizons or self._horizons

    # --- going back ---------------------------------------------------------------------------------------------

    def undone(self, version: AttemptId | None, target: RewindTarget) -> TxId | None:
        """The transaction whose rows go back to what was before; None: there is none. Raises `BeyondKept`."""
        at = undone_by(version, self.store.rewound_to(), target, self._name)
        if at is None or not self.store.writes_in_parts:
            return at
        if any(row.txid > at for row in self.store.unsettled(TxId(at + 1)).values()):
            raise BeyondKept(
                f"state {self._name} is at transaction {at}, and an attempt at the next one has ended in the middle of "
                f"its write; its rows know only what was before it: the table can't go back to transaction "
                f"{target.txid}. Go back to {at}, or start the topology, which repeats the write"
            )
        return at

    def go_back(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the transaction after the target's, and write the fence. Raises `WriteRefused`, `BeyondKept`."""
        at = self.undone(self._loaded, target)
        if at is None:
            return self._write(RowWrite(self._loaded, fence_id, goes_back=True))
        horizon = self._horizons.for_reader(target.txid)
        horizons = None if self._horizons == NO_HORIZONS else ExpiryHorizons(target.txid, horizon, horizon)

        def change() -> Changes:
            stored = self.store.unsettled(at)
            return Changes(stored, {key: row.roll_back(at) if row.txid == at else row for key, row in stored.items()})

        write = RowWrite(self._loaded, fence_id, at, horizons, goes_back=True, rewound_to=target.txid)
        return self._write(write, change)


def table_of(rows: Iterable[tuple[Key, Any]], columns: StateColumns) -> pa.Table:
    """Key and value columns of the rows that are not `ABSENT`."""
    there = [(*key, *values) for key, values in rows if values is not ABSENT]
    return table_of_rows(there, columns.shown)
