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
"""The duration above which table maintenance is logged."""
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
        """Log requests, failed attempts and tuples that are set aside."""
        if type(event) in REQUESTS:
            name, text = REQUESTS[type(event)]
            self._log_line(logging.INFO, name, text)
        for action in actions:
            match action:
                case RecordFailure():
                    self._log_failure(action)
                case RecordCommit(attempt, _, report) if report.letters:
                    about = {"txid": attempt.txid, "attempt": attempt.attempt_id, "letters": dict(report.letters)}
                    self._log_line(logging.WARNING, "set_aside", f"attempt {attempt}: {report.set_aside}", **about)

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Log the start and end of the run, recovery, and long table maintenance."""
        match notice:
            case StandingBy():
                self._log_line(logging.INFO, "standing_by", "stands by: leads as soon as nobody else does")
            case Leading():
                self._log_start(notice)
            case Maintained(component, took_ms) if took_ms > LONG_MS:
                text = f"maintenance of the table of committer {component!r} took {took_ms} ms"
                self._log_line(logging.WARNING, "long_maintenance", text, component=component, took_ms=took_ms)
            case Recovered(txid, failures, after_ms, what):
                text = f"has recovered after {failures} failed attempts in {after_ms} ms: {what}"
                self._log_line(logging.WARNING, "recovered", text, txid=txid, failures=failures, after_ms=after_ms)
            case Ended():
                self._log_end(notice)

    def _log_start(self, leading: Leading) -> None:
        lease, previous_run = leading.lease, leading.previous_run
        txid = lease.progress.committed_txid + 1
        about = {"owner": lease.owner, "epoch": lease.epoch, "next_txid": txid}
        self._log_line(logging.INFO, "started", f"is run by {lease.owner} from transaction {txid} on", **about)
        if previous_run is not None and (previous_run.end is None or previous_run.end.how is EndedHow.LOST):
            in_flight = len(leading.interrupted)
            owner = previous_run.owner
            text = f"took over from {owner}, whose process was lost; {in_flight} attempts in flight are replayed"
            self._log_line(logging.WARNING, "taken_over", text, before=owner, in_flight=in_flight)

    def _log_failure(self, failure: RecordFailure) -> None:
        attempt, error = failure.attempt, _first_line(failure.reason)
        self._log_line(
            logging.WARNING,
            "attempt_failed",
            f"attempt {attempt} failed in {failure.phase.value}: {error}",
            txid=attempt.txid,
            attempt=attempt.attempt_id,
            phase=failure.phase.value,
            error=error,
            retry_in_ms=failure.retry_in_ms,
        )

    def _log_end(self, ended: Ended) -> None:
        end = ended.end
        self.ended_with = ended.error
        txid = ended.committed_txid
        last_commit = "" if txid is None else f"; the last transaction committed is {txid}"
        reason = _first_line(end.reason or "")
        cause = f" with {end.code}: {reason}" if end.code is not None else ""
        level = logging.ERROR if end.how is EndedHow.FAILED else logging.INFO
        about = {"how": end.how.value, "code": end.code, "reason": reason or None, "committed_txid": txid}
        self._log_line(level, "ended", f"the run has ended ({end.how.value}){cause}{last_commit}", **about)

    def _log_line(self, level: int, name: str, text: str, **fields: object) -> None:
        _log.log(
            level,
            "topology %r: %s",
            self.topology_id,
            text,
            extra={"_event": name, "topology": self.topology_id} | fields,
        )


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
