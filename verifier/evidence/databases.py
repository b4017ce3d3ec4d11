"""SQLite files and PostgreSQL databases, opened by their URLs and read at one moment; nothing in them is changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from verifier.evidence.findings import CheckImpossible

_SEARCH_PATH = re.compile(r"\s*(?:-c\s*|--)search_path=((?:\\.|[^\s\\])+)\s*")


def open_database(url: str, *, name: str) -> Engine:
    """Open `sqlite:///path` or `postgresql://…` to read it. Raises `CheckImpossible`, whose text has the `name`.

    PostgreSQL may be behind a pooler, whose sessions know no prepared statements and take no options.
    """
    try:
        parsed = _parse_url(url, name)
        if parsed.get_backend_name() == "sqlite":
            return create_engine(parsed, hide_parameters=True)
        options = parsed.query.get("options")
        schemas = _SEARCH_PATH.fullmatch(options) if isinstance(options, str) else None
        return create_engine(
            parsed.difference_update_query(["options"]) if schemas else parsed,
            connect_args={"prepare_threshold": None},
            execution_options={"schemas": re.sub(r"\\(.)", r"\1", schemas[1]) if schemas else None},
            hide_parameters=True,
        )
    except ValueError as error:  # its text may contain a part of the password
        raise CheckImpossible(f"a {name} is sqlite:///… or postgresql://…, and this URL can't be read") from error
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        raise CheckImpossible(f"the {name} can't be opened: {error}") from error


@contextmanager
def connect_at_one_moment(engine: Engine, *, name: str) -> Iterator[Connection]:
    """Open a connection whose reads all see the database as of the first. Raises `CheckImpossible` if one fails."""
    try:
        with engine.connect() as connection:
            is_sqlite = engine.dialect.name == "sqlite"
            connection.exec_driver_sql(
                "BEGIN" if is_sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            )
            if schemas := connection.get_execution_options().get("schemas"):
                connection.execute(text("SELECT set_config('search_path', :schemas, true)"), {"schemas": schemas})
            yield connection
    except SQLAlchemyError as error:
        raise CheckImpossible(f"the {name} can't be read: {error}") from error


def _parse_url(url: str, name: str) -> URL:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        raise CheckImpossible(f"a {name} is sqlite:///… or postgresql://…, not {parsed.drivername}://…")
    if parsed.host:
        raise CheckImpossible(f"a {name} in SQLite has no host; write three slashes before the path: sqlite:///…")
    if parsed.database in (None, "", ":memory:"):
        raise CheckImpossible(f"a {name} in memory is seen by its own process alone, and not from here")
    path = Path(str(parsed.database))
    if not path.is_file():
        raise CheckImpossible(f"there is no {name} at {path}")
    # Nothing is written, and nothing is created: on a read-only file system not even what readers of a WAL share.
    is_frozen = os.statvfs(path).f_flag & os.ST_RDONLY and not Path(f"{path}-wal").exists()
    options = {"mode": "ro", **({"immutable": "1"} if is_frozen else {}), "uri": "true"}
    return make_url(f"sqlite:///file:{quote(str(path.absolute()))}").update_query_dict(options)
