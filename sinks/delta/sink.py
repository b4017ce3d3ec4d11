"""`DeltaSink`: appends the tuples of a stream to a Delta table, each row once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from sinks.delta.append_log import AppendLog, check_owner, check_removal, unavailable
from sinks.delta.columns import SinkColumns
from sinks.delta.partitioning import PartitionColumn, split_rows
from sinks.delta.publisher import DeltaPublisher
from sinks.delta.risks import read_risks
from sinks.delta.run_files import FILES, RunFiles, attempt_of
from state.delta.tables.data_files import with_all
from state.delta.tables.table import DeltaLocation
from transactional.core.ports import PublishedRecords, Sink, SinkAddress, SinkOwner, SinkPosition
from transactional.model.arrow import arrow_schema
from transactional.model.errors import ConfigError, OperatingError, ProtocolError
from transactional.model.names import SINK_TABLE
from transactional.model.schema import Schema

if TYPE_CHECKING:
    from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

TARGET_FILE_BYTES: Final = 128 * 2**20
UPKEEP_END_S: Final = 3.0
"""Longest time that the end of a run waits for the upkeep of the table, in seconds."""


class DeltaSink(Sink):
    """A sink that appends rows to a Delta table, which it creates.

    The columns are the fields of the stream, and `txid` with the transaction. `partition_by` names fields, or parts of
    times such as `day(event_time)`. A file has about `target_file_bytes` at most. `storage_options` are delta-rs'.
    """

    kind = "delta sink"
    stages_in_tasks = True
    needs_disk = True
    can_go_back = True
    can_read = True

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
        self.location = DeltaLocation.parse(uri, storage_options)
        self.partitions = tuple(map(PartitionColumn.parse, partition_by))
        self.txid = txid
        self._columns: SinkColumns | None = None
        self._table_id: str | None = None
        self._files = RunFiles(self.location, target_file_bytes)
        self._log = AppendLog(self.location)
        self._publisher: DeltaPublisher | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({str(self.location)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publisher": None}

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

    def prepare(self) -> None:
        self._table_id = self._log.read_table_id()

    def identity(self) -> Mapping[str, Any]:
        table = {} if self._table_id is None else {SINK_TABLE: self._table_id}
        return {"kind": self.kind, "txid": self.txid, "partition_by": list(map(str, self.partitions)), **table}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        schema = arrow_schema(self._declared.fields)
        rows = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
        for partition in self.partitions:
            partition.check_dates(rows)
        return rows

    def stage(self, attempt: TransactionAttempt, records: pa.Table) -> pa.Table:
        rows = records.append_column(self.txid, pa.repeat(pa.scalar(int(attempt.txid), pa.int64()), len(records)))
        parts = split_rows(rows, self.partitions)
        files = [file for partition, part in parts for file in self._files.write(attempt, partition, part)]
        return pa.Table.from_pylist(files, schema=FILES)

    def check_staged(self, attempt: TransactionAttempt, staged: pa.Table) -> None:
        for path in staged["path"].to_pylist():
            if attempt_of(path) != attempt:
                raise ProtocolError(f"Delta table {self.location}: {path} was staged for {attempt}")
        if problem := self.find_missing(staged):
            raise OperatingError(
                f"Delta table {self.location}: a task has staged a file, and {problem}: every executor and the driver "
                "must see the same folder"
            )

    def find_missing(self, staged: pa.Table) -> str:
        return self._files.find_missing(staged)

    def address(self) -> SinkAddress:
        return SinkAddress("delta", [self.txid], self.location.uri, self.location.storage_options)

    def risks(self, topology_id: str) -> Iterable[str]:
        return read_risks(self._log)

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        self._log.check_location()
        if (snapshot := self._log.read()) is None:
            return None
        check_owner(snapshot, owner, self.location)
        self._declared.check_table(snapshot, str(self.location))
        return snapshot.position

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        if self._publisher is not None:
            self._publisher.upkeep.end(0)
        self._publisher = DeltaPublisher(self._log, self._files, self._declared, owner)
        self._publisher.open(has_published=has_published)
        self._table_id = self._publisher.read_own_snapshot().metadata["id"]

    def position(self) -> SinkPosition | None:
        return self.publisher.read_own_snapshot().position

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        self.publisher.publish(group)

    def check_go_back(self) -> None:
        if (snapshot := self._log.read()) is not None:
            check_removal(snapshot, self.location)

    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        self.open(replace(self.publisher.owner, fence_id=fence_id), has_published=True)
        self.publisher.go_back(self.txid, txid)

    def read(self, txid: TxId) -> pa.Table:
        schema = self._declared.table_schema
        if self._log.read() is None:
            return schema.empty_table()
        try:
            table = self._log.load().to_pyarrow_table(filters=[(self.txid, "<=", int(txid))])
        except (DeltaError, OSError) as error:
            raise unavailable(self.location, "it can't be read", error) from None
        return with_all(table, schema)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.upkeep.end(UPKEEP_END_S)

    @property
    def publisher(self) -> DeltaPublisher:
        """The publisher of an open sink."""
        assert self._publisher is not None, "it is open"
        return self._publisher

    @property
    def _declared(self) -> SinkColumns:
        assert self._columns is not None, "the topology was built"
        return self._columns
