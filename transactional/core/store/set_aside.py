"""The number of tuples that the last transactions have set aside: one figure for the command line and all pages.

The command line and all pages of the console count over the same transactions, and say over how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transactional.core.store.port import AttemptTimes, StoreReader, TopologyStatus
from transactional.core.store.rules import letters_in
from transactional.model.attempt import TxId

TRANSACTIONS_MAX: Final = 500
"""The number of last committed transactions over which tuples that were set aside are counted."""


@dataclass(frozen=True, slots=True)
class RecentLetters:
    """The transactions up to `last_txid` that have set tuples aside, newest first, at most `TRANSACTIONS_MAX` before
    it; and the number of `letters` in them."""

    last_txid: TxId
    attempts: Sequence[AttemptTimes]
    letters: int

    @property
    def scope(self) -> str:
        """The counted transactions, in words."""
        number = min(self.last_txid, TRANSACTIONS_MAX)
        return f"last {number} transaction{'' if number == 1 else 's'}"

    def followed(self, committed: Sequence[AttemptTimes]) -> RecentLetters:
        """Count what was committed since. Those that are no longer among the last are left out by the next reading."""
        later = [attempt for attempt in committed if attempt.attempt.txid > self.last_txid]
        last_txid = max((attempt.attempt.txid for attempt in later), default=self.last_txid)
        letters = self.letters + sum(letters_in(attempt.details) for attempt in later)
        return RecentLetters(
            last_txid, [*(attempt for attempt in later if letters_in(attempt.details)), *self.attempts], letters
        )


def set_aside_of(reader: StoreReader, status: TopologyStatus) -> RecentLetters:
    """Read the transactions that have set tuples aside. One that was committed after the status was read is counted."""
    attempts = reader.times_with_letters(status.topology_id, among=TRANSACTIONS_MAX, limit=TRANSACTIONS_MAX)
    last_txid = max((status.committed_txid, *(attempt.attempt.txid for attempt in attempts)))
    return RecentLetters(last_txid, attempts, sum(letters_in(attempt.details) for attempt in attempts))
