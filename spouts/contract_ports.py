"""What the engine's side of a contract asks of the user's: the shapes of `spouts.contracts`, without its classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol

from transactional.batch import BatchLimit


class Contract(Protocol):
    """What all contracts have in common."""

    output: ClassVar[str]

    def identity(self) -> Mapping[str, str]:
        """What has to stay the same over restarts."""

    def open(self) -> None:
        """Connect and check."""

    def close(self) -> None:
        """Release what `open` has taken."""

    def is_ready(self) -> bool:
        """Whether a new transaction may begin now."""

    def limit_batches(self, limit: BatchLimit) -> None:
        """Keep the next batch within the limit."""


class ContractOfParts(Contract, Protocol):
    """A source that is not made of partitions: all parts of a batch share its metadata."""

    def initialize_transaction(self, previous: Any) -> Any:
        """The metadata of the next batch, None when there is nothing new."""

    def emit_batch(self, metadata: Any, part: int, parts: int) -> Any:
        """The tuples of one part."""

    def check_replay(self, metadata: Any) -> None:
        """Raise `BatchLost` when the batch can't be emitted again."""

    def committed(self, metadata: Any) -> None:
        """Told of a transaction commit."""


class ContractOfPartitions(Contract, Protocol):
    """A source of named partitions, each with metadata of its own."""

    def partitions(self) -> Collection[str]:
        """The partitions that are there now."""

    def next_batch(self, partition: str, previous: Any) -> Any:
        """The metadata of what comes next in a partition, None when there is nothing new."""

    def emit_partition_batch(self, partition: str, metadata: Any) -> Any:
        """The tuples that the metadata tell of."""

    def committed(self, metadata: Mapping[str, Any]) -> None:
        """Told of a transaction commit."""
