"""SQLAlchemy compiles each statement once for each engine, and nearly each test has engines of its own: a third of the
time of those with a store. Here all engines of SQLite share what one of them has compiled."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

SIZE = 2_000


class Compiled:
    """In place of an engine's attribute: the same for all of SQLite, and others' own."""

    def __init__(self) -> None:
        self._shared: LRUCache[Any, Any] = LRUCache(SIZE)

    def __get__(self, engine: Any, _owner: object = None) -> Any:
        return self._shared if isinstance(engine.dialect, SQLiteDialect_pysqlite) else engine.__dict__["_compiled"]

    def __set__(self, engine: Any, own: Any) -> None:
        engine.__dict__["_compiled"] = own


def share_statements() -> None:
    """From now on, in this process. A compiled statement is known by its dialect, too: all of SQLite are one."""
    dialect, engine = (SQLiteDialect_pysqlite, Engine)  # type: tuple[Any, Any]
    dialect.__hash__ = lambda self: hash(type(self))
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    engine._compiled_cache = Compiled()
