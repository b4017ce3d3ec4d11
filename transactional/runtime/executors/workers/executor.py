"""`WorkerExecutor` runs processing phases, and steps of the commit phase, in worker processes of the driver.

Workers need no Spark and no Java, and a small batch takes a few milliseconds. `pool` has the processes, `work` says
what they do. If a process dies, `deadly_tuples` finds the tuple at fault.
"""

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
from transactional.runtime.executors.workers.deadly_tuples import error_naming, find_deadly_tuple
from transactional.runtime.executors.workers.pool import Piece, WorkerPool
from transactional.runtime.executors.workers.spark_requirement import reason_for_spark
from transactional.runtime.executors.workers.work import BoltAlone, LevelWork, PartOfStep
from transactional.runtime.processing.gathering import gather
from transactional.runtime.processing.staging import find_scratch, find_stagers
from transactional.runtime.sending.by_value import sending_by_value
from transactional.runtime.sending.packing import Packing
from transactional.runtime.tasks.items import Item, TaskTime, is_for_level, is_for_task
from transactional.runtime.tasks.program import AttemptInput, check_sendable, make_program
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.runtime.tasks.watching import BoltInput
from transactional.topology.topology import Topology


class WorkerExecutor:
    """A `JobExecutor` that runs the tasks of an attempt in worker processes of the driver, without Spark.

    There are as many `processes` as this process may use cores, but no more than a level has tasks. While batches have
    a similar size, a task always runs in the same process, so that its consumers continue where they stopped. A small
    batch runs in a single process. Raises `ConfigError` for a topology that needs Spark.

    If tuples are set aside, the tasks of a transaction are watched once a process has died of it. The next time a
    process dies, parts of the bolt's last input are tried in other processes, until one has died of a single tuple.
    """

    def __init__(self, topology: Topology, *, processes: int | None = None) -> None:
        if (reason := reason_for_spark(topology)) is not None:
            raise ConfigError(f"topology {topology.id!r} can't run in workers: {reason}. Run it on Spark")
        self._topology = topology
        self.program = make_program(topology, topology.spout.reader())
        check_sendable(self.program)
        self._processes = len(os.sched_getaffinity(0)) if processes is None else processes
        # An at-least-once topology processes failed messages again one by one, so it need not find them.
        self.finds_tuples = self.program.sets_aside and topology.guarantee is Guarantee.EXACTLY_ONCE
        self._deadly_txids = set[TxId]()
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start the processes. Raises `ConfigError` if they can't load the topology's bolts."""
        stagers, scratch = find_stagers(self._topology), find_scratch(self._topology)
        self.program = replace(self.program, stagers=stagers, scratch=scratch)
        plan = self.program.plan
        tasks = [len(plan.slots(level)) for level in range(plan.depth)]
        tasks += [component.parallelism for component in self._topology.components]
        with contextlib.ExitStack() as opened:
            # The inputs of steps are pickled later, so the modules are sent by value until the end.
            opened.enter_context(sending_by_value(self.program))
            self._count = min(self._processes, max(tasks))
            self.pool = WorkerPool(self._count, cloudpickle.dumps(self.program))
            opened.callback(self.pool.close)
            self.pool.wait_until_ready()
            self._open = opened.pop_all()
        self._packing = Packing(self._count)

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run a processing phase level by level. Raises `AttemptLost` if the attempt is cancelled, `WorkerDied` if one
        of its processes has ended."""
        records = sum(len(offsets) for offsets in batch.ranges.values())
        inputs = AttemptInput.of(attempt, batch, self.program.spout)
        with self._lock:
            processes, is_watched = self._packing.tasks(records), attempt.txid in self._deadly_txids
        items: list[Item] = []
        with self.pool.registered(attempt):
            try:
                for level in range(self.program.plan.depth):
                    items += self._run_level(inputs, level, items, processes, is_watched=is_watched)
            except WorkerDied as death:
                # A process may die by chance. The first death does not count, so that the next attempt is watched.
                death.is_outage = self.finds_tuples and not is_watched
                if (error := self._find_deadly_tuple(inputs, death)) is None:
                    raise
                raise error from death
        with self._lock:
            self._deadly_txids.discard(attempt.txid)
            elapsed_ms = sum(item.elapsed_ms for item in items if isinstance(item, TaskTime))
            self._packing.learn(records, elapsed_ms)
        return gather(self.program, batch, [item for item in items if not is_for_task(item)], executor=IN_WORKERS)

    def _run_level(
        self, inputs: AttemptInput, level: int, items: Sequence[Item], processes: int, *, is_watched: bool
    ) -> list[Item]:
        slots = self.program.plan.slots(level)
        used = min(processes, len(slots))
        pieces = []
        for number in range(used):
            own_slots = range(number, len(slots), used)
            received = [item for item in items if is_for_level(item, level) and item.slot in own_slots]
            work = LevelWork(inputs, level, own_slots, received, used, is_watched)
            components = ", ".join(
                dict.fromkeys(repr(component) for slot in own_slots for component in slots[slot][0].components)
            )
            description = f"tasks {', '.join(map(str, own_slots))} of {components}, attempt {inputs.attempt}"
            pieces.append(Piece(number, pickle.dumps(work, pickle.HIGHEST_PROTOCOL), description))
        return [item for sent in self.pool.run(inputs.attempt, pieces) for item in sent]

    def _find_deadly_tuple(self, inputs: AttemptInput, death: WorkerDied) -> WorkerDied | None:
        """Return the error that names the tuple at fault, or None if no single tuple is. Raises `AttemptLost` if the
        attempt is cancelled."""
        if self.finds_tuples:
            with self._lock:
                self._deadly_txids.add(inputs.attempt.txid)
        if death.bolt_input is None:
            return None
        culprit = find_deadly_tuple(pickle.loads(death.bolt_input), lambda part: self._is_deadly(inputs, part))
        return None if culprit is None else error_naming(culprit, death, self.program.spout.id)

    def _is_deadly(self, inputs: AttemptInput, bolt_input: BoltInput) -> bool:
        """Return whether a process dies of an input alone."""
        work = pickle.dumps(BoltAlone(inputs, bolt_input), pickle.HIGHEST_PROTOCOL)
        try:
            self.pool.run(inputs.attempt, [Piece(0, work, f"{bolt_input.component!r} alone, attempt {inputs.attempt}")])
        except WorkerDied:
            return True
        return False

    def slots(self) -> int:
        """Return the number of tasks that run at a time."""
        return self._count

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        """Run a step of the commit phase (see `StepExecutor`). It can be cancelled like a processing phase."""
        used, attempt = min(self._count, len(work.inputs)), work.attempt
        pieces = []
        for number in range(used):
            part = PartOfStep(replace(work, inputs=work.inputs[number::used]))
            description = f"step {work.step.component!r}, attempt {attempt}"
            pieces.append(Piece(number, cloudpickle.dumps(part), description))
        with self.pool.registered(attempt):
            answers = self.pool.run(attempt, pieces)
        return [answers[number % used][number // used] for number in range(len(work.inputs))]

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Kill the processes in which the attempt works."""
        self.pool.cancel(attempt)

    def count_progress(self, attempt: TransactionAttempt) -> int:
        """Return a number that increases when a task of the attempt, or one that it waits for, has ended."""
        return self.pool.count_progress(attempt)

    def close(self) -> None:
        """End the processes, and stop sending modules by value."""
        self._open.close()
