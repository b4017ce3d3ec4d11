"""`RunLog`: an observer that logs a line for each event worth one, through `logging`.

A line is a sentence, and carries the same in fields, for logs that are read by programs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from transactional.core.machine.protocol import (
    Action,
    DrainRequested,
    Event,
    PauseRequested,
    RecordCommit,
    RecordFailure,
    ResumeRequested,
    StopRequested,
)
from transactional.core.store.history import EndedHow
from transactional.runtime.engine.history.observing import Ended, Leading, Maintained, Notice, Recovered, StandingBy

LOGGER: Final = "transactional.run"
LONG_MS: Final = 1_000
"""Table maintenance that takes longer is logged."""
_log: Final = logging.getLogger(LOGGER)

REQUESTS: Final[Mapping[type[Event], tuple[str, str]]] = {
    PauseRequested: ("deactivated", "issues no new transactions until it is activated"),
    ResumeRequested: ("activated", "issues new transactions again"),
    DrainRequested: ("draining", "issues no new transactions; the run ends once everything in flight is committed"),
    StopRequested: ("stopping", "is stopping: the running commit phase will finish"),
}


class RunLog:
    """Logs the start of a run, a takeover, failed attempts, tuples that are set aside, the recovery from failures, long
    table maintenance, requests of operators, and the end with its reason."""

    def __init__(self, topology_id: str) -> None:
        self.topology_id = topology_id
        self.ended_with: BaseException | None = None
        """The error that ended the run, once that is logged."""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Log requests, failed attempts and what is set aside."""
        if type(event) in REQUESTS:
            name, text = REQUESTS[type(event)]
            self._line(logging.INFO, name, text)
        for action in actions:
            match action:
                case RecordFailure():
                    self._failed(action)
                case RecordCommit(attempt, _, report) if report.letters:
                    about = {"txid": attempt.txid, "attempt": attempt.attempt_id, "letters": dict(report.letters)}
                    self._line(logging.WARNING, "set_aside", f"attempt {attempt}: {report.set_aside}", **about)

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Log everything else."""
        match notice:
            case StandingBy():
                self._line(logging.INFO, "standing_by", "stands by: leads as soon as nobody else does")
            case Leading():
                self._leads(notice)
            case Maintained(component, took_ms) if took_ms > LONG_MS:
                text = f"maintenance of the table of committer {component!r} took {took_ms} ms"
                self._line(logging.WARNING, "long_maintenance", text, component=component, took_ms=took_ms)
            case Recovered(txid, failures, after_ms, what):
                text = f"has recovered after {failures} failed attempts in {after_ms} ms: {what}"
                self._line(logging.WARNING, "recovered", text, txid=txid, failures=failures, after_ms=after_ms)
            case Ended():
                self._ended(notice)

    def _leads(self, leading: Leading) -> None:
        lease, before = leading.lease, leading.previous_run
        txid = lease.progress.committed_txid + 1
        about = {"owner": lease.owner, "epoch": lease.epoch, "next_txid": txid}
        self._line(logging.INFO, "started", f"is run by {lease.owner} from transaction {txid} on", **about)
        if before is not None and (before.end is None or before.end.how is EndedHow.LOST):
            in_flight = len(leading.interrupted)
            text = f"took over from {before.owner}, whose process was lost; {in_flight} attempts in flight are replayed"
            self._line(logging.WARNING, "taken_over", text, before=before.owner, in_flight=in_flight)

    def _failed(self, failure: RecordFailure) -> None:
        attempt, error = failure.attempt, _first_line(failure.reason)
        self._line(
            logging.WARNING,
            "attempt_failed",
            f"attempt {attempt} failed in {failure.phase.value}: {error}",
            txid=attempt.txid,
            attempt=attempt.attempt_id,
            phase=failure.phase.value,
            error=error,
            retry_in_ms=failure.retry_in_ms,
        )

    def _ended(self, ended: Ended) -> None:
        end = ended.end
        self.ended_with = ended.error
        txid = ended.committed_txid
        until = "" if txid is None else f"; the last transaction committed is {txid}"
        reason = _first_line(end.reason or "")
        why = f" with {end.code}: {reason}" if end.code is not None else ""
        level = logging.ERROR if end.how is EndedHow.FAILED else logging.INFO
        about = {"how": end.how.value, "code": end.code, "reason": reason or None, "committed_txid": txid}
        self._line(level, "ended", f"the run has ended ({end.how.value}){why}{until}", **about)

    def _line(self, level: int, name: str, text: str, **fields: object) -> None:
        _log.log(
            level,
            "topology %r: %s",
            self.topology_id,
            text,
            extra={"_event": name, "topology": self.topology_id} | fields,
        )


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
