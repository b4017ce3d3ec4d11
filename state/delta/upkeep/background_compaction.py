"""Large compactions are written in the background, as staged files, and committed between two later transactions.

The written rows have the same content as the files that they were read from. So the compaction may be committed over a
later version of the table, if all those files are still live, no other file is live in the compacted range, and the
version is the owner's own. Otherwise it is dropped, and its files are deleted with the other orphaned ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.log.following import is_plain_path
from state.delta.log.log import check_no_entry_is_empty
from state.delta.segments.log_layout import ONE_THREAD, Compaction, Segment, SegmentQuery, join_settings
from state.delta.segments.shares import is_in_share
from state.delta.tables.data_files import Replacement
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staged_files import check_there
from state.delta.tables.staging import FileStager
from state.delta.tables.table import DeltaLocation, unreadable_table_error
from state.delta.write.entry import commit_replacement
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.segments import as_segment, segment_files
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from transactional.core.ports.staged import StagedFile
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.names import OWNER_NOTE, compaction_of
from transactional.model.plumbing.pools import DaemonPool

BACKGROUND_ROWS = 500_000
"""Smallest number of rows of a compaction that is written in the background. It takes about 100 ms, for which the next
transaction would wait."""
FINISH_TIMEOUT_S = 300.0
"""Longest time that the end of a run waits for a compaction, in seconds: as a Spark job it may get no executor."""
POLL_INTERVAL_S = 0.05
"""Seconds between two checks whether the run may still wait."""


@dataclass(frozen=True, slots=True)
class WrittenCompaction:
    """A compaction whose rows are written, and the files that they were made of."""

    compaction: Compaction
    inputs: frozenset[str]
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """The writing of one compaction of a table. Picklable. `base` is the oldest segment if its keys are unique."""

    location: DeltaLocation
    owner: str
    columns: StateColumns
    combine: Mapping[str, str]
    compaction: Compaction
    base: TxId | None
    settings: Mapping[str, str]
    horizon: int | None = None
    """The expiry horizon of the transaction before the newest one. Rows that had expired by then are left out."""

    def write(self) -> WrittenCompaction:
        """Read the newest version, and write its rows of the compacted range.

        Raises `OperatingError`, `DeltaError`, …, and `StoreMismatch` for an entry of the log without a byte.
        """
        return self._write(SegmentQuery(self.columns, self.combine, DATA_FUSION), self.settings)

    def write_share(self, number: int, shares: int) -> WrittenCompaction:
        """Write one of `shares` shares of the compaction, in one thread. A share has all rows of its keys."""
        query = SegmentQuery(self.columns, self.combine, DATA_FUSION)
        if shares > 1:
            query = query.filtered(is_in_share(self.columns.key, number, shares))
        return self._write(query, {**self.settings, **ONE_THREAD})

    def _write(self, query: SegmentQuery, settings: Mapping[str, str]) -> WrittenCompaction:
        check_no_entry_is_empty(self.location)
        table = LoadedTable(self.location, self.owner, self.columns)
        version = table.version()
        if version is None:
            raise OperatingError(f"Delta table {self.location} has no version of {self.owner}")
        inputs = frozenset(file.name for file in segment_files(table, self.compaction.start, self.compaction.end))
        rows = query.compact(self.compaction, self.base, self.horizon) + query.compaction_order(self.compaction)
        stager = FileStager(Path(self.location.uri), self.owner, self.columns.key)
        attempt = TransactionAttempt(self.compaction.end, version)
        batches = self._read(table, rows, settings)
        file = stager.stage_batches(attempt, pa.RecordBatchReader.from_batches(self.schema, batches))
        return WrittenCompaction(self.compaction, inputs, (file,) if file.rows else ())

    def _read(self, table: LoadedTable, rows: str, settings: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows to write. Raises `OperatingError` if they can't be read, which is no failed write."""
        try:
            yield from table.query(rows, settings).cast(self.schema)
        except (DeltaError, OSError, pa.ArrowException) as error:  # of Arrow: a sum that does not fit
            raise unreadable_table_error(self.location, error) from None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the written rows: all columns but the txid, which is the partition."""
        schema = self.columns.table_schema
        return schema.remove(schema.get_field_index(self.columns.txid))


def commit_compaction(table: LoadedTable, finished: WrittenCompaction) -> bool:
    """Commit a written compaction over the version of the table that was read and checked.

    False, and nothing is committed, if the range has other files than the compaction has read. Raises `WriteRefused`,
    and `OperatingError` for a written file that is missing.
    """
    start, end = finished.compaction.start, finished.compaction.end
    inputs = segment_files(table, start, end)
    if {file.name for file in inputs} != finished.inputs:
        return False
    check_there(table.location, finished.files)
    for file in inputs:
        if not is_plain_path(file.name):
            raise OperatingError(
                f"Delta table {table.location} has a file {file.name!r}, which the state has not named"
            )
    replacement, note = Replacement(inputs, as_segment(finished.files, end)), json.dumps({OWNER_NOTE: table.owner})
    commit_replacement(table, replacement, {compaction_of(table.owner): end}, note)
    return True


class BackgroundCompaction:
    """The compaction of a table that a thread writes, or that waits for its commit. There is one at most."""

    def __init__(self) -> None:
        self._pool = DaemonPool(1, "compaction")
        self._future: Future[None] | None = None
        self._finished = list[WrittenCompaction]()

    @property
    def is_pending(self) -> bool:
        """True while a compaction is being written, or is not committed yet."""
        return self._future is not None

    def start(self, write: Callable[[], WrittenCompaction]) -> None:
        """Begin to write a compaction in a thread."""
        finished = self._finished = []
        self._future = self._pool.submit(lambda: finished.append(write()))

    def read_finished(self) -> WrittenCompaction | None:
        """Return the compaction if it is written, else None. Raises the error that ended it, and forgets it then."""
        if self._future is None or not self._future.done():
            return None
        try:
            self._future.result()
        except OperatingError as error:
            self.forget()
            raise WriteRefused(str(error), is_conflict=False) from error
        except BaseException:
            self.forget()
            raise
        return self._finished[0]

    def wait_until_written(self, may_go_on: Callable[[], bool]) -> bool:
        """Wait while the pending compaction is being written and `may_go_on()` is true, for `FINISH_TIMEOUT_S` at most.

        Returns whether the writing has ended, in success or failure. The caller commits it.
        """
        assert self._future is not None
        until_s = time.monotonic() + FINISH_TIMEOUT_S
        while not self._future.done() and may_go_on() and time.monotonic() < until_s:
            futures.wait([self._future], timeout=POLL_INTERVAL_S)
        return self._future.done()

    def forget(self) -> None:
        """Drop the compaction, since it is committed or never will be."""
        self._future, self._finished = None, []


def compaction_task(
    table: LoadedTable,
    combine: Mapping[str, str],
    compaction: Compaction,
    segments: Sequence[Segment],
    horizon: int | None,
) -> CompactionTask:
    """Return the task that writes a compaction of these segments, which are ordered by txid."""
    base = segments[0].txid if segments[0].is_unique else None
    # The writer may have another working directory.
    location = replace(table.location, name=table.location.uri)
    return CompactionTask(
        location, table.owner, table.columns, combine, compaction, base, join_settings(segments), horizon
    )
