"""The tools of the sink cases: a `SinkTrial` of one target, its `Leader`s, and the register of cases.

A trial makes sinks with the factory under test, draws attempt ids as a coordinator does, and notes every step in words.
A `Leader` stands for one process that has the lease. It has an outbox and does what a relay does: it publishes what
waits, publishes again after an error, and settles with the position of the target after it was fenced. Leaders of one
outbox follow one another; what one has published without noting it, the next one still has to settle.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa

from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.core.store.outbox import Publication
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import SinkUnavailable
from transactional.model.schema import Schema
from transactional.model.user_code.picklable import copy_by_pickle
from transactional.testing.cases.register import BrokenPromise, CaseRegister, NotOffered, Steps

FIELDS: Final = Schema.parse("word string, count long")
"""The fields of the stream that is published."""
RUN: Final = "process#1"
FAILURES_MAX: Final = 5
SHOWN_MAX: Final = 10

Row: TypeAlias = "tuple[str | None, int | None]"
"""The fields of a tuple."""
SinkFactory: TypeAlias = Callable[[str], Sink]
"""Makes a sink, not opened, from the name of its target."""
TargetReader: TypeAlias = Callable[[str], Iterable[Sequence[object]]]
"""Returns what readers of a target see, from its name: `word` and `count` of each record."""


def to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Convert tuples to Arrow, as tasks pass them to `Sink.encode`."""
    schema = arrow_schema(FIELDS)
    columns = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )


def copy_for_task(sink: Sink) -> Sink:
    """Return a copy of a sink as tasks have it."""
    return copy_by_pickle("the sink", sink)


@dataclass(slots=True)
class SinkTrial(Steps):
    """One target under test, and the steps so far, in words."""

    make: SinkFactory
    read: TargetReader
    target: str
    break_publication: Callable[[Sink], None] | None = None
    in_order: bool = True
    _attempt_ids: int = 0
    _sinks: list[Sink] = field(default_factory=list)
    _leaders: int = 0
    _suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """The end of the ids of topologies, because a target may keep positions of earlier trials."""

    def new_sink(self) -> Sink:
        """Return a sink as the driver of a new process has it: declared over the stream, and prepared."""
        sink = self.make(self.target)
        sink.check_input(FIELDS, used_by="check_sink")
        sink.prepare()
        self._sinks.append(sink)
        return sink

    def attempt(self, txid: int) -> TransactionAttempt:
        """Draw the next attempt, at this transaction."""
        return TransactionAttempt(TxId(txid), self.draw_attempt_id())

    def draw_attempt_id(self) -> AttemptId:
        """Draw the next attempt id, for an attempt or a fence."""
        self._attempt_ids += 1
        return AttemptId(self._attempt_ids)

    def lead(
        self, outbox: Outbox | None = None, *, topology: str = "words", sink: str = "published", store: str = "store_1"
    ) -> Leader:
        """Return the next leader, which has not looked at the target yet. Without an outbox it begins with none."""
        self._leaders += 1
        owner = SinkOwner(f"{topology}-{self._suffix}", sink, store, self.draw_attempt_id())
        return Leader(self, f"leader {self._leaders}", self.new_sink(), owner, Outbox() if outbox is None else outbox)

    def check_records(self, rows: Sequence[Row]) -> None:
        """Check what readers of the target see."""
        visible_rows: list[object] = [tuple(row) for row in self.read(self.target)]
        expected: list[object] = list(rows)
        if not self.in_order:
            visible_rows, expected = sorted(visible_rows, key=repr), sorted(expected, key=repr)
        self.check_equal("readers of the target", visible_rows, expected)

    def require_breaking(self) -> Callable[[Sink], None]:
        """Return `break_publication`. Raises `NotOffered` if there is none."""
        if self.break_publication is None:
            raise NotOffered("break_publication was not passed")
        return self.break_publication

    def close(self) -> None:
        """Close all sinks. Errors of that are the matter of a case of its own."""
        for sink in self._sinks:
            with suppress(Exception):
                sink.close()


@dataclass(slots=True)
class Outbox:
    """The waiting transactions of a sink in the store, and the newest publication that the store has noted."""

    waiting: list[PublishedRecords] = field(default_factory=list)
    published: Publication | None = None

    def settle(self, publication: Publication) -> None:
        """Note a publication, and delete the transactions up to it."""
        self.published = publication
        txid = publication.attempt.txid
        self.waiting = [waiting for waiting in self.waiting if waiting.publication.attempt.txid > txid]


