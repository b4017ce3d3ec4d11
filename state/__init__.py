"""States: tables that committers keep, exactly once. Public names."""

from __future__ import annotations

from state.dead_letters import DeadLetterTable
from state.delta.segments.folding import LogLayout
from state.delta.state import DeltaMapState
from state.delta.static import StaticDeltaTable
from state.delta.tables.table import DeltaLocation, catalog_table
from state.memory import MemoryMapState, MemoryTable
from state.redis.state import RedisMapState
from state.sql.state import SqlMapState
from state.store.sql_store import SqlCoordinatorStore
from state.updates import StateUpdate
from state.values import OpaqueValue, StoredValue
from transactional.absent import ABSENT
from transactional.aggregates import Aggregate, Avg, Count, Max, Min, Sum

__all__ = [
    "ABSENT",
    "Aggregate",
    "Avg",
    "Count",
    "DeadLetterTable",
    "DeltaLocation",
    "DeltaMapState",
    "LogLayout",
    "Max",
    "MemoryMapState",
    "MemoryTable",
    "Min",
    "OpaqueValue",
    "RedisMapState",
    "SqlCoordinatorStore",
    "SqlMapState",
    "StateUpdate",
    "StaticDeltaTable",
    "StoredValue",
    "Sum",
    "catalog_table",
]
