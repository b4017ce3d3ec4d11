"""How a message is followed: hidden columns that every tuple carries, and what a spout's tuples begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports import PartitionReader
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.messages import STRIDE, first_root, to_signed
from transactional.topology.topology import HIDDEN

_MIX = to_signed(0xBF58476D1CE4E5B9)
"""An odd number: multiplied by it, roots of adjacent offsets become numbers that have nothing in common."""


def followed(reader: PartitionReader) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The reading function of a reader that knows offsets: with the hidden columns behind its own."""

    def read(partition: PartitionId, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        for batch, places in reader.read_with_offsets(partition, offsets, metadata):
            yield with_roots(batch, partition, places)

    return read


def with_roots(batch: pa.RecordBatch, partition: PartitionId, offsets: pa.Array) -> pa.RecordBatch:
    """The records with their own ids and with their roots, computed from partition and offset; arithmetic wraps."""
    first, stride = pa.scalar(to_signed(first_root(partition)), pa.int64()), pa.scalar(to_signed(STRIDE), pa.int64())
    roots = pc.add(pc.multiply(offsets.cast(pa.int64()), stride), first)
    ids = pc.bit_wise_xor(
        pc.multiply(roots, pa.scalar(_MIX, pa.int64())), pc.shift_right(roots, pa.scalar(29, pa.int64()))
    )
    more = pa.nulls(batch.num_rows, pa.list_(pa.int64()))
    names = [*batch.schema.names, *HIDDEN.names]
    return pa.RecordBatch.from_arrays([*batch.columns, ids, roots, more], names=names)
