"""What the engine needs from its surroundings: spouts, states, executors, the clock; and what operators, the doctor and
a rewind need from spouts and states."""

from __future__ import annotations

from transactional.ports.jobs import Clock, DeadLetter, JobExecutor, LateTuples, Processed
from transactional.ports.partials import COMBINES, STAGEABLE, Aggregator, Partials, are_known, unknown_word
from transactional.ports.spouts import (
    FollowsMessages,
    PartitionReader,
    RefusedRecord,
    Spout,
    SpoutMaker,
)
from transactional.ports.states import (
    CheckingState,
    CommitFacts,
    DiskState,
    ExpiringState,
    FinishingState,
    MendableState,
    StateKind,
    TellingState,
    TornFiles,
    TransactionState,
)
from transactional.ports.updates import Merged, PersistentAggregate, UpdateKind, Windowed

__all__ = [
    "COMBINES",
    "STAGEABLE",
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
    "Partials",
    "PartitionReader",
    "PersistentAggregate",
    "Processed",
    "RefusedRecord",
    "Spout",
    "SpoutMaker",
    "StateKind",
    "TellingState",
    "TornFiles",
    "TransactionState",
    "UpdateKind",
    "Windowed",
    "are_known",
    "unknown_word",
]
