"""What the engine needs from its surroundings: spouts, states, executors, the clock; and what operators, the doctor and
a rewind need from spouts and states."""

from __future__ import annotations

from transactional.core.ports.examining import TornFiles
from transactional.core.ports.executors import Clock, DeadLetter, DeferredTuples, JobExecutor, Processed
from transactional.core.ports.partials import (
    COMBINES,
    STAGEABLE,
    Aggregator,
    Partials,
    can_combine_all,
    unknown_combine_error,
)
from transactional.core.ports.sinks import PublishedRecords, Sink, SinkAddress, SinkOwner, SinkPosition
from transactional.core.ports.spouts import JointRecords, PartitionReader, RefusedRecord, Spout, SpoutMaker
from transactional.core.ports.state_parts import CommitFacts, DeclaredState, StateKind
from transactional.core.ports.states import State
from transactional.core.ports.updates import (
    LateCounter,
    MergedRows,
    PersistentAggregate,
    TupleAggregate,
    UpdateKind,
    Windowed,
)

__all__ = [
    "COMBINES",
    "STAGEABLE",
    "Aggregator",
    "Clock",
    "CommitFacts",
    "DeadLetter",
    "DeclaredState",
    "DeferredTuples",
    "JobExecutor",
    "JointRecords",
    "LateCounter",
    "MergedRows",
    "Partials",
    "PartitionReader",
    "PersistentAggregate",
    "Processed",
    "PublishedRecords",
    "RefusedRecord",
    "Sink",
    "SinkAddress",
    "SinkOwner",
    "SinkPosition",
    "Spout",
    "SpoutMaker",
    "State",
    "StateKind",
    "TornFiles",
    "TupleAggregate",
    "UpdateKind",
    "Windowed",
    "can_combine_all",
    "unknown_combine_error",
]
