"""The tuples of a bolt that were consumed in the processing phase: they are processed once more, in this process."""

from __future__ import annotations

import pyarrow as pa

from transactional.errors import TransactionalError
from transactional.execution.placing import TaskInfo
from transactional.phases.local_executor import LocalExecutor
from transactional.phases.refused_puts import Given
from transactional.ports import Processed
from transactional.topology.topology import Topology


def received_again(topology: Topology, component: str, processed: Processed, info: TaskInfo) -> Given:
    """The tuples of a bolt that were consumed in the processing phase: all is processed once more in this process, up
    to that bolt. Nothing if that is not possible here."""
    if processed.batch is None:
        return {}
    try:
        executor = LocalExecutor(topology, late=frozenset([component]))
        again = executor.run(info.attempt, processed.batch)
    except TransactionalError:
        return {}
    found: dict[int, list[tuple[pa.RecordBatch, str, str]]] = {}
    for late in (late for late in again.late if late.target == component):
        found.setdefault(late.task, []).extend((batch, late.source, late.stream) for batch in late.batches)
    return {task: lambda of=received: of for task, received in found.items()}  # type: ignore[misc]
