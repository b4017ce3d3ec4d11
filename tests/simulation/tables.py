"""The simulated tables: the real `MemoryMapState`, with places at which a process may crash, stand still, or fail.

A table is loaded, its version checked, then written through what was loaded, as a Delta table is: each write is a
compare-and-set on its Delta version. Others move that, too, when they rewrite its files: then it is checked again. When
another attempt has written, nothing is. Counts by key are written, which come as a mapping where the real ones are
Arrow tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

import pyarrow as pa

from state.fence import Fence, Verdict
from state.memory import MemoryMapState, MemoryTable
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons
from state.rows.python_rows import rows_of
from state.rows.stored_value import StoredValue
from state.rows.sums import SumCheck
from tests.simulation.changes import counts_of
from tests.simulation.faults import Faults
from transactional.core.ports import Partials, StateKind
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.ports.staged import StagedFile
from transactional.core.ports.state_parts import StateParts, TableMaintenance
from transactional.errors import FailedException, Fenced, TableConflict
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.user_code.tuples import Key

TOTAL = "total"
"""The table that counts all records under one key; the others count by key."""
LATE = "late"
"""The table of a committer that joins while the topology is at work."""


FORGOTTEN = (-1_000_000,)
"""What stands where a compaction has forgotten the value before: whoever sees it is wrong."""
NOTHING: Mapping[str, str] = MappingProxyType({})


class Before(Protocol):
    """Called where the process may crash or stand still; it goes on when `until` holds, or later."""

    def __call__(self, effect: str, until: Callable[[], bool] = ..., /) -> None: ...


def nowhere(effect: str, until: Callable[[], bool] = lambda: False, /) -> None:
    """No process: what has none does nothing."""
    raise AssertionError(f"{effect}, by no process")


NO_ROWS = pa.table({})
"""What comes where counts do not come as a table."""


@dataclass(frozen=True, slots=True)
class Counts(Partials):
    """Partial counts of one batch."""

    table: pa.Table = field(default_factory=lambda: NO_ROWS)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SimulatedTable(MemoryTable):
    """A table with a Delta version, which each Delta commit moves, whoever makes it."""

    delta_version: int = 0
    twice: dict[Key, StoredValue] = field(default_factory=dict)
    """Rows in files that a Delta commit should have replaced, and did not know."""

    def commit(self, version: AttemptId | None, rows: dict[Key, StoredValue] | None = None) -> None:
        """The next Delta version; rows that are given come instead of those that are there."""
        self.delta_version += 1
        self.version, self.rows = version, self.rows if rows is None else rows

    def optimize(self) -> None:
        """Somebody else's OPTIMIZE: the same rows in other files."""
        self.commit(self.version, dict(self.rows))

    def seen(self, committed_txid: TxId) -> dict[str, int]:
        """What a reader sees who must not see what is not yet committed."""
        seen: Counter[str] = Counter()
        for rows in (self.rows, self.twice):
            for key, row in rows.items():
                values = row.value_for_reader(committed_txid)
                if values is not ABSENT:
                    seen[key[0]] += values[0]
        return dict(seen)

    def rebase(self, found: dict[Key, StoredValue], version: AttemptId, rows: dict[Key, StoredValue]) -> None:
        """A Delta commit that an engine moves behind what has come: it replaces the files that were found."""
        self.twice |= self.rows if self.rows is not found else {}
        self.commit(version, rows)


@dataclass(frozen=True, slots=True)
class Handle:
    """What was loaded of a table."""

    delta_version: int
    version: AttemptId | None
    rows: dict[Key, StoredValue]


class CountingFence(Fence):
    """The real fence; what it refuses is counted."""

    reached: Counter[str]

    def check(self, version: AttemptId | None, attempt_id: AttemptId) -> None:
        try:
            super().check(version, attempt_id)
        except Fenced:
            self.reached["a table refuses an old attempt"] += 1
            raise


