"""Going back by one transaction, where a row holds what was before the last one that changed it, and nothing older.

What was deleted or has expired before that is gone, too. So a table that has gone back can't go back further before it
has gone on; which is noted with its rows.
"""

from __future__ import annotations

from transactional.core.ports.rewinding import RewindTarget
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import BeyondKept, StoreMismatch


def undone_by(version: AttemptId | None, oldest_known: TxId, target: RewindTarget, state: str) -> TxId | None:
    """The transaction whose rows go back to what was before; None: there is none.

    `oldest_known` is the one that the table has gone back to, before which nothing is known of it. `state` is for
    errors. Raises `BeyondKept`, and `StoreMismatch` for a version that the store does not know.
    """
    if version is None:
        return None
    at = target.txid_of(version)
    if at is None:
        raise StoreMismatch(f"state {state}: the store does not know attempt {version}, which has written the table")
    if at == target.txid:
        return None
    if at < target.txid:
        raise BeyondKept(
            f"state {state} has gone back to transaction {at}: it can't go forward to {target.txid} again; "
            f"finish with {at}"
        )
    oldest = TxId(max(at - 1, oldest_known))
    if target.txid < oldest:
        raise BeyondKept(
            f"state {state} is at transaction {at} and knows only what was before it: it can't go back to transaction "
            f"{target.txid}; the oldest that it can go back to is {oldest}. Go back to that, or start the topology "
            "over under another id; states in Delta go back further"
        )
    return at


def reach_in_words(state: str, at: TxId | None) -> str:
    """What going back would mean for a table."""
    return f"state {state}: " + ("stays as it is" if at is None else f"what transaction {at} did is undone")
