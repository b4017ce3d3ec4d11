"""Providers: functions that make the state of a stateful bolt from the URL in `state_provider`. Keys of all of them
can be deleted.

The provider of a URL scheme is not looked up here, but among entry points, by `transactional.core.ports.providing`.
"""

from __future__ import annotations

from state.delta.state import DeltaMapState
from state.memory import MemoryMapState, MemoryTable
from state.redis.state import RedisMapState
from state.sql.state import SqlMapState
from transactional.model.errors import ConfigError


def in_memory(url: str, topology_id: str, component_id: str, key: str, values: str) -> MemoryMapState:
    """`memory`: in this process, and gone with it."""
    if url != "memory":
        raise ConfigError(f"state_provider {url!r}: the provider in memory takes nothing more; write 'memory'")
    table = MemoryTable(f"{topology_id}/{component_id}")
    return MemoryMapState(_key(key), values, table=table, deletes=True)


def in_sql(url: str, topology_id: str, component_id: str, key: str, values: str) -> SqlMapState:
    """The URL of a SQLite file or a PostgreSQL database: there the table `<topology>_<component>`."""
    return SqlMapState(url, f"{topology_id}_{component_id}", _key(key), values, deletes=True)


def in_redis(url: str, topology_id: str, component_id: str, key: str, values: str) -> RedisMapState:
    """The URL of a Redis server: there the table `<topology>_<component>`."""
    return RedisMapState(url, f"{topology_id}_{component_id}", _key(key), values, deletes=True)


def in_delta(url: str, topology_id: str, component_id: str, key: str, values: str) -> DeltaMapState:
    """`delta:tables/{component}`, or `delta+log:…` for the log layout: the path or URI of a Delta table."""
    scheme, _, table = url.partition(":")
    layouts = {"delta": "auto", "delta+merge": "merge", "delta+log": "log"}
    if scheme not in layouts or not table:
        raise ConfigError(
            f"state_provider {url!r} names no Delta table: write delta:tables/{{component}}, or delta+log:… for the "
            "log layout"
        )
    return DeltaMapState(table, _key(key), values, layout=layouts[scheme], deletes=True)


def _key(key: str) -> str | tuple[str, ...]:
    """A DDL string, or no columns at all."""
    return key or ()
