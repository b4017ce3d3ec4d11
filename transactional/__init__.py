"""Transactional topologies on Spark: every tuple counts exactly once, whatever fails."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.bolts import (
    ArrowBatchBolt,
    BasicBolt,
    BatchBolt,
    MapState,
    OutputCollector,
    TopologyContext,
    Tuple,
)
from transactional.config import TopologyConfig
from transactional.errors import (
    ConfigError,
    FailedException,
    FatalError,
    OperatingError,
    SchemaMismatch,
    TransactionalError,
)
from transactional.groupings import CustomStreamGrouping
from transactional.ports import StateKind
from transactional.running import run_topology
from transactional.schema import Schema
from transactional.stateful import KeyValueState, StatefulBolt
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from transactional.topology.windows import count, sliding, tumbling
from transactional.topology.wiring import WeakerGuaranteeWarning
from transactional.windowed import TupleWindow, WindowedBolt

if TYPE_CHECKING:
    from transactional.engine.driver import TopologyDriver
    from transactional.engine.history.run_history import RunSummary

__all__ = [
    "ArrowBatchBolt",
    "AttemptId",
    "BasicBolt",
    "BatchBolt",
    "BatchLimit",
    "BatchMetadata",
    "ConfigError",
    "CustomStreamGrouping",
    "FailedException",
    "FatalError",
    "KeyValueState",
    "MapState",
    "OffsetRange",
    "OperatingError",
    "OutputCollector",
    "PartitionId",
    "RunSummary",
    "Schema",
    "SchemaMismatch",
    "StateKind",
    "StatefulBolt",
    "Topology",
    "TopologyConfig",
    "TopologyContext",
    "TopologyDriver",
    "TransactionAttempt",
    "TransactionalError",
    "TransactionalTopologyBuilder",
    "Tuple",
    "TupleWindow",
    "TxId",
    "WeakerGuaranteeWarning",
    "WindowedBolt",
    "count",
    "run_topology",
    "sliding",
    "tumbling",
]

_WHEN_USED = {
    "RunSummary": "transactional.engine.history.run_history",
    "TopologyDriver": "transactional.engine.driver",
}
"""Only those who run a topology need them: tasks, which import this package as well, do not."""


def __getattr__(name: str) -> Any:
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_WHEN_USED[name]), name))
