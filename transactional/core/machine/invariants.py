"""What must hold for a coordinator after every event. Cheap enough for every test and the simulation."""

from __future__ import annotations

from transactional.core.machine.coordinator import Coordinator
from transactional.core.store.progress import Phase
from transactional.model.errors import ProtocolError
from transactional.model.guarantees import Guarantee

_BATCH_KNOWN = (Phase.PROCESSING, Phase.PROCESSED, Phase.COMMITTING)


def check(coordinator: Coordinator) -> None:
    """Raise `ProtocolError` naming the first invariant that does not hold."""
    for holds, text in _invariants(coordinator):
        if not holds:
            raise ProtocolError(f"{text}; committed {coordinator.committed_txid}, active {coordinator.active}")


def _invariants(coordinator: Coordinator) -> list[tuple[bool, str]]:
    active, committed = coordinator.active, coordinator.committed_txid
    living = {txid: a for txid, a in active.items() if a.phase is not Phase.ABORTING}
    committing = [txid for txid, a in active.items() if a.phase is Phase.COMMITTING]
    unknown = [txid for txid, a in active.items() if a.phase in (Phase.PLANNING, Phase.WAITING)]
    ids = [a.attempt.attempt_id for _, a in sorted(living.items())]
    window = coordinator.config.max_spout_pending
    recorded = sorted(coordinator.recorded)
    is_ordered = coordinator.guarantee is Guarantee.EXACTLY_ONCE
    return [
        (all(txid == a.attempt.txid for txid, a in active.items()), "an attempt is kept under another txid"),
        (all(committed < txid <= committed + window for txid in active), "a txid outside the window is in flight"),
        (
            committing in ([], [committed + 1]),
            "only the transaction after the committed one may be in its commit phase",
        ),
        (len(unknown) <= 1, "at most one batch is planned at a time"),
        (all(txid <= min(unknown) for txid in living) if unknown else True, "a txid beyond an unknown batch is alive"),
        (
            all(txid in coordinator.recorded for txid, a in active.items() if a.phase in _BATCH_KNOWN),
            "a batch is unrecorded",
        ),
        (ids == sorted(set(ids)) or not is_ordered, "attempt ids do not grow with txids"),
        (
            all(active[txid].attempt.attempt_id > coordinator.committed_by for txid in committing),
            "an attempt is committed under an id older than that of the transaction before it",
        ),
        (not committing or not coordinator.backlog.is_full(coordinator.config), "a commit does not wait for sinks"),
        (recorded == list(range(committed + 1, committed + 1 + len(recorded))), "recorded txids have a gap"),
        (all(a.phase is not Phase.GONE for a in active.values()), "a finished attempt is still active"),
    ]
