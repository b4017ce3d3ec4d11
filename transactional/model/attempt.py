"""Transaction and attempt ids: the two integers that everything is keyed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

TxId = NewType("TxId", int)
"""Number of a transaction: 1, 2, 3, … without gaps. 0 stands for "nothing committed yet"."""

AttemptId = NewType("AttemptId", int)
"""Number of an attempt. Drawn from one counter per topology, so it only increases, across restarts too."""

Epoch = NewType("Epoch", int)
"""Number of a coordinator's term: increases by one with each lease taken on a topology."""

NO_TRANSACTION = TxId(0)


@dataclass(frozen=True, slots=True, order=True)
class TransactionAttempt:
    """One try at one transaction.

    `txid` stays the same however often the transaction is replayed; `attempt_id` distinguishes the tries and only
    increases, which Storm's did not across restarts.
    """

    txid: TxId
    attempt_id: AttemptId

    def __post_init__(self) -> None:
        if self.txid < 1 or self.attempt_id < 1:
            raise ValueError(f"txid and attempt_id start at 1, got {self.txid}:{self.attempt_id}")

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt_id}"
