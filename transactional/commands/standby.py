"""What `transactional run --standby` tells: that it waits, and from where on it leads."""

from __future__ import annotations

from collections.abc import Sequence

from transactional.commands.display import plain_line
from transactional.config import TopologyConfig
from transactional.core.protocol import Action, Event
from transactional.progress import Snapshot


class StandbyTeller:
    """An observer that prints a line when it is made, and one when the run begins."""

    def __init__(self, topology_id: str) -> None:
        self.topology_id = topology_id
        plain_line(f"stands by for topology {topology_id}: leads as soon as nobody else does")

    def begin(
        self, at_ms: int, snapshot: Snapshot, config: TopologyConfig, *, replays_exactly: bool, sets_aside: bool
    ) -> None:
        """The lease is taken, and every table is fenced."""
        plain_line(f"leads topology {self.topology_id} from transaction {snapshot.committed_txid + 1} on")

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Of what happens then others tell."""
