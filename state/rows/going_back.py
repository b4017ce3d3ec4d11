"""Rewinds by one transaction, for tables whose rows store one previous value and nothing older.

Rows that were deleted or had expired earlier are removed. So a table that has gone back can't go back further until it
has gone on; the transaction of the last rewind is recorded with its rows for that.
"""

from __future__ import annotations

from transactional.core.ports.state_parts import RewindTarget
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import BeyondKept, StoreMismatch


def transaction_undone_by(
    version: AttemptId | None, oldest_known: TxId, target: RewindTarget, state: str
) -> TxId | None:
    """Return the transaction that a rewind undoes, None if there is none.

    `oldest_known` is the transaction of the last rewind, before which the table knows nothing. `state` is for errors.
    Raises `BeyondKept`, and `StoreMismatch` for a version that the store does not know.
    """
    if version is None:
        return None
    txid = target.txid_of(version)
    if txid is None:
        raise StoreMismatch(f"state {state}: the store does not know attempt {version}, which has written the table")
    if txid == target.txid:
        return None
    if txid < target.txid:
        raise BeyondKept(
            f"state {state} has gone back to transaction {txid}: it can't go forward to {target.txid} again; "
            f"finish with {txid}"
        )
    oldest = TxId(max(txid - 1, oldest_known))
    if target.txid < oldest:
        raise BeyondKept(
            f"state {state} is at transaction {txid} and knows only what was before it: it can't go back to "
            "transaction "
            f"{target.txid}; the oldest that it can go back to is {oldest}. Go back to that, or start the topology "
            "over under another id; states in Delta go back further"
        )
    return txid


def describe_rewind(state: str, txid: TxId | None) -> str:
    """Return what a rewind would do to a table, which undoes transaction `txid`."""
    return f"state {state}: " + ("stays as it is" if txid is None else f"what transaction {txid} did is undone")
