"""Transactional topologies on Spark: every tuple counts exactly once, whatever fails."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transactional.core.ports import StateKind
    from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
    from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
    from transactional.model.config import TopologyConfig
    from transactional.model.errors import (
        ConfigError,
        FailedException,
        FatalError,
        OperatingError,
        SchemaMismatch,
        TransactionalError,
    )
    from transactional.model.groupings import CustomStreamGrouping
    from transactional.model.schema import Schema
    from transactional.model.user_code.tuples import Tuple
    from transactional.operations.launch.running import run_topology, start_topology
    from transactional.operations.launch.topology_run import TopologyRun
    from transactional.runtime.engine.driver import TopologyDriver
    from transactional.runtime.engine.history.run_history import RunSummary
    from transactional.topology.bolts.bolts import (
        ArrowBatchBolt,
        BasicBolt,
        BatchBolt,
        MapState,
        OutputCollector,
        TopologyContext,
    )
    from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
    from transactional.topology.builder import TransactionalTopologyBuilder
    from transactional.topology.topology import Topology
    from transactional.topology.windows.join_bolt import JoinBolt
    from transactional.topology.windows.windowed import TupleWindow, WindowedBolt
    from transactional.topology.windows.windows import count, sliding, tumbling
    from transactional.topology.wiring import WeakerGuaranteeWarning

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
    "JoinBolt",
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
    "TopologyRun",
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
    "start_topology",
    "tumbling",
]

_HOMES: Final = {
    "core.ports": "StateKind",
    "model.attempt": "AttemptId TransactionAttempt TxId",
    "model.batch": "BatchLimit BatchMetadata OffsetRange PartitionId",
    "model.config": "TopologyConfig",
    "model.errors": "ConfigError FailedException FatalError OperatingError SchemaMismatch TransactionalError",
    "model.groupings": "CustomStreamGrouping",
    "model.schema": "Schema",
    "model.user_code.tuples": "Tuple",
    "operations.launch.running": "run_topology start_topology",
    "operations.launch.topology_run": "TopologyRun",
    "runtime.engine.driver": "TopologyDriver",
    "runtime.engine.history.run_history": "RunSummary",
    "topology.bolts.bolts": "ArrowBatchBolt BasicBolt BatchBolt MapState OutputCollector TopologyContext",
    "topology.bolts.stateful": "KeyValueState StatefulBolt",
    "topology.builder": "TransactionalTopologyBuilder",
    "topology.topology": "Topology",
    "topology.windows.join_bolt": "JoinBolt",
    "topology.windows.windowed": "TupleWindow WindowedBolt",
    "topology.windows.windows": "count sliding tumbling",
    "topology.wiring": "WeakerGuaranteeWarning",
}
"""Where each name is. Its module is imported when the name is first used: the command line, a task and a program need
few of them each."""
_HOME_OF: Final = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        from transactional.model.user_code.storm_names import make_class_error

        raise make_class_error(name) or AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_HOME_OF[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
