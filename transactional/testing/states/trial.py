"""A trial of a state: one table, what writers do to it, in words, and what it has to hold then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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

OWNER: Final = "words/count"
KEY, VALUES = "word string", "count long"
"""Columns that every state can have."""
KINDS: Final = (StateKind.OPAQUE, StateKind.TRANSACTIONAL)

StateFactory: TypeAlias = Callable[[str, Any, str, StateKind], State]
"""Makes a state, not opened, of the name of its table, the DDL of its key (() where it has none) and of its values, and
its kind. The same name is the same table, opened by another writer."""
Rows: TypeAlias = Mapping[Any, Any]
"""Values by key; each plain where it is of one column."""
At: TypeAlias = "int | TransactionAttempt"
"""A transaction, at which the next attempt is made; or an attempt at it."""


class NotOffered(Exception):
    """A state refuses what a case is about, as it may."""


class Unfulfilled(AssertionError):
    """A state does not do what it has to."""


@dataclass(slots=True)
class Trial:
    """One table, and what was done to it so far."""

    make: StateFactory
    table: str
    break_write: Callable[[State], None] | None = None
    """Lets the next write of a state end in its middle, with any exception; None: there is no way to."""
    steps: list[str] = field(default_factory=list)
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
        """The table as one more writer opens it. Raises `NotOffered`."""
        declared = f"{key or 'no key'} -> {values}, {kind.value}{', deletes' * deletes}{', expires' * bool(expiry)}"
        state = self._made(key, values, kind, deletes=deletes, expiry=expiry)
        writer = Writer(self, state, f"writer {len(self._writers) + 1}")
        self.note(f"{writer.name} opens the table: {declared}")
        state.set_store_id(store_id)
        self._writers.append(writer)
        state.open(owner, self._txids.__getitem__)
        return writer

    def _made(self, key: Any, values: str, kind: StateKind, *, deletes: bool, expiry: Expiry | None) -> State:
        try:
            state = self.make(self.table, key, values, kind)
            if deletes:
                state.allow_deletes()
            if expiry is not None:
                state.set_expiry(expiry)
        except ConfigError as error:
            if (key, values, kind, deletes, expiry) == (KEY, VALUES, StateKind.OPAQUE, False, None):
                raise
            raise NotOffered(str(error)) from error
        return state

    def attempt(self, txid: int) -> TransactionAttempt:
        """The next attempt, at this transaction."""
        return TransactionAttempt(TxId(txid), self.drawn(txid))

    def drawn(self, txid: int) -> AttemptId:
        """The next attempt id, which stands for this transaction."""
        attempt_id = AttemptId(len(self._txids) + 1)
        self._txids[attempt_id] = TxId(txid)
        return attempt_id

    def txid_of(self, version: AttemptId | None) -> TxId:
        """The transaction that a table of this version is at."""
        return TxId(0) if version is None else self._txids[version]

    def known_txid_of(self, version: AttemptId) -> TxId | None:
        """As the coordinator's store has it; None: that does not know it."""
        return self._txids.get(version)

    def note(self, step: str) -> None:
        """One more step, in words."""
        self.steps.append(step)

    def equal(self, what: str, found: object, expected: object) -> None:
        """Raise `Unfulfilled` unless something is as expected."""
        if _comparable(found) != _comparable(expected):
            raise Unfulfilled(f"Expected of {what}: {expected!r}\nCame: {found!r}")

    def refuses(self, errors: type[Exception] | tuple[type[Exception], ...], act: Callable[[], object]) -> Exception:
        """Raise `Unfulfilled` unless `act` raises one of these."""
        names = " or ".join(each.__name__ for each in (errors if isinstance(errors, tuple) else (errors,)))
        try:
            act()
        except errors as error:
            return error
        except Exception as error:
            raise Unfulfilled(f"Expected: {names}\nCame: {error!r}") from error
        raise Unfulfilled(f"Expected: {names}\nCame: no error")

    @contextmanager
    def mixing(self) -> Iterator[None]:
        """Where values are both put and merged, which a state may refuse: a topology does one of them."""
        try:
            yield
        except ProtocolError as error:
            raise NotOffered(str(error)) from error

    def close(self) -> None:
        """Close what was opened."""
        for writer in self._writers:
            writer.state.close()


