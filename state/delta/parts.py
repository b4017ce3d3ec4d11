"""The parts of a `DeltaMapState`: what it can do besides holding rows, on its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from state.delta.log.live_files import check_live_files
from state.delta.open_table import OpenTable
from state.delta.opening import has_log_layout, set_torn_files_aside
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.scratch import SCRATCH_BYTES, FileScratch
from state.delta.tables.staging import FileStager, is_unescaped_column
from state.delta.tables.table import DeltaLocation, unreadable_table_error
from state.delta.task_state import DeltaTaskState
from state.table_state import TableState
from transactional.core.ports import TornFiles
from transactional.core.ports.examining import TableAddress
from transactional.core.ports.split import WrittenPart
from transactional.core.ports.state_parts import (
    Durability,
    Rewind,
    RewindTarget,
    Staging,
    TableExamination,
    TaskAccess,
)
from transactional.model.attempt import AttemptId, TransactionAttempt
from transactional.model.errors import OperatingError
from transactional.model.names import owner_of

if TYPE_CHECKING:
    from state.delta.doctor import ExaminedDelta


class DeltaState(TableState[OpenTable]):
    """A state in a Delta table, as its parts see it. `resolved` is the table's path or URI once a name is looked up."""

    location: DeltaLocation
    resolved: DeltaLocation
    log_layout: LogLayout | None
    """The settings of the log layout, None if the layout is another one or not declared."""
    is_durable = True
    """Whether writes have to survive a power failure."""


@dataclass(frozen=True, slots=True)
class DeltaDurability(Durability):
    """The durability of a table on a disk of this machine."""

    state: DeltaState

    def set_durability(self, durability: str) -> None:
        self.state.is_durable = durability == "disk"

    def unsynced(self) -> Collection[Path]:
        return self.state.open_table.loaded.disk.unsynced()

    def mark_synced(self) -> None:
        self.state.open_table.loaded.disk.mark_synced()

    def set_aside_torn(self, owner: str, check: Callable[[TornFiles], None]) -> None:
        set_torn_files_aside(self.state.location, owner, check)

    def check_files(self) -> None:
        """Raise `StoreMismatch` for a data file that is missing or has another size."""
        table = self.state.open_table
        try:
            check_live_files(self.state.resolved, table.loaded.engine)
        except (DeltaError, OSError) as error:
            raise unreadable_table_error(self.state.resolved, error) from None


@dataclass(frozen=True, slots=True)
class DeltaTasks(TaskAccess):
    """The reading and writing of a table by tasks of a step."""

    state: DeltaState

    @property
    def serves_tasks(self) -> bool:
        return True

    def for_tasks(self, attempt: TransactionAttempt) -> DeltaTaskState | None:
        """Return the state for the tasks of a step, or None if only the driver can use it. Raises
        `Fenced` or `OperatingError`."""
        if self.state.location.is_catalog_name:
            return None
        self.state.check_version_to_read(attempt)
        loaded, owner = self.state.open_table.loaded, self.state.owner
        table_id, stager = loaded.engine.metadata().id, DeltaStaging(self.state).task_stager(owner)
        horizons, version = self.state.expiry_horizons(attempt), loaded.delta_version
        expiring = None if horizons is None else (self.state.declared.expiring_column, horizons)
        return DeltaTaskState(
            self.state.declared.rows(owner),
            self.state.resolved,
            owner,
            str(table_id),
            version,
            attempt,
            stager,
            expiring,
        )

    def count_between(self, attempt: TransactionAttempt, column: str, start: int | None, end: int) -> int:
        """Return about the number of rows of `rows_between`. Raises `Fenced` or `OperatingError`."""
        self.state.check_version_to_read(attempt)
        return self.state.open_table.reader.count_between(column, start, end)

    def put_parts(self, attempt: TransactionAttempt, parts: Sequence[WrittenPart]) -> None:
        self.state.put_parts(attempt, parts)


@dataclass(frozen=True, slots=True)
class DeltaStaging(Staging):
    """The files beside a table in the log layout on a disk."""

    state: DeltaState

    def stager(self, owner: str) -> FileStager | None:
        """Return the stager with which tasks write large partial aggregates, for a table in the log layout on a
        disk."""
        return None if self.state.declared.deletes else self.task_stager(owner)

    def task_stager(self, owner: str) -> FileStager | None:
        """Return the stager with which tasks of a step write rows, deleted keys included, or None."""
        if self.state.declared.are_complete and self.state.declared.columns.horizon is not None:
            return None
        settings = self._log_on_disk()
        if settings is None or settings.staged_bytes is None:
            return None
        return FileStager(
            Path(self.state.location.uri), owner, self.state.declared.columns.written_columns, settings.staged_bytes
        )

    def scratch(self, owner: str) -> FileScratch | None:
        """Return the folder for files that tasks pass to later steps. Maintenance of staged files deletes orphaned
        ones."""
        settings = self._log_on_disk()
        if settings is None or settings.staged_bytes is None:
            return None
        return FileScratch(Path(self.state.location.uri), owner, min(settings.staged_bytes, SCRATCH_BYTES))

    def _log_on_disk(self) -> LogLayout | None:
        """Return the settings of a table in the log layout on a disk, to which executors can write, else None."""
        is_on_disk = not self.state.location.is_catalog_name and self.state.location.scheme == "file"
        if not is_on_disk or not self.state.declared.are_complete:
            return None
        if not is_unescaped_column(self.state.declared.columns.txid):
            return None
        try:
            return self.state.log_layout or (
                LogLayout() if has_log_layout(self.state.location, self.state.declared.columns) else None
            )
        except OperatingError:  # torn by a power cut: the leader repairs it when it opens the table, which is later
            return None


@dataclass(frozen=True, slots=True)
class DeltaExamination(TableExamination):
    """The place of a table, and its examination by the doctor."""

    state: DeltaState

    @property
    def owns_folder(self) -> bool:
        """True: no other file may be in the table's folder."""
        return True

    @property
    def storage_path(self) -> str | None:
        """The path or URI of the table, or None for a name in a catalog."""
        return None if self.state.location.is_catalog_name else self.state.location.uri

    def address(self) -> TableAddress:
        """Return the place of the table, for programs that read it without the state."""
        uri = None if self.state.location.is_catalog_name else self.state.location.uri
        name, options = self.state.location.name, self.state.location.storage_options
        return TableAddress.of("delta", uri, self.state.declared.columns, name, options, self.state.declared.expiry)

    def examine(self, topology_id: str, component_id: str) -> ExaminedDelta | None:
        """Return the table for the doctor, or None for a name in a catalog. Raises `OperatingError`."""
        from state.delta.doctor import ExaminedDelta  # loaded by the doctor alone

        expires = None if self.state.declared.expiry is None else self.state.declared.expiry.column
        return (
            None
            if self.state.location.is_catalog_name
            else ExaminedDelta(self.state.location, topology_id, component_id, expires)
        )


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

        self.state.rewind_by(fence_id, lambda table: restore(table, target, fence_id))

    def retain(self, targets: Sequence[RewindTarget]) -> None:
        """Keep the log and the files that a return to these targets needs."""
        from state.delta.rewinding import find_retained_parts

        table = self.state.open_table
        table.upkeep.retained = find_retained_parts(table.loaded, targets)
