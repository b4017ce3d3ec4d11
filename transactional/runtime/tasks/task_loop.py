"""Runs a task, in the processing phase or in the commit phase: `TaskLoop` is the loop of both.

The bolts of a task are created and prepared, fed with the tuples that have arrived, and finished one after the other. A
task that has failed continues to look for failing tuples, but finishes nothing. Subclasses say what becomes of the
output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa

from transactional.model.user_code.failures import TaskFailed, guarding
from transactional.runtime.tasks.emitting import Emitter, make_emitter
from transactional.runtime.tasks.failing.faults import Faults
from transactional.runtime.tasks.operator_factory import TaskInfo, UpdateGate, load_operator, make_gates, make_operator
from transactional.runtime.tasks.operators import Operator

Received = Iterable[tuple[pa.RecordBatch, str, str]]
"""Record batches with the component and stream they are from."""


class TaskLoop(ABC):
    """One run through a task. `components` are fused: the output of the first goes to the others within the task.

    If its input is not complete, because an earlier task has failed, it continues to look for tuples on which its bolts
    fail, and finishes nothing. With `looks_closer` every emitted value is checked. `instances` are the pickled bolts
    that have started their batch in another task.
    """

    def __init__(
        self,
        info: TaskInfo,
        components: Sequence[str],
        *,
        instances: Mapping[str, bytes] | None = None,
        is_complete: bool = True,
        looks_closer: bool = False,
    ) -> None:
        self.info, self.program, self.components = info, info.program, components
        self.is_complete, self.looks_closer = is_complete, looks_closer
        self.emitters: dict[str, Emitter] = {}
        self.operators: dict[str, Operator] = {}
        self.gates: list[UpdateGate] = []
        self.faults = Faults(info.program.spout.id)
        self.late_counts = Counter[str]()
        """Late tuples, by the component with the windows that have left them out."""
        self.counted = Counter[tuple[str, str]]()
        """The bolts' own counters, by component and name."""
        self.watch: Callable[[Operator, pa.RecordBatch, str, str], None] | None = None
        """Runs the bolts of a task that is watched."""
        self._instances = instances or {}

    def run(self, received: Received) -> TaskFailed | None:
        """Run the task on the tuples that it has received. Returns its failure, or None."""
        try:
            self._work(received)
        except TaskFailed as failed:
            return failed
        return None

    def _work(self, received: Received) -> None:
        for component_id in self.components:
            with guarding(component_id):
                self._add(component_id)
        for component_id, operator in self.operators.items():
            if component_id not in self._instances:
                operator.prepare()
        self.begin()
        for batch, source, stream in received:
            self.operators[self.components[0]].receive(batch, source, stream)
        for component_id in self.components:
            self._finish(component_id)
        self.faults.fail()
        self.end()

    def _add(self, component_id: str) -> None:
        emitter = make_emitter(self.program, component_id, self.info.task, looks_closer=self.looks_closer)
        self.emitters[component_id] = emitter
        if self.program.record is not None:
            emitter.record_to(partial(self.program.record, self.info.attempt, component_id))
        if component_id == self.program.spout.id:
            # A failing update is the fault of the bolt before it. After the spout there is none, so a gate finds the
            # tuples.
            self._add_gates(component_id, emitter)
            return
        bolt, instance = self.program.bolts[component_id], self._instances.get(component_id)
        if instance is None:
            operator = make_operator(self.info, bolt, emitter)
        else:
            operator = load_operator(self.info, bolt, instance, emitter)
        operator.faults, operator.watch = self.faults, self.watch
        self.operators[component_id] = operator
        if bolt.is_dataframe and self.program.sets_aside:
            # Spark has computed these tuples, and it is not known from which ones: a gate finds those at fault, too.
            self._add_gates(component_id, emitter)
        if component_id != self.components[0]:
            for grouping in bolt.inputs:
                self.emitters[grouping.source].connect(operator, grouping.stream)

    def _add_gates(self, component_id: str, emitter: Emitter) -> None:
        self.gates = make_gates(self.info, component_id, emitter, looks_closer=self.looks_closer)
        for gate in self.gates:
            gate.faults = self.faults
            self.operators[gate.component] = gate

    def _finish(self, component_id: str) -> None:
        """Finish one component, which has all its tuples by now.

        If the attempt fails, its output is still passed on, because that may reveal more failing tuples.
        """
        operator, emitter = self.operators.get(component_id), self.emitters[component_id]
        if operator is not None and self.has_no_failure:
            self.finish(operator)
        with guarding(component_id):
            emitter.flush()
            self.send_on(component_id, emitter)

    def add_counters(self, operator: Operator) -> None:
        """Add the counters of a bolt."""
        self.counted.update({(operator.component, name): number for name, number in operator.counts.items()})

    @property
    def has_no_failure(self) -> bool:
        """False if a bolt of this task, or an earlier task, has failed. Nothing is finished then."""
        return self.is_complete and not self.faults

    def begin(self) -> None:  # noqa: B027 - optional
        """Read input that no other task has sent. Called once all bolts are prepared."""

    @abstractmethod
    def finish(self, operator: Operator) -> None:
        """Finish a bolt that has all its tuples. Only called if there is no failure."""

    @abstractmethod
    def send_on(self, component_id: str, emitter: Emitter) -> None:
        """Take the output of a component for other tasks' bolts and for states. Also called if the task fails."""

    def end(self) -> None:  # noqa: B027 - optional
        """Finish the task. Called once all components are finished, or passed on if the input is incomplete; not after
        a failure."""


Loop_co = TypeVar("Loop_co", bound=TaskLoop, covariant=True)


class MakesLoop(Protocol[Loop_co]):
    """Creates the loop for one more run through the same task."""

    def __call__(self, *, looks_closer: bool) -> Loop_co:
        """Create the loop, which checks every value if it looks closer."""


def run_task_loop(make: MakesLoop[Loop_co], received: Callable[[], Received]) -> tuple[Loop_co, TaskFailed | None]:
    """Run a task. Returns the run that counts, and its failure, if it has failed.

    If a failure may be due to any of many tuples, the task is run once more to find which. If that finds none, the
    first run counts.
    """
    loop = make(looks_closer=False)
    failed = loop.run(received())
    if failed is not None and failed.is_of_many:
        closer = make(looks_closer=True)
        closer_failure = closer.run(received())
        if closer_failure is not None and closer_failure.at_fault:
            return closer, closer_failure
    return loop, failed
