"""What the engine needs from its surroundings: spouts, states, executors, the clock; and what operators, the doctor and
a rewind need from spouts and states."""

from __future__ import annotations

from transactional.ports.jobs import Clock, DeadLetter, JobExecutor, LateTuples, Processed
from transactional.ports.spouts import (
    FollowsMessages,
    PartitionReader,
    RefusedRecord,
    Spout,
    SpoutMaker,
)
from transactional.ports.states import (
    COMBINES,
    Aggregator,
    CheckingState,
    CommitFacts,
    DiskState,
    ExpiringState,
    FinishingState,
    MendableState,
    Merged,
    MergingAggregate,
    Partials,
    PersistentAggregate,
    StateKind,
    TellingState,
    TimedWindows,
    TornFiles,
    TransactionState,
    Windowed,
    WindowedAggregate,
)

__all__ = [
    "COMBINES",
    "Aggregator",
    "CheckingState",
    "Clock",
    "CommitFacts",
    "DeadLetter",
    "DiskState",
    "ExpiringState",
    "FinishingState",
    "FollowsMessages",
    "JobExecutor",
    "LateTuples",
    "MendableState",
    "Merged",
    "MergingAggregate",
    "Partials",
    "PartitionReader",
    "PersistentAggregate",
    "Processed",
    "RefusedRecord",
    "Spout",
    "SpoutMaker",
    "StateKind",
    "TellingState",
    "TimedWindows",
    "TornFiles",
    "TransactionState",
    "Windowed",
    "WindowedAggregate",
]
