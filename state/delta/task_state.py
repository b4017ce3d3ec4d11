"""A Delta table at one version, for the tasks of a step: reads its rows, and stages the rows that tasks put."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import pyarrow as pa

from state.delta.opening import open_reader
from state.delta.read.table_reader import TableReader
from state.delta.tables.staging import FileStager
from state.delta.tables.table import DeltaLocation
from state.rows.expiring import ExpiryHorizons, select_unexpired
from state.rows.python_rows import TaskRows
from transactional.core.ports.split import NeedsDriver, WrittenPart
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import OperatingError

_loaded: dict[tuple[str, str, str], TableReader] = {}
"""The tables that this process has read, by location, table id and columns. Their caches serve the next transaction's
tasks as well."""


@dataclass(frozen=True, slots=True)
class DeltaTaskState(TaskRows):
    """Reads the Delta version that the driver has read and checked, whatever was committed since."""

    location: DeltaLocation
    owner: str
    table_id: str
    delta_version: int
    attempt: TransactionAttempt
    stager: FileStager | None
    horizons: tuple[str, ExpiryHorizons] | None = None
    """The column by which rows expire, and the transaction's horizons; None: they don't."""

    def rows_before(self, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow. Raises `OperatingError`."""
        rows = self._table().lookup(self.attempt.txid, keys)
        return rows if self.horizons is None else select_unexpired(rows, self.horizons[0], self.horizons[1].current)

    def rows_between(self, column: str, after: int | None, until: int) -> pa.Table:
        """The rows whose column lies in a range. Raises `OperatingError`."""
        rows = self._table().rows_between(self.attempt.txid, column, after, until)
        return rows if self.horizons is None else select_unexpired(rows, self.horizons[0], self.horizons[1].previous)

    def make_part(self, table: pa.Table, tasks: int) -> WrittenPart:
        """Return new values as a part, in a staged file if they are many. Raises `OperatingError`."""
        if self.stager is not None and self.stager.is_large_enough(table.nbytes, tasks):
            return WrittenPart(file=self.stager.stage(self.attempt, table))
        return WrittenPart(table)

    def _table(self) -> TableReader:
        table = str(self.location), self.table_id, str(self.rows.columns.all_columns)
        try:
            if table not in _loaded:
                _loaded[table] = open_reader(self.location, self.owner, self.rows.columns)
            _loaded[table].loaded.move_to(self.delta_version)
        except OperatingError as error:
            text = f"{error}; that was on {socket.gethostname()}, and the driver has it at version {self.delta_version}"
            raise NeedsDriver(text, "its table can't be read where its tasks would run") from error
        return _loaded[table]
