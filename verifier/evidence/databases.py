"""SQLite files and PostgreSQL databases, opened by their URLs and read at one moment; nothing in them is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from verifier.evidence.findings import CheckImpossible


def open_database(url: str, *, what: str) -> Engine:
    """`sqlite:///path` or `postgresql://…`, read-only. Raises `CheckImpossible`, which names `what`."""
    try:
        return create_engine(_url(url, what), hide_parameters=True)
    except ValueError as error:  # its text may contain a part of the password
        raise CheckImpossible(f"a {what} is sqlite:///… or postgresql://…, and this URL can't be read") from error
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        raise CheckImpossible(f"the {what} can't be opened: {error}") from error


@contextmanager
def at_one_moment(engine: Engine, *, what: str) -> Iterator[Connection]:
    """All reads inside see the state at the first read. Raises `CheckImpossible` if something can't be read."""
    try:
        with engine.connect() as connection:
            is_sqlite = engine.dialect.name == "sqlite"
            connection.exec_driver_sql(
                "BEGIN" if is_sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            )
            yield connection
    except SQLAlchemyError as error:
        raise CheckImpossible(f"the {what} can't be read: {error}") from error


def _url(url: str, what: str) -> Any:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        raise CheckImpossible(f"a {what} is sqlite:///… or postgresql://…, not {parsed.drivername}://…")
    if parsed.database in (None, "", ":memory:"):
        raise CheckImpossible(f"a {what} in memory is seen by its own process alone, and not from here")
    path = Path(str(parsed.database))
    if not path.is_file():
        raise CheckImpossible(f"there is no {what} at {path}")
    # Nothing is written, and nothing is created.
    return make_url(f"sqlite:///file:{quote(str(path.absolute()))}").update_query_dict({"mode": "ro", "uri": "true"})
