"""What a rewind takes states back to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transactional.model.attempt import AttemptId, TxId


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """The transaction that a table is taken back to. `attempt_id` is the attempt that committed it; None: it is 0, the
    beginning.

    `txid_of` gives the transaction of an attempt that has written the table, None if the store does not know it. The
    table of a committer that joined after `txid` goes back to what it was before its first transaction.
    """

    txid: TxId
    attempt_id: AttemptId | None
    txid_of: Callable[[AttemptId], TxId | None]
