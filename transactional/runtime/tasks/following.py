"""Adds the hidden columns by which messages are followed to the tuples of a spout.

Every tuple has an id and the roots of the messages that it depends on. A spout's tuple is its own root. Ids and roots
are computed from partition and offset, so a replay gives the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports import PartitionReader
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.messages import STRIDE, first_root, to_signed
from transactional.topology.topology import HIDDEN

_MIX = to_signed(0xBF58476D1CE4E5B9)
"""An odd factor that makes unrelated ids of the roots of adjacent offsets."""


def reading_with_roots(reader: PartitionReader) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return the reading function of a reader that knows offsets, with the hidden columns after its own."""

    def read(partition: PartitionId, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        for batch, batch_offsets in reader.read_with_offsets(partition, offsets, metadata):
            yield with_roots(batch, partition, batch_offsets)

    return read


def with_roots(batch: pa.RecordBatch, partition: PartitionId, offsets: pa.Array) -> pa.RecordBatch:
    """Return the records with their ids and roots, computed from partition and offset. Integer arithmetic wraps."""
    first, stride = pa.scalar(to_signed(first_root(partition)), pa.int64()), pa.scalar(to_signed(STRIDE), pa.int64())
    roots = pc.add(pc.multiply(offsets.cast(pa.int64()), stride), first)
    ids = pc.bit_wise_xor(
        pc.multiply(roots, pa.scalar(_MIX, pa.int64())), pc.shift_right(roots, pa.scalar(29, pa.int64()))
    )
    no_further_roots = pa.nulls(batch.num_rows, pa.list_(pa.int64()))
    names = [*batch.schema.names, *HIDDEN.names]
    return pa.RecordBatch.from_arrays([*batch.columns, ids, roots, no_further_roots], names=names)
