"""A commit phase that notes how long each took, and where a component's step ran."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

from transactional.attempt import TransactionAttempt
from transactional.core.report import CommitReport
from transactional.phases.committing import CommitPhase
from transactional.ports import Processed
from transactional.spark.executor import SparkExecutor
from transactional.topology.topology import Topology


class TimedCommitPhase(CommitPhase):
    """As it is, timed. `component` is the one whose places are noted, which `choice` is about; None: none of them."""

    def __init__(
        self,
        topology: Topology,
        component: str | None = None,
        *,
        jobs: SparkExecutor | None = None,
        choice: str = "auto",
    ) -> None:
        super().__init__(topology, jobs=jobs, choice=choice)
        self._component = component
        self.times_ms, self.places = list[float](), Counter[str]()

    def run(self, attempt: TransactionAttempt, processed: Processed) -> CommitReport:
        """As it is, timed."""
        began = perf_counter()
        report = super().run(attempt, processed)
        self.times_ms.append((perf_counter() - began) * 1e3)
        if self._component is not None:
            self.places["job" if report.steps[self._component].startswith("job") else "driver"] += 1
        return report