class SimulatedState(MemoryMapState, TableMaintenance):
    """One process' handle of a table. `before` is called where the process may crash or stand still."""

    stored: SimulatedTable
    values_declared = "count long"
    expires: Mapping[str, str] = NOTHING
    forgotten: tuple[Any, ...] = FORGOTTEN
    is_stateful = False
    """Whether a stateful bolt keeps it."""

    def __init__(self, table: SimulatedTable, kind: StateKind, before: Before, faults: Faults) -> None:
        goes: Mapping[str, Any] = self.expires
        super().__init__("word string", self.values_declared, kind=kind, table=table, deletes=True, **goes)
        self._before, self._faults, self._reached = before, faults, faults.reached
        self._identity = super().identity()

    @property
    def parts(self) -> StateParts:
        return replace(super().parts, maintenance=self)

    def identity(self) -> Mapping[str, str]:
        return self._identity

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        self._fence = counting = CountingFence(self.declared.table, owner, self.declared.kind, txid_of)
        counting.reached = self._reached

    def of_process(self, before: Before) -> Self:
        """A new handle, of another process. Its columns need no second check."""
        handle = copy(self)
        handle.declared, handle._opened = copy(self.declared), self._table()
        handle._before = before
        return handle

    def version(self) -> AttemptId | None:
        self._before(f"look at {self.stored.name}")
        return super().version()

    def check_version_to_read(self, attempt: TransactionAttempt) -> None:
        """What is there now, of which it is seen when it is written that it is the same."""
        self._fence.check(self.stored.version, attempt.attempt_id)

    def fence(self, attempt_id: AttemptId) -> None:
        self._before(f"fence {self.stored.name}")
        try:
            super().fence(attempt_id)
            self.stored.commit(attempt_id)
        except TableConflict:
            self._reached["a table has moved between reading and writing"] += 1
            raise

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """A compaction over what was loaded: nobody needs any more what was before a committed transaction."""
        self._before(f"load {self.stored.name} to compact it")
        loaded = self._load()
        self._before(f"compact {self.stored.name} up to {committed_txid}", lambda: self.stored.rows is not loaded.rows)
        if self.stored.delta_version == loaded.delta_version and may_go_on():
            self._reached["a table is compacted between transactions"] += 1
            rows = {key: self._compacted(row, committed_txid) for key, row in loaded.rows.items()}
            self.stored.commit(loaded.version, rows)

    def _compacted(self, row: StoredValue, committed_txid: TxId) -> StoredValue:
        forgets = row.txid <= committed_txid and row.prev_txid is not None
        return replace(row, prev_value=self.forgotten) if forgets else row

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        wanted = self.declared.rows(self.owner).key_table(keys)
        return self.declared.rows(self.owner).values_by_key(keys, wanted, self._read(attempt, wanted))

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        if self.is_stateful:
            rows = (self.stored.rows.get(key) for key in rows_of(keys))
            is_changed = any(row is not None and row.txid == attempt.txid for row in rows)
            self._reached["a stateful bolt reads what a dead attempt has changed"] += is_changed
        else:
            self._reached["new values are computed where a dead attempt has written"] += self.is_replay(attempt)
        return self._read(attempt, keys)

    def _read(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        self._before(f"read {self.stored.name} for {attempt}")
        return super().rows_before(attempt, keys)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        assert isinstance(partials, Counts)
        try:
            self._write_values(attempt, self._rows_of_partials(partials), partials.combine)
        except BaseException:
            self._reached["a commit phase is done in half of the tables"] += self.stored.name == TOTAL
            raise

    def _put_rows(self, attempt: TransactionAttempt, rows: pa.Table, staged: Sequence[StagedFile] = ()) -> None:
        key, until = len(self.key), len(self.key) + len(self.values)
        new = {row[:key]: ABSENT if any(row[until:]) else row[key:until] for row in rows_of(rows)}
        self._write_values(attempt, new, dict.fromkeys(self.values.names, "last"))

    def _rows_of_partials(self, partials: Counts) -> Mapping[Key, tuple[Any, ...]]:
        counts = partials.counts if partials.table is NO_ROWS else counts_of(partials.table)
        return {(key,): (count,) for key, count in counts.items()}

    def _write_values(self, attempt: TransactionAttempt, rows: Mapping[Key, Any], combine: Mapping[str, str]) -> None:
        if self._faults.strikes("a committer fails"):
            raise FailedException(f"table {self.stored.name} can't be written")
        while not self._is_written(attempt, rows, combine):
            self._reached["a write is refused for others' OPTIMIZE, and checked again"] += 1
        self._fence.record_write(attempt)

    def _is_written(self, attempt: TransactionAttempt, rows: Mapping[Key, Any], combine: Mapping[str, str]) -> bool:
        """Check the version and write once. False: others have moved the table, and the check may still hold."""
        self._before(f"load {self.stored.name} for {attempt}")
        self._handle = loaded = self._load()
        verdict = self._decide(loaded.version, attempt)
        self._before(f"write {self.stored.name} as {attempt}", lambda: self.stored.rows is not loaded.rows)
        if self._faults.strikes("others optimize a table between the check and the write"):
            self.stored.optimize()
        if self._faults.strikes("a reader reads through a state that is writing"):
            self._is_read()
        if self._handle.delta_version != self.stored.delta_version:
            self._check_not_moved(loaded.version)
            return self._is_rebased(loaded, verdict, attempt, rows, combine)
        horizons = self._next_horizons(attempt) if verdict is Verdict.WRITE else self.stored.horizons
        self.stored.commit(attempt.attempt_id, self._after(verdict, attempt, rows, combine))
        self.stored.horizons = horizons
        return True

    def _load(self) -> Handle:
        return Handle(self.stored.delta_version, self.stored.version, self.stored.rows)

    def _is_read(self) -> None:
        """In another thread; it has a handle of its own."""
        self._load()

    def _is_rebased(self, loaded: Handle, *write: Any) -> bool:
        """Whether what was loaded is written over what has come since: never."""
        return False

    def _after(
        self,
        verdict: Verdict,
        attempt: TransactionAttempt,
        rows: Mapping[Key, Any],
        combine: Mapping[str, str],
    ) -> dict[Key, StoredValue]:
        """The table's rows after a write, of which a replay may change none."""
        if verdict is not Verdict.WRITE:
            return self.stored.rows
        check = SumCheck(self.declared.table, self.values, [combine[name] for name in self.values.names])
        return self._written(attempt.txid, rows, check, self._next_horizons(attempt))

    def _next_horizons(self, attempt: TransactionAttempt) -> ExpiryHorizons:
        return (
            NO_HORIZONS
            if self.declared.expiry is None
            else self.stored.horizons.advance(attempt.txid, self.declared.horizon_of_batch(attempt))
        )

    def expiry_horizons(self, attempt: TransactionAttempt) -> ExpiryHorizons | None:
        return None if self.declared.expiry is None else self._next_horizons(attempt)

    def _check_not_moved(self, loaded: AttemptId | None) -> None:
        if self.stored.version != loaded:
            self._reached["a table has moved between reading and writing"] += 1
            raise TableConflict(f"table {self.stored.name} has moved")

    def _decide(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
        verdict = self._fence.decide(version, attempt)
        self._reached["a transactional table skips a replay"] += verdict is Verdict.WRITE_VERSION_ONLY
        return verdict

    def _written(
        self, txid: TxId, rows: Mapping[Key, Any], check: SumCheck, horizons: ExpiryHorizons
    ) -> dict[Key, StoredValue]:
        goes_back = any(row.txid == txid and key not in rows for key, row in self.stored.rows.items())
        dead = (row for key, row in self.stored.rows.items() if row.txid == txid and rows.get(key) is not ABSENT)
        self._reached["a replay restores what a dead attempt has deleted"] += any(row.value is ABSENT for row in dead)
        self._reached["a dead attempt's rows go back"] += goes_back
        after = self.rule(self.declared.columns, txid, check, horizons).apply(self.stored.rows, rows)
        return {key: row for key, row in after.items() if row is not None}


class SimulatedLetters(MemoryMapState):
    """One process' handle of the table of dead letters."""

    def __init__(self, table: MemoryTable, before: Before) -> None:
        super().__init__(LETTER_KEY, LETTER_VALUES, table=table)
        self._before = before

    def of_process(self, before: Before) -> Self:
        """A new handle, of another process."""
        handle = copy(self)
        handle.declared, handle._opened = copy(self.declared), self._table()
        handle._before = before
        return handle

    def _write(self, attempt: TransactionAttempt, *how: Any) -> None:
        self._before(f"write {self.stored.name} as {attempt}")
        super()._write(attempt, *how)
