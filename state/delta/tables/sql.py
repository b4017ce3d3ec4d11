"""The SQL of states in Delta tables, for DataFusion and Spark: aggregates of values, and the rows that readers see.

Both engines have to compute the same values as the Arrow code of the aggregates, to the last bit.
"""

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
    """The parts of SQL in which the two engines differ. `quote` encloses a name."""

    quote: str
    null_safe_equals: str
    """The operator of null-safe equality. `a = b OR (a IS NULL AND b IS NULL)` would cost a hundred times as much."""
    newest_aggregate: str
    """The aggregate of the value with the highest txid, with the columns `value` and `txid` to fill in."""
    is_spark: bool

    def name(self, column: str) -> str:
        """Return a column name in quotes."""
        return f"{self.quote}{column}{self.quote}"

    def time(self, us: int) -> str:
        """Return the literal of a time in microseconds since 1970."""
        if self.is_spark:
            return f"timestamp_micros({us})"
        return f"arrow_cast({us}, {_TIME})"

    @property
    def no_time(self) -> str:
        """The SQL of NULL as a value of type timestamp."""
        return "CAST(NULL AS TIMESTAMP)" if self.is_spark else _NO_TIME

    def null(self, type_: str) -> str:
        """Return NULL as a value of a type. One of a nested type is cast when it is read."""
        if type_ == "timestamp":
            return self.no_time
        return "NULL" if "<" in type_ else f"CAST(NULL AS {_to_sql_type(type_)})"

    def expired_condition(self, expiry: str, horizon: int | None) -> str:
        """Return the condition that a row with this expiry has expired by a horizon. It may be NULL."""
        return "false" if horizon is None else f"{expiry} <= {self.time(horizon)}"

    def sum_aggregate(self, column: str, type_: str) -> str:
        """Return the aggregate for the sum of a column. The engine raises an error if the sum does not fit the type.

        Sums of longs may wrap around in a session of Spark that is set so, and come back: what a state has written
        fits. One of decimals that does not fit in between would be NULL there.
        """
        if self.is_spark:
            if not type_.startswith("decimal"):
                return f"sum({column})"
            error = f"raise_error('a sum does not fit {type_}')"
            return f"CASE WHEN sum({column}) IS NULL AND count({column}) > 0 THEN {error} ELSE sum({column}) END"
        wide = _choose_sum_type(type_)
        return f"sum({column})" if wide is None else f"CAST(sum(CAST({column} AS {wide})) AS {_to_sql_type(type_)})"

    def partial_sum_aggregate(self, column: str, type_: str) -> str:
        """Return the aggregate for a sum that is added to another sum. Its type may be wider than `type_`."""
        wide = None if self.is_spark else _choose_sum_type(type_)
        return self.sum_aggregate(column, type_) if wide is None else f"sum(CAST({column} AS {wide}))"

    def sum_expression(self, stored: str, part: str, type_: str) -> str:
        """Return the sum of a stored value and a partial sum. NULL counts as nothing.

        The engine raises an error if the sum does not fit the type: Spark in ANSI mode, DataFusion by the wider type.
        """
        wide = None if self.is_spark else _choose_sum_type(type_)
        if wide is None:
            return f"COALESCE({stored} + {part}, {part}, {stored})"
        wider = f"CAST({stored} AS {wide})"
        return f"CAST(COALESCE({wider} + {part}, {part}, {wider}) AS {_to_sql_type(type_)})"

    def extreme_aggregate(self, function: str, column: str, type_: str) -> str:
        """Return the aggregate `min` or `max` of a column. NaN is the greatest number.

        DataFusion's own takes NaN for the smallest one too, and the largest finite number for infinity.
        """
        if self.is_spark or type_ not in ("float", "double"):
            return f"{function}({column})"
        if function == "min":
            return f"first_value({column} ORDER BY {column} ASC NULLS LAST)"
        return f"last_value({column} ORDER BY {column} ASC NULLS FIRST)"


_SQL_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "int": "INT", "long": "BIGINT"}


def _to_sql_type(type_: str) -> str:
    return _SQL_TYPES.get(type_, type_)


