"""How far a topology is: what a coordinator starts from, and where each attempt stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from transactional.attempt import NO_TRANSACTION, AttemptId, TxId
from transactional.batch import EMPTY_BATCH, BatchMetadata


class Phase(Enum):
    """Where an attempt stands. `core/protocol.py` tells what each phase means and how it is left."""

    PLANNING = "planning"
    WAITING = "waiting"
    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"
    ABORTING = "aborting"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a coordinator starts from: all that the store knows of a topology's progress (row T20).

    `recorded` holds the batches of the txids above `committed_txid` that had been recorded.
    """

    committed_txid: TxId = NO_TRANSACTION
    committed_batch: BatchMetadata = EMPTY_BATCH
    recorded: Mapping[TxId, BatchMetadata] = field(default_factory=dict)
    attempt_id: AttemptId = AttemptId(0)
