"""Calls the emitting methods of a user's spout contract on the executors, and converts tuples to record batches.

The metadata of a recorded batch say what to emit: `PartsReader` and `PartitionsReader` pass a copy to the contract. An
exception in user code becomes a `BoltFailed` that names the call, and a tuple that does not match the spout's `output`
a `SchemaMismatch`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spouts.user_spout_protocols import PartitionedUserSpout, UnpartitionedUserSpout
from transactional.core.ports import PartitionReader
from transactional.model.arrow import arrow_schema, batch_from_rows, conform
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import BoltFailed, CorruptRecord, ReplayMismatch, SchemaMismatch, TransactionalError
from transactional.model.schema import Schema
from transactional.model.user_code.stored_values import shorten

ROWS_PER_BATCH = 10_000
"""Tuples that are emitted one by one are collected into record batches of this many rows."""

Row = tuple[Any, ...]


@contextmanager
def attribute_errors_to(call_name: str) -> Iterator[None]:
    """Convert an exception in user code to a `BoltFailed` that names the call. A `TransactionalError` is unchanged."""
    try:
        yield
    except (TransactionalError, GeneratorExit):  # the latter: the task has stopped reading
        raise
    except BaseException as error:
        raise BoltFailed.raised_by(call_name, error) from error


@dataclass(frozen=True, slots=True)
class ContractReader(PartitionReader):
    """Reads a batch by calling the contract: the base of the readers for the two kinds of contract."""

    output: Schema

    @abstractmethod
    def describe_call(self, partition: PartitionId) -> str:
        """Return the name of the call that emits for the partition, for messages."""

    @abstractmethod
    def call_emitter(self, partition: PartitionId, metadata: Any) -> Any:
        """Return what the contract emits for the metadata: tuples, record batches, or a table."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield what the contract emits for the metadata, with the columns of `output`.

        Raises `SchemaMismatch` for tuples that do not match it, `BoltFailed` if the contract raises an exception.
        """
        if not len(offsets):
            return
        call_name = self.describe_call(partition)
        if len(offsets) != 1:
            raise ReplayMismatch(f"{call_name}: a batch holds one step of it, not {offsets}")
        if metadata is None:
            raise CorruptRecord(f"{call_name}: the recorded batch {offsets} has no metadata to emit from")
        emitted = self._iterate_emissions(call_name, partition, metadata)
        yield from _make_record_batches(emitted, self.output, call_name)

    def _iterate_emissions(self, call_name: str, partition: PartitionId, metadata: Any) -> Iterator[Any]:
        """Yield the tuples, record batches or table that the emitter makes of the metadata, as they are.

        Raises `SchemaMismatch` if it returns something else. What the emitter raises is attributed to the call.
        """
        with attribute_errors_to(call_name):
            # A copy: user code may change its arguments, but not the metadata of the recorded batch.
            emission = self.call_emitter(partition, copy.deepcopy(metadata))
            if isinstance(emission, pa.RecordBatch | pa.Table):
                yield emission
            elif isinstance(emission, Iterable) and not isinstance(emission, str | bytes):
                yield from emission
            else:
                raise SchemaMismatch(
                    f"{call_name} must yield tuples or record batches, but returned {shorten(emission)}"
                )


@dataclass(frozen=True, slots=True)
class PartsReader(ContractReader):
    """Emits the parts of a `TransactionalSpout`'s batches."""

    contract: UnpartitionedUserSpout

    def describe_call(self, partition: PartitionId) -> str:
        return f"{type(self.contract).__name__}.emit_batch for part {partition.index}"

    def call_emitter(self, partition: PartitionId, metadata: Any) -> Any:
        """Call `emit_batch` for one part. The metadata have the form in which `PartsContractSpout` stores them."""
        return self.contract.emit_batch(metadata["metadata"], partition.index, metadata["parts"])


@dataclass(frozen=True, slots=True)
class PartitionsReader(ContractReader):
    """Emits the partitions of the contracts that have them."""

    contract: PartitionedUserSpout

    def describe_call(self, partition: PartitionId) -> str:
        return f"{type(self.contract).__name__}.emit_partition_batch for partition {partition.source!r}"

    def call_emitter(self, partition: PartitionId, metadata: Any) -> Any:
        return self.contract.emit_partition_batch(partition.source, metadata)


def _make_record_batches(emitted: Iterator[Any], output: Schema, call_name: str) -> Iterator[pa.RecordBatch]:
    schema, width, rows = arrow_schema(output), len(output), list[Row]()
    for emission in emitted:
        if type(emission) is tuple and len(emission) == width:  # first, since it is checked for every single tuple
            rows.append(emission)
        elif isinstance(emission, pa.RecordBatch | pa.Table):
            yield from _make_batches(rows, schema, call_name)
            yield from conform(emission, schema, component=call_name)
            rows = []
        else:
            rows.append(_check_row(emission, output, call_name))
        if len(rows) >= ROWS_PER_BATCH:
            yield from _make_batches(rows, schema, call_name)
            rows = []
    yield from _make_batches(rows, schema, call_name)


def _make_batches(rows: list[Row], schema: pa.Schema, call_name: str) -> list[pa.RecordBatch]:
    return [batch_from_rows(rows, schema, component=call_name)] if rows else []


def _check_row(emitted: Any, output: Schema, call_name: str) -> Row:
    if not isinstance(emitted, tuple | list):
        raise SchemaMismatch(f"{call_name} must yield tuples or record batches, but yielded {shorten(emitted)}")
    if len(emitted) != len(output):
        raise SchemaMismatch(
            f"{call_name} yielded {len(emitted)} values, {shorten(emitted)}, but a tuple has one for each of the "
            f"{len(output)} fields '{output}'"
        )
    return tuple(emitted)
