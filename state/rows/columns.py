"""`StateColumns`: the columns of a state, those of its user and those that keep its history, and checks of both."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from transactional.model.arrow import arrow_schema
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.names import LAYOUT_VERSION
from transactional.model.schema import Field, Schema

_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=`\"'\\.")
_DELTA_RS_PREFIX = "__delta_rs_"
_UNPRINTED = frozenset({"Cc", "Cs"})
"""Unicode's control characters, and what UTF-8 can't encode."""


def check_layout(version: object, table: str) -> None:
    """Raise `SchemaMismatch` unless a table has today's layout of states. `version` is None if the table names none."""
    if str(version) != str(LAYOUT_VERSION):
        stored = "no version" if version is None else f"version {version}"
        raise SchemaMismatch(
            f"{table} has {stored} of the layout of states, and version {LAYOUT_VERSION} is the only one that is read; "
            "give the state a table of another name"
        )


@dataclass(frozen=True)
class StateColumns:
    """The columns of a state: those that the user declared, and those that keep its history."""

    key: Schema
    values: Schema
    names: Mapping[str, str] = field(default_factory=dict)
    """Other names for `txid`, `prev_txid`, `prev_<value>`, `deleted` and `horizon`."""
    deletes: bool = False
    """Whether keys may be deleted. A column then marks a deleted row until a later transaction removes it."""
    expires: str | None = None
    """The key or value column with the time from which a row's age is counted. None if rows don't expire."""

    @cached_property
    def is_by_time(self) -> bool:
        """Whether rows expire by a column of the key, as windows do: such a row's time never changes."""
        return self.expires is not None and self.expires in self.key.names

    @cached_property
    def visible(self) -> Schema:
        """The key and value columns, which readers see."""
        return Schema((*self.key, *self.values))

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The Arrow schema of the key and value columns."""
        return arrow_schema(self.visible)

    @cached_property
    def table_schema(self) -> pa.Schema:
        """The Arrow schema of every column."""
        return arrow_schema(self.all_columns)

    @cached_property
    def written_columns(self) -> Schema:
        """The columns that a transaction writes: key, values, and whether the row is deleted, if keys can be."""
        deleted = (Field(self.deleted, "boolean"),) if self.deletes else ()
        return Schema((*self.visible, *deleted))

    def without_columns(self, names: Collection[str]) -> StateColumns:
        """Return the columns of a table that lacks `names`, which the state has gained since."""
        values = Schema(tuple(column for column in self.values if column.name not in names))
        return replace(self, values=values, deletes=self.deletes and self.deleted not in names)

    @cached_property
    def deleted(self) -> str:
        """The name of the column that is true where the row's transaction has deleted its key; NULL means false."""
        return self.names.get("deleted", "deleted")

    @cached_property
    def horizon(self) -> str | None:
        """The name of the column with the expiry horizon of the row's transaction, which tables in the log layout have:
        an earlier row of the key may have expired. None unless rows expire by a value column."""
        is_needed = self.expires is not None and self.expires in self.values.names
        return self.names.get("horizon", "horizon") if is_needed else None

    @cached_property
    def txid(self) -> str:
        """The name of the column with the transaction that wrote the row."""
        return self.names.get("txid", "txid")

    @cached_property
    def prev_txid(self) -> str:
        """The name of the column with the transaction that wrote the previous values."""
        return self.names.get("prev_txid", "prev_txid")

    @cached_property
    def prev(self) -> Mapping[str, str]:
        """The names of the columns with previous values, by value column."""
        return {name: self.names.get(f"prev_{name}", f"prev_{name}") for name in self.values.names}

    @cached_property
    def all_columns(self) -> Schema:
        """Every column, in order: key, values, txid, prev_txid, deleted if there is one, previous values."""
        history = [f"`{self.txid}` long", f"`{self.prev_txid}` long", *self._deletion]
        previous = [f"`{self.prev[column.name]}` {column.type}" for column in self.values]
        return Schema((*self.visible, *Schema.parse(", ".join([*history, *previous]))))

    @property
    def addable(self) -> Sequence[tuple[str, ...]]:
        """Groups of columns that an existing table may gain, NULL in its rows: a value and its previous value, or
        the mark of deleted rows."""
        return [*self.prev.items(), *([(self.deleted,)] if self.deletes else [])]

    @property
    def _deletion(self) -> list[str]:
        return [f"`{self.deleted}` boolean"] if self.deletes else []

    def check(self, table: str) -> None:
        """Raise `ConfigError` if the columns can't form a state table."""
        if not self.values:
            raise ConfigError(f"state {table} has no value columns: pass values='count long', or use .count(), .sum(…)")
        self._check_renamed(table)
        names = [*self.key.names, *self.values.names, self.txid, self.prev_txid, *self.prev.values()]
        names += [self.deleted] if self.deletes else []
        names += [] if self.horizon is None else [self.horizon]
        check_names(names, table)
        check_key_types(self.key, f"state {table}")
        if self.expires is not None:
            check_time_column(self.visible, self.expires, table, "expires=")

    def _check_renamed(self, table: str) -> None:
        renamable = ["txid", "prev_txid", *(f"prev_{name}" for name in self.values.names)]
        renamable += ["deleted"] if self.deletes else []
        renamable += [] if self.horizon is None else ["horizon"]
        for name in self.names:
            if name not in renamable:
                raise ConfigError(f"state {table}: columns= renames {name!r}; it can rename {', '.join(renamable)}")


def check_names(names: Sequence[str], table: str) -> None:
    """Raise `ConfigError` for column names that Parquet or Spark can't represent, or that differ only in case."""
    names_by_lower: dict[str, str] = {}
    for name in names:
        if not name or _NOT_IN_NAMES & set(name):
            raise ConfigError(
                f"state {table}: column name {name!r} is empty, or contains a space, a quote or one of ,;{{}}()=."
            )
        if not _UNPRINTED.isdisjoint(map(unicodedata.category, name)):
            raise ConfigError(
                f"state {table}: column name {name!r} contains a control character, or half of a surrogate pair; name "
                "the column otherwise"
            )
        if name.lower().startswith(_DELTA_RS_PREFIX):
            raise ConfigError(f"state {table}: column name {name!r} is reserved by delta-rs; name the column otherwise")
        if name.lower() in names_by_lower:
            raise ConfigError(
                f"state {table}: columns {names_by_lower[name.lower()]!r} and {name!r} collide; rename yours, or the "
                "state's own "
                "with columns={'txid': …, 'prev_txid': …, 'prev_<value>': …}"
            )
        names_by_lower[name.lower()] = name


def check_time_column(columns: Schema, name: str, table: str, option: str) -> None:
    """Raise `ConfigError` unless a column is a timestamp. `option` is where its user names it."""
    times = [column.name for column in columns if column.type == "timestamp"]
    if name not in times:
        raise ConfigError(
            f"state {table}: {option} names {name!r}, which is no timestamp column of its key or values; it has "
            f"{', '.join(times) or 'none'}: declare one, for example values='count long, seen timestamp'"
        )


def check_key_types(key: Schema, owner: str) -> None:
    """Raise `ConfigError` for key columns whose values can't be compared for equality."""
    for column in key:
        if column.type in ("float", "double"):
            raise ConfigError(
                f"{owner}: key column {column.name!r} is a {column.type}; floating-point numbers are not "
                "reliably equal: use decimal(p,s), long or string"
            )
        if column.type.startswith(("array", "map", "struct")):
            raise ConfigError(f"{owner}: key column {column.name!r} is nested; use its parts as key columns")
