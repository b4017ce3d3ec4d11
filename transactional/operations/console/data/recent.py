"""The last attempts of the run beside a console: as it reports them, from the store only what it does not report."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from transactional.core.store import AttemptTimes, StoreReader, TopologyStatus
from transactional.core.store.rules import COMMITTED, OPEN, PROCESSED, PROCESSING, lag_in
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata
from transactional.operations.console.data.figures import RECENT, committed_of
from transactional.runtime.engine.history.timeline import Flight

_REPORTED_MAX: Final = 2 * RECENT
_MORE: Final = 8


class Recent:
    """The last attempts of one topology as its store has them. The run reports them, threads of pages read them.

    What was recorded or committed is taken from the report. Whatever else happens changes attempts by rules of the
    store: then those that were in flight are read again.
    """

    def __init__(self, topology_id: str) -> None:
        self._topology_id = topology_id
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._reported: dict[AttemptId, AttemptTimes] = {}
        self._last_txid = TxId(0)
        self.reads = 0
        """So many times the store was read."""
        self._is_in_doubt = self._is_new = True
        self._known: list[AttemptTimes] = []

    def recorded(self, flight: Flight, batch: BatchMetadata) -> None:
        """An attempt is in the store. A second one at a transaction ends those before it."""
        has_processed = flight.step == "processed"
        each = _times(flight, PROCESSED if has_processed else PROCESSING)
        if has_processed:
            each = replace(each, rows=batch.record_count, processed_at_ms=flight.processed.wall_ms)
        with self._lock:
            self._is_in_doubt |= not has_processed and flight.attempt.txid <= self._last_txid
            self._report(each)

    def committed(self, flight: Flight, batch: BatchMetadata, details: Mapping[str, object]) -> None:
        """An attempt is committed."""
        each = replace(
            _times(flight, COMMITTED),
            rows=batch.record_count,
            processed_at_ms=flight.processed.wall_ms,
            commit_started_at_ms=flight.commit_started.wall_ms,
            committed_at_ms=flight.committed.wall_ms,
            details=details,
        )
        with self._lock:
            self._report(each)

    def doubt(self, *, is_new: bool = False) -> None:
        """Something happened to attempts in flight; `is_new`: or to any of them, for another run has begun."""
        with self._lock:
            self._is_in_doubt = True
            self._is_new |= is_new

    def newest(self, store: StoreReader) -> Sequence[AttemptTimes]:
        """The last attempts, newest first."""
        with self._reading:
            with self._lock:
                reported, self._reported = self._reported, {}
                is_in_doubt, self._is_in_doubt = self._is_in_doubt, False
                is_new, self._is_new = self._is_new, False
            self._known = _merged(self._known, reported)
            if is_in_doubt:
                try:
                    self._known = self._read_again(store, RECENT if is_new else _reach(self._known))
                except BaseException:
                    self.doubt(is_new=is_new)
                    raise
            return self._known

    def _read_again(self, store: StoreReader, limit: int) -> list[AttemptTimes]:
        fresh = store.times(self._topology_id, limit=limit)
        self.reads += 1
        oldest = fresh[-1].attempt.attempt_id if len(fresh) == limit < RECENT else AttemptId(0)
        return [*fresh, *(each for each in self._known if each.attempt.attempt_id < oldest)][:RECENT]

    def _report(self, each: AttemptTimes) -> None:
        self._last_txid = max(self._last_txid, each.attempt.txid)
        self._reported[each.attempt.attempt_id] = each
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]


def _times(flight: Flight, phase: str) -> AttemptTimes:
    return AttemptTimes(
        flight.attempt, phase, None, flight.issued.wall_ms, flight.planned.wall_ms, None, None, None, None, None
    )


def _merged(known: Sequence[AttemptTimes], reported: Mapping[AttemptId, AttemptTimes]) -> list[AttemptTimes]:
    """Newest first. What the store had ended already was only reported to be in flight before."""
    both = {each.attempt.attempt_id: each for each in known}
    for attempt_id, each in reported.items():
        if each.phase not in OPEN or attempt_id not in both or both[attempt_id].phase in OPEN:
            both[attempt_id] = each
    return [both[attempt_id] for attempt_id in sorted(both, reverse=True)[:RECENT]]


def _reach(known: Sequence[AttemptTimes]) -> int:
    """How many of the newest attempts contain all that were in flight."""
    in_flight = [number for number, each in enumerate(known, 1) if each.phase in OPEN]
    return max(in_flight, default=0) + _MORE


def caught_up(status: TopologyStatus, recent: Sequence[AttemptTimes]) -> TopologyStatus:
    """A status that was read some time ago, with what was committed since."""
    last = next(iter(committed_of(recent)), None)
    if last is None or last.attempt.txid <= status.committed_txid:
        return status
    trouble = status.trouble
    return replace(
        status,
        committed_txid=last.attempt.txid,
        committed_at_ms=last.committed_at_ms,
        lag=lag_in(last.details),
        trouble=None if trouble is not None and trouble.txid <= last.attempt.txid else trouble,
    )
