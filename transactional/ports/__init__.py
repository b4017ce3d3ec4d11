"""What the engine needs from its surroundings: spouts, states, executors, the clock; and what operators, the doctor and
a rewind need from spouts and states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transactional.model.plumbing.renamed import renamed
from transactional.ports.examining import TornFiles
from transactional.ports.jobs import Clock, DeadLetter, JobExecutor, LateTuples, Processed
from transactional.ports.partials import COMBINES, STAGEABLE, Aggregator, Partials, are_known, unknown_word
from transactional.ports.spouts import (
    PartitionReader,
    RefusedRecord,
    Spout,
    SpoutMaker,
)
from transactional.ports.states import CommitFacts, State, StateKind
from transactional.ports.updates import CountsLate, KeepsTuples, Merged, PersistentAggregate, UpdateKind, Windowed

_RENAMED = (
    *("TransactionState", "CheckingState", "DiskState", "ExpiringState", "FinishingState"),
    *("MendableState", "TellingState"),
)
if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, dict.fromkeys(_RENAMED, "transactional.ports:State"))

__all__ = [
    "COMBINES",
    "STAGEABLE",
    "Aggregator",
    "Clock",
    "CommitFacts",
    "CountsLate",
    "DeadLetter",
    "JobExecutor",
    "KeepsTuples",
    "LateTuples",
    "Merged",
    "Partials",
    "PartitionReader",
    "PersistentAggregate",
    "Processed",
    "RefusedRecord",
    "Spout",
    "SpoutMaker",
    "State",
    "StateKind",
    "TornFiles",
    "UpdateKind",
    "Windowed",
    "are_known",
    "unknown_word",
]
