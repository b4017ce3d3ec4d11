"""Operators run bolts: they feed a bolt its tuples or Arrow batches, in either phase of a transaction.

There is one class for each kind of bolt. An operator counts what it receives, leaves out excluded tuples, which become
dead letters, and attributes a failure of the bolt to the tuple at fault where that is possible. If a bolt fails on a
record batch, the batch is divided until single tuples are left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from transactional.core.ports import DeadLetter, LateCounter
from transactional.model.arrow import with_origin
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import SchemaMismatch
from transactional.model.letters import Exclusion
from transactional.model.messages import Unfinished
from transactional.model.user_code.failures import TaskFailed, guarding
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.failing.faults import Faults, can_be_of_a_tuple, fingerprint, letter_text
from transactional.runtime.tasks.items import Subscription
from transactional.runtime.tasks.pickling import dump_instance
from transactional.topology.bolts.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, Bolt, TopologyContext
from transactional.topology.bolts.following_bolt import FollowingBolt

SEARCHED_PARTS = 16
"""Number of parts into which a record batch is divided to find the tuples that a bolt fails on. With two parts, a bolt
gets each tuple of a batch of 10,000 three times if one is bad, and nine times if one in two hundred is; with sixteen,
twice and three times."""


class Operator(ABC):
    """A bolt in one task of one attempt. `faults` are shared by all operators of the task."""

    def __init__(self, component: str, emitter: Emitter) -> None:
        self.component, self.emitter = component, emitter
        self.received: dict[Subscription, int] = {}
        self.excluded: dict[str, Exclusion] = {}
        self.letters: list[DeadLetter] = []
        self.silent: Collection[tuple[str, str]] = ()
        """The origins of tuples that reach task 0 as well, which makes their dead letters."""
        self.counts: Mapping[str, int] = {}
        """The bolt's own counters by name."""
        self.faults = Faults()
        self.fresh: Callable[[Emitter], Operator] | None = None
        """Creates another, prepared operator of the bolt. None if the bolt keeps nothing from tuple to tuple."""
        self.shown_origins: Mapping[tuple[str, str], tuple[str, str]] = {}
        """The component and stream that the bolt sees instead of the real ones, by origin."""
        self.notes_origin = False
        """True for a bolt on Arrow data with several inputs: each record batch carries its origin."""
        self.watch: Callable[[Operator, pa.RecordBatch, str, str], None] | None = None
        """Runs the bolt instead of `run` if the task is watched."""
        self._has_failed = False

    def receive(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Pass the bolt tuples that `source` has emitted on `stream`."""
        subscription = (source, stream, self.component)
        self.received[subscription] = self.received.get(subscription, 0) + batch.num_rows
        is_silent = (source, stream) in self.silent
        source, stream = self.shown_origins.get((source, stream), (source, stream))
        if self.excluded:
            batch = self._without_excluded(batch, source, stream, is_silent=is_silent)
        if self.watch is None:
            self.run(batch, source, stream)
        else:
            self.watch(self, batch, source, stream)

    def run(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Run the bolt over tuples without excluded ones, with the origin that the bolt sees."""
        if self.notes_origin:
            batch = with_origin(batch, source, stream)
        with guarding(self.component, is_of_many=True):
            self.execute(batch, source, stream)

    def _without_excluded(self, batch: pa.RecordBatch, source: str, stream: str, *, is_silent: bool) -> pa.RecordBatch:
        numbers = []
        for number, row in enumerate(tuples(batch, source, stream)):
            exclusion = self.excluded.get(fingerprint(row, self.faults.spout))
            if exclusion is None:
                numbers.append(number)
            elif not is_silent:
                self.letters.append(DeadLetter(exclusion, source, stream, letter_text(row)))
        return batch if len(numbers) == batch.num_rows else batch.take(pa.array(numbers, pa.int64()))

    def prepare(self) -> None:  # noqa: B027 - optional
        """Prepare the bolt. Called once, before the first tuple."""

    @abstractmethod
    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Run the bolt over a record batch."""

    def finish(self) -> None:  # noqa: B027 - optional
        """Finish the bolt's batch. Called once, after the last tuple."""

    def unfinished(self) -> Unfinished | None:
        """Return the unfinished messages of a bolt that follows messages. Called after `finish`."""
        return None

    @property
    def late_counts(self) -> Mapping[str, int]:
        """Called after `finish`: late tuples, by the component with the windows that have left them out."""
        return {}

    def pickle_for_commit(self) -> bytes | None:
        """Return the pickled bolt, which continues in the commit phase, or None if it has no data of the batch. Called
        instead of `finish`."""
        return None

    def is_cleared(self, work: Callable[[Operator], None], emitter: Emitter) -> bool:
        """Return whether `work` succeeds in a fresh instance although it failed in this one, which had failed before.
        Such a failure says nothing about the tuple."""
        if self.fresh is None or not self._has_failed:
            self._has_failed = True
            return False
        fresh_operator = self.fresh(emitter)
        try:
            with guarding(self.component):
                work(fresh_operator)
        except TaskFailed as failed:
            return not can_be_of_a_tuple(failed, self.component)
        return True


def late_counts_of(bolt: Bolt) -> Mapping[str, int]:
    """Return the late tuples that a bolt has counted, by component."""
    return bolt.late_counts if isinstance(bolt, LateCounter) else {}


class TupleOperator(Operator):
    """A bolt that processes one tuple at a time: a failure is attributed to the tuple that it received."""

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Feed the bolt row by row. After a row that it fails on it continues with the next one."""
        work, rows = self.work(), tuples(batch, source, stream)
        while self._work_until_failure(work, rows):
            pass

    def _work_until_failure(self, work: Callable[[Tuple], None], rows: Iterator[Tuple]) -> bool:
        row: Tuple | None = None
        try:
            with guarding(self.component):
                for row in rows:
                    work(row)
        except TaskFailed as failed:
            if row is None or not can_be_of_a_tuple(failed, self.component):
                raise
            if not self.faults.is_named(self.component, row):
                if self.is_cleared(partial(_work_on, row), self.emitter.apart()):
                    self.faults.fail()
                self.faults.name(failed, row)
            return True
        return False

    @abstractmethod
    def work(self) -> Callable[[Tuple], None]:
        """Return the function that runs the bolt on one tuple."""


def _work_on(row: Tuple, operator: Operator) -> None:
    assert isinstance(operator, TupleOperator)
    operator.work()(row)


class ArrowOperator(Operator):
    """A bolt that processes record batches: one that it fails on is divided until single tuples are left."""

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Feed the bolt the record batch."""
        failed = self._try(self, batch)
        if failed is None:
            return
        if batch.num_rows and self.is_cleared(partial(_work_on_batch, batch), self.emitter.apart()):
            self.faults.fail()
        if not batch.num_rows or not self._search(batch, source, stream, failed):
            raise failed

    def _try(self, operator: Operator, batch: pa.RecordBatch) -> TaskFailed | None:
        """Run a record batch. Returns its failure if that may be due to its tuples, and raises any other.

        The failure is returned, because raising the next one while it is handled would mention it as well.
        """
        try:
            with guarding(self.component):
                _work_on_batch(batch, operator)
        except TaskFailed as failed:
            if not can_be_of_a_tuple(failed, self.component):
                raise
            return failed
        return None

    def _search(self, batch: pa.RecordBatch, source: str, stream: str, failed: TaskFailed) -> bool:
        """Find the tuples that fail alone. Returns False if there are none, so that the batch fails only as a whole."""
        if batch.num_rows == 1:
            [row] = tuples(batch, source, stream)
            self.faults.name(failed, row)
            return True
        size, is_found = -(-batch.num_rows // SEARCHED_PARTS), False
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            failed_part = self._try(self if self.fresh is None else self.fresh(self.emitter), part)
            if failed_part is not None:
                if not self._search(part, source, stream, failed_part):
                    raise failed_part
                is_found = True
        return is_found

    @abstractmethod
    def work(self, batch: pa.RecordBatch) -> None:
        """Run the bolt over a record batch."""


def _work_on_batch(batch: pa.RecordBatch, operator: Operator) -> None:
    assert isinstance(operator, ArrowOperator)
    operator.work(batch)


class TupleFunction(TupleOperator):
    """A function from a `Tuple` to tuples."""

    def __init__(self, component: str, emitter: Emitter, function: Callable[[Tuple], Any]) -> None:
        super().__init__(component, emitter)
        self.function = function

    def work(self) -> Callable[[Tuple], None]:
        """Return the function that calls the user's function and emits its result."""
        return self._call

    def _call(self, row: Tuple) -> None:
        returned = self.function(row)
        if isinstance(returned, tuple):
            self.emitter.emit(*returned)
        elif returned is not None:
            self._emit_all(returned)

    def _emit_all(self, returned: Any) -> None:
        if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
            raise self._no_tuple(returned)
        for values in returned:
            if not isinstance(values, tuple | list):
                raise self._no_tuple(values, container=returned)
            self.emitter.emit(*values)

    def _no_tuple(self, returned: Any, container: Iterable[Any] | None = None) -> SchemaMismatch:
        hint = (
            ""
            if container is None
            else f" in a {type(container).__name__}: for one tuple return (…, …), for several [(…,), (…,)]"
        )
        return SchemaMismatch(
            f"{self.component!r} must return a tuple, an iterable of tuples, or None; got {repr(returned)[:100]}{hint}"
        )


class ArrowFunction(ArrowOperator):
    """A function from a record batch to a record batch or table."""

    def __init__(self, component: str, emitter: Emitter, function: Callable[[pa.RecordBatch], Any]) -> None:
        super().__init__(component, emitter)
        self.function = function

    def work(self, batch: pa.RecordBatch) -> None:
        """Call the function with a record batch, and emit its result."""
        self.emitter.emit_batch(self.function(batch))


class PassOn(Operator):
    """Replaces a DataFrame bolt, whose output Spark has computed: emits the batches that it receives."""

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Emit the record batch that has arrived."""
        self.emitter.emit_batch(batch)


class BasicOperator(TupleOperator):
    """Runs a `BasicBolt`, one tuple at a time."""

    def __init__(self, component: str, emitter: Emitter, bolt: BasicBolt, context: TopologyContext) -> None:
        super().__init__(component, emitter)
        self.bolt, self.context = bolt, context

    def prepare(self) -> None:
        """Prepare the bolt with its context."""
        with guarding(self.component):
            self.bolt.prepare(self.context)

    def work(self) -> Callable[[Tuple], None]:
        """Return the function that passes the bolt a tuple."""
        execute, emitter = self.bolt.execute, self.emitter
        return lambda row: execute(row, emitter)

    def pickle_for_commit(self) -> bytes | None:
        """Return the pickled bolt with its data of this batch."""
        with guarding(self.component):
            return dump_instance(self.bolt, self.emitter)


class _Batchwise(Operator):
    """The common base of the operators of `BatchBolt` and `ArrowBatchBolt`."""

    def __init__(
        self,
        component: str,
        emitter: Emitter,
        bolt: BatchBolt | ArrowBatchBolt,
        context: TopologyContext,
        attempt: TransactionAttempt,
    ) -> None:
        super().__init__(component, emitter)
        self.bolt, self.context, self.attempt = bolt, context, attempt

    def prepare(self) -> None:
        """Prepare the bolt with its context."""
        with guarding(self.component):
            self.bolt.prepare(self.context, self.emitter, self.attempt)

    def finish(self) -> None:
        """Finish the batch of the bolt."""
        with guarding(self.component):
            self.bolt.finish_batch()

    @property
    def late_counts(self) -> Mapping[str, int]:
        """The late tuples that the bolt has counted."""
        return late_counts_of(self.bolt)

    def pickle_for_commit(self) -> bytes | None:
        """Return the pickled bolt with its data of this batch."""
        with guarding(self.component):
            return dump_instance(self.bolt, self.emitter)


class BatchOperator(_Batchwise, TupleOperator):
    """Runs a `BatchBolt`, one tuple at a time."""

    def work(self) -> Callable[[Tuple], None]:
        """Return the function that passes the bolt a tuple."""
        assert isinstance(self.bolt, BatchBolt)
        return self.bolt.execute


class ArrowBatchOperator(_Batchwise, ArrowOperator):
    """Runs an `ArrowBatchBolt`, one record batch at a time."""

    def work(self, batch: pa.RecordBatch) -> None:
        """Pass the bolt the record batch."""
        assert isinstance(self.bolt, ArrowBatchBolt)
        self.bolt.execute_batch(batch)


class FollowingOperator(ArrowBatchOperator):
    """Runs a `FollowingBolt`, which follows messages."""

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Feed the bolt the record batch. Unlike other operators, never search for the tuples at fault."""
        self.work(batch)

    def unfinished(self) -> Unfinished:
        """Return the unfinished messages of the bolt."""
        assert isinstance(self.bolt, FollowingBolt)
        return self.bolt.unfinished()
