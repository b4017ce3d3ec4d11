"""What `transactional run --standby` prints: that it is waiting, and when it starts to lead."""

from __future__ import annotations

from collections.abc import Sequence

from transactional.core.machine.protocol import Action, Event
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.operations.cli.output.lines import print_line


class StandbyReporter:
    """An observer that prints a line when it is made, and one when the run begins."""

    def __init__(self, topology_id: str) -> None:
        self.topology_id = topology_id
        print_line(f"standing by for topology {topology_id}: leads as soon as nobody else does")

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **details: object) -> None:
        """The lease has been taken, and every table is fenced."""
        print_line(f"leading topology {self.topology_id} from transaction {progress.committed_txid + 1} on")

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Later events are printed by other observers."""
