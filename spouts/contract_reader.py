"""Emits on the executors for `spouts.contracts`, and attributes errors in user code."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spouts.contract_ports import ContractOfPartitions, ContractOfParts
from transactional.core.ports import PartitionReader
from transactional.model.arrow import arrow_schema, batch_from_rows, conform
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import BoltFailed, CorruptRecord, ReplayMismatch, SchemaMismatch, TransactionalError
from transactional.model.schema import Schema

ROWS_PER_BATCH = 10_000
"""Tuples that are emitted one by one are collected into record batches of this many rows."""

Row = tuple[Any, ...]


@contextmanager
def attributed_to(where: str) -> Iterator[None]:
    """Turn an exception in user code into `BoltFailed` that says where it was raised. Our own errors are unchanged."""
    try:
        yield
    except (TransactionalError, GeneratorExit):  # the latter: nobody continues reading
        raise
    except BaseException as error:
        raise BoltFailed.raised_by(where, error) from error


@dataclass(frozen=True, slots=True)
class ContractReader(PartitionReader):
    """Emits for a contract."""

    output: Schema

    @abstractmethod
    def where(self, partition: PartitionId) -> str:
        """The emitter, for messages."""

    @abstractmethod
    def emission(self, partition: PartitionId, metadata: Any) -> Any:
        """What the contract emits."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield what the contract emits for the metadata, with the columns of `output`.

        Raises `SchemaMismatch` for tuples that do not match it, `BoltFailed` if the contract raises an exception.
        """
        if not len(offsets):
            return
        where = self.where(partition)
        if len(offsets) != 1:
            raise ReplayMismatch(f"{where}: a batch holds one step of it, not {offsets}")
        if metadata is None:
            raise CorruptRecord(f"{where}: the recorded batch {offsets} has no metadata to emit from")
        emitted = self._emitted(where, partition, metadata)
        yield from _record_batches(emitted, self.output, where)

    def _emitted(self, where: str, partition: PartitionId, metadata: Any) -> Iterator[Any]:
        with attributed_to(where):
            # The metadata belong to the recorded batch, whatever user code does to its arguments.
            emission = self.emission(partition, copy.deepcopy(metadata))
            if isinstance(emission, pa.RecordBatch | pa.Table):
                yield emission
            elif isinstance(emission, Iterable) and not isinstance(emission, str | bytes):
                yield from emission
            else:
                raise SchemaMismatch(f"{where} must yield tuples or record batches, but returned {shown(emission)}")


@dataclass(frozen=True, slots=True)
class PartsReader(ContractReader):
    """Emits the parts of a `TransactionalSpout`'s batches."""

    contract: ContractOfParts

    def where(self, partition: PartitionId) -> str:
        """Spout, method and part."""
        return f"{type(self.contract).__name__}.emit_batch for part {partition.index}"

    def emission(self, partition: PartitionId, metadata: Any) -> Any:
        """What the contract emits for one part; the metadata have the format of `contract_spout`."""
        return self.contract.emit_batch(metadata["metadata"], partition.index, metadata["parts"])


@dataclass(frozen=True, slots=True)
class PartitionsReader(ContractReader):
    """Emits the partitions of the contracts that have them."""

    contract: ContractOfPartitions

    def where(self, partition: PartitionId) -> str:
        """Spout, method and partition."""
        return f"{type(self.contract).__name__}.emit_partition_batch for partition {partition.source!r}"

    def emission(self, partition: PartitionId, metadata: Any) -> Any:
        """What the contract emits for one partition."""
        return self.contract.emit_partition_batch(partition.source, metadata)


def _record_batches(emitted: Iterator[Any], output: Schema, where: str) -> Iterator[pa.RecordBatch]:
    schema, width, rows = arrow_schema(output), len(output), list[Row]()
    for each in emitted:
        if type(each) is tuple and len(each) == width:  # first, since it is checked for every single tuple
            rows.append(each)
        elif isinstance(each, pa.RecordBatch | pa.Table):
            yield from _as_batches(rows, schema, where)
            yield from conform(each, schema, component=where)
            rows = []
        else:
            rows.append(_row(each, output, where))
        if len(rows) >= ROWS_PER_BATCH:
            yield from _as_batches(rows, schema, where)
            rows = []
    yield from _as_batches(rows, schema, where)


def _as_batches(rows: list[Row], schema: pa.Schema, where: str) -> list[pa.RecordBatch]:
    return [batch_from_rows(rows, schema, component=where)] if rows else []


def _row(emitted: Any, output: Schema, where: str) -> Row:
    if not isinstance(emitted, tuple | list):
        raise SchemaMismatch(f"{where} must yield tuples or record batches, but yielded {shown(emitted)}")
    if len(emitted) != len(output):
        raise SchemaMismatch(
            f"{where} yielded {len(emitted)} values, {shown(emitted)}, but a tuple has one for each of the "
            f"{len(output)} fields '{output}'"
        )
    return tuple(emitted)


def shown(value: Any) -> str:
    """A value of the user's in a message, not too long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