def _choose_sum_type(type_: str) -> str | None:
    """Return a type that holds the sum of any number of values, or None if sums of the type are not exact anyway."""
    if type_.startswith("decimal"):
        precision, scale = type_[len("decimal(") : -1].split(",")
        # DataFusion adds ten digits by itself; above 38 they are slower to add up.
        return f"DECIMAL({precision if int(precision) <= 28 else 48},{scale})"
    return "DECIMAL(38,0)" if type_ in _SQL_TYPES else None


DATA_FUSION = Dialect('"', "IS NOT DISTINCT FROM", "last_value({value} ORDER BY {txid})", is_spark=False)
SPARK_SQL = Dialect("`", "<=>", "max_by({value}, {txid})", is_spark=True)
DIALECTS = {"datafusion": DATA_FUSION, "spark": SPARK_SQL}


def build_combine_sql(function: str, stored: str, partial: str, type_: str, dialect: Dialect) -> str:
    """Return the SQL that combines a partial aggregate with a stored value, as `combine_columns` does in Arrow.

    NULL counts as nothing, except for `last`. A sum that does not fit the type is an error of the engine.
    """
    match function:
        case "last":
            return partial
        case "sum":
            return dialect.sum_expression(stored, partial, type_)
        case "min" | "max":
            better = "<" if function == "min" else ">"
            return (
                f"CASE WHEN {partial} IS NULL THEN {stored} WHEN {stored} IS NULL OR {partial} {better} {stored} "
                f"THEN {partial} ELSE {stored} END"
            )
    raise unknown_combine_error(function)


def build_aggregate_sql(function: str, column: str, txid: str, type_: str, dialect: Dialect, *, is_part: bool) -> str:
    """Return the SQL aggregate that combines the values of several rows; for `last` it is that of the highest `txid`.

    The sum of a part may be wider than its type.
    """
    match function:
        case "last":
            return dialect.newest_aggregate.format(value=column, txid=txid)
        case "sum":
            return dialect.partial_sum_aggregate(column, type_) if is_part else dialect.sum_aggregate(column, type_)
        case "min" | "max":
            return dialect.extreme_aggregate(function, column, type_)
    raise unknown_combine_error(function)


def select_unexpired_rows(query: str, columns: StateColumns, dialect: Dialect, horizon: int | None) -> str:
    """Return a query for the rows of a query, key and value columns, that have not expired by a horizon."""
    if columns.expires is None or horizon is None:
        return query
    names = ", ".join(map(dialect.name, [*columns.key.names, *columns.values.names]))
    is_gone = dialect.expired_condition(dialect.name(columns.expires), horizon)
    return f"SELECT {names} FROM ({query}) e WHERE NOT COALESCE({is_gone}, false)"


def select_range(query: str, columns: StateColumns, dialect: Dialect, column: str, start: int | None, end: int) -> str:
    """Return a query for the rows of a query, key and value columns, with `start < column <= end`."""
    names = ", ".join(map(dialect.name, [*columns.key.names, *columns.values.names]))
    return f"SELECT {names} FROM ({query}) r WHERE {build_range_condition(dialect, column, start, end)}"


def build_range_condition(dialect: Dialect, column: str, start: int | None, end: int) -> str:
    """Return the condition `start < column <= end`."""
    name = dialect.name(column)
    start_condition = "" if start is None else f"{name} > {dialect.time(start)} AND "
    return f"{start_condition}{name} <= {dialect.time(end)}"


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

    def either(self, first: str, second: str) -> str:
        return f"{first} OR {second}"

    def choose(self, condition: str, chosen: str, otherwise: str) -> str:
        return f"CASE WHEN {condition} THEN {chosen} ELSE {otherwise} END"


def select_visible_rows(columns: StateColumns, end_txid: TxId | None, dialect: Dialect, source: str = "t") -> str:
    """Return a query for the rows of a table, key and value columns, as they were before transaction `end_txid`.

    Rows that had expired are among them.
    """
    as_of = ColumnsAsOf.before_transaction(columns, end_txid, _Terms(dialect))
    keys = [dialect.name(name) for name in columns.key.names]
    values = [f"{as_of.value_column(name)} AS {dialect.name(name)}" for name in columns.values.names]
    condition = "" if as_of.row_filter is None else f" WHERE {as_of.row_filter}"
    return f"SELECT {', '.join([*keys, *values])} FROM {source}{condition}"
