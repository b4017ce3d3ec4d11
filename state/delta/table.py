"""A Delta table that holds a state: where it lies, what it looks like, and what a MERGE is made of."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from state.base import StateColumns
from transactional.arrow import arrow_schema
from transactional.attempt import TransactionAttempt, TxId
from transactional.delta_errors import reason_of
from transactional.errors import ConfigError, SchemaMismatch
from transactional.names import LOG_COMMITS_PROPERTY, OWNER_NOTE, SCHEMA_VERSION_PROPERTY

SCHEMA_VERSION = 1

DEFAULT_PROPERTIES = {
    SCHEMA_VERSION_PROPERTY: str(SCHEMA_VERSION),
    "delta.checkpointInterval": "100",
    # A state table gets a Delta commit per transaction. On a disk every log file makes every later one a little slower,
    # and every removed file makes every checkpoint larger. Spark refuses tables whose log is kept for a shorter time
    # than their removed files.
    "delta.logRetentionDuration": "interval 30 minutes",
    "delta.deletedFileRetentionDuration": "interval 30 minutes",
}
COUNTED_PROPERTIES = (LOG_COMMITS_PROPERTY, "delta.checkpointInterval")
REFUSED_PROPERTIES = {
    "delta.setTransactionRetentionDuration": "it forgets which attempt wrote the table, and with it the fence",
    "delta.appendOnly": "rows of a state change",
}

PATIENCE = {"retry_timeout": "30s"}
"""How long delta-rs tries a request to an object store that does not answer, unless told; by itself 3 minutes."""

_S3_SCHEMES = ("s3", "s3a", "s3n")
_TRUE = ("1", "true", "yes", "on", "y", "ok")


@dataclass(frozen=True, slots=True)
class DeltaLocation:
    """Where a Delta table lies: a path, a URI, or a name in Spark's catalog; with the options that open its storage.

    `storage_options` are delta-rs' own, and are not shown, since there are secrets among them.
    """

    name: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_catalog_name: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a Delta table needs a path, a URI, or a name in Spark's catalog; the one given is empty")
        if not self.is_catalog_name and self.scheme in _S3_SCHEMES:
            _check_s3({**os.environ, **self.storage_options}, self.name)

    @classmethod
    def of(cls, table: str | Path | DeltaLocation, storage_options: Mapping[str, str] | None = None) -> DeltaLocation:
        """A location from what a user writes: a path or URI."""
        if isinstance(table, DeltaLocation):
            return replace(table, storage_options={**table.storage_options, **(storage_options or {})})
        made = cls(os.fspath(table), dict(storage_options or {}))
        return made if made.scheme == "file" else replace(made, storage_options={**PATIENCE, **made.storage_options})

    @classmethod
    def catalog(cls, name: str) -> DeltaLocation:
        """A table in Spark's catalog: `carriers`, `flights.carriers`, `spark_catalog.flights.carriers`."""
        return cls(name, is_catalog_name=True)

    @property
    def scheme(self) -> str:
        """The scheme of a URI in lower case, `file` for a path."""
        # One letter is a drive on Windows.
        scheme = urlsplit(self.name).scheme.lower()
        return scheme if len(scheme) > 1 else "file"

    @property
    def uri(self) -> str:
        """The absolute path or the URI. Not for a name in a catalog."""
        if self.scheme != "file":
            return self.name.rstrip("/")
        return str(Path(re.sub(r"^file:(//(?=/))?", "", self.name, flags=re.IGNORECASE)).absolute())

    @property
    def is_writable_by_spark(self) -> bool:
        """False on S3: Spark's log stores and delta-rs' conditional puts do not see each other."""
        return self.is_catalog_name or self.scheme not in _S3_SCHEMES

    def reason(self, error: BaseException) -> str:
        """What an error of delta-rs says of this table: one line, without the secrets among the options."""
        return reason_of(error, self.storage_options)

    def __str__(self) -> str:
        return self.name if self.is_catalog_name else self.uri


