"""The protocols of spouts that users write, as `spouts.contract_spout` and `spouts.contract_reader` call them.

The classes that users derive from are in `spouts.contracts`, which imports those two modules; the protocols avoid a
circular import.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol

from transactional.model.batch import BatchLimit


class UserSpout(Protocol):
    """The methods that the engine calls of every spout that a user writes."""

    output: ClassVar[str]

    def identity(self) -> Mapping[str, str]:
        """Return what must stay the same across restarts."""

    def open(self) -> None:
        """Connect to the source and check it."""

    def close(self) -> None:
        """Release the connections that `open` acquired."""

    def is_ready(self) -> bool:
        """Return True if a new transaction may begin now."""

    def limit_batches(self, limit: BatchLimit) -> None:
        """Accept the limit that the engine sets for the next batch."""


class UnpartitionedUserSpout(UserSpout, Protocol):
    """A user's spout of a source that is not made of partitions: all parts of a batch share its metadata."""

    def initialize_transaction(self, previous: Any) -> Any:
        """Return the metadata of the next batch, None if there is nothing new."""

    def emit_batch(self, metadata: Any, part: int, parts: int) -> Any:
        """Return the tuples of one part of a batch."""

    def check_replay(self, metadata: Any) -> None:
        """Raise `BatchLost` if the batch can't be emitted again."""

    def committed(self, metadata: Any) -> None:
        """Called after a transaction commit."""


class PartitionedUserSpout(UserSpout, Protocol):
    """A user's spout of named partitions, each with metadata of its own."""

    def partitions(self) -> Collection[str]:
        """Return the names of the partitions that currently exist."""

    def next_batch(self, partition: str, previous: Any) -> Any:
        """Return metadata that describe the partition's tuples of the next batch, None if there is nothing new.

        No tuple is emitted yet. `previous` is the partition's metadata in the last batch that read from it, or None.
        """

    def emit_partition_batch(self, partition: str, metadata: Any) -> Any:
        """Return the tuples that the metadata describe."""

    def committed(self, metadata: Mapping[str, Any]) -> None:
        """Called after a transaction commit."""
