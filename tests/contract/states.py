"""The kinds of state that one contract suite is run over, and what its stories are told with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.duckdb_state import DuckDBMapState
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState, MemoryTable
from state.redis.state import RedisMapState
from state.sql.state import SqlMapState
from transactional.core.ports import STAGEABLE, Partials, State, StateKind
from transactional.core.ports.expiry import Expiry
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

AnyState = MemoryMapState | DeltaMapState | SqlMapState | RedisMapState | DuckDBMapState
OWNER = "words/count"
LOOKED_UP = "files, lookup"
"""Rewritten file by file, and looked up in a copy."""
STAGED = ("staged, lookup", "staged and compacted")
COMPACT_AFTER = {"log": 1, "lookup": 1, "staged, lookup": None, "staged and compacted": 1}
"""How often tables in the log layout are compacted; 1: as often as they can be."""


def always() -> bool:
    """True: there is time."""
    return True


class MaintainedMapState(DeltaMapState):
    """A state that is looked after before each transaction, as a runner does after the one before it."""

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, Any]) -> None:
        self.parts.maintenance.maintain(TxId(attempt.txid - 1), always)
        super().put(attempt, rows)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        self.parts.maintenance.maintain(TxId(attempt.txid - 1), always)
        super().merge(attempt, partials)


class CommittedMapState(DeltaMapState):
    """A state each of whose transactions is committed at once, and that is looked after then."""

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, Any]) -> None:
        super().put(attempt, rows)
        self._maintained(attempt)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        super().merge(attempt, partials)
        self._maintained(attempt)

    def _maintained(self, attempt: TransactionAttempt) -> None:
        """With what is done apart, so that a test knows what there is."""
        self.parts.maintenance.maintain(attempt.txid, always)
        self.parts.maintenance.finish(always)


def write_by_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on tables in the merge layout are too large to be written as a whole."""
    monkeypatch.setattr("state.delta.write.change.REWRITTEN_ROWS_MAX", -1)


class FilesMapState(CommittedMapState):
    """A state whose table is never small enough to be written as a whole: file by file."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        writer: Any = self.open_table.writer
        writer.rewrite_small = lambda *_: None


class OverwrittenMapState(CommittedMapState):
    """A state whose table's files delta-rs alone can replace: by all rows once more."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        loaded: Any = self.open_table.loaded
        loaded.rewritable_files = lambda: None


class StagedMapState(DeltaMapState):
    """A state whose partial aggregates come as two staged files with rows of the same keys, and by the driver.

    It is looked after before each transaction.
    """

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, Any]) -> None:
        self.parts.maintenance.maintain(TxId(attempt.txid - 1), always)
        super().put(attempt, rows)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        self.parts.maintenance.maintain(TxId(attempt.txid - 1), always)
        super().merge(attempt, self.staged(attempt, partials))

    def staged(self, attempt: TransactionAttempt, partials: Partials) -> Partials:
        """The same partial aggregates in two parts for each key; the last key's come by the driver, too."""
        stager = self.parts.staging.stager(OWNER)
        if stager is None or not partials.table.num_rows or not STAGEABLE.issuperset(partials.combine.values()):
            return partials
        rows = self.declared.rows(self.owner).from_partials(partials)
        other, less = rows, rows
        for name, how in partials.combine.items():
            if how == "sum":
                place, field = rows.column_names.index(name), rows.schema.field(name)
                rest, part = _parts(rows[name])
                less, other = less.set_column(place, field, rest), other.set_column(place, field, part)
        staged = [stager.stage(attempt, part) for part in (less, other.slice(0, other.num_rows - 1))]
        return Partials(partials.combine, other.slice(other.num_rows - 1), staged)


