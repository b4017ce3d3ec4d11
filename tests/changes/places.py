"""Where the tables of a world are, and all that is stored there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from state import DeltaMapState, RedisMapState, SqlMapState
from state.delta.segments.log_layout import LogLayout
from state.memory import MemoryMapState, MemoryTable
from transactional.core.ports import State, StateKind
from transactional.model.attempt import TransactionAttempt

PLACES = ("memory", "sqlite", "merge", "log", "postgres", "redis")
DURABLE = PLACES[1:]
"""A table in memory does not know whose it is."""
LOCAL = PLACES[:4]
"""Those without a server."""
NEW = "elsewhere"
"""A table that a start may make, without rows, before it is refused."""


class Breaking:
    """A state that is written while a world watches, which may let it fail."""

    watch: Callable[[str, TransactionAttempt], AbstractContextManager[None]]
    of_table: str

    def merge(self, attempt: TransactionAttempt, partials: Any) -> None:
        with self.watch(self.of_table, attempt):
            super().merge(attempt, partials)  # type: ignore[misc]

    def put(self, attempt: TransactionAttempt, rows: Any) -> None:
        with self.watch(self.of_table, attempt):
            super().put(attempt, rows)  # type: ignore[misc]


class InMemory(Breaking, MemoryMapState):
    """In memory."""


class InDatabase(Breaking, SqlMapState):
    """In SQLite or PostgreSQL."""


class InDelta(Breaking, DeltaMapState):
    """In Delta."""


class InRedis(Breaking, RedisMapState):
    """In Redis."""


@dataclass
class Place:
    """One of `PLACES`, empty; `url` is that of its server."""

    name: str
    folder: Path
    url: str = ""
    memory: dict[str, MemoryTable] = field(default_factory=dict)
    made: list[State] = field(default_factory=list)

    def close(self) -> None:
        """Close every state that was made."""
        for state in self.made:
            state.close()

    def state(self, table: str, kind: StateKind, given: dict[str, Any]) -> Any:
        """The state of a table."""
        self.made.append(state := self._state(table, kind, given))
        return state

    def _state(self, table: str, kind: StateKind, given: dict[str, Any]) -> Any:
        if self.name == "memory":
            return InMemory(kind=kind, table=self.memory.setdefault(table, MemoryTable(table)), **given)
        if self.name == "redis":
            return InRedis(self.url, table, kind=kind, **given)
        if self.name in ("sqlite", "postgres"):
            return InDatabase(self.url or f"sqlite:///{self.folder}/tables.db", table, kind=kind, **given)
        layout: Any = LogLayout(compact_after=2) if self.name == "log" else "merge"
        return InDelta(self.folder / table, kind=kind, layout=layout, **given)

    def whole(self) -> Any:
        """All that is stored: what a start that is refused may not change."""
        if self.name == "memory":
            return {name: (table.version, dict(table.rows)) for name, table in self.memory.items() if table.version}
        if self.name == "sqlite":
            with closing(sqlite3.connect(self.folder / "tables.db")) as database:
                return [line for line in database.iterdump() if NEW not in line]
        if self.name == "postgres":
            return self._rows()
        if self.name == "redis":
            import redis

            with redis.Redis.from_url(self.url) as server:
                keys = [key for key in server.scan_iter() if NEW.encode() not in key]
                return {key: (server.hgetall if server.type(key) == b"hash" else server.smembers)(key) for key in keys}
        return {
            path: path.read_bytes()
            for path in sorted(self.folder.rglob("*.*"))
            if path.is_file() and NEW not in path.parts
        }

    def _rows(self) -> Any:
        """Of each table in the schema."""
        import psycopg
        from psycopg.sql import SQL, Identifier

        with psycopg.connect(self.url) as connection:
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            ).fetchall()
            rows = {
                name: connection.execute(SQL("SELECT * FROM {}").format(Identifier(name))).fetchall()
                for (name,) in tables
                if NEW not in name
            }
        return {name: sorted(repr(row) for row in of if NEW not in repr(row)) for name, of in rows.items()}
