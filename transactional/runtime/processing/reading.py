"""Reads the offset ranges of one task of the spout, and emits their records.

Every range has a digest of what was read from it. Ranges of one stream are read together if the reader can, so that
many short ranges do not make many small record batches; otherwise one after the other. A record that the reader refuses
becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from transactional.core.ports import JointRecords, PartitionReader, RefusedRecord
from transactional.model.arrow import RecordDigest, conform
from transactional.model.batch import Offset, OffsetRange, PartitionId, PortionRow
from transactional.model.errors import SchemaMismatch
from transactional.model.facts import BatchFacts
from transactional.model.user_code.failures import guarding
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.failing.faults import Faults
from transactional.runtime.tasks.failing.losses import skipping_losses
from transactional.runtime.tasks.following import reading_with_roots
from transactional.runtime.tasks.items import DigestRow
from transactional.runtime.tasks.program import SpoutSpec

Range = tuple[PartitionId, OffsetRange]
Portion = tuple[PortionRow, Any]
"""A portion of the batch, with the metadata that the batch stores for its partition."""


class SpoutReading:
    """Reads and emits the portions of one task. `faults` is kept informed of what is being read.

    `set_aside` takes each refused record with its stream. `report_loss` takes the number of offsets that the source has
    lost, and the reason.
    """

    def __init__(
        self,
        spout: SpoutSpec,
        reader: PartitionReader,
        emitter: Emitter,
        faults: Faults,
        facts: BatchFacts | None,
        *,
        set_aside: Callable[[RefusedRecord, str], None],
        report_loss: Callable[[int, str], None],
    ) -> None:
        self._spout, self._reader, self._emitter, self._faults = spout, reader, emitter, faults
        self._facts, self._set_aside, self._report_loss = facts, set_aside, report_loss

    def read(self, portions: Sequence[Portion]) -> list[DigestRow]:
        """Read and emit all portions. Returns what their digests are."""
        ranges = [
            (PartitionId(source, index), OffsetRange(Offset(start), Offset(until)))
            for (source, index, start, until), _ in portions
        ]
        with guarding(self._spout.id):
            self._reader.expect(ranges)
        rows, stream_of = list[DigestRow](), self._reader.stream_of
        for stream, group in groupby(zip(ranges, portions, strict=True), lambda portion: stream_of(portion[0][0])):
            ranges_of_stream, portions_of_stream = zip(*group, strict=True)
            digests = [self._make_digest(stream) for _ in portions_of_stream]
            self._read_stream(stream, ranges_of_stream, portions_of_stream, digests)
            rows += [
                (row, digest.records, digest.checksum, digest.bytes, digest.event_us)
                for (row, _), digest in zip(portions_of_stream, digests, strict=True)
            ]
        return rows

    def read_again(self, messages: Sequence[Range]) -> None:
        """Read and emit messages of earlier batches, which have no digest in this one."""
        for partition, offsets in messages:
            self._emit_range(None, self._reader.stream_of(partition), partition, offsets)

    def _make_digest(self, stream: str) -> RecordDigest:
        if (event_time := self._spout.event_times.get(stream)) is None:
            return RecordDigest(with_checksum=self._spout.with_checksum)
        latest_us = event_time.latest_us(self._facts)
        return RecordDigest(with_checksum=self._spout.with_checksum, event_time=event_time.field, latest_us=latest_us)

    def _read_stream(
        self, stream: str, ranges: Sequence[Range], portions: Sequence[Portion], digests: Sequence[RecordDigest]
    ) -> None:
        """Read the ranges of one stream: together, unless offsets are needed or losses are skipped."""
        is_plain = not self._spout.is_followed and not self._spout.skips_losses
        records = self._reader.read_together(ranges) if is_plain else None
        if records is not None:
            self._emit_together(stream, ranges, digests, records)
            return
        for (partition, offsets), (_, metadata), digest in zip(ranges, portions, digests, strict=True):
            self._emit_range(digest, stream, partition, offsets, metadata)

    def _emit_together(
        self,
        stream: str,
        ranges: Sequence[Range],
        digests: Sequence[RecordDigest],
        records: Iterator[JointRecords | RefusedRecord],
    ) -> None:
        """Emit record batches of several ranges, and add to the digest of each range its own rows. Refused records are
        set aside."""
        emitter = self._emitter
        schema = emitter.streams[stream].schema
        with guarding(self._spout.id):
            for part in records:
                if isinstance(part, RefusedRecord):
                    self._set_aside(part, stream)
                    continue
                joint_batch, counts = part
                batches = conform(joint_batch, schema, component=emitter.component)
                self._check_counts(batches, counts)
                for batch in batches:
                    ends = [f"{partition} {offsets}" for partition, offsets in (ranges[counts[n][0]] for n in (0, -1))]
                    self._faults.reading = " to ".join(dict.fromkeys(ends))
                    start = 0
                    for number, count in counts:
                        digests[number].add(batch.slice(start, count) if count < batch.num_rows else batch)
                        start += count
                    emitter.emit_batch(batch, stream=stream)
        self._faults.reading = ""

    def _check_counts(self, batches: Sequence[pa.RecordBatch], counts: Sequence[tuple[int, int]]) -> None:
        """Raise `SchemaMismatch` unless the reader has counted the rows of one record batch, which digests go by."""
        counted_rows, rows = sum(count for _, count in counts), [batch.num_rows for batch in batches]
        if rows != ([counted_rows] if counted_rows else []):
            raise SchemaMismatch(
                f"the reader of {self._spout.id!r} counts {counted_rows} rows of its ranges in a record batch of "
                f"{' and '.join(map(str, rows or [0]))} rows; read_together yields a record batch with the position of "
                "each of its ranges, in order, and how many rows are of it"
            )

    def _emit_range(
        self,
        digest: RecordDigest | None,
        stream: str,
        partition: PartitionId,
        offsets: OffsetRange,
        metadata: Any = None,
    ) -> None:
        """Read a range, and emit it on the partition's stream. Records that the reader refuses are set aside."""
        reader, emitter = self._reader, self._emitter
        schema = emitter.streams[stream].schema
        read = reading_with_roots(reader) if self._spout.is_followed else reader.read_or_refuse
        read = skipping_losses(read, self._report_loss) if self._spout.skips_losses else read
        self._faults.reading = f"{partition} {offsets}"
        with guarding(self._spout.id):
            for part in read(partition, offsets, metadata):
                if isinstance(part, RefusedRecord):
                    self._set_aside(part, stream)
                    continue
                for batch in conform(part, schema, component=emitter.component):
                    if digest is not None:
                        digest.add(batch)
                    emitter.emit_batch(batch, stream=stream)
        self._faults.reading = ""