def _parts(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two columns that add up to it; of the same sign, so that nothing overflows."""
    if pa.types.is_integer(column.type):
        half = pc.divide(column, pa.scalar(2, column.type))
        return pc.subtract(column, half), half
    zero = pa.scalar(Decimal(0) if pa.types.is_decimal(column.type) else 0.0, column.type)
    return column, pc.if_else(pc.is_null(column), column, zero)


def look_up_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no Delta table is too small for its values to be looked up, in sorted local copies.

    The engines `delta-rs/lookup`, a log, and `delta-rs/files, lookup` are for this.
    """
    monkeypatch.setattr("state.delta.read.table_reader.CACHED_ROWS_MAX", -1)
    monkeypatch.setattr("state.delta.tables.lookup.SORTED_ROWS_MIN", 0)
    monkeypatch.setattr("state.delta.tables.lookup.PIECE_ROWS", 3)
    monkeypatch.setattr("state.delta.read.merged_reader.SEARCHES_BEFORE_COPY", 0)


@dataclass(slots=True)
class Place:
    """Where one table lies; and the coordinator's store's knowledge of which attempt belonged to which transaction."""

    engine: str
    folder: Path
    txids: dict[int, TxId] = field(default_factory=dict)
    memory: MemoryTable = field(default_factory=MemoryTable)
    url: str = ""
    """The database or the server, where the engine is one."""
    table: str = "a table"
    """Its name there."""
    opened: list[AnyState] = field(default_factory=list)
    memories: dict[str, MemoryTable] = field(default_factory=dict)

    @property
    def is_log(self) -> bool:
        """Whether its transactions are appended, each as partial values or as whole ones."""
        return self.engine.partition("/")[2] in COMPACT_AFTER

    @property
    def has_readers(self) -> bool:
        """Whether somebody else can open the table to read it."""
        return self.engine != "sqlite in memory"

    @property
    def keeps_versions(self) -> bool:
        """Whether a pinned reader is answered however far the table has gone on; Redis has the transaction before."""
        return self.engine != "redis"

    def state(
        self,
        key: str | Sequence[str] = "word string",
        values: str = "count long",
        *,
        kind: StateKind = StateKind.OPAQUE,
        deletes: bool = False,
        expires: str | None = None,
        after: str | None = None,
        expiry: Expiry | None = None,
        columns: Mapping[str, str] | None = None,
        store_id: str | None = None,
        owner: str = OWNER,
    ) -> AnyState:
        """One process' handle of the table, opened."""
        goes: dict[str, Any] = {"deletes": deletes, "expires": expires, "after": after}
        state = self.unopened(key, values, kind=kind, columns=columns, **goes)
        if expiry is not None:
            state.declared.set_expiry(expiry)
        self.opened.append(state)
        state.parts.store_record.set_store_id(store_id)
        state.open(owner, self.txids.__getitem__)
        return state

    def made(self, table: str, key: Any, values: str, kind: StateKind) -> State:
        """A state as `check_state` has it made: each table beside the others of this place."""
        memory = self.memories.setdefault(table, MemoryTable(table))
        return replace(self, table=f"{self.table} {table}", folder=self.folder / table, memory=memory).unopened(
            key, values, kind=kind
        )

    def unopened(
        self,
        key: str | Sequence[str] | None = None,
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        columns: Mapping[str, str] | None = None,
        **goes: Any,
    ) -> AnyState:
        """A handle of the table, for a topology that opens it."""
        goes |= {} if columns is None else {"columns": columns}
        if self.engine == "memory":
            state: AnyState = MemoryMapState(key, values, kind=kind, table=self.memory, **goes)
        elif self.engine == "duckdb":
            state = DuckDBMapState(self.folder.with_name("states.duckdb"), self.table, key, values, kind=kind, **goes)
        elif self.engine == "redis":
            state = RedisMapState(self.url, self.table, key, values, kind=kind, **goes)
        elif self.url:
            state = SqlMapState(self.url, self.table, key, values, kind=kind, **goes)
        else:
            layout = self.engine.partition("/")[2]
            how = LogLayout(compact_after=COMPACT_AFTER[layout]) if layout in COMPACT_AFTER else "merge"
            merged = {"files": FilesMapState, LOOKED_UP: FilesMapState, "overwritten": OverwrittenMapState}
            map_state = {**merged, **dict.fromkeys(STAGED, StagedMapState)}.get(layout, MaintainedMapState)
            options: dict[str, Any] = {"kind": kind, "layout": how, **goes}
            state = map_state(self.folder / "table", key, values, **options)
        return state

    def close(self) -> None:
        """Close every state that was opened."""
        for state in self.opened:
            state.close()

    def attempt(self, txid: int, attempt_id: int) -> TransactionAttempt:
        """An attempt, as the store remembers it."""
        self.txids[attempt_id] = TxId(txid)
        return TransactionAttempt(TxId(txid), AttemptId(attempt_id))

    def fence(self, state: AnyState, txid: int, fence_id: int) -> None:
        """What a coordinator does with a table when it has taken the lease."""
        self.txids[fence_id] = TxId(txid)
        state.version()
        state.fence(AttemptId(fence_id))


def counts(words: Mapping[Any, int | None], key: str = "word string", values: str = "count long") -> Partials:
    """Partial counts per word."""
    schema = arrow_schema(Schema.parse(f"{key}, {values}"))
    rows = [(*(word if isinstance(word, tuple) else (word,)), count) for word, count in words.items()]
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [pa.array(column, type=each.type) for column, each in zip(columns, schema, strict=True)]
    return Partials({schema.names[-1]: "sum"}, pa.Table.from_arrays(arrays, schema=schema))


def content(state: AnyState, committed_txid: int | None = None) -> dict[Any, Any]:
    """Key → value of what a reader sees; plain where there is one of them."""
    table = state.read(None if committed_txid is None else TxId(committed_txid))
    width = len(state.key)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    found = {_plain(row[:width]): _plain(row[width:]) for row in rows}
    assert len(found) == table.num_rows, "a key has two rows"
    return found


def _plain(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values
