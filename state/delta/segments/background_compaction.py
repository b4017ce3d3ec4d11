"""Large compactions are written in the background: as staged files, while transactions continue; and committed between
two of them.

What was written says the same as the files that it was made of. So it may be committed over a later version of the
table than the one it has read, if all those files are still live then, no other file is live in the compacted range,
and the version is the owner's own; else it is dropped, and goes with the other files that nobody commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import DeltaError

from state.delta.log.log import check_entries
from state.delta.log.version import TableVersion
from state.delta.segments.log_layout import ONE_THREAD, Compaction, Segment, SegmentQuery, join_settings
from state.delta.segments.shares import is_in_share
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staging import FileStager
from state.delta.tables.table import DeltaLocation, unreadable
from state.delta.writing.commit import commit_files, noted
from state.delta.writing.staged import check_there, replaced
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from transactional.core.ports.staged import StagedFile
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.names import compaction_of
from transactional.model.plumbing.pools import DaemonPool

BACKGROUND_ROWS = 500_000
"""Compactions of so many rows are written in the background; one takes about 100 ms, which the next transaction would
wait for."""
FINISHING_S = 300.0
"""So long the end of a run waits for a compaction at most: as a job it may wait for executors that nobody gives it."""
LOOKING_S = 0.05
"""How often it looks whether it still may."""


@dataclass(frozen=True, slots=True)
class WrittenCompaction:
    """A compaction whose rows are written, and the files that they were made of."""

    compaction: Compaction
    inputs: frozenset[str]
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """What is to be compacted, of a table as it was loaded. `base` is the oldest segment, if its keys are unique."""

    location: DeltaLocation
    owner: str
    columns: StateColumns
    combine: Mapping[str, str]
    compaction: Compaction
    base: TxId | None
    settings: Mapping[str, str]
    horizon: int | None = None
    """What had expired by it for the transaction before the newest is left out."""

    def write(self) -> WrittenCompaction:
        """Read the newest version, and write its rows of the compacted range.

        Raises `OperatingError`, `DeltaError`, …, and `StoreMismatch` for an entry of the log without a byte.
        """
        return self._write(SegmentQuery(self.columns, self.combine, DATA_FUSION), self.settings)

    def write_share(self, number: int, shares: int) -> WrittenCompaction:
        """As `write`, in one thread, and one of so many shares: each has all rows of its keys."""
        query = SegmentQuery(self.columns, self.combine, DATA_FUSION)
        if shares > 1:
            query = query.where(is_in_share(self.columns.key, number, shares))
        return self._write(query, {**self.settings, **ONE_THREAD})

    def _write(self, query: SegmentQuery, settings: Mapping[str, str]) -> WrittenCompaction:
        check_entries(self.location)
        table = TableVersion(self.location, self.owner, self.columns)
        version = table.version()
        if version is None:
            raise OperatingError(f"Delta table {self.location} has no version of {self.owner}")
        inputs = frozenset(str(file["path"]) for file in in_range(table, self.compaction))
        rows = query.compact(self.compaction, self.base, self.horizon) + query.compaction_order(self.compaction)
        stager = FileStager(Path(self.location.uri), self.owner, self.columns.key)
        attempt = TransactionAttempt(self.compaction.until, version)
        batches = self._read(table, rows, settings)
        file = stager.stage_all(attempt, pa.RecordBatchReader.from_batches(self.schema, batches))
        return WrittenCompaction(self.compaction, inputs, (file,) if file.rows else ())

    def _read(self, table: TableVersion, rows: str, settings: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """What is to be written. Raises `OperatingError`: what can't be read is no failed write."""
        try:
            yield from table.query(rows, settings).cast(self.schema)
        except (DeltaError, OSError, pa.ArrowException) as error:  # of Arrow: a sum that does not fit
            raise unreadable(self.location, error) from None

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that are written: the transaction is the partition."""
        schema = self.columns.table_schema
        return schema.remove(schema.get_field_index(self.columns.txid))


def in_range(table: TableVersion, compaction: Compaction) -> list[dict[str, Any]]:
    """The live files of the compacted transactions."""
    txid = table.columns.txid
    return [file for file in table.files() if compaction.after < int(file["partition"][txid]) <= compaction.until]


def commit_compaction(table: TableVersion, written: WrittenCompaction) -> bool:
    """Commit a compaction over the version that was read and checked; False: it says something else than the table by
    now.

    Raises `WriteRefused`, `OperatingError` for a file that is not there.
    """
    own = in_range(table, written.compaction)
    if {str(file["path"]) for file in own} != written.inputs:
        return False
    check_there(table.location, written.files)
    properties = noted(table, Transaction(compaction_of(table.owner), written.compaction.until))
    commit_files(table, replaced(table, own, written.files, written.compaction.until), properties)
    return True


class BackgroundCompaction:
    """At most one compaction of a table that is written in the background, or waits for its commit."""

    def __init__(self) -> None:
        self._pool = DaemonPool(1, "compaction")
        self._future: Future[None] | None = None
        self._written = list[WrittenCompaction]()

    @property
    def is_pending(self) -> bool:
        """Whether one is being written, or is not committed yet."""
        return self._future is not None

    def start(self, write: Callable[[], WrittenCompaction]) -> None:
        """Begin to write one."""
        written = self._written = []
        self._future = self._pool.submit(lambda: written.append(write()))

    def written(self) -> WrittenCompaction | None:
        """The one that is written; None: not yet. Raises what has come in the way, and forgets it."""
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
        return self._written[0]

    def wait(self, may_go_on: Callable[[], bool]) -> bool:
        """Wait for the one that is pending; whether its writing has ended."""
        assert self._future is not None
        until_s = time.monotonic() + FINISHING_S
        while not self._future.done() and may_go_on() and time.monotonic() < until_s:
            futures.wait([self._future], timeout=LOOKING_S)
        return self._future.done()

    def forget(self) -> None:
        """It is committed, or will never be."""
        self._future, self._written = None, []


def compaction_task(
    table: TableVersion,
    combine: Mapping[str, str],
    compaction: Compaction,
    segments: Sequence[Segment],
    horizon: int | None,
) -> CompactionTask:
    """What has to be written for a compaction of these segments, oldest first."""
    base = segments[0].txid if segments[0].is_unique else None
    # Whoever writes it may have another working directory.
    location = replace(table.location, name=table.location.uri)
    return CompactionTask(
        location, table.owner, table.columns, combine, compaction, base, join_settings(segments), horizon
    )
