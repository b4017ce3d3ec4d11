"""The SQL of states in Delta tables, for both engines: how values are combined, and what a reader sees."""

from __future__ import annotations

from dataclasses import dataclass

from state.rows.columns import StateColumns
from state.rows.opaque_columns import ColumnsAsOf
from transactional.core.ports import unknown_combine_error
from transactional.model.attempt import TxId

_TIME = """'Timestamp(Microsecond, Some("UTC"))'"""
_NO_TIME = f"arrow_cast(NULL, {_TIME})"


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

    def time(self, us: int) -> str:
        """A time, in microseconds since 1970."""
        if self.is_spark:
            return f"timestamp_micros({us})"
        return f"arrow_cast({us}, {_TIME})"

    @property
    def no_time(self) -> str:
        """NULL, as a time."""
        return "CAST(NULL AS TIMESTAMP)" if self.is_spark else _NO_TIME

    def null(self, type_: str) -> str:
        """NULL, as a value of a type; one that is nested is cast when it is read."""
        if type_ == "timestamp":
            return self.no_time
        return "NULL" if "<" in type_ else f"CAST(NULL AS {_sql_type(type_)})"

    def has_expired(self, expiry: str, horizon: int | None) -> str:
        """The condition that a row of this expiry does not exist by a horizon; it may be NULL."""
        return "false" if horizon is None else f"{expiry} <= {self.time(horizon)}"

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
        """The aggregate for a sum that is to be added to another one: it may be wider than the type."""
        wide = None if self.is_spark else _widest(type_)
        return self.summed(value, type_) if wide is None else f"sum(CAST({value} AS {wide}))"

    def sum_expression(self, stored: str, part: str, type_: str) -> str:
        """The sum of a stored value and a partial one, or a `total`; NULL counts as nothing.

        An error where it does not fit the type: Spark raises one by itself in ANSI mode, DataFusion's wrap around.
        """
        wide = None if self.is_spark else _widest(type_)
        if wide is None:
            return f"COALESCE({stored} + {part}, {part}, {stored})"
        wider = f"CAST({stored} AS {wide})"
        return f"CAST(COALESCE({wider} + {part}, {part}, {wider}) AS {_sql_type(type_)})"

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


def combined_sql(how: str, stored: str, partial: str, type_: str, dialect: Dialect) -> str:
    """Return the SQL that combines a partial aggregate with a stored value, by the rule of `values.combine_columns`.

    NULL counts as nothing, except for `last`. A sum that does not fit the type is an error of the engine.
    """
    match how:
        case "last":
            return partial
        case "sum":
            return dialect.sum_expression(stored, partial, type_)
        case "min" | "max":
            better = "<" if how == "min" else ">"
            return (
                f"CASE WHEN {partial} IS NULL THEN {stored} WHEN {stored} IS NULL OR {partial} {better} {stored} "
                f"THEN {partial} ELSE {stored} END"
            )
    raise unknown_combine_error(how)


def aggregated_sql(how: str, value: str, txid: str, type_: str, dialect: Dialect, *, is_part: bool) -> str:
    """As `combined_sql`, of the values of several rows: an aggregate, by their `txid` the newest one for `last`. The
    sum of a part may be wider than its type."""
    match how:
        case "last":
            return dialect.newest.format(value=value, txid=txid)
        case "sum":
            return dialect.total(value, type_) if is_part else dialect.summed(value, type_)
        case "min" | "max":
            return dialect.extreme(how, value, type_)
    raise unknown_combine_error(how)


def alive_view(query: str, columns: StateColumns, dialect: Dialect, horizon: int | None) -> str:
    """Of a query for key and value columns the rows that have not expired by a horizon."""
    if columns.expires is None or horizon is None:
        return query
    names = ", ".join(map(dialect.name, [*columns.key.names, *columns.values.names]))
    is_gone = dialect.has_expired(dialect.name(columns.expires), horizon)
    return f"SELECT {names} FROM ({query}) e WHERE NOT COALESCE({is_gone}, false)"


def in_range(query: str, columns: StateColumns, dialect: Dialect, column: str, after: int | None, until: int) -> str:
    """Of a query for key and value columns the rows with `after < column <= until`."""
    names = ", ".join(map(dialect.name, [*columns.key.names, *columns.values.names]))
    return f"SELECT {names} FROM ({query}) r WHERE {is_in_range(dialect, column, after, until)}"


def is_in_range(dialect: Dialect, column: str, after: int | None, until: int) -> str:
    """The condition `after < column <= until`."""
    name = dialect.name(column)
    is_late = "" if after is None else f"{name} > {dialect.time(after)} AND "
    return f"{is_late}{name} <= {dialect.time(until)}"


@dataclass(frozen=True, slots=True)
class _Terms:
    """The columns of a table in SQL (see `state.rows.opaque_columns`)."""

    dialect: Dialect

    def column(self, name: str) -> str:
        return self.dialect.name(name)

    def is_below(self, name: str, txid: int) -> str:
        return f"{self.column(name)} < {txid}"

    def is_there(self, name: str) -> str:
        return f"{self.column(name)} IS NOT NULL"

    def is_unset(self, name: str) -> str:
        return f"NOT COALESCE({self.column(name)}, false)"

    def either(self, one: str, other: str) -> str:
        return f"{one} OR {other}"

    def choose(self, condition: str, value: str, otherwise: str) -> str:
        return f"CASE WHEN {condition} THEN {value} ELSE {otherwise} END"


def visible_rows(columns: StateColumns, before: TxId | None, dialect: Dialect, source: str = "t") -> str:
    """A query on a table for its rows, key and value columns, as they were before transaction `before`. Also for those
    that had expired."""
    as_of = ColumnsAsOf.before_transaction(columns, before, _Terms(dialect))
    keys = [dialect.name(name) for name in columns.key.names]
    values = [f"{as_of.value_column(name)} AS {dialect.name(name)}" for name in columns.values.names]
    where = "" if as_of.row_filter is None else f" WHERE {as_of.row_filter}"
    return f"SELECT {', '.join([*keys, *values])} FROM {source}{where}"
