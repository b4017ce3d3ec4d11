"""The target of a rewind, as states get it: a transaction, and the attempt that committed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transactional.model.attempt import AttemptId, TxId


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """The transaction that a table is taken back to, and the attempt that committed it.

    `attempt_id` is None if `txid` is 0, the beginning. `txid_of` returns the transaction of an attempt that has written
    the table, or None if the store does not know the attempt. The table of a committer that joined after `txid` goes
    back to its contents before its first transaction.
    """

    txid: TxId
    attempt_id: AttemptId | None
    txid_of: Callable[[AttemptId], TxId | None]
