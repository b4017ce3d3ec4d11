"""`DeclaredTable`: what the user of a state has declared, and what its update adds, before the state is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from state.rows.columns import StateColumns, check_key_types, check_names
from state.rows.python_rows import PutRows
from state.rows.value_limits import ValueLimits
from state.updates import StateUpdate
from transactional.core.ports import DeclaredState, State, StateKind
from transactional.core.ports.expiry import Expiry
from transactional.model.absent import Absent
from transactional.model.aggregates import Aggregate
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.attempt import TransactionAttempt
from transactional.model.durations import Duration, parse_microseconds
from transactional.model.errors import ConfigError, ProtocolError
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key


class DeclaredTable(DeclaredState):
    """The declared columns of a state, and when its rows expire; types may be left open until the input's schema is
    known.

    `key` is a name, several names, or a DDL string with types; () is a state of one row; None leaves it to the update.
    `values` is a DDL string. `check_types` raises `ConfigError` for types that the state can't store; it is called
    whenever types become known.
    """

    def __init__(
        self,
        state: State,
        table: str,
        key: str | Sequence[str] | None,
        values: str,
        *,
        kind: StateKind,
        columns: Mapping[str, str] | None = None,
        deletes: bool = False,
        expires: str | None = None,
        age: Duration | None = None,
        value_limits: ValueLimits | None = None,
        check_types: Callable[[DeclaredTable], None] | None = None,
    ) -> None:
        if kind is StateKind.NON_TRANSACTIONAL:
            raise ConfigError(
                f"state {table} can be StateKind.OPAQUE or StateKind.TRANSACTIONAL; only these survive a replay"
            )
        self.table, self.kind, self.deletes, self.value_limits = table, kind, deletes, value_limits
        self.expiry: Expiry | None = None
        self.computed = ComputedColumns()
        self._state, self._check_types = state, check_types
        self._columns: StateColumns | None = None
        self._horizon_of_attempt: tuple[TransactionAttempt, int | None] | None = None
        self.names = dict(columns or {})
        self.known_key_names, self._key = _declared_key(key)
        self._values: Schema | None = Schema.parse(values) if values else None
        self._check_declared()
        self._expire_after(expires, age)

    # --- columns --------------------------------------------------------------------------------------------------

    @property
    def typed_columns(self) -> Schema:
        """The key and value columns whose types are known by now."""
        return Schema((*(self._key or ()), *(self._values or ())))

    @property
    def are_complete(self) -> bool:
        """Whether all types are known."""
        return self._key is not None and self._values is not None

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns. Raises `ConfigError` as long as nobody has named them."""
        if self.known_key_names is None:
            raise ConfigError(
                f"state {self.table} has no key: give key='word', or let its update name it: .count().group_by('word')"
            )
        return self.known_key_names

    @property
    def key(self) -> Schema:
        """The key columns. Raises `ConfigError` while their types are unknown."""
        if self._key is None:
            names = ", ".join(f"{name} string" for name in self.key_names)
            raise ConfigError(f"state {self.table}: the key columns have no types; write them like key={names!r}")
        return self._key

    @property
    def values(self) -> Schema:
        """The value columns. Raises `ConfigError` while they are unknown."""
        if self._values is None:
            raise ConfigError(
                f"state {self.table} has no value columns: pass values='count long', or use .count(), .sum(…)"
            )
        return self._values

    @property
    def columns(self) -> StateColumns:
        """The final columns, with those that a state adds. Raises `ConfigError` while a type is unknown."""
        if self._columns is None:
            expires = None if self.expiry is None else self.expiry.column
            self._columns = StateColumns(self.key, self.values, self.names, self.deletes, expires)
        return self._columns

    def identity(self, **location: str) -> Mapping[str, str]:
        """Return the identity of a state: its location, key, values and kind."""
        return {**location, "key": str(self.key), "values": str(self.values), "kind": self.kind.value}

    def allow_deletes(self) -> None:
        self.deletes, self._columns = True, None

    def bind(self, key: Schema, values: Schema) -> None:
        for part, declared, bound in (("key", self._key, key), ("values", self._values, values)):
            if declared is not None and declared != bound:
                raise ConfigError(
                    f"state {self.table} is declared with {part} '{declared}', but the input makes it '{bound}'"
                )
        expires = None if self.expiry is None else self.expiry.column
        StateColumns(key, values, self.names, self.deletes, expires).check(self.table)
        self.known_key_names, self._key, self._values, self._columns = key.names, key, values, None
        if self._check_types is not None:
            self._check_types(self)

    def _check_declared(self) -> None:
        if self.are_complete:
            self.columns.check(self.table)
        else:
            renamed = [name for name in ("txid", "prev_txid") if name not in self.names]
            check_names([*(self.known_key_names or ()), *renamed], self.table)
            check_key_types(self._key or Schema(()), f"state {self.table}")
        if self._check_types is not None:
            self._check_types(self)

    # --- rows -----------------------------------------------------------------------------------------------------

    def rows(self, owner: str = "") -> PutRows:
        """Return what converts rows of these columns. `owner` is for messages."""
        return PutRows(self.columns, self.table, owner)

    def check_rows(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        table = self.rows().table(rows)
        if self.value_limits is not None:
            self.value_limits.check(table, len(self.key))

    def aggregate(self, aggregates: Mapping[str, Any]) -> StateUpdate:
        """Return the update that stores these aggregates. Raises `ConfigError` for what is no aggregate."""
        if not aggregates:
            raise ConfigError(f"state {self.table}: aggregate() needs a column, for example aggregate(count=Count())")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise ConfigError(
                    f"state {self.table}: {name}={aggregate!r} is no aggregate such as Count() or Sum('amount'); one "
                    "of your own extends state.Aggregate"
                )
        check_names([*(self.known_key_names or ()), *aggregates], self.table)
        return StateUpdate(self._state, aggregates)

    # --- expiry ---------------------------------------------------------------------------------------------------

    def set_expiry(self, expiry: Expiry) -> None:
        if self.expiry not in (None, expiry):
            raise ConfigError(
                f"state {self.table} is declared with expires=, but its update decides when its rows go; leave it out"
            )
        self.expiry, self._columns = expiry, None
        if self.are_complete:
            self.columns.check(self.table)

    def _expire_after(self, expires: str | None, age: Duration | None) -> None:
        if (expires is None) is not (age is None):
            raise ConfigError(
                f"state {self.table}: expires= and after= go together: the column that a row's age is counted from, "
                "and the age at which it goes, like expires='seen', after='30 days'"
            )
        if expires is not None and age is not None:
            self.set_expiry(Expiry(expires, parse_microseconds(age, f"state {self.table}: after=")))

    @property
    def expiring_column(self) -> str:
        """The column by which rows expire. Only for a state whose rows do."""
        assert self.expiry is not None
        return self.expiry.column

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:
        if self.expiry is not None:
            self._horizon_of_attempt = attempt, self.expiry.horizon(facts)

    def horizon_of_batch(self, attempt: TransactionAttempt) -> int | None:
        """Return the horizon that the facts of an attempt's batch give. Raises `ProtocolError` before `begin`."""
        begun_attempt, horizon = self._horizon_of_attempt or (None, None)
        if begun_attempt != attempt:
            raise ProtocolError(f"state {self.table}, whose rows expire, was used by {attempt} before begin()")
        return horizon


def _declared_key(key: str | Sequence[str] | None) -> tuple[tuple[str, ...] | None, Schema | None]:
    """Return the names and the types of key columns, None for what `key` leaves open."""
    if key is None:
        return None, None
    if not isinstance(key, str):
        return tuple(key), (None if key else Schema(()))
    if " " in key.strip() or ":" in key:
        schema = Schema.parse(key)
        return schema.names, schema
    return ((key.strip(),), None) if key.strip() else ((), Schema(()))
