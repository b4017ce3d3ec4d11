"""What the engine needs from its surroundings: spouts, states, executors, the clock; and what operators, the doctor and
a rewind need from spouts and states."""

from __future__ import annotations

from transactional.core.ports.examining import TornFiles
from transactional.core.ports.jobs import Clock, DeadLetter, JobExecutor, LateTuples, Processed
from transactional.core.ports.partials import COMBINES, STAGEABLE, Aggregator, Partials, are_known, unknown_word
from transactional.core.ports.spouts import PartitionReader, RefusedRecord, Spout, SpoutMaker
from transactional.core.ports.states import CommitFacts, State, StateKind
from transactional.core.ports.updates import CountsLate, KeepsTuples, Merged, PersistentAggregate, UpdateKind, Windowed

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
