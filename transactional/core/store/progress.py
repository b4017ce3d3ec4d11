"""The progress of a topology: what a coordinator starts from, and the phase of each attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from transactional.model.attempt import NO_TRANSACTION, AttemptId, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata


class Phase(Enum):
    """The phase of an attempt. `core/protocol.py` defines what each phase means and how it ends."""

    PLANNING = "planning"
    WAITING = "waiting"
    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"
    ABORTING = "aborting"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a topology as the store has it, from which a coordinator starts.

    `recorded` holds the recorded batches of the txids above `committed_txid`.
    """

    committed_txid: TxId = NO_TRANSACTION
    committed_batch: BatchMetadata = EMPTY_BATCH
    recorded: Mapping[TxId, BatchMetadata] = field(default_factory=dict)
    attempt_id: AttemptId = AttemptId(0)
