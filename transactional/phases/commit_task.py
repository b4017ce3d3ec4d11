"""One run through a task of one component in the commit phase, wherever that is."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from transactional.execution.emitting import Emitter
from transactional.execution.operators import Operator
from transactional.execution.placing import TaskInfo
from transactional.execution.task_loop import TaskLoop
from transactional.ports import DeadLetter
from transactional.topology.stages import StageEdge


class CommitTask(TaskLoop):
    """One task of one component in the commit phase: keeps what it emits for later components."""

    def __init__(self, info: TaskInfo, bolt_id: str, instances: Mapping[str, bytes], *, looks_closer: bool) -> None:
        super().__init__(info, [bolt_id], instances=instances, looks_closer=looks_closer)
        self.letters: list[DeadLetter] = []
        self.partials: list[tuple[str, pa.Table]] = []
        self.addressed: list[tuple[StageEdge, int, list[pa.RecordBatch]]] = []

    def finish(self, operator: Operator) -> None:
        """Finish the batch."""
        self.letters += operator.letters
        operator.finish()

    def send_on(self, component_id: str, emitter: Emitter) -> None:
        """Keep it."""
        self.addressed += emitter.addressed()
        if self.goes_well:
            self.partials += emitter.partials()
