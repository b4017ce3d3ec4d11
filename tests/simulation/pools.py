"""What takes the place of threads and of Spark: pools whose tasks begin and end at drawn times, and an executor."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tests.simulation import expiring
from tests.simulation.changes import CHANGES, rows_of
from tests.simulation.faults import Faults
from tests.simulation.source import Source, digest_of, poison_in, read_batch
from tests.simulation.stateful import tuples_of
from tests.simulation.tables import TOTAL, Counts
from transactional.core.ports import DeadLetter, Processed
from transactional.errors import AttemptLost, FailedException
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.facts import BatchFacts


class Scheduler(Protocol):
    """Where a process has things done later; nothing of a dead process is done."""

    def now_ms(self) -> int: ...

    def later(self, delay_ms: int, work: Callable[[], None]) -> None: ...

    def before(self, effect: str, /) -> None: ...


@dataclass(slots=True)
class Task:
    """One call in a pool. `hangs`: it ends only once it is cancelled."""

    attempt: TransactionAttempt
    work: Callable[[], None]
    future: Future[None]
    began_at_ms: int = 0
    hangs: bool = False
    killed_by: BaseException | None = None


class SimulatedPool:
    """Stands in for a `ThreadPoolExecutor`: the same futures, begun in order by at most `threads` at a time."""

    def __init__(
        self, scheduler: Scheduler, faults: Faults, threads: int, *, hangs: str = "", slow: str = "", slow_ms: int = 0
    ) -> None:
        self._scheduler, self._faults, self._free = scheduler, faults, threads
        self._hangs, self._slow, self._slow_ms = hangs, slow, slow_ms
        self._waiting: deque[Task] = deque()
        self.running: dict[TransactionAttempt, Task] = {}

    def submit(
        self,
        answer: Callable[[TransactionAttempt, Callable[[], Any]], None],
        attempt: TransactionAttempt,
        work: Callable[[], Any],
    ) -> Future[None]:
        task = Task(attempt, partial(answer, attempt, self._watched(attempt, work)), Future())
        self._waiting.append(task)
        self._scheduler.later(self._faults.random.randint(0, 20), self._begin)
        return task.future

    def _watched(self, attempt: TransactionAttempt, work: Callable[[], Any]) -> Callable[[], Any]:
        """Work that may kill the process, or find the simulation wrong, whatever handler catches that."""

        def watched() -> Any:
            try:
                return work()
            except Exception:
                raise
            except BaseException as error:
                self.running[attempt].killed_by = error
                raise

        return watched

    def cancel(self, attempt: TransactionAttempt) -> None:
        """What hangs ends some time after it was cancelled; what goes on ends when it would have."""
        task = self.running.get(attempt)
        if task is not None and task.hangs:
            task.hangs = False
            self._end_later(task, self._faults.random.randint(1, 400))

    def shutdown(self, **_: bool) -> None:
        """A process that ends takes its pools along."""

    def _begin(self) -> None:
        while self._free and self._waiting:
            task = self._waiting.popleft()
            if task.future.set_running_or_notify_cancel():
                self._run(task)

    def _run(self, task: Task) -> None:
        self._free -= 1
        task.began_at_ms = self._scheduler.now_ms()
        self.running[task.attempt] = task
        task.hangs = bool(self._hangs) and self._faults.strikes(self._hangs)
        if not task.hangs:
            is_slow = bool(self._slow) and self._faults.strikes(self._slow)
            self._end_later(task, self._faults.random.randint(1, 200) + self._slow_ms * is_slow)

    def _end_later(self, task: Task, delay_ms: int) -> None:
        self._scheduler.later(delay_ms, partial(self._end, task))

    def _end(self, task: Task) -> None:
        task.work()
        if task.killed_by is not None:
            raise task.killed_by
        self._free += 1
        del self.running[task.attempt]
        self._scheduler.later(0, self._begin)
        task.future.set_result(None)


@dataclass(slots=True)
class SimulatedExecutor:
    """A `JobExecutor` whose jobs take the time that the processing pool gives them."""

    source: Source
    tables: Sequence[str]
    faults: Faults
    scheduler: Scheduler
    sets_aside: bool
    stateful: Collection[str] = ()
    """The tables that stateful bolts keep."""
    in_arrow: bool = False
    """Whether partial aggregates are in Arrow, as the real commit phase combines them."""
    expiring: str = ""
    """The table whose keys expire, if there is one."""
    cancelled: dict[TransactionAttempt, bool] = field(default_factory=dict)
    pool: SimulatedPool | None = None

    def open(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to release."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        self.check_goes_on(attempt)
        poison = [exclusion for exclusion, _ in poison_in(self.source, batch)] if self.sets_aside else []
        if found := [exclusion for exclusion in poison if exclusion not in batch.excluded]:
            # Each task names what it has met before all were told to stop.
            named = self.faults.random.sample(found, self.faults.random.randint(1, len(found)))
            raise FailedException("a bolt can't work on this", at_fault=tuple(named))
        records = list(read_batch(self.source, attempt, batch))
        digests = {
            partition: digest_of(self.source.read(partition, offsets)) for partition, offsets in batch.non_empty()
        }
        counts = {table: self._counts(table, records, batch.facts) for table in self.tables}
        letters = [DeadLetter(exclusion, "spout", "default", "{}") for exclusion in poison]
        late = [tuples_of(table, counts.pop(table).counts) for table in self.stateful]
        return Processed(digests, counts, {}, late, excluded=batch.excluded, letters=letters, facts=batch.facts)

    def check_goes_on(self, attempt: TransactionAttempt) -> None:
        """Raise what ends a job before its time."""
        if self.cancelled.pop(attempt, False):
            raise AttemptLost(f"{attempt} was cancelled")
        if self.faults.strikes("processing fails"):
            raise FailedException("a bolt says: replay this batch")

    def cancel(self, attempt: TransactionAttempt) -> None:
        assert self.pool is not None
        if attempt in self.pool.running:
            self.cancelled[attempt] = True
            self.pool.cancel(attempt)

    def count_progress(self, attempt: TransactionAttempt) -> int:
        assert self.pool is not None
        task = self.pool.running.get(attempt)
        return 0 if task is None or task.hangs else (self.scheduler.now_ms() - task.began_at_ms) // 300

    def _counts(self, table: str, records: list[tuple[str, int]], facts: BatchFacts | None) -> Counts:
        if table == self.expiring:
            return Counts(combine={"count": "sum", "at": "max"}, table=expiring.rows_of(records, facts))
        counts: Counter[str] = Counter()
        for key, amount in records:
            counts[TOTAL if table == TOTAL else key] += amount
        if not self.in_arrow:
            return Counts(combine={"count": "sum"}, counts=counts)
        return Counts(combine={"count": "sum"}, table=rows_of({} if table in (CHANGES, expiring.GONE) else counts))
