"""The parts of a `DeltaMapState`: what it can do besides holding rows, on its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake.exceptions import DeltaError

from state.delta.log.live_files import check_live_files
from state.delta.open_table import OpenTable
from state.delta.opening import mend_torn_log
from state.delta.tables.table import DeltaLocation, unreadable
from state.table_state import TableState
from transactional.core.ports import TornFiles
from transactional.core.ports.state_parts import Durability, Rewind, RewindTarget
from transactional.model.attempt import AttemptId
from transactional.model.names import owner_of


class DeltaState(TableState[OpenTable]):
    """A state in a Delta table, as its parts see it. `resolved` is the table's path or URI once a name is looked up."""

    location: DeltaLocation
    resolved: DeltaLocation
    is_durable = True
    """Whether writes have to survive a power failure."""


@dataclass(frozen=True, slots=True)
class DeltaDurability(Durability):
    """The durability of a table on a disk of this machine."""

    state: DeltaState

    def set_durability(self, durability: str) -> None:
        self.state.is_durable = durability == "disk"

    def unsynced(self) -> Collection[Path]:
        return self.state._open_table.loaded.disk.unsynced()

    def mark_synced(self) -> None:
        self.state._open_table.loaded.disk.mark_synced()

    def set_aside_torn(self, owner: str, check: Callable[[TornFiles], None]) -> None:
        mend_torn_log(self.state.location, owner, check)

    def check_files(self) -> None:
        """Raise `StoreMismatch` for a data file that is missing or has another size."""
        table = self.state._open_table
        try:
            check_live_files(self.state.resolved, table.loaded.engine)
        except (DeltaError, OSError) as error:
            raise unreadable(self.state.resolved, error) from None


@dataclass(frozen=True, slots=True)
class DeltaRewind(Rewind):
    """The way back of a table by restoring an earlier Delta version."""

    state: DeltaState

    @property
    def rewind_obstacle(self) -> str:
        return ""

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        from state.delta.rewinding import describe_restore  # loaded by rewinds alone

        location = self.state.resolved
        if location.is_catalog_name:
            return f"Delta table {location}: where it lies is known to the catalog, and looked up when it is done"
        return describe_restore(location, owner_of(topology_id, component_id), target)

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Restore the table as it was, under a new fence, in one Delta commit."""
        from state.delta.rewinding import restore

        self.state._rewind_by(fence_id, lambda table: restore(table.loaded, target, fence_id))

    def retain(self, targets: Sequence[RewindTarget]) -> None:
        """Keep the log and the files that a return to these targets needs."""
        from state.delta.rewinding import find_retained_parts

        table = self.state._open_table
        table.upkeep.retained = find_retained_parts(table.loaded, targets)
