"""`WorkerExecutor`: processing phases, and steps of the commit phase, in processes beside the driver."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace

import cloudpickle

from transactional.core.machine.report import IN_WORKERS
from transactional.core.ports import Processed
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.errors import ConfigError, WorkerDied
from transactional.model.guarantees import Guarantee
from transactional.runtime.executors.workers.deadly_tuples import deadly_tuple, naming
from transactional.runtime.executors.workers.pool import Piece, WorkerPool
from transactional.runtime.executors.workers.spark_requirement import reason_for_spark
from transactional.runtime.executors.workers.work import BoltAlone, LevelWork, PartOfStep
from transactional.runtime.processing.gathering import gather
from transactional.runtime.processing.staging import scratch_of, stagers_of
from transactional.runtime.sending.by_value import sent_by_value
from transactional.runtime.sending.packing import Packing
from transactional.runtime.tasks.items import Item, TaskTime, is_for_level, is_for_task
from transactional.runtime.tasks.program import AttemptInput, check_sendable, make_program
from transactional.runtime.tasks.step_work import StepWork, TaskDone
from transactional.runtime.tasks.watching import BoltInput
from transactional.topology.topology import Topology


class WorkerExecutor:
    """A `JobExecutor` that runs the tasks of an attempt in worker processes of the driver, without Spark.

    There are as many `processes` as this process may use cores, but no more than a level has tasks. A task always works
    in the same process while batches stay of a size: its consumers continue where they stopped. A small batch works in
    one of them, as a whole. Raises `ConfigError` for a topology that needs Spark.

    Where tuples are set aside, the tasks of a transaction are watched once a process has died of it. The next time one
    dies, parts of what a bolt was given last are tried in fresh processes, until one has died of a single tuple.
    """

    def __init__(self, topology: Topology, *, processes: int | None = None) -> None:
        if (why := reason_for_spark(topology)) is not None:
            raise ConfigError(f"topology {topology.id!r} can't run in workers: {why}. Run it on Spark")
        self._topology = topology
        self.program = make_program(topology, topology.spout.reader())
        check_sendable(self.program)
        self._processes = len(os.sched_getaffinity(0)) if processes is None else processes
        # At least once, the messages that fail are processed again by themselves.
        self.finds_tuples = self.program.sets_aside and topology.guarantee is Guarantee.EXACTLY_ONCE
        self._died = set[TxId]()
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start the processes. Raises `ConfigError` if they can't load the topology's bolts."""
        stagers, scratch = stagers_of(self._topology), scratch_of(self._topology)
        self.program = replace(self.program, stagers=stagers, scratch=scratch)
        plan = self.program.plan
        tasks = [len(plan.slots(level)) for level in range(plan.depth)]
        tasks += [component.parallelism for component in self._topology.components]
        with contextlib.ExitStack() as opened:
            # What a step is given is pickled, too, when its turn comes.
            opened.enter_context(sent_by_value(self.program))
            self._count = min(self._processes, max(tasks))
            self.pool = WorkerPool(self._count, cloudpickle.dumps(self.program))
            opened.callback(self.pool.close)
            self.pool.wait_until_ready()
            self._open = opened.pop_all()
        self._packing = Packing(self._count)

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run level after level. Raises `AttemptLost` if the attempt is cancelled, `WorkerDied` if a process of it has
        ended."""
        records = sum(len(offsets) for offsets in batch.ranges.values())
        inputs = AttemptInput.of(attempt, batch, self.program.spout)
        with self._lock:
            processes, is_watched = self._packing.tasks(records), attempt.txid in self._died
        items: list[Item] = []
        with self.pool.attending(attempt):
            try:
                for level in range(self.program.plan.depth):
                    items += self._level(inputs, level, items, processes, is_watched=is_watched)
            except WorkerDied as died:
                # Chance may kill a process. The next attempt is watched, however few are allowed.
                died.is_outage = self.finds_tuples and not is_watched
                if (named := self._named(inputs, died)) is None:
                    raise
                raise named from died
        with self._lock:
            self._died.discard(attempt.txid)
            elapsed_ms = sum(item.elapsed_ms for item in items if isinstance(item, TaskTime))
            self._packing.learn(records, elapsed_ms)
        return gather(self.program, batch, [item for item in items if not is_for_task(item)], executor=IN_WORKERS)

    def _level(
        self, inputs: AttemptInput, level: int, items: Sequence[Item], processes: int, *, is_watched: bool
    ) -> list[Item]:
        slots = self.program.plan.slots(level)
        used = min(processes, len(slots))
        pieces = []
        for number in range(used):
            own = range(number, len(slots), used)
            received = [item for item in items if is_for_level(item, level) and item.slot in own]
            work = LevelWork(inputs, level, own, received, used, is_watched)
            components = ", ".join(dict.fromkeys(repr(c) for at in own for c in slots[at][0].components))
            what = f"tasks {', '.join(map(str, own))} of {components}, attempt {inputs.attempt}"
            pieces.append(Piece(number, pickle.dumps(work, pickle.HIGHEST_PROTOCOL), what))
        return [item for sent in self.pool.run(inputs.attempt, pieces) for item in sent]

    def _named(self, inputs: AttemptInput, died: WorkerDied) -> WorkerDied | None:
        """The error that names the tuple at fault; None if there is none. Raises `AttemptLost` if the attempt is
        cancelled."""
        if self.finds_tuples:
            with self._lock:
                self._died.add(inputs.attempt.txid)
        if died.given is None:
            return None
        alone = deadly_tuple(pickle.loads(died.given), lambda part: self._dies(inputs, part))
        return None if alone is None else naming(alone, died, self.program.spout.id)

    def _dies(self, inputs: AttemptInput, given: BoltInput) -> bool:
        """Whether a process dies of an input alone."""
        work = pickle.dumps(BoltAlone(inputs, given), pickle.HIGHEST_PROTOCOL)
        try:
            self.pool.run(inputs.attempt, [Piece(0, work, f"{given.component!r} alone, attempt {inputs.attempt}")])
        except WorkerDied:
            return True
        return False

    def slots(self) -> int:
        """How many tasks run at a time."""
        return self._count

    def run_step(self, work: StepWork) -> list[TaskDone]:
        """Run a step of the commit phase (see `StepExecutor`); can be cancelled as a processing phase can."""
        used, attempt = min(self._count, len(work.inputs)), work.attempt
        pieces = []
        for number in range(used):
            part = PartOfStep(replace(work, inputs=work.inputs[number::used]))
            what = f"step {work.step.component!r}, attempt {attempt}"
            pieces.append(Piece(number, cloudpickle.dumps(part), what))
        with self.pool.attending(attempt):
            answers = self.pool.run(attempt, pieces)
        return [answers[at % used][at // used] for at in range(len(work.inputs))]

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Kill the processes in which the attempt works."""
        self.pool.cancel(attempt)

    def progress(self, attempt: TransactionAttempt) -> int:
        """A number that increases when a task of the attempt has ended, or one that it waits for."""
        return self.pool.progress(attempt)

    def close(self) -> None:
        """End the processes."""
        self._open.close()
