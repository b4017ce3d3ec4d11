"""The SQL types of a state's columns. Values come back unchanged, on SQLite too, which has few types."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import (
    REAL,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from transactional.model.errors import ConfigError
from transactional.model.schema import Field

NAME_BYTES_MAX: Final = 63
"""PostgreSQL truncates longer names."""
_POSTGRES_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Columns that PostgreSQL itself adds to every table."""


class _DecimalText(TypeDecorator[Decimal]):
    """Stores a decimal as text, since SQLite would make it a floating-point number."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Decimal | None:
        return None if value is None else Decimal(value)


class _UtcText(TypeDecorator[datetime.datetime]):
    """Stores a time in UTC, since SQLite stores times as text without a zone."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:
        return None if value is None else value.astimezone(datetime.UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime.datetime | None, dialect: Dialect) -> datetime.datetime | None:
        return None if value is None else value.replace(tzinfo=datetime.UTC)


class _DoubleOrNan(UserDefinedType[float]):
    """Stores NaN as text, since SQLite would make it NULL."""

    cache_ok = True

    def get_col_spec(self, **_options: object) -> str:
        return "DOUBLE"

    def bind_processor(self, dialect: Dialect) -> Callable[[float | None], float | str | None]:
        return lambda number: "NaN" if number is not None and math.isnan(number) else number

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[float | str | None], float | None]:
        return lambda stored: None if stored is None else float(stored)


_TYPES: Final[dict[str, TypeEngine[Any]]] = {
    "string": Text(),
    "binary": LargeBinary(),
    "boolean": Boolean(),
    "byte": SmallInteger(),
    "short": SmallInteger(),
    "int": Integer(),
    "long": BigInteger(),
    "float": REAL(),
    "double": Double(),
    "date": Date(),
    "timestamp": DateTime(timezone=True),
}
_TYPES_OF_SQLITE: Final[dict[str, TypeEngine[Any]]] = {
    "float": _DoubleOrNan(),
    "double": _DoubleOrNan(),
    "timestamp": _UtcText(),
}


def sql_type(name: str, *, is_sqlite: bool) -> TypeEngine[Any]:
    """Return the SQL type for the name of a Spark type, such as `decimal(10,2)`."""
    if not name.startswith("decimal"):
        return _TYPES_OF_SQLITE.get(name, _TYPES[name]) if is_sqlite else _TYPES[name]
    precision, scale = name[len("decimal(") : -1].split(",")
    return _DecimalText() if is_sqlite else Numeric(int(precision), int(scale))


def check_name(name: str, table: str) -> None:
    """Raise `ConfigError` for a table or column name that can't be used.

    It is empty, PostgreSQL would truncate it, or it has a zero byte or SQLAlchemy's mark of a parameter, which can't be
    quoted.
    """
    if not name.strip() or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(f"state {table}: the name {name!r} must have 1 to {NAME_BYTES_MAX} bytes; shorten it")
    if "\0" in name or "%(" in name:
        raise ConfigError(f"state {table}: the name {name!r} contains a zero byte or '%('; choose another one")


def check_columns(columns: Iterable[Field], table: str) -> None:
    """Raise `ConfigError` for columns that a SQL table can't hold."""
    for column in columns:
        check_name(column.name, table)
        if column.name in _POSTGRES_COLUMNS:
            raise ConfigError(
                f"state {table}: PostgreSQL has a column {column.name!r} of its own; name yours otherwise"
            )
        if column.type not in _TYPES and not column.type.startswith("decimal"):
            raise ConfigError(
                f"state {table}: column {column.name!r} is a {column.type}, which a SQL table can't store; use its "
                "parts as columns, or a state in Delta"
            )
