"""The spout of a query: what it reads of a batch is what the batch says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from transactional.core.ports import PartitionReader, Spout
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.schema import Schema

_PARTITION = PartitionId("questions", 0)


def batch_of(questions: pa.RecordBatch) -> BatchMetadata:
    """The batch of some questions. It is never stored."""
    ranges = {_PARTITION: OffsetRange(Offset(0), Offset(questions.num_rows))}
    return BatchMetadata(ranges, metadata={_PARTITION: questions})


class Questions(Spout):
    """Emits the questions of each batch. It is only planned by the client."""

    def __init__(self, output: Schema) -> None:
        self._output = output

    @property
    def output(self) -> Schema:
        """The fields of a question."""
        return self._output

    @property
    def replays_exactly(self) -> bool:
        """Nothing is replayed, so nothing is compared."""
        return False

    def identity(self) -> Mapping[str, str]:
        """It has none."""
        return {"kind": "questions"}

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The client plans."""
        return EMPTY_BATCH if replay else None

    def reader(self) -> QuestionReader:
        """What emits them."""
        return QuestionReader()


@dataclass(frozen=True, slots=True)
class QuestionReader(PartitionReader):
    """Reads what the batch itself says."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """The questions."""
        yield metadata
