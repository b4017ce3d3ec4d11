"""The spout of a query: what it reads of a batch is what the batch says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from transactional.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.schema import Schema

_PARTITION = PartitionId("questions", 0)


def batch_of(questions: pa.RecordBatch) -> BatchMetadata:
    """The batch of some questions. It is never stored."""
    ranges = {_PARTITION: OffsetRange(Offset(0), Offset(questions.num_rows))}
    return BatchMetadata(ranges, metadata={_PARTITION: questions})


@dataclass(frozen=True, slots=True)
class Questions:
    """Emits the questions of each batch. It is only planned by the client."""

    output: Schema

    @property
    def replays_exactly(self) -> bool:
        """Nothing is replayed, so nothing is compared."""
        return False

    def identity(self) -> Mapping[str, str]:
        """It has none."""
        return {"kind": "questions"}

    def open(self) -> None:
        """Nothing to connect to."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The client plans."""
        return EMPTY_BATCH if replay else None

    def check_replay(self, batch: BatchMetadata) -> None:
        """There are no replays."""

    def check_read(self, batch: BatchMetadata) -> None:
        """It is what the batch says."""

    def reader(self) -> QuestionReader:
        """What emits them."""
        return QuestionReader()

    def committed(self, batch: BatchMetadata) -> None:
        """Nothing is committed."""

    def lag(self, after: BatchMetadata) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class QuestionReader:
    """Reads what the batch itself says."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """The questions."""
        yield metadata