def catalog_table(name: str) -> DeltaLocation:
    """A Delta table in Spark's catalog, for `DeltaMapState(catalog_table("flights.carriers"), …)`."""
    return DeltaLocation.catalog(name)


def _check_s3(options: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` where two writers on S3 could overwrite each other's Delta commits."""
    lowered = {name.lower().removeprefix("aws_"): value.strip().lower() for name, value in options.items()}
    for option in ("conditional_put", "copy_if_not_exists"):
        if lowered.get(option) == "disabled":
            raise ConfigError(
                f"{table} is on S3 with {option}=disabled: two writers would overwrite each other; take the option "
                "away, S3 and most stores like it support conditional puts"
            )
    if lowered.get("s3_allow_unsafe_rename") in _TRUE:
        raise ConfigError(
            f"{table} is on S3 with AWS_S3_ALLOW_UNSAFE_RENAME: two writers would overwrite each other; take the "
            "option away"
        )
    if "s3_locking_provider" in lowered:
        raise ConfigError(
            f"{table} is on S3 with AWS_S3_LOCKING_PROVIDER, which delta-rs no longer heeds; take the option away, so "
            "that Delta commits are guarded by conditional puts"
        )


def delta_schema(columns: StateColumns) -> pa.Schema:
    """The Arrow schema of the whole table."""
    return arrow_schema(columns.all)


def check_properties(properties: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` for table properties that a state can't live with."""
    for name, reason in REFUSED_PROPERTIES.items():
        if properties.get(name, "false").lower() != "false":
            raise ConfigError(f"Delta table {table} has the property {name}: {reason}; take it away")
    for name in COUNTED_PROPERTIES:
        if not (text := properties.get(name, "1")).isdecimal() or int(text) < 1:
            raise ConfigError(f"Delta table {table} has the property {name} = {text!r}; it is a number, 1 or more")


def check_table(columns: StateColumns, found: pa.Schema, properties: Mapping[str, str], table: str) -> None:
    """Raise `SchemaMismatch` when an existing table is not the one of this state, whatever the order of its columns."""
    check_properties(properties, table)
    version = properties.get(SCHEMA_VERSION_PROPERTY, str(SCHEMA_VERSION))
    if version != str(SCHEMA_VERSION):
        raise SchemaMismatch(
            f"Delta table {table} has version {version} of the state's layout, this release knows {SCHEMA_VERSION}; "
            "run the release of transactional that wrote it, or a newer one"
        )
    expected = {column.name: column.type for column in delta_schema(columns)}
    actual = {column.name: column.type for column in found}
    if expected != actual:
        raise SchemaMismatch(
            f"Delta table {table} has the columns {_described(found)}; "
            f"the state needs {_described(delta_schema(columns))}; give the state another "
            "table, or declare it as the table is (names are compared case by case)"
        )


def is_known_protocol(reader: int, writer: int, features: frozenset[str]) -> bool:
    """Whether both, Spark and delta-rs, can write a table with this protocol."""
    return reader == 1 and (writer <= 2 or (writer == 7 and features <= {"appendOnly", "invariants"}))


def check_protocol(reader: int, writer: int, features: frozenset[str], table: str) -> None:
    """Raise `SchemaMismatch` for a table that not both, Spark and delta-rs, can write."""
    if not is_known_protocol(reader, writer, features):
        raise SchemaMismatch(
            f"Delta table {table} has protocol reader {reader}, writer {writer} with the features "
            f"{sorted(features)}; a state needs reader 1, writer 2, no deletion vectors, no column mapping: let the "
            "state create it"
        )


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the SQL of two engines."""

    quote: str
    same: str
    """The null-safe equality. `a = b OR (a IS NULL AND b IS NULL)` would cost a hundred times as much."""
    newest: str
    """The aggregate of the value with the highest txid."""
    is_spark: bool

    def name(self, column: str) -> str:
        """A quoted column name."""
        return f"{self.quote}{column}{self.quote}"

    def added(self, first: str, second: str, type_: str) -> str:
        """The sum of two values; an error where it does not fit the type.

        Spark raises one by itself, with the settings of `SparkMerge`. DataFusion's numbers wrap around.
        """
        wide = None if self.is_spark else _wider(type_)
        if wide is None:
            return f"{first} + {second}"
        return f"CAST(CAST({first} AS {wide}) + CAST({second} AS {wide}) AS {_sql_type(type_)})"

    def summed(self, value: str, type_: str) -> str:
        """The aggregate for a sum, an error where it does not fit the type.

        Sums of longs may wrap around in a session of Spark that is set so, and come back: what a state has written
        fits. One of decimals that does not fit in between would be NULL there.
        """
        if self.is_spark:
            if not type_.startswith("decimal"):
                return f"sum({value})"
            error = f"raise_error('a sum does not fit {type_}')"
            return f"CASE WHEN sum({value}) IS NULL AND count({value}) > 0 THEN {error} ELSE sum({value}) END"
        wide = _widest(type_)
        return f"sum({value})" if wide is None else f"CAST(sum(CAST({value} AS {wide})) AS {_sql_type(type_)})"

    def total(self, value: str, type_: str) -> str:
        """The aggregate for a sum that goes on to be added to another one: it may be wider than the type."""
        wide = None if self.is_spark else _widest(type_)
        return self.summed(value, type_) if wide is None else f"sum(CAST({value} AS {wide}))"

    def met(self, stored: str, total: str, type_: str) -> str:
        """A stored value and a `total`, as one value of the type; an error where it does not fit."""
        wide = None if self.is_spark else _widest(type_)
        if wide is None:
            return f"COALESCE({self.added(stored, total, type_)}, {total}, {stored})"
        wider = f"CAST({stored} AS {wide})"
        return f"CAST(COALESCE({wider} + {total}, {total}, {wider}) AS {_sql_type(type_)})"

    def extreme(self, how: str, value: str, type_: str) -> str:
        """The aggregate for `min` or `max`; NaN is the greatest number.

        DataFusion's own takes NaN for the smallest one too, and the largest finite number for infinity.
        """
        if self.is_spark or type_ not in ("float", "double"):
            return f"{how}({value})"
        if how == "min":
            return f"first_value({value} ORDER BY {value} ASC NULLS LAST)"
        return f"last_value({value} ORDER BY {value} ASC NULLS FIRST)"


_SQL_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "int": "INT", "long": "BIGINT"}


def _sql_type(type_: str) -> str:
    return _SQL_TYPES.get(type_, type_)


def _wider(type_: str) -> str | None:
    """A type that holds the sum of two values, None: sums of this type are not exact anyway."""
    if type_.startswith("decimal"):
        precision, scale = type_[len("decimal(") : -1].split(",")
        return f"DECIMAL({int(precision) + 1},{scale})"
    return {**dict.fromkeys(_SQL_TYPES, "BIGINT"), "long": "DECIMAL(20,0)"}.get(type_)


def _widest(type_: str) -> str | None:
    """A type that holds the sum of as many values as there are, None: sums of this type are not exact anyway."""
    if type_.startswith("decimal"):
        precision, scale = type_[len("decimal(") : -1].split(",")
        # DataFusion adds ten digits by itself; above 38 they are slower to add up.
        return f"DECIMAL({precision if int(precision) <= 28 else 48},{scale})"
    return "DECIMAL(38,0)" if type_ in _SQL_TYPES else None


DATA_FUSION = Dialect('"', "IS NOT DISTINCT FROM", "last_value({value} ORDER BY {txid})", is_spark=False)
SPARK_SQL = Dialect("`", "<=>", "max_by({value}, {txid})", is_spark=True)
DIALECTS = {"datafusion": DATA_FUSION, "spark": SPARK_SQL}


@dataclass(frozen=True, slots=True)
class MergeClauses:
    """The parts of one MERGE that applies a transaction, however often it is tried.

    Target `t`, source `s`. Every row of a dead attempt of the same transaction starts again from its previous values,
    also the rows that the source does not name (row T60).
    """

    condition: str
    matched: dict[str, str]
    not_matched: dict[str, str]
    rolled_back: dict[str, str]
    is_rolled_back: str
    is_forgotten: str


def merge_clauses(columns: StateColumns, txid: TxId, combine: Mapping[str, str], dialect: Dialect) -> MergeClauses:
    """The clauses for transaction `txid`; column names are keys in the dialect's quotes."""
    quoted = dialect.name
    own = f"t.{quoted(columns.txid)} = {txid}"
    prev_txid = f"t.{quoted(columns.prev_txid)}"
    before = {
        v: f"CASE WHEN {own} THEN t.{quoted(columns.prev(v))} ELSE t.{quoted(v)} END" for v in columns.values.names
    }

    def met(value: str) -> str:
        partial, type_ = f"s.{quoted(value)}", columns.values[value].type
        return combined_sql(combine[value], before[value], partial, type_, dialect)

    same = (f"(t.{quoted(k)} {dialect.same} s.{quoted(k)})" for k in columns.key.names)
    return MergeClauses(
        condition=" AND ".join(same) or "true",
        matched={
            **{quoted(v): met(v) for v in before},
            **{quoted(columns.prev(v)): old for v, old in before.items()},
            quoted(columns.prev_txid): f"CASE WHEN {own} THEN {prev_txid} ELSE t.{quoted(columns.txid)} END",
            quoted(columns.txid): str(txid),
        },
        not_matched={
            **{quoted(c): f"s.{quoted(c)}" for c in (*columns.key.names, *columns.values.names)},
            quoted(columns.txid): str(txid),
        },
        rolled_back={
            **{quoted(v): f"t.{quoted(columns.prev(v))}" for v in columns.values.names},
            quoted(columns.txid): prev_txid,
        },
        is_rolled_back=f"{own} AND {prev_txid} IS NOT NULL",
        is_forgotten=f"{own} AND {prev_txid} IS NULL",
    )


def combined_sql(how: str, stored: str, partial: str, type_: str, dialect: Dialect) -> str:
    """How a partial aggregate meets a stored value of a type, the same rule as `values.combined`.

    NULL counts as nothing, except for `last`. A sum that does not fit the type is an error of the engine.
    """
    if how == "last":
        return partial
    if how == "sum":
        return f"COALESCE({dialect.added(stored, partial, type_)}, {partial}, {stored})"
    better = "<" if how == "min" else ">"
    return (
        f"CASE WHEN {partial} IS NULL THEN {stored} WHEN {stored} IS NULL OR {partial} {better} {stored} "
        f"THEN {partial} ELSE {stored} END"
    )


def with_keys(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows whose key is in `wanted`, a table of key columns; with composite keys maybe some more."""
    for name in wanted.column_names:
        rows = rows.filter(pc.is_in(rows.column(name), value_set=wanted.column(name).combine_chunks()))
    return rows


def visible_rows(columns: StateColumns, before: TxId | None, dialect: Dialect, source: str = "t") -> str:
    """A query on a table for its rows, key and value columns, as they were before transaction `before`."""
    quoted = dialect.name
    keys = [quoted(name) for name in columns.key.names]
    if before is None:
        return f"SELECT {', '.join([*keys, *map(quoted, columns.values.names)])} FROM {source}"
    is_known = f"{quoted(columns.txid)} < {before}"
    values = [
        f"CASE WHEN {is_known} THEN {quoted(name)} ELSE {quoted(columns.prev(name))} END AS {quoted(name)}"
        for name in columns.values.names
    ]
    is_seen = f"{is_known} OR {quoted(columns.prev_txid)} IS NOT NULL"
    return f"SELECT {', '.join([*keys, *values])} FROM {source} WHERE {is_seen}"


def commit_metadata(owner: str, attempt: TransactionAttempt | None, attempt_id: int) -> dict[str, str | int]:
    """What a Delta commit says about itself in the table's history."""
    transaction = {"txid": attempt.txid} if attempt is not None else {}
    return {OWNER_NOTE: owner, **transaction, "attempt_id": attempt_id}
