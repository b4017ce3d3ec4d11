"""Runs processing phases in this process and looks at what committers have got."""

from __future__ import annotations

from typing import Any

from tests.unit.fakes import total
from transactional.bolts import BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports import Processed
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.map_state import MapStateView
from transactional.runtime.tasks.pickling import load_instance
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology

FIRST = TransactionAttempt(TxId(1), AttemptId(1))


class Nowhere:
    """A collector behind which nothing stands."""

    def emit(self, *values: Any, stream: str = "default") -> None:
        """Drop a tuple."""

    def emit_batch(self, batch: Any, *, stream: str = "default") -> None:
        """Drop tuples."""

    def emit_direct(self, component: str, task: int, *values: Any, stream: str = "default") -> None:
        """Drop a tuple."""


class Keep(BatchBolt):
    """A committer that keeps its tuples, to be looked at."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.context, self.collector, self.attempt = context, collector, attempt
        self.rows: list[tuple[Any, ...]] = []
        self.sources: list[str] = []

    def execute(self, tuple: Tuple) -> None:
        self.rows.append(tuple.values)
        self.sources.append(tuple.source)

    def finish_batch(self) -> None: ...


def keep(made: TransactionalTopologyBuilder, parallelism: int = 1) -> Any:
    """Declare a committer that keeps its tuples."""
    return made.set_committer_bolt("keep", Keep(), parallelism, state=total())


def everything(topology: Topology) -> BatchMetadata:
    """A batch of all there is to read now."""
    batch = topology.spout.plan(EMPTY_BATCH, replay=True)
    assert batch is not None
    return batch


def processed(topology: Topology, batch: BatchMetadata | None = None, attempt: TransactionAttempt = FIRST) -> Processed:
    """What a processing phase leaves behind."""
    return LocalExecutor(topology).run(attempt, everything(topology) if batch is None else batch)


def instances(topology: Topology, made: Processed, committer: str = "keep") -> list[Any]:
    """The committer's instances, one per task, as they are in the commit phase."""
    state = next(component.state for component in topology.committers if component.id == committer)
    assert state is not None
    view = MapStateView(committer, state, FIRST)
    parts = made.parts[committer]
    assert isinstance(parts, list)
    return [load_instance(part, Nowhere(), view) for part in parts]


def kept(topology: Topology, batch: BatchMetadata | None = None) -> list[list[tuple[Any, ...]]]:
    """For each task of the committer the rows that it got."""
    return [instance.rows for instance in instances(topology, processed(topology, batch))]
