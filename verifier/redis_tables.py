"""The tables of states in Redis, copied at one moment into a database in memory.

There they are checked like SQL tables. The names of keys and fields, and the form of rows, are written here once more,
without the code of the states.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from verifier.evidence.findings import CheckImpossible
from verifier.horizons import ExpiryHorizons
from verifier.rows import check_layout

SCHEMES: Final = ("redis", "rediss", "unix")
_COLUMN = re.compile(r"(?:^|, )(?:`([^`]*)`|(\w+)) \w+(?:\([\d,]*\))?")
_META: Final = ("layout", "owner", "attempt", "key", "columns", "expires", "horizons", "length")


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A copy of a table, with what is recorded beside it. `names` are those of its columns, None: there is no table."""

    connection: Connection
    names: tuple[str, ...] | None
    owner: str = ""
    attempt_id: int | None = None
    expires: str | None = None
    horizons: ExpiryHorizons | None = None
    length: int | None = None
    """The recorded number of rows, None if nobody has written the table yet."""


@contextmanager
def copy_table(url: str, table: str, *, deletes: bool, name: str) -> Iterator[TableCopy]:
    """Copy a table. With `deletes` it gets a column for tombstones, even if no row is one.

    Raises `CheckImpossible` when the server can't be read, or has rows that no table can hold.
    """
    meta, stored = _read(url, table, name)
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        with engine.connect() as connection:
            if meta["owner"] is None:
                yield TableCopy(connection, None)
                return
            check_layout(meta["layout"], f"table {table!r}")
            keys, columns = parse_names(meta["key"] or ""), parse_names(meta["columns"] or "")
            values = columns[len(keys) :]
            rows = [_parse_row(key, row, len(keys), len(values)) for key, row in stored.items()]
            marks = ("deleted",) if deletes or any(row[-1] for row in rows) else ()
            previous = (f"prev_{value_name}" for value_name in values)
            names = (*columns, "txid", "prev_txid", *previous, *marks)
            _fill(connection, table, names, [row if marks else row[:-1] for row in rows])
            horizons = None if meta["horizons"] is None else ExpiryHorizons(*json.loads(meta["horizons"]))
            attempt_id = None if meta["attempt"] is None else int(meta["attempt"])
            length = None if meta["length"] is None else int(meta["length"])
            yield TableCopy(connection, names, meta["owner"], attempt_id, meta["expires"], horizons, length)
    except SQLAlchemyError as error:
        raise CheckImpossible(f"the {name} can't be read: {error}") from error
    finally:
        engine.dispose()


def parse_names(ddl: str) -> tuple[str, ...]:
    """Return the names of the columns in a DDL string."""
    return tuple(match[1] or match[2] for match in _COLUMN.finditer(ddl))


def _read(url: str, table: str, name: str) -> tuple[dict[str, str | None], dict[bytes, bytes]]:
    try:
        import redis

        client = redis.Redis.from_url(url)
    except (ModuleNotFoundError, ValueError) as error:
        raise CheckImpossible(f"the {name} can't be opened: {type(error).__name__}") from error
    try:
        with closing(client), client.pipeline(transaction=True) as together:
            together.hmget(f"{{{table}}}:meta", list(_META))
            together.hgetall(f"{{{table}}}:rows")
            fields, stored = together.execute()
    except (redis.exceptions.RedisError, OSError) as error:
        raise CheckImpossible(f"the {name} can't be read: {error}") from error
    texts = (None if field is None else field.decode() for field in fields)
    return dict(zip(_META, texts, strict=True)), stored


def _parse_row(key: bytes, row: bytes, keys: int, values: int) -> tuple[object, ...]:
    """Return key, values, txid, previous txid, previous values, and whether the row is a tombstone. A row that can't be
    read gets no txid, which the check of rows then reports."""
    try:
        key_fields, (current, txid, previous, prev_txid) = json.loads(key), json.loads(row)
        fields = [*key_fields, *(current or [None] * values), txid, prev_txid, *(previous or [None] * values)]
        if len(fields) == keys + 2 * values + 2 and len(key_fields) == keys and all(map(_is_plain, fields)):
            return (*fields, current is None)
    except (ValueError, TypeError):
        pass
    return (*([repr(key)] * keys), *([None] * (2 * values + 2)), False)


def _is_plain(field: object) -> bool:
    return field is None or isinstance(field, str | int | float | bool)


def _fill(connection: Connection, table: str, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    def quoted(name: str) -> str:
        doubled = name.replace('"', '""')
        return f'"{doubled}"'

    columns, placeholders = ", ".join(map(quoted, names)), ", ".join("?" for _ in names)
    connection.exec_driver_sql(f"CREATE TABLE {quoted(table)} ({columns})")
    if rows:
        connection.exec_driver_sql(f"INSERT INTO {quoted(table)} VALUES ({placeholders})", list(rows))
