"""The spout of a query: it emits the questions that the metadata of a batch holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from transactional.core.ports import PartitionReader, Spout
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.schema import Schema

_PARTITION = PartitionId("questions", 0)


def make_batch(questions: pa.RecordBatch) -> BatchMetadata:
    """Return the batch of some questions. It is never stored."""
    ranges = {_PARTITION: OffsetRange(Offset(0), Offset(questions.num_rows))}
    return BatchMetadata(ranges, metadata={_PARTITION: questions})


class Questions(Spout):
    """Emits the questions of each batch. Only the client plans batches."""

    def __init__(self, output: Schema) -> None:
        self._output = output

    @property
    def output(self) -> Schema:
        return self._output

    @property
    def replays_exactly(self) -> bool:
        """False: nothing is replayed, so nothing is compared."""
        return False

    def identity(self) -> Mapping[str, str]:
        return {"kind": "questions"}

    def plan(self, previous: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        return EMPTY_BATCH if replay else None

    def reader(self) -> QuestionReader:
        return QuestionReader()


@dataclass(frozen=True, slots=True)
class QuestionReader(PartitionReader):
    """Reads the questions from the metadata of the batch."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        yield metadata
