"""How a run that somebody has ended left a transaction that it was retrying: nobody has to act on that."""

from __future__ import annotations

from typing import Final

from transactional.core.store.history import EndedHow, RunRecord
from transactional.core.store.port import StoreReader, TopologyStatus

_ENDED_ON_REQUEST: Final = (EndedHow.STOPPED, EndedHow.KILLED, EndedHow.DRAINED)


def retry_at_stop(reader: StoreReader, status: TopologyStatus) -> str | None:
    """Return what `status.trouble` was when somebody ended the run, like `was being retried (attempt 1 of 2) when the
    run was stopped`; None if there is no trouble, or if the run has not ended on request, so that it is an alarm."""
    run, trouble = status.run, status.trouble
    if trouble is None or status.is_leased or run is None or run.end is None or run.end.how not in _ENDED_ON_REQUEST:
        return None
    attempts = reader.attempts_at(status.topology_id, trouble.txid)
    number = sum(attempt.issued_at_ms >= run.began_at_ms for attempt in attempts)
    return f"was being retried (attempt {number}{_of_maximum(run, number)}) when the run was {run.end.how.value}"


def _of_maximum(run: RunRecord, number: int) -> str:
    """A transaction from which tuples were set aside has more attempts than one tuple may have."""
    maximum = run.about.settings.get("attempts_max")
    return f" of {maximum}" if isinstance(maximum, int) and number <= maximum else ""
