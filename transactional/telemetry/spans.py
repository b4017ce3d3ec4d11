"""`Traces`: an observer that makes one OpenTelemetry trace per transaction, over all of its attempts and processes.

Ids of traces and attempts are derived from topology, txid and attempt: a process that takes over continues the trace
with nothing stored, and a sampler by trace id decides alike for all attempts. Spans are made when an attempt has ended,
with the times that it had.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from transactional.attempt import TransactionAttempt, TxId
from transactional.core.protocol import AbortAttempt, Action, AttemptFailed, Event, RecordFailure
from transactional.engine.observing import Committed, Leading, Notice
from transactional.engine.run_history import installed_version
from transactional.engine.timeline import NEVER, Flight, Moment, Timeline
from transactional.redaction import without_login
from transactional.store import AttemptRecord
from transactional.store_history import EndedHow

_NS: Final = 1_000_000
SCOPE: Final = "transactional"


def trace_id_of(topology_id: str, txid: int) -> int:
    """The trace of a transaction."""
    return _number(16, topology_id, txid)


def span_id_of(topology_id: str, txid: int, attempt_id: int | None = None) -> int:
    """The span of one of its attempts; None: of all of it."""
    return _number(8, topology_id, txid, "transaction" if attempt_id is None else attempt_id)


def _number(size: int, *parts: object) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:size]) or 1  # 0 is no id


class _Ids(IdGenerator):
    """Gives the ids that are wanted for the next span, and random ones where none is."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        """The wanted trace."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """The wanted span, once."""
        wanted, self.span_id = self.span_id, 0
        return wanted or random.getrandbits(64) or 1


class Traces:
    """The traces of one topology's run, sent to `processor`. For one thread; `close` sends what is left."""

    def __init__(self, topology_id: str, processor: SpanProcessor) -> None:
        self._topology_id = topology_id
        self._ids = _Ids()
        about = Resource.create({"service.version": installed_version()})
        if str(about.attributes.get("service.name")).startswith("unknown_service"):
            about = about.merge(Resource({"service.name": SCOPE}))
        self._provider = TracerProvider(id_generator=self._ids, resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SCOPE, installed_version())
        self._timeline = Timeline()
        self._first_ms: dict[TxId, int] = {}
        self._last: dict[TxId, TransactionAttempt] = {}

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Make the spans of attempts that have failed, or were given up."""
        if not actions and not isinstance(event, AttemptFailed):
            return
        at = Moment(at_ms, at_ms)
        failing = self._timeline.find(event.attempt) if isinstance(event, AttemptFailed) else None
        self._timeline.note_event(event, at)
        failed = {action.attempt: action for action in actions if isinstance(action, RecordFailure)}
        for action in actions:
            match action:
                case RecordFailure(attempt, phase, reason):
                    flight = self._timeline.find(attempt) or failing
                    if flight is not None and flight.attempt == attempt:
                        self._failed(flight, at_ms, reason, phase.value)
                case AbortAttempt(attempt, reason) if attempt not in failed:
                    flight = self._timeline.find(attempt)
                    if flight is not None and flight.step != "aborting":
                        self._failed(flight, at_ms, f"given up: {reason}", flight.step)
            self._timeline.note_action(action, at)

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Make the spans of committed transactions, and of attempts that a lost process has left."""
        match notice:
            case Committed(flight):
                self._committed(flight, notice)
            case Leading(_, before, interrupted) if before is not None:
                if before.end is None or before.end.how is EndedHow.LOST:
                    for record in interrupted:
                        self._lost(record, at_ms, before.owner)

    # --- spans ---------------------------------------------------------------------------------------------------

    def _committed(self, flight: Flight, told: Committed) -> None:
        attempt = flight.attempt
        parent = self._parent(attempt.txid)
        first_ms = min(self._first_ms.pop(attempt.txid, flight.issued.wall_ms), flight.issued.wall_ms)
        if parent is not None:
            end_ms, records = flight.committed.wall_ms, told.batch.record_count or 0
            about = {"transactional.records": records, **self._states(told)}
            self._attempt(parent, flight, end_ms, None, "", about)
            self._ids.trace_id, self._ids.span_id = self._ids_of(attempt.txid)
            whole = self._tracer.start_span(
                f"transaction {self._topology_id}",
                context=Context(),
                attributes=self._names(attempt) | about,
                start_time=first_ms * _NS,
            )
            whole.end(end_ms * _NS)
        self._last = {txid: last for txid, last in self._last.items() if txid > attempt.txid}
        self._first_ms = {txid: ms for txid, ms in self._first_ms.items() if txid > attempt.txid}

    def _failed(self, flight: Flight, at_ms: int, reason: str, phase: str) -> None:
        attempt = flight.attempt
        self._first_ms.setdefault(attempt.txid, flight.issued.wall_ms)
        if (parent := self._parent(attempt.txid)) is not None:
            self._attempt(parent, flight, at_ms, reason, phase, {})
        self._last[attempt.txid] = attempt

    def _lost(self, record: AttemptRecord, at_ms: int, owner: str) -> None:
        """What a process had begun that could not say how it ended."""
        began_ms = record.issued_at_ms
        flight = Flight(record.attempt, Moment(began_ms, 0), 0, "processing", Moment(began_ms, 0), None, record.batch)
        if record.planned_at_ms is not None:
            flight.planned = Moment(record.planned_at_ms, 0)
        self._failed(flight, at_ms, f"lost: the process {owner} was gone", record.phase)

    def _attempt(
        self, parent: Context, flight: Flight, end_ms: int, reason: str | None, phase: str, about: dict[str, Any]
    ) -> None:
        """The span of an attempt with those of its phases."""
        attempt = flight.attempt
        links = []
        if (before := self._last.get(attempt.txid)) is not None:
            links.append(self._link(attempt.txid, before.attempt_id, "retry"))
        self._ids.span_id = span_id_of(self._topology_id, attempt.txid, attempt.attempt_id)
        span = self._tracer.start_span(
            f"attempt {attempt.attempt_id}",
            context=parent,
            attributes=self._names(attempt) | about,
            links=links,
            start_time=flight.issued.wall_ms * _NS,
        )
        for name, kind, began_ms, ended_ms in _phases(flight, end_ms):
            links = [self._link(TxId(attempt.txid - 1), None, "waits for")] if name == "wait" else []
            child = self._tracer.start_span(
                name, context=set_span_in_context(span, Context()), kind=kind, links=links, start_time=began_ms * _NS
            )
            child.end(ended_ms * _NS)
        if reason is not None:
            text = without_login(next(iter(reason.splitlines()), ""))
            span.set_attributes({"error.type": text.partition(" ")[0].rstrip(":"), "transactional.phase": phase})
            span.set_status(StatusCode.ERROR, text)
        span.end(end_ms * _NS)

    def _names(self, attempt: TransactionAttempt) -> dict[str, Any]:
        return {
            "transactional.topology": self._topology_id,
            "transactional.txid": attempt.txid,
            "transactional.attempt": attempt.attempt_id,
        }

    def _states(self, told: Committed) -> dict[str, int]:
        states = told.details.get("states", {})
        return {f"transactional.state.{component}.ms": facts.get("ms", 0) for component, facts in states.items()}

    def _ids_of(self, txid: TxId) -> tuple[int, int]:
        return trace_id_of(self._topology_id, txid), span_id_of(self._topology_id, txid)

    def _parent(self, txid: TxId) -> Context | None:
        """The context of a transaction; None if its trace is not sampled."""
        trace_id, span_id = self._ids_of(txid)
        name = f"transaction {self._topology_id}"
        if self._provider.sampler.should_sample(None, trace_id, name).decision is not Decision.RECORD_AND_SAMPLE:
            return None
        whole = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        return set_span_in_context(NonRecordingSpan(whole), Context())

    def _link(self, txid: TxId, attempt_id: int | None, why: str) -> Link:
        span_id = span_id_of(self._topology_id, txid, attempt_id)
        there = SpanContext(trace_id_of(self._topology_id, txid), span_id, is_remote=True)
        return Link(there, {"transactional.link": why})


def _phases(flight: Flight, end_ms: int) -> Iterator[tuple[str, SpanKind, int, int]]:
    """The phases that an attempt has reached, with when each began and ended."""
    steps = (
        ("plan", SpanKind.INTERNAL, flight.issued),
        ("process", SpanKind.CONSUMER, flight.planned),
        ("wait", SpanKind.INTERNAL, flight.processed),
        ("commit", SpanKind.INTERNAL, flight.commit_started),
    )
    reached = [(name, kind, at.wall_ms) for name, kind, at in steps if at is not NEVER]
    ends = [began_ms for _, _, began_ms in reached[1:]] + [end_ms]
    for (name, kind, began_ms), ended_ms in zip(reached, ends, strict=True):
        if name != "wait" or ended_ms > began_ms:
            yield name, kind, began_ms, ended_ms
