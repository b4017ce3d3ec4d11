"""Transactions into a table, each of them compacted, until killed: `python -m tests.integration.delta.compacting
FOLDER`."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, CommittedMapState, counts
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId


def opened(folder: Path) -> DeltaMapState:
    """The state; attempt ids are txids."""
    state = CommittedMapState(folder / "t", "word string", "count long", layout=LogLayout(compact_after=1))
    state.open(OWNER, lambda attempt_id: TxId(int(attempt_id)))
    return state


def main(folder: str) -> None:
    """Go on where the table is. Each line that is written is a transaction that is about to be."""
    state = opened(Path(folder))
    for txid in itertools.count((state.version() or 0) + 1):
        sys.stdout.write(f"{txid}\n")
        sys.stdout.flush()
        attempt = TransactionAttempt(TxId(txid), AttemptId(txid))
        state.merge(attempt, counts({"cat": 1, f"word {txid}": 1}))


if __name__ == "__main__":
    main(sys.argv[1])
