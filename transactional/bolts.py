"""The kinds of bolt, and the arguments of their methods. Public names."""

from transactional.model.user_code.tuples import Key, Tuple
from transactional.topology.bolts.bolts import (
    ArrowBatchBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    BoltCounter,
    BoltMetrics,
    MapState,
    OutputCollector,
    TopologyContext,
)
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.windows.join_bolt import JoinBolt
from transactional.topology.windows.windowed import TupleWindow, WindowedBolt

__all__ = [
    "ArrowBatchBolt",
    "BasicBolt",
    "BatchBolt",
    "Bolt",
    "BoltCounter",
    "BoltMetrics",
    "JoinBolt",
    "Key",
    "KeyValueState",
    "MapState",
    "OutputCollector",
    "StatefulBolt",
    "TopologyContext",
    "Tuple",
    "TupleWindow",
    "WindowedBolt",
]