@dataclass(slots=True)
class Leader:
    """A process with the lease, and a sink of its own."""

    trial: SinkTrial
    name: str
    sink: Sink
    owner: SinkOwner
    outbox: Outbox

    def open(self) -> Leader:
        """Look at the target, fence earlier publishers, and settle with the final position."""
        self.trial.note(f"{self.name} opens the sink, with the fence id {self.owner.fence_id}")
        self.sink.look(self.owner)
        self.sink.open(self.owner, has_published=self.outbox.published is not None)
        self._settle(self.sink.position())
        return self

    def commit(
        self,
        txid_or_attempt: int | TransactionAttempt,
        rows: Sequence[Row],
        fields: Sequence[str] = FIELDS.names,
    ) -> Publication:
        """Commit a transaction with these tuples, whose records wait in the outbox then. `fields` are in their order
        in the batch."""
        attempt = self.trial.attempt(txid_or_attempt) if isinstance(txid_or_attempt, int) else txid_or_attempt
        tuples = f"{len(rows)} tuples" if len(rows) > SHOWN_MAX else repr(list(rows))
        order = "" if fields == FIELDS.names else f", in a batch with the fields {', '.join(fields)}"
        self.trial.note(
            f"{self.name} commits attempt {attempt.attempt_id} at transaction {attempt.txid} with {tuples}{order}"
        )
        publication = Publication(RUN, attempt)
        self.outbox.waiting.append(PublishedRecords(publication, self.stage(attempt, to_batch(rows).select(fields))))
        return publication

    def stage(self, attempt: TransactionAttempt, batch: pa.RecordBatch) -> pa.Table:
        """Encode tuples in a task, which has a copy of the sink, and stage the records."""
        staged: pa.Table = self.sink.stage(attempt, copy_for_task(self.sink).encode(batch))
        self.sink.check_staged(attempt, staged)
        return staged

    def publish_only(self, count: int | None = None) -> None:
        """Publish what waits, or the first transactions of it, and die before the store has noted it."""
        group = self.outbox.waiting[:count]
        txids = [int(published.publication.attempt.txid) for published in group]
        self.trial.note(f"{self.name} publishes the transactions {txids}")
        self.sink.publish(group)

    def publish(self) -> None:
        """Publish what waits as a relay does, after an error half of it, and note it in the store."""
        count, failures = len(self.outbox.waiting), 0
        while self.outbox.waiting:
            newest = self.outbox.waiting[:count][-1].publication
            try:
                self.publish_only(count)
            except SinkUnavailable as error:
                self.trial.note(f"that raises {error!r}, is_fenced={error.is_fenced}")
                count, failures = max(1, count // 2), failures + 1
                if failures == FAILURES_MAX:
                    raise BrokenPromise(f"Expected: a publication\nCame: {error!r}") from error
                if error.is_fenced:
                    self.open()
            else:
                self.outbox.settle(newest)

    def expect_fenced(self) -> None:
        """Publish as a leader that was taken over, twice at most: the first error need not know why."""
        for _ in range(2):
            try:
                self.publish_only()
            except SinkUnavailable as error:
                if error.is_fenced:
                    self.outbox.waiting.clear()
                    return
            else:
                break
        raise BrokenPromise("Expected: SinkUnavailable with is_fenced\nCame: none")

    def commit_and_publish(self, txid_or_attempt: int | TransactionAttempt, rows: Sequence[Row]) -> Publication:
        """Commit a transaction, and publish it."""
        publication = self.commit(txid_or_attempt, rows)
        self.publish()
        return publication

    def go_back(self, txid: int) -> None:
        """Rewind to a transaction: the target takes away what came later, if it can, and the outbox forgets it."""
        fence_id = self.trial.draw_attempt_id()
        self.trial.note(f"{self.name} goes back to transaction {txid}, with the fence id {fence_id}")
        self.sink.go_back(TxId(txid), fence_id)
        self.outbox.waiting = [records for records in self.outbox.waiting if records.publication.attempt.txid <= txid]
        self.outbox.published = None

    def check_position(self, publication: Publication | None) -> None:
        """Check the position of the target, if it has one."""
        if self.sink.has_position:
            expected = None if publication is None else SinkPosition(self.owner.store_id, publication)
            self.trial.check_equal(f"position() of {self.name}", self.sink.position(), expected)

    def _settle(self, position: SinkPosition | None) -> None:
        """Note what the target has, as the store does that finds the position among its rows."""
        if position is not None and position.publication in [records.publication for records in self.outbox.waiting]:
            self.outbox.settle(position.publication)


REGISTER: Final[CaseRegister[SinkTrial]] = CaseRegister()
"""The cases of all modules."""
case, cases = REGISTER.case, REGISTER.cases_for
