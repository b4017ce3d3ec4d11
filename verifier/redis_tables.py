"""The tables of states in Redis, copied at one moment into a database in memory, to be checked as those in SQL."""

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
class Copied:
    """A table as it was at one moment. `names` None: there is none."""

    connection: Connection
    names: tuple[str, ...] | None
    owner: str = ""
    attempt_id: int | None = None
    expires: str | None = None
    horizons: ExpiryHorizons | None = None
    length: int | None = None
    """How many rows it has noted that it has; None: nobody has written it yet."""


@contextmanager
def copied(url: str, table: str, *, deletes: bool, what: str) -> Iterator[Copied]:
    """Copy a table; with `deletes` its rows have the mark of a tombstone, even if none is one.

    Raises `CheckImpossible` when the server can't be read, or has rows that no table can hold.
    """
    meta, stored = _read(url, table, what)
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        with engine.connect() as connection:
            if meta["owner"] is None:
                yield Copied(connection, None)
                return
            check_layout(meta["layout"], f"table {table!r}")
            keys, both = named(meta["key"] or ""), named(meta["columns"] or "")
            values = both[len(keys) :]
            rows = [_row(key, row, len(keys), len(values)) for key, row in stored.items()]
            marks = ("deleted",) if deletes or any(row[-1] for row in rows) else ()
            names = (*both, "txid", "prev_txid", *(f"prev_{name}" for name in values), *marks)
            _fill(connection, table, names, [row if marks else row[:-1] for row in rows])
            horizons = None if meta["horizons"] is None else ExpiryHorizons(*json.loads(meta["horizons"]))
            attempt_id = None if meta["attempt"] is None else int(meta["attempt"])
            noted = None if meta["length"] is None else int(meta["length"])
            yield Copied(connection, names, meta["owner"], attempt_id, meta["expires"], horizons, noted)
    except SQLAlchemyError as error:
        raise CheckImpossible(f"the {what} can't be read: {error}") from error
    finally:
        engine.dispose()


def named(ddl: str) -> tuple[str, ...]:
    """The names of the columns in a declaration of them."""
    return tuple(match[1] or match[2] for match in _COLUMN.finditer(ddl))


def _read(url: str, table: str, what: str) -> tuple[dict[str, str | None], dict[bytes, bytes]]:
    try:
        import redis

        client = redis.Redis.from_url(url)
    except (ModuleNotFoundError, ValueError) as error:
        raise CheckImpossible(f"the {what} can't be opened: {type(error).__name__}") from error
    try:
        with closing(client), client.pipeline(transaction=True) as together:
            together.hmget(f"{{{table}}}:meta", list(_META))
            together.hgetall(f"{{{table}}}:rows")
            told, stored = together.execute()
    except (redis.exceptions.RedisError, OSError) as error:
        raise CheckImpossible(f"the {what} can't be read: {error}") from error
    return {name: None if each is None else each.decode() for name, each in zip(_META, told, strict=True)}, stored


def _row(key: bytes, row: bytes, keys: int, values: int) -> tuple[object, ...]:
    """Key, values, txid, previous txid, previous values, and whether it is a tombstone. One that can't be read has no
    txid, which no row may lack."""
    try:
        named, (now, txid, before, prev_txid) = json.loads(key), json.loads(row)
        whole = [*named, *(now or [None] * values), txid, prev_txid, *(before or [None] * values)]
        if len(whole) == keys + 2 * values + 2 and len(named) == keys and all(map(_is_plain, whole)):
            return (*whole, now is None)
    except (ValueError, TypeError):
        pass
    return (*([repr(key)] * keys), *([None] * (2 * values + 2)), False)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _fill(connection: Connection, table: str, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    def quoted(name: str) -> str:
        doubled = name.replace('"', '""')
        return f'"{doubled}"'

    columns, places = ", ".join(map(quoted, names)), ", ".join("?" for _ in names)
    connection.exec_driver_sql(f"CREATE TABLE {quoted(table)} ({columns})")
    if rows:
        connection.exec_driver_sql(f"INSERT INTO {quoted(table)} VALUES ({places})", list(rows))
