"""What the engine's side of a contract requires of the user's: the shapes of `spouts.contracts`, without its
classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol

from transactional.model.batch import BatchLimit


class Contract(Protocol):
    """What all contracts have in common."""

    output: ClassVar[str]

    def identity(self) -> Mapping[str, str]:
        """What must stay the same across restarts."""

    def open(self) -> None:
        """Connect and check."""

    def close(self) -> None:
        """Release what `open` acquired."""

    def is_ready(self) -> bool:
        """Whether a new transaction may begin now."""

    def limit_batches(self, limit: BatchLimit) -> None:
        """Keep the next batch within the limit."""


class ContractOfParts(Contract, Protocol):
    """A source that is not made of partitions: all parts of a batch share its metadata."""

    def initialize_transaction(self, previous: Any) -> Any:
        """The metadata of the next batch, None if there is nothing new."""

    def emit_batch(self, metadata: Any, part: int, parts: int) -> Any:
        """The tuples of one part."""

    def check_replay(self, metadata: Any) -> None:
        """Raise `BatchLost` if the batch can't be emitted again."""

    def committed(self, metadata: Any) -> None:
        """Called after a transaction commit."""


class ContractOfPartitions(Contract, Protocol):
    """A source of named partitions, each with metadata of its own."""

    def partitions(self) -> Collection[str]:
        """The partitions that currently exist."""

    def next_batch(self, partition: str, previous: Any) -> Any:
        """The metadata of the next part of a partition, None if there is nothing new."""

    def emit_partition_batch(self, partition: str, metadata: Any) -> Any:
        """The tuples that the metadata describe."""

    def committed(self, metadata: Mapping[str, Any]) -> None:
        """Called after a transaction commit."""
