"""`OpenTable`: the open Delta table of a state, with its reader, its writer and its maintenance.

All three share one loaded version (`LoadedTable`), which moves on when the version is read, or written. The reader of
the open table is for the writing thread; other readers load a version of their own (`opening.open_to_read`).
"""

from __future__ import annotations

from collections.abc import Callable

from state.delta.read.merged_reader import MergedReader
from state.delta.read.segment_reader import SegmentReader
from state.delta.read.table_reader import TableReader
from state.delta.segments.log_layout import LogLayout
from state.delta.upkeep.merged_upkeep import MergedUpkeep
from state.delta.upkeep.segment_upkeep import SegmentUpkeep
from state.delta.upkeep.table_upkeep import TableUpkeep
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.merging import MergeWriter
from state.delta.write.segments import LogWriter
from state.delta.write.table_writer import TableWriter
from state.delta.write.touched_files import Footers
from state.fence import TableWrite
from transactional.model.names import STORE_PROPERTY

Turn = Callable[[TableWrite], "OpenTable"]
"""Changes the layout of a table before a transaction that is no replay is written, and returns the open table."""


class OpenTable:
    """The open table of a state (see `FencedTable`). `turn` is called with the first new transaction."""

    def __init__(
        self,
        loaded: LoadedTable,
        reader: TableReader,
        writer: TableWriter,
        upkeep: TableUpkeep,
        turn: Turn | None = None,
    ) -> None:
        self.loaded, self.reader, self.writer, self.upkeep, self._turn = loaded, reader, writer, upkeep, turn
        self.read_and_check_version, self.version = loaded.read_and_check_version, loaded.version
        self.horizons = loaded.horizons
        self.lookup, self.rows, self.rows_between = reader.lookup, reader.rows, reader.rows_between
        self.apply = writer.apply if turn is None else self._turn_and_apply
        self.write_version = writer.write_version

    def created_for(self) -> str | None:
        """Return the `store_id` that the table was created with."""
        return self.loaded.properties.get(STORE_PROPERTY)

    def _turn_and_apply(self, write: TableWrite) -> None:
        """Turn the table into the log layout and write to that, or write as before if it is a replay."""
        if self._turn is None or write.is_replay:
            # While the newest transaction may have to be rolled back, the previous values have to stay.
            self.writer.apply(write)
        else:
            self.loaded.disk.settle()
            self._turn(write).apply(write)


def open_merged(loaded: LoadedTable, state: str, turn: Turn | None = None) -> OpenTable:
    """Return the open table of a state in the merge layout. `state` is its name in messages."""
    footers = Footers(loaded.storage, loaded.columns)
    reader = MergedReader(loaded, footers)
    writer = MergeWriter(loaded, state, reader.lookup, footers)
    return OpenTable(loaded, reader, writer, MergedUpkeep(writer, reader), turn)


def open_segments(loaded: LoadedTable, state: str, settings: LogLayout | None = None) -> OpenTable:
    """Return the open table of a state in the log layout, which is compacted as `settings` say."""
    loaded.follows = True
    reader = SegmentReader(loaded)
    writer = LogWriter(loaded, state, reader.lookup, reader.read_sum_bounds)
    return OpenTable(loaded, reader, writer, SegmentUpkeep(writer, reader, settings or LogLayout()))
