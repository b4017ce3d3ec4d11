"""`DeltaSink`: appends the tuples of a stream to a Delta table, each row once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sinks.delta.append_log import (
    AppendLog,
    TableSnapshot,
    VersionTaken,
    check_owner,
    entry,
    unavailable,
    with_columns,
    with_publisher,
)
from sinks.delta.columns import SinkColumns
from sinks.delta.partitioning import PartitionColumn, split_rows
from sinks.delta.run_files import FILES, RunFiles, attempt_of
from sinks.delta.sweeping import sweep
from state.delta.tables.table import DeltaLocation
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.model.arrow import arrow_schema
from transactional.model.errors import (
    ConfigError,
    CorruptRecord,
    OperatingError,
    ProtocolError,
    SinkUnavailable,
    StoreMismatch,
)
from transactional.model.schema import Schema

if TYPE_CHECKING:
    from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

TARGET_FILE_BYTES: Final = 128 * 2**20
_TRIES_MAX: Final = 20
"""The number of Delta commits of others that a publication gives way to before it waits."""

_log = logging.getLogger(__name__)


class DeltaSink(Sink):
    """A sink that appends rows to a Delta table, which it creates.

    The columns are the fields of the stream, and `txid` with the transaction. `partition_by` names fields, or parts of
    times such as `day(event_time)`. A file has about `target_file_bytes` at most. `storage_options` are delta-rs'.
    """

    kind = "delta sink"
    stages_in_tasks = True
    needs_disk = True
    can_go_back = True

    def __init__(
        self,
        uri: str | Path,
        *,
        partition_by: Sequence[str] = (),
        target_file_bytes: int = TARGET_FILE_BYTES,
        txid: str = "txid",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(partition_by, str):
            raise ConfigError(f"DeltaSink: partition_by is a list: partition_by=[{partition_by!r}]")
        if target_file_bytes < 1:
            raise ConfigError(f"DeltaSink: target_file_bytes is {target_file_bytes}; it is 1 or more")
        if not txid:
            raise ConfigError("DeltaSink: txid is the name of a column, and is empty")
        self.location = DeltaLocation.of(uri, storage_options)
        self.partitions = tuple(map(PartitionColumn.parse, partition_by))
        self.txid = txid
        self._columns: SinkColumns | None = None
        self._files = RunFiles(self.location, target_file_bytes)
        self._log = AppendLog(self.location)
        self._owner: SinkOwner | None = None
        self._snapshot: TableSnapshot | None = None
        self._is_fresh = True

    def __repr__(self) -> str:
        return f"DeltaSink({str(self.location)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None, "_snapshot": None}

    @property
    def target_name(self) -> str:
        return f"Delta table {self.location}"

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        columns = SinkColumns(fields, self.partitions, self.txid)
        columns.check(used_by)
        if self._columns is not None and set(self._columns.fields) != set(fields):
            raise ConfigError(
                f"{used_by}: the fields are {fields}, and those of another stream of the sink {self._columns.fields}; "
                "all streams of a DeltaSink have the same fields"
            )
        self._columns = columns

    def record_fields(self, fields: Schema) -> Schema:
        """Return no fields: the table has its columns, gains further ones, and refuses other types."""
        return Schema(())

    def identity(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "txid": self.txid, "partition_by": list(map(str, self.partitions))}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        schema = arrow_schema(self._declared.fields)
        return pa.Table.from_batches([batch]).select(schema.names).cast(schema)

    def stage(self, attempt: TransactionAttempt, records: pa.Table) -> pa.Table:
        rows = records.append_column(self.txid, pa.repeat(pa.scalar(int(attempt.txid), pa.int64()), len(records)))
        parts = split_rows(rows, self.partitions)
        files = [file for partition, part in parts for file in self._files.write(attempt, partition, part)]
        return pa.Table.from_pylist(files, schema=FILES)

    def check_staged(self, attempt: TransactionAttempt, staged: pa.Table) -> None:
        for path in staged["path"].to_pylist():
            if attempt_of(path) != attempt:
                raise ProtocolError(f"Delta table {self.location}: {path} was staged for {attempt}")
        if problem := self._files.find_missing(staged):
            raise OperatingError(
                f"Delta table {self.location}: a task has staged a file, and {problem}: every executor and the driver "
                "must see the same folder"
            )

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        self._log.check_location()
        if (snapshot := self._log.read()) is None:
            return None
        check_owner(snapshot, owner, self.location)
        self._declared.check_table(snapshot, str(self.location))
        return snapshot.position

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self._owner, self._snapshot = owner, None
        for _ in range(_TRIES_MAX):
            snapshot = self._log.read()
            if snapshot is None:
                self._create(owner, has_published=has_published)
                continue
            try:
                self._snapshot = self._fenced(owner, snapshot)
            except VersionTaken:
                continue
            except OSError as error:
                raise unavailable(self.location, f"sink {owner.sink!r} can't take it over", error) from None
            self._is_fresh = True
            return
        raise SinkUnavailable(f"Delta table {self.location}: others write to it too often to take it over")

    def position(self) -> SinkPosition | None:
        return self._own_snapshot().position

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        assert self._owner is not None, "it is open"
        for _ in range(_TRIES_MAX):
            snapshot = self._own_snapshot()
            waiting = self._unpublished(snapshot, group)
            if not waiting:
                return
            try:
                self._append(self._owner, snapshot, waiting)
            except VersionTaken:
                self._snapshot = None
                continue
            except OSError as error:
                self._snapshot = None
                raise unavailable(self.location, f"sink {self._owner.sink!r} can't publish", error) from None
            return
        raise SinkUnavailable(f"Delta table {self.location}: others write to it too often to append to it")

    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        assert self._owner is not None, "it is open"
        self.open(replace(self._owner, fence_id=fence_id), has_published=True)
        for _ in range(_TRIES_MAX):
            self._snapshot = None
            if self._log.delete_after(self._own_snapshot(), self.txid, txid):
                self._snapshot = None
                return
        raise SinkUnavailable(f"Delta table {self.location}: others write to it too often to take rows out of it")

    def close(self) -> None:
        self._snapshot = None

    @property
    def _declared(self) -> SinkColumns:
        assert self._columns is not None, "the topology was built"
        return self._columns

    def _create(self, owner: SinkOwner, *, has_published: bool) -> None:
        if has_published:
            raise StoreMismatch(
                f"sink {owner.sink!r} of topology {owner.topology_id!r}: there is no Delta table at {self.location}, "
                "and the store has published to it; restore the table from a backup"
            )
        try:
            self._log.create_table(self._declared.table_schema, self._declared.partition_names, {})
        except OSError as error:
            raise unavailable(self.location, "it can't be created", error) from None

    def _fenced(self, owner: SinkOwner, snapshot: TableSnapshot) -> TableSnapshot:
        """Write the fence of this leader, and the columns that the stream has gained. Return the version after that."""
        check_owner(snapshot, owner, self.location)
        gained = self._declared.check_table(snapshot, str(self.location))
        if snapshot.fence_id > owner.fence_id:
            raise StoreMismatch(
                f"sink {owner.sink!r} of topology {owner.topology_id!r}: a leader with the fence id "
                f"{snapshot.fence_id} publishes to Delta table {self.location}, and this one has {owner.fence_id}: the "
                "store is an older backup, or a copy"
            )
        metadata = with_columns(snapshot.metadata, gained) if gained else snapshot.metadata
        if not snapshot.publisher:
            metadata = with_publisher(metadata, owner, "")
        if snapshot.fence_id == owner.fence_id and metadata is snapshot.metadata:
            return snapshot
        changed = None if metadata is snapshot.metadata else metadata
        self._log.write(snapshot.version + 1, entry(snapshot, owner, None, metadata=changed))
        return replace(snapshot, version=snapshot.version + 1, metadata=metadata, fence_id=int(owner.fence_id))

    def _own_snapshot(self) -> TableSnapshot:
        """Return the newest version that this leader knows. Raises `SinkUnavailable` if another one has fenced it."""
        assert self._owner is not None, "it is open"
        if self._snapshot is None:
            snapshot = self._log.read()
            if snapshot is None:
                raise StoreMismatch(f"sink {self._owner.sink!r}: Delta table {self.location} is no longer there")
            if snapshot.fence_id != self._owner.fence_id:
                raise SinkUnavailable(
                    f"sink {self._owner.sink!r}: Delta table {self.location} has the fence id {snapshot.fence_id}, and "
                    f"this leader {self._owner.fence_id}",
                    is_fenced=True,
                )
            self._declared.check_table(snapshot, str(self.location))
            self._snapshot, self._is_fresh = snapshot, True
        return self._snapshot

    def _unpublished(self, snapshot: TableSnapshot, group: Sequence[PublishedRecords]) -> Sequence[PublishedRecords]:
        """Return the transactions of a group that the table lacks: a commit without an answer may have succeeded.

        Attempt ids only rise. Those of transactions do not: after a rewind they come again.
        """
        position, first = snapshot.position, group[0].publication.attempt
        if position is None or position.publication.attempt.attempt_id < first.attempt_id:
            return group
        publications = [published.publication for published in group]
        if position.publication in publications:
            return group[publications.index(position.publication) + 1 :]
        raise StoreMismatch(
            f"Delta table {self.location} ends with {position.publication.attempt}, and {publications[0].attempt} is "
            "to be published: somebody else has written this sink's position"
        )

    def _append(self, owner: SinkOwner, snapshot: TableSnapshot, group: Sequence[PublishedRecords]) -> None:
        """Write the Delta commit that adds the files of a group."""
        newest = group[-1].publication
        files = pa.concat_tables([published.records for published in group])
        if (self._is_fresh or self.location.scheme == "file") and (problem := self._files.find_missing(files)):
            raise CorruptRecord(
                f"sink {owner.sink!r}: a file of committed transactions {group[0].publication.attempt.txid} to "
                f"{newest.attempt.txid} is lost: {problem} in {self.location}; restore it from a backup"
            )
        metadata = snapshot.metadata
        if snapshot.publisher.get("run") != newest.run:
            metadata = with_publisher(metadata, owner, newest.run)
        changed = None if metadata is snapshot.metadata else metadata
        version = snapshot.version + 1
        self._log.write(version, entry(snapshot, owner, newest, files=files.to_pylist(), metadata=changed))
        attempt = newest.attempt
        self._snapshot = replace(
            snapshot, version=version, metadata=metadata, attempt_id=int(attempt.attempt_id), txid=int(attempt.txid)
        )
        is_first, self._is_fresh = self._is_fresh, False
        if is_checkpoint := version % self._snapshot.checkpoint_interval == 0:
            self._log.make_checkpoint()
        if is_first or is_checkpoint:
            self._sweep()

    def _sweep(self) -> None:
        """Delete files that nobody reads any more. What fails is tried again after the next checkpoint."""
        try:
            sweep(self.location)
        except (OSError, OperatingError) as error:
            _log.warning("old files of Delta table %s can't be deleted: %s", self.location, self.location.reason(error))
