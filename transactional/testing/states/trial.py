"""The tools of the state cases: a `Trial` of one table, its `Writer`s, and the register of cases.

A trial makes states with the factory under test, draws attempt ids as a coordinator does, and notes every step in
words, so that the message of a failure shows how to repeat it. A `Writer` stands for one process that has opened the
table. Its `check_…` methods compare what the state returns with the expected rows. A state that refuses a feature ends
the case with `NotOffered`, which is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

from transactional.core.ports import Partials, State, StateKind
from transactional.core.ports.expiry import Expiry
from transactional.model.absent import ABSENT
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import ConfigError, ProtocolError
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key
from transactional.testing.cases.register import CaseRegister, NotOffered, Steps

OWNER: Final = "words/count"
KEY, VALUES = "word string", "count long"
"""Columns that every state can have."""
KINDS: Final = (StateKind.OPAQUE, StateKind.TRANSACTIONAL)

StateFactory: TypeAlias = Callable[[str, Any, str, StateKind], State]
"""Makes a state, not opened, from the name of its table, the DDL of its key (() if it has none), the DDL of its values,
and its kind. The same name is the same table, opened by another writer."""
Rows: TypeAlias = Mapping[Any, Any]
"""Values by key. A key or value of one column is not a tuple."""
TxidOrAttempt: TypeAlias = "int | TransactionAttempt"
"""A txid, for which the next attempt is drawn, or an attempt."""


@dataclass(slots=True)
class Trial(Steps):
    """One table under test, and the steps so far, in words."""

    make: StateFactory
    table: str
    break_write: Callable[[State], None] | None = None
    """Makes the next write of a state end in its middle, with any exception. None if that is impossible."""
    _txids: dict[AttemptId, TxId] = field(default_factory=dict)
    _writers: list[Writer] = field(default_factory=list)

    def open(
        self,
        key: Any = KEY,
        values: str = VALUES,
        *,
        kind: StateKind = StateKind.OPAQUE,
        deletes: bool = False,
        expiry: Expiry | None = None,
        store_id: str | None = None,
        owner: str = OWNER,
    ) -> Writer:
        """Open the table as one more writer. Raises `NotOffered` if the state refuses a feature."""
        declared = f"{key or 'no key'} -> {values}, {kind.value}{', deletes' * deletes}{', expires' * bool(expiry)}"
        state = self._make_state(key, values, kind, deletes=deletes, expiry=expiry)
        writer = Writer(self, state, f"writer {len(self._writers) + 1}")
        self.note(f"{writer.name} opens the table: {declared}")
        state.parts.store_record.set_store_id(store_id)
        self._writers.append(writer)
        state.open(owner, self._txids.__getitem__)
        return writer

    def _make_state(self, key: Any, values: str, kind: StateKind, *, deletes: bool, expiry: Expiry | None) -> State:
        try:
            state = self.make(self.table, key, values, kind)
            if deletes:
                state.parts.declared.allow_deletes()
            if expiry is not None:
                state.parts.declared.set_expiry(expiry)
        except ConfigError as error:
            if (key, values, kind, deletes, expiry) == (KEY, VALUES, StateKind.OPAQUE, False, None):
                raise
            raise NotOffered(str(error)) from error
        return state

    def attempt(self, txid: int) -> TransactionAttempt:
        """Draw the next attempt, at this transaction."""
        return TransactionAttempt(TxId(txid), self.draw_attempt_id(txid))

    def draw_attempt_id(self, txid: int) -> AttemptId:
        """Draw the next attempt id, for an attempt or a fence at this transaction."""
        attempt_id = AttemptId(len(self._txids) + 1)
        self._txids[attempt_id] = TxId(txid)
        return attempt_id

    def txid_of(self, version: AttemptId | None) -> TxId:
        """Return the transaction that a table of this version is at."""
        return TxId(0) if version is None else self._txids[version]

    def stored_txid_of(self, version: AttemptId) -> TxId | None:
        """Return the transaction of an attempt id as a coordinator's store does: None if it does not know the id."""
        return self._txids.get(version)

    @contextmanager
    def allow_refused_mix(self) -> Iterator[None]:
        """Allow the state to refuse that values are both put and merged: a topology does only one of them."""
        try:
            yield
        except ProtocolError as error:
            raise NotOffered(str(error)) from error

    def close(self) -> None:
        """Close the states of all writers."""
        for writer in self._writers:
            writer.state.close()


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that has opened the table with a state of its own."""

    trial: Trial
    state: State
    name: str

    # --- writes ---------------------------------------------------------------------------------------------------

    def merge(
        self,
        txid_or_attempt: TxidOrAttempt,
        rows: Rows,
        combine: Mapping[str, str] | str = "sum",
        planned_s: float | None = None,
    ) -> TransactionAttempt:
        """Merge values into the table, and return the attempt."""
        attempt = self._begin_write("merges", txid_or_attempt, rows, planned_s)
        if isinstance(combine, str):
            combine = dict.fromkeys(self.state.values.names, combine)
        self.state.merge(attempt, Partials(combine, self.table_of(rows)))
        return attempt

    def put(self, txid_or_attempt: TxidOrAttempt, rows: Rows, planned_s: float | None = None) -> TransactionAttempt:
        """Put values, or delete the keys whose value is `ABSENT`, and return the attempt."""
        attempt = self._begin_write("puts", txid_or_attempt, rows, planned_s)
        tuples = {_as_tuple(key): values if values is ABSENT else _as_tuple(values) for key, values in rows.items()}
        self.state.put(attempt, tuples)
        return attempt

    def fence(self, txid: int) -> AttemptId:
        """Load the table's version and write a fence over it, as a coordinator does that has taken the lease.

        Return the fence id, which is the version then.
        """
        self.state.version()
        return self.fence_only(txid)

    def fence_only(self, txid: int) -> AttemptId:
        """Write a fence over the version that was loaded last."""
        fence_id = self.trial.draw_attempt_id(txid)
        self.trial.note(f"{self.name} writes the fence {fence_id}, with which the table is at transaction {txid}")
        self.state.fence(fence_id)
        return fence_id

    def begin(self, txid_or_attempt: TxidOrAttempt, planned_s: float | None) -> TransactionAttempt:
        """Begin an attempt whose batch was planned `planned_s` seconds after 1970, and return it."""
        attempt = self.trial.attempt(txid_or_attempt) if isinstance(txid_or_attempt, int) else txid_or_attempt
        self.state.parts.declared.begin(attempt, None if planned_s is None else BatchFacts(round(planned_s * 1_000)))
        return attempt

    def close(self) -> None:
        """Close the state of this writer."""
        self.trial.note(f"{self.name} closes the table")
        self.state.close()

    def _begin_write(
        self, verb: str, txid_or_attempt: TxidOrAttempt, rows: Rows, planned_s: float | None
    ) -> TransactionAttempt:
        attempt = (
            self.begin(txid_or_attempt, planned_s)
            if planned_s is not None or isinstance(txid_or_attempt, int)
            else txid_or_attempt
        )
        when = "" if planned_s is None else f", planned at second {planned_s},"
        self.trial.note(
            f"{self.name}, attempt {attempt.attempt_id} at transaction {attempt.txid}{when} {verb} {rows!r}"
        )
        return attempt

    # --- checks ---------------------------------------------------------------------------------------------------

    def check_rows(self, rows: Rows, committed: int | None = None) -> None:
        """Check the rows of a reader who reads the whole table, with `committed` as of that transaction."""
        reader = "who reads all rows" if committed is None else f"who reads up to transaction {committed}"
        self.trial.check_equal(f"{self.name}, {reader}", self.content(committed), rows)

    def check_lookup(self, txid_or_attempt: TxidOrAttempt, rows: Rows, keys: Iterable[Any]) -> None:
        """Check the rows that an attempt finds of these keys, by `get` and by `items`."""
        attempt = self.trial.attempt(txid_or_attempt) if isinstance(txid_or_attempt, int) else txid_or_attempt
        reader = f"{self.name}, attempt {attempt.attempt_id} at transaction {attempt.txid}"
        stored = self.state.get(attempt, [_as_tuple(key) for key in keys])
        self.trial.check_equal(f"get() of {reader}", _plain_rows(stored.items()), rows)
        stored_items = {key: row for key, row in self.items(attempt).items() if key in keys}
        self.trial.check_equal(f"items() of {reader}", stored_items, rows)

    def check_version(self, version: AttemptId | TransactionAttempt | None) -> None:
        """Check the version of the table."""
        expected = version.attempt_id if isinstance(version, TransactionAttempt) else version
        self.trial.check_equal(f"version() of {self.name}", self.state.version(), expected)

    def items(self, attempt: TransactionAttempt) -> dict[Any, Any]:
        """Return all rows that an attempt finds."""
        return _plain_rows(self.state.items(attempt))

    def content(self, committed: int | None = None) -> dict[Any, Any]:
        """Return the rows that a reader sees.

        If the state can't be read as a whole, those that the next attempt finds.
        """
        try:
            return self.rows(self.state.parts.reading.read(None if committed is None else TxId(committed)))
        except ConfigError:
            txid = self.trial.txid_of(self.state.version()) if committed is None else committed
            return self.items(self.trial.attempt(txid + 1))

    def rows(self, table: pa.Table) -> dict[Any, Any]:
        """Return the rows of a table with key and value columns, by key. Check that no key is there twice."""
        width = len(self.state.key)
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        rows_by_key = _plain_rows((row[:width], row[width:]) for row in rows)
        self.trial.check_equal("the number of rows, one for each key", len(rows), len(rows_by_key))
        return rows_by_key

    def table_of(self, rows: Rows) -> pa.Table:
        """Convert rows to Arrow, with the key and value columns of the state."""
        return to_arrow(
            [(*_as_tuple(key), *_as_tuple(values)) for key, values in rows.items()],
            Schema((*self.state.key, *self.state.values)),
        )

    def keys_of(self, keys: Iterable[Any]) -> pa.Table:
        """Convert keys to Arrow, with the key columns of the state."""
        return to_arrow([_as_tuple(key) for key in keys], self.state.key)


def to_arrow(rows: list[tuple[Any, ...]], columns: Schema) -> pa.Table:
    """Convert rows of Python values to Arrow."""
    schema = arrow_schema(columns)
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)], schema=schema
    )


def _as_tuple(content: Any) -> Key:
    return content if isinstance(content, tuple) else (content,)


def _plain(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _plain_rows(rows: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_plain(tuple(key)): _plain(tuple(values)) for key, values in rows}


REGISTER: Final[CaseRegister[Trial]] = CaseRegister()
"""The cases of all modules."""
case, cases = REGISTER.case, REGISTER.cases_for
