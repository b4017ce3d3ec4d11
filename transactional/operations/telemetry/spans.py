"""`Traces`: an observer that makes one OpenTelemetry trace per transaction, over all of its attempts and processes.

Ids of traces and attempts are derived from topology, txid and attempt: a process that takes over continues the trace
with nothing stored, and a sampler by trace id decides alike for all attempts. Spans are made when an attempt has ended,
with the times that it had.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from transactional.core.machine.protocol import AbortAttempt, Action, AttemptFailed, Event, RecordFailure
from transactional.core.store import AttemptRecord
from transactional.core.store.history import EndedHow
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.plumbing.redaction import without_login
from transactional.operations.telemetry.trace_ids import span_id_of, trace_id_of
from transactional.runtime.engine.history.observing import Committed, Leading, Notice
from transactional.runtime.engine.history.run_history import installed_version
from transactional.runtime.engine.history.timeline import NEVER, Flight, Moment, Timeline

_NS: Final = 1_000_000
SCOPE: Final = "transactional"
_STATE_FACTS: Final = ("rows", "bytes", "version", "compacted")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Traces:
    """The traces of one topology's run, sent to `processor`. Only one thread may use them."""

    def __init__(self, topology_id: str, processor: SpanProcessor) -> None:
        self._topology_id, self._whole = topology_id, f"transaction {topology_id}"
        about = Resource.create({"service.version": installed_version()})
        if str(about.attributes.get("service.name")).startswith("unknown_service"):
            about = about.merge(Resource({"service.name": SCOPE}))
        self._resource, self._processor = about, processor
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # as the environment has it
        self._scope = InstrumentationScope(SCOPE, installed_version())
        self._timeline = Timeline()
        self._first_ms: dict[TxId, int] = {}
        self._last: dict[TxId, TransactionAttempt] = {}

    def close(self) -> None:
        """Send the spans that are still buffered, and close the processor."""
        self._processor.shutdown()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Make the spans of attempts that have failed, or were given up."""
        if not actions and not isinstance(event, AttemptFailed):
            return
        moment = Moment(at_ms, at_ms)
        failing = self._timeline.find(event.attempt) if isinstance(event, AttemptFailed) else None
        self._timeline.note_event(event, moment)
        failed = {action.attempt: action for action in actions if isinstance(action, RecordFailure)}
        for action in actions:
            match action:
                case RecordFailure(attempt, phase, reason):
                    flight = self._timeline.find(attempt) or failing
                    if flight is not None and flight.attempt == attempt:
                        self._send_failed(flight, at_ms, reason, phase.value)
                case AbortAttempt(attempt, reason) if attempt not in failed:
                    flight = self._timeline.find(attempt)
                    if flight is not None and flight.step != "aborting":
                        self._send_failed(flight, at_ms, f"given up: {reason}", flight.step, "given_up")
            self._timeline.note_action(action, moment)

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Make the spans of committed transactions, and of attempts that a lost process has left."""
        match notice:
            case Committed(flight):
                self._send_committed(flight, notice)
            case Leading(_, previous_run, interrupted) if previous_run is not None:
                if previous_run.end is None or previous_run.end.how is EndedHow.LOST:
                    for record in interrupted:
                        self._send_lost(record, at_ms, previous_run.owner)

    # --- spans ---------------------------------------------------------------------------------------------------

    def _send_committed(self, flight: Flight, notice: Committed) -> None:
        attempt = flight.attempt
        first_ms = min(self._first_ms.pop(attempt.txid, flight.issued.wall_ms), flight.issued.wall_ms)
        if (whole := self._sampled_context(attempt.txid)) is not None:
            end_ms, records = flight.committed.wall_ms, notice.batch.record_count or 0
            self._send_attempt(whole, flight, end_ms, {}, Status(), notice.details.get("states", {}))
            about = {
                "transactional.topology": self._topology_id,
                "transactional.txid": attempt.txid,
                "transactional.records": records,
            }
            self._send(self._whole, whole, None, (first_ms, end_ms), attributes=about)
        if self._last or self._first_ms:
            self._last = {txid: last for txid, last in self._last.items() if txid > attempt.txid}
            self._first_ms = {txid: ms for txid, ms in self._first_ms.items() if txid > attempt.txid}

    def _send_failed(self, flight: Flight, at_ms: int, reason: str, phase: str, kind: str | None = None) -> None:
        """Send the span of an attempt that failed. `kind` is the type of the error; by default it is the code that the
        reason begins with."""
        attempt = flight.attempt
        self._first_ms.setdefault(attempt.txid, flight.issued.wall_ms)
        if (whole := self._sampled_context(attempt.txid)) is not None:
            text = without_login(next(iter(reason.splitlines()), ""))
            about = {"error.type": kind or text.partition(" ")[0].rstrip(":"), "transactional.phase": phase}
            self._send_attempt(whole, flight, at_ms, about, Status(StatusCode.ERROR, text))
        self._last[attempt.txid] = attempt

    def _send_lost(self, record: AttemptRecord, at_ms: int, owner: str) -> None:
        """Send the span of an attempt whose process was lost before the attempt had ended."""
        began_ms = record.issued_at_ms
        flight = Flight(record.attempt, Moment(began_ms, 0), 0, "processing", Moment(began_ms, 0), None, record.batch)
        if record.planned_at_ms is not None:
            flight.planned = Moment(record.planned_at_ms, 0)
        self._send_failed(flight, at_ms, f"lost: the process {owner} was gone", record.phase, "lost")

    def _send_attempt(
        self,
        whole: SpanContext,
        flight: Flight,
        end_ms: int,
        about: Mapping[str, Any],
        status: Status,
        states: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Send the span of an attempt, with those of its phases and of each state's part of the commit phase."""
        attempt = flight.attempt
        span = _context(whole.trace_id, span_id_of(self._topology_id, attempt.txid, attempt.attempt_id))
        links = []
        if (previous_attempt := self._last.get(attempt.txid)) is not None:
            links.append(self._link(attempt.txid, previous_attempt.attempt_id, "retry"))
        for name, kind, began_ms, ended_ms in _phases(flight, end_ms):
            waits = [self._link(TxId(attempt.txid - 1), None, "waits for")] if name == "wait" else []
            phase = _context(whole.trace_id, random.getrandbits(64) or 1)
            self._send(name, phase, span, (began_ms, ended_ms), kind=kind, links=waits)
            if name == "commit" and states:
                self._send_states(phase, (began_ms, ended_ms), states)
        about = {"transactional.attempt": attempt.attempt_id, **about}
        times = flight.issued.wall_ms, end_ms
        self._send(f"attempt {attempt.attempt_id}", span, whole, times, attributes=about, links=links, status=status)

    def _send(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times_ms: tuple[int, int],
        **span_options: Any,
    ) -> None:
        """Send a span that has ended. Making it without a tracer takes a third of the time."""
        began_ms, ended_ms = times_ms
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                start_time=began_ms * _NS,
                end_time=ended_ms * _NS,
                instrumentation_scope=self._scope,
                **span_options,
            )
        )

    def _send_states(
        self, parent: SpanContext, within_ms: tuple[int, int], states: Mapping[str, Mapping[str, int]]
    ) -> None:
        for component, facts in states.items():
            began_ms = min(within_ms[0] + facts.get("at", 0), within_ms[1])
            ended_ms = min(began_ms + facts.get("ms", 0), within_ms[1])
            about: dict[str, str | int] = {
                f"transactional.state.{name}": facts[name] for name in _STATE_FACTS if name in facts
            }
            about["transactional.component"] = component
            span = _context(parent.trace_id, random.getrandbits(64) or 1)
            self._send(f"commit {component}", span, parent, (began_ms, ended_ms), attributes=about)

    def _sampled_context(self, txid: TxId) -> SpanContext | None:
        """Return the context of a transaction's span, or None if its trace is not sampled."""
        trace_id = trace_id_of(self._topology_id, txid)
        if self._sampler.should_sample(None, trace_id, self._whole).decision is not Decision.RECORD_AND_SAMPLE:
            return None
        return _context(trace_id, span_id_of(self._topology_id, txid))

    def _link(self, txid: TxId, attempt_id: int | None, reason: str) -> Link:
        target = _context(trace_id_of(self._topology_id, txid), span_id_of(self._topology_id, txid, attempt_id))
        return Link(target, {"transactional.link": reason})


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


def _phases(flight: Flight, end_ms: int) -> Iterator[tuple[str, SpanKind, int, int]]:
    """Yield the phases that an attempt has reached, with their beginnings and ends in milliseconds."""
    steps = (
        ("plan", SpanKind.INTERNAL, flight.issued),
        ("process", SpanKind.CONSUMER, flight.planned),
        ("wait", SpanKind.INTERNAL, flight.processed),
        ("commit", SpanKind.INTERNAL, flight.commit_started),
    )
    phases = [(name, kind, moment.wall_ms) for name, kind, moment in steps if moment is not NEVER]
    ends = [began_ms for _, _, began_ms in phases[1:]] + [end_ms]
    for (name, kind, began_ms), ended_ms in zip(phases, ends, strict=True):
        if name != "wait" or ended_ms > began_ms:
            yield name, kind, began_ms, ended_ms
