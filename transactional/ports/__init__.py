"""What the engine needs from its surroundings: spouts, states, executors, the clock; and what operators, the doctor and
a rewind need from spouts and states."""

from __future__ import annotations

from transactional.ports.jobs import Clock, DeadLetter, JobExecutor, LateTuples, Processed
from transactional.ports.spouts import (
    AckedSpout,
    EventTimeSpout,
    FollowsMessages,
    ManyStreamsReader,
    ManyStreamsSpout,
    MeasuredSpout,
    MessageReader,
    PartitionReader,
    RefusedRecord,
    RefusingReader,
    SizedSpout,
    Spout,
    SpoutMaker,
)
from transactional.ports.states import (
    COMBINES,
    Aggregator,
    CheckingState,
    ChoosingState,
    DiskState,
    ExpiringState,
    MergingAggregate,
    Partials,
    PersistentAggregate,
    StateKind,
    TransactionState,
    WindowedAggregate,
)

__all__ = [
    "COMBINES",
    "AckedSpout",
    "Aggregator",
    "CheckingState",
    "ChoosingState",
    "Clock",
    "DeadLetter",
    "DiskState",
    "EventTimeSpout",
    "ExpiringState",
    "FollowsMessages",
    "JobExecutor",
    "LateTuples",
    "ManyStreamsReader",
    "ManyStreamsSpout",
    "MeasuredSpout",
    "MergingAggregate",
    "MessageReader",
    "Partials",
    "PartitionReader",
    "PersistentAggregate",
    "Processed",
    "RefusedRecord",
    "RefusingReader",
    "SizedSpout",
    "Spout",
    "SpoutMaker",
    "StateKind",
    "TransactionState",
    "WindowedAggregate",
]
