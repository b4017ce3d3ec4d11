"""States: tables that committers keep, exactly once. Public names."""

from typing import TYPE_CHECKING, Final

from transactional.model.plumbing.lazy import lazy_names

if TYPE_CHECKING:
    from state.dead_letters import DeadLetterTable
    from state.delta.segments.log_layout import LogLayout
    from state.delta.state import DeltaMapState
    from state.delta.static import StaticDeltaTable
    from state.delta.tables.table import DeltaLocation, catalog_table
    from state.memory import MemoryMapState, MemoryTable
    from state.redis.state import RedisMapState
    from state.rows.stored_value import OpaqueValue, StoredValue
    from state.sql.state import SqlMapState
    from state.updates import StateUpdate
    from transactional.core.store.sql.sql_store import SqlCoordinatorStore
    from transactional.model.absent import ABSENT
    from transactional.model.aggregates import Aggregate, Avg, Count, First, Last, Max, Min, Sum

__all__ = [
    "ABSENT",
    "Aggregate",
    "Avg",
    "Count",
    "DeadLetterTable",
    "DeltaLocation",
    "DeltaMapState",
    "First",
    "Last",
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

_HOMES: Final = {
    "state.dead_letters": "DeadLetterTable",
    "state.delta.segments.log_layout": "LogLayout",
    "state.delta.state": "DeltaMapState",
    "state.delta.static": "StaticDeltaTable",
    "state.delta.tables.table": "DeltaLocation catalog_table",
    "state.memory": "MemoryMapState MemoryTable",
    "state.redis.state": "RedisMapState",
    "state.sql.state": "SqlMapState",
    "transactional.core.store.sql.sql_store": "SqlCoordinatorStore",
    "state.updates": "StateUpdate",
    "state.rows.stored_value": "OpaqueValue StoredValue",
    "transactional.model.absent": "ABSENT",
    "transactional.model.aggregates": "Aggregate Avg Count First Last Max Min Sum",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