@dataclass(frozen=True, slots=True)
class Writer:
    """One process' handle of the table."""

    trial: Trial
    state: State
    name: str

    # --- what it does ---------------------------------------------------------------------------------------------

    def merge(
        self, at: At, rows: Rows, combine: Mapping[str, str] | str = "sum", now: float | None = None
    ) -> TransactionAttempt:
        """Combine values with those before; the attempt that it is."""
        attempt = self._begun("merges", at, rows, now)
        if isinstance(combine, str):
            combine = dict.fromkeys(self.state.values.names, combine)
        self.state.merge(attempt, Partials(combine, self.table_of(rows)))
        return attempt

    def put(self, at: At, rows: Rows, now: float | None = None) -> TransactionAttempt:
        """Set values, or delete keys, whose value is `ABSENT`; the attempt that it is."""
        attempt = self._begun("puts", at, rows, now)
        whole = {_tuple(key): each if each is ABSENT else _tuple(each) for key, each in rows.items()}
        self.state.put(attempt, whole)
        return attempt

    def fence(self, txid: int) -> AttemptId:
        """What a coordinator does with a table once it has taken the lease; the version then."""
        self.state.version()
        return self.fence_only(txid)

    def fence_only(self, txid: int) -> AttemptId:
        """Write a fence over the version that was loaded last."""
        fence_id = self.trial.drawn(txid)
        self.trial.note(f"{self.name} writes the fence {fence_id}, with which the table is at transaction {txid}")
        self.state.fence(fence_id)
        return fence_id

    def begin(self, at: At, now: float | None) -> TransactionAttempt:
        """Begin an attempt, whose batch was planned at a time, in seconds since 1970."""
        attempt = self.trial.attempt(at) if isinstance(at, int) else at
        self.state.begin(attempt, None if now is None else BatchFacts(round(now * 1_000)))
        return attempt

    def close(self) -> None:
        """Close the state."""
        self.trial.note(f"{self.name} closes the table")
        self.state.close()

    def _begun(self, does: str, at: At, rows: Rows, now: float | None) -> TransactionAttempt:
        attempt = self.begin(at, now) if now is not None or isinstance(at, int) else at
        when = "" if now is None else f", planned at second {now},"
        self.trial.note(
            f"{self.name}, attempt {attempt.attempt_id} at transaction {attempt.txid}{when} {does} {rows!r}"
        )
        return attempt

    # --- what there has to be -------------------------------------------------------------------------------------

    def holds(self, rows: Rows, committed: int | None = None) -> None:
        """What somebody sees who reads all rows, or not what comes after a transaction."""
        who = "who reads all rows" if committed is None else f"who reads up to transaction {committed}"
        self.trial.equal(f"{self.name}, {who}", self.content(committed), rows)

    def finds(self, at: At, rows: Rows, keys: Iterable[Any]) -> None:
        """What an attempt finds of these keys, and which keys it finds at all."""
        attempt = self.trial.attempt(at) if isinstance(at, int) else at
        what = f"{self.name}, attempt {attempt.attempt_id} at transaction {attempt.txid}"
        found = self.state.get(attempt, [_tuple(key) for key in keys])
        self.trial.equal(f"get() of {what}", _plain_rows(found.items()), rows)
        there = {key: row for key, row in self.items(attempt).items() if key in keys}
        self.trial.equal(f"items() of {what}", there, rows)

    def is_at(self, version: AttemptId | TransactionAttempt | None) -> None:
        """The version of the table."""
        expected = version.attempt_id if isinstance(version, TransactionAttempt) else version
        self.trial.equal(f"version() of {self.name}", self.state.version(), expected)

    def items(self, attempt: TransactionAttempt) -> dict[Any, Any]:
        """All rows that an attempt finds."""
        return _plain_rows(self.state.items(attempt))

    def content(self, committed: int | None = None) -> dict[Any, Any]:
        """What a reader sees; of a state that is not read as a whole, what the next attempt would find."""
        try:
            return self.rows(self.state.read(None if committed is None else TxId(committed)))
        except ConfigError:
            at = self.trial.txid_of(self.state.version()) if committed is None else committed
            return self.items(self.trial.attempt(at + 1))

    def rows(self, table: pa.Table) -> dict[Any, Any]:
        """The rows of a table with key and value columns."""
        width = len(self.state.key)
        rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        found = _plain_rows((row[:width], row[width:]) for row in rows)
        self.trial.equal("the number of rows, one for each key", len(rows), len(found))
        return found

    def table_of(self, rows: Rows) -> pa.Table:
        """Rows in Arrow."""
        return arrow_of(
            [(*_tuple(key), *_tuple(each)) for key, each in rows.items()],
            Schema((*self.state.key, *self.state.values)),
        )

    def keys_of(self, keys: Iterable[Any]) -> pa.Table:
        """Keys in Arrow."""
        return arrow_of([_tuple(key) for key in keys], self.state.key)


def arrow_of(rows: list[tuple[Any, ...]], columns: Schema) -> pa.Table:
    """Rows of Python values in Arrow."""
    schema = arrow_schema(columns)
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(each, of.type) for each, of in zip(values, schema, strict=True)], schema=schema
    )


def _tuple(value: Any) -> Key:
    return value if isinstance(value, tuple) else (value,)


def _plain(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _plain_rows(rows: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_plain(tuple(key)): _plain(tuple(values)) for key, values in rows}


def _comparable(value: Any) -> Any:
    """With a word for NaN, which is not equal to itself."""
    if isinstance(value, Mapping):
        return {key: _comparable(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_comparable(each) for each in value]
    return "NaN" if isinstance(value, float) and value != value else value


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that every state promises, and how that is tried."""

    promise: str
    run: Callable[[Trial], None]
    module: str


DECLARED: Final[dict[str, Case]] = {}
"""All cases by name."""


def case(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
    """A case, whose docstring is what is promised."""
    DECLARED[function.__name__] = Case(_promise_of(function), function, function.__module__)
    return function


def cases(values: Iterable[Any]) -> Callable[[Callable[[Trial, Any], None]], Callable[[Trial, Any], None]]:
    """As many cases as there are values, which their names end with."""

    def declared(function: Callable[[Trial, Any], None]) -> Callable[[Trial, Any], None]:
        for value in values:
            shown = value.value if isinstance(value, StateKind) else value
            run = partial(_with, function, value)
            DECLARED[f"{function.__name__}({shown})"] = Case(_promise_of(function), run, function.__module__)
        return function

    return declared


def _with(function: Callable[[Trial, Any], None], value: Any, trial: Trial) -> None:
    function(trial, value)


def _promise_of(function: Callable[..., None]) -> str:
    return " ".join((function.__doc__ or function.__name__).split())
