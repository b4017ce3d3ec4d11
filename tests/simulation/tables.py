"""The simulated tables: the real `MemoryMapState`, with places at which a process may crash, stand still, or fail.

A table is loaded, then written through what was loaded, as a Delta table is: when it has moved in between, nothing is
written. What is written are counts by key, which come as a mapping where the real ones are Arrow tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from state.base import Verdict
from state.memory import MemoryMapState, MemoryTable
from state.values import ABSENT, StoredValue
from tests.simulation.faults import Faults
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import FailedException, Fenced, TableConflict
from transactional.ports import Partials, StateKind

TOTAL = "total"
"""The table that counts all records under one key; the others count by key."""
LATE = "late"
"""The table of a committer that joins while the topology is at work."""


FORGOTTEN = (-1_000_000,)
"""What stands where a fold has forgotten the value before: whoever sees it is wrong."""


class Before(Protocol):
    """Called where the process may crash or stand still; it goes on when `until` holds, or later."""

    def __call__(self, effect: str, until: Callable[[], bool] = ..., /) -> None: ...


def nowhere(effect: str, until: Callable[[], bool] = lambda: False, /) -> None:
    """No process: what has none does nothing."""
    raise AssertionError(f"{effect}, by no process")


@dataclass(frozen=True, slots=True)
class Counts(Partials):
    """Partial counts of one batch."""

    counts: Mapping[str, int] = field(default_factory=dict)


def counts_seen(table: MemoryTable, committed_txid: TxId) -> dict[str, int]:
    """What a reader sees who must not see what is not yet committed."""
    seen = {key: row.visible_at(committed_txid) for key, row in table.rows.items()}
    return {key[0]: values[0] for key, values in seen.items() if values is not ABSENT}


class SimulatedState(MemoryMapState):
    """One process' handle of a table. `before` is called where the process may crash or stand still."""

    def __init__(self, table: MemoryTable, kind: StateKind, before: Before, faults: Faults) -> None:
        super().__init__("word string", "count long", kind=kind, table=table)
        self._before, self._faults, self._reached = before, faults, faults.reached
        self._identity = super().identity()

    def identity(self) -> Mapping[str, str]:
        return self._identity

    def of_process(self, before: Before) -> Self:
        """A new handle, of another process. Its columns need no second check."""
        handle = copy(self)
        handle._before = before
        return handle

    def version(self) -> AttemptId | None:
        self._before(f"look at {self.stored.name}")
        return super().version()

    def fence(self, attempt_id: AttemptId) -> None:
        self._before(f"fence {self.stored.name}")
        try:
            super().fence(attempt_id)
        except TableConflict:
            self._reached["a table has moved between reading and writing"] += 1
            raise

    def tidy(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """A fold over what was loaded: nobody needs any more what was before a committed transaction."""
        self._before(f"load {self.stored.name} to fold it")
        loaded, found = self.stored.version, self.stored.rows
        self._before(f"fold {self.stored.name} up to {committed_txid}", lambda: self.stored.rows is not found)
        if (self.stored.version, self.stored.rows) == (loaded, found) and may_go_on():
            self._reached["a table is folded between transactions"] += 1
            self.stored.rows = {key: self._folded(row, committed_txid) for key, row in found.items()}

    @staticmethod
    def _folded(row: StoredValue, committed_txid: TxId) -> StoredValue:
        forgets = row.txid <= committed_txid and row.prev_txid is not None
        return replace(row, prev_value=FORGOTTEN) if forgets else row

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        assert isinstance(partials, Counts)
        rows = {(key,): (count,) for key, count in partials.counts.items()}
        try:
            self._write(attempt, rows, partials.combine)
        except BaseException:
            self._reached["a commit phase is done in half of the tables"] += self.stored.name == TOTAL
            raise

    def _write(
        self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...]], combine: Mapping[str, str]
    ) -> None:
        if self._faults.strikes("a committer fails"):
            raise FailedException(f"table {self.stored.name} can't be written")
        self._before(f"load {self.stored.name} for {attempt}")
        loaded, found = self.stored.version, self.stored.rows
        self._judge(loaded, attempt)
        self._before(f"write {self.stored.name} as {attempt}", lambda: self.stored.rows is not found)
        self._check_not_moved(loaded)
        super()._write(attempt, rows, combine)

    def _check_not_moved(self, loaded: AttemptId | None) -> None:
        if self.stored.version != loaded:
            self._reached["a table has moved between reading and writing"] += 1
            raise TableConflict(f"table {self.stored.name} has moved")

    def _check_fence(self, version: AttemptId | None, attempt_id: AttemptId) -> None:
        try:
            super()._check_fence(version, attempt_id)
        except Fenced:
            self._reached["a table refuses an old attempt"] += 1
            raise

    def _judge(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
        verdict = super()._judge(version, attempt)
        self._reached["a transactional table skips a replay"] += verdict is Verdict.WRITE_VERSION_ONLY
        return verdict

    def _written(self, txid: TxId, rows: Mapping[Key, tuple[Any, ...]], *combine: Any) -> dict[Key, StoredValue]:
        goes_back = any(row.txid == txid and key not in rows for key, row in self.stored.rows.items())
        self._reached["a dead attempt's rows go back"] += goes_back
        return super()._written(txid, rows, *combine)


class SimulatedLetters(MemoryMapState):
    """One process' handle of the table of dead letters."""

    def __init__(self, table: MemoryTable, before: Before) -> None:
        super().__init__(LETTER_KEY, LETTER_VALUES, table=table)
        self._before = before

    def of_process(self, before: Before) -> Self:
        """A new handle, of another process."""
        handle = copy(self)
        handle._before = before
        return handle

    def _write(
        self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...]], combine: Mapping[str, str]
    ) -> None:
        self._before(f"write {self.stored.name} as {attempt}")
        super()._write(attempt, rows, combine)
