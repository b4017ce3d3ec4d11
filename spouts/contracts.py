"""The contracts for your own spout: decide what the next batch is and emit it; the framework does the bookkeeping.

There are three, as in Storm. The metadata that you return on the driver are recorded before anything is emitted, are
passed to you again as `previous`, and are what executors emit from. `docs/howto/own-spout.md` builds one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from spouts.contract_spout import ContractSpout, PartitionsContractSpout, PartsContractSpout
from transactional.model.errors import ConfigError
from transactional.model.user_code.overrides import OverridesChecked

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.model.batch import BatchLimit

    Emission = Iterable[tuple[Any, ...] | pa.RecordBatch | pa.Table]

Metadata = TypeVar("Metadata")
"""The data that a spout stores about a batch: anything but None that survives a round trip through JSON."""


class SpoutContract(OverridesChecked, ABC):
    """The base class of the three contracts. Derive from one of those and pass an instance to the topology's builder.

    `output` declares the fields of the tuples in Spark's DDL, as bolts do: `output = "line string, number long"`.

    **Where it runs.** The driver keeps your instance. Executors get pickled copies of it as it was when it was passed
    to the builder, so what `open` acquires stays in the driver. Each task may get its own copy: anything that should
    live longer, such as a connection, belongs in a module variable. On the driver no two calls overlap, and every call
    must return within a bounded time; raise `SourceUnavailable` if the source does not respond. Any other exception
    fails the attempt, which is retried.

    **What you emit** are tuples with a value for each field; or, much faster, `pyarrow` record batches or tables with
    the columns of `output`; or both, in any order. Preferably write a generator: then only a part of the batch is in
    memory.

    **Metadata** are passed back to you through JSON. So return lists, not tuples, and text for the keys of
    dictionaries; a `ConfigError` reports what JSON would not preserve. Keep them small, below a million characters per
    partition: return where the tuples are, not what they are.
    """

    output: ClassVar[str] = ""

    def open(self) -> None:
        """Called on the driver before any other method: connect and check. Raises `ConfigError`."""

    def close(self) -> None:
        """Called on the driver at the end of a run, including a failed one; release what `open` acquired."""

    def is_ready(self) -> bool:
        """Return True if a new transaction may start now. Return immediately: while it is False, the driver calls it
        repeatedly.

        A replay starts regardless, and a run until drained does not end.
        """
        return True

    def limit_batches(self, limit: BatchLimit) -> None:
        """Store `limit`, and take no more than `limit.records` tuples into the next batch.

        Called on the driver before a batch is planned, if `target_latency_ms` is set. Unless you override it the target
        is refused: only your class can decide where a batch ends.
        """
        name = type(self).__name__
        raise ConfigError(
            f"target_latency_ms is set, but spout {name} decides itself how much it takes: add a method "
            "limit_batches(self, limit) that respects limit.records, or remove the target"
        )

    def identity(self) -> Mapping[str, str]:
        """Return what must stay the same across restarts, besides the class' name and `output`: a location, a cluster's
        id.

        A topology whose source differs from the one in the stored progress is refused. Called after `open`.
        """
        return {}

    @abstractmethod
    def as_spout(self, parallelism: int) -> ContractSpout:
        """Return the spout as the engine sees it; the builder calls this.

        Raises `ConfigError` for an `output` that is missing or wrong.
        """


class TransactionalSpout(SpoutContract, Generic[Metadata]):
    """A source whose batches can be emitted again exactly, and that has no partitions.

    Required: `emit_batch` is a pure function of its arguments, so that any attempt, on any executor, today or after a
    restart, emits the same tuples in the same order; and each tuple belongs to one batch. This is checked by number and
    checksum: a replay that differs fails with `ReplayMismatch`.
    """

    @abstractmethod
    def initialize_transaction(self, previous: Metadata | None) -> Metadata | None:
        """Return, on the driver, the metadata of the batch that follows the one with the metadata `previous`.

        `previous` is None for the very first batch. Return None if there is nothing new: then no transaction starts.
        Called once for each new transaction, in order; but called again with the same `previous` if the result could
        not be recorded, so don't count the calls. A replay uses the recorded metadata and does not call this.
        """

    @abstractmethod
    def emit_batch(self, metadata: Metadata, part: int, parts: int) -> Emission:
        """Emit, on the executors, the tuples of part number `part` (from 0 on) of the batch.

        Called once for each of `parts`, at the same time. Together the parts are the batch; how tuples are dealt out to
        them is up to you. `parts` is the spout's parallelism when the batch was new, and stays so for its replays.
        """

    def check_replay(self, metadata: Metadata) -> None:
        """Raise `BatchLost` if this batch can never be emitted again. Called on the driver when an attempt has failed.

        The error ends the process with the reason, instead of retrying forever.
        """

    def committed(self, metadata: Metadata) -> None:
        """Called on the driver after the transaction commit of a batch, in txid order (like Storm's committer spouts).

        Notifies the source that everything up to here may be deleted. All tables have the batch by then, and the store
        knows. Nothing depends on it: what it raises is logged, and **it may be left out, or come twice**, because a
        process can die between the transaction commit and this call; a run starts with a call for the last committed
        batch. It is never called for an attempt that was not committed. So let each call include what a missing earlier
        one would have done, and don't let it delete what the next batch still needs.
        """

    def as_spout(self, parallelism: int) -> ContractSpout:
        return PartsContractSpout(self, parallelism)


class PartitionedContract(SpoutContract, Generic[Metadata]):
    """The base class of the two contracts over partitions."""

    @abstractmethod
    def partitions(self) -> Collection[str]:
        """Return, on the driver, the names of the partitions that currently exist; one may have nothing to read.

        Names may come and go. A name stands for the same partition forever: a missing one keeps its position, and
        continues from there when it is back. A new one joins with the next batch that reads something from it.
        """

    @abstractmethod
    def next_batch(self, partition: str, previous: Metadata | None) -> Metadata | None:
        """Return, on the driver, the metadata of the next part of this partition; None if there is nothing new.

        `previous` are the metadata of the last batch that read something of the partition, None if there was none. The
        result starts exactly where `previous` ends, covers a reasonable amount for one batch, and is final: it also
        says where the tuples end, so that later arrivals are not included.
        """

    @abstractmethod
    def emit_partition_batch(self, partition: str, metadata: Metadata) -> Emission:
        """Emit, on an executor, the tuples that the metadata describe, in order.

        Raise an exception if they can't be read to the end: never silently emit fewer.
        """

    def committed(self, metadata: Mapping[str, Metadata]) -> None:
        """Called on the driver after the transaction commit of a batch, in txid order (like Storm's committer spouts).

        `metadata` holds those of the partitions that the batch read. The call may be skipped when a process dies, is
        never made for what was not committed, and its exceptions are logged: `TransactionalSpout.committed` describes
        what that means for you.
        """


class PartitionedTransactionalSpout(PartitionedContract[Metadata]):
    """A source of partitions whose batches can be emitted again exactly.

    Required: `emit_partition_batch` is a pure function of its arguments, so that any attempt emits the same tuples in
    the same order, even after a restart, and whatever has been added to the partition since. This is checked by number
    and checksum: a replay that differs fails with `ReplayMismatch`. A replay uses what was recorded and does not call
    the driver's side, so a partition that was added meanwhile waits for the next transaction. If you can't guarantee
    this, use `OpaquePartitionedTransactionalSpout`.
    """

    def check_replay(self, partition: str, metadata: Metadata) -> None:
        """Raise `BatchLost` if this part can never be emitted again. Called on the driver when an attempt has failed.

        The error ends the process with the reason, instead of retrying forever.
        """

    def as_spout(self, parallelism: int) -> ContractSpout:
        return PartitionsContractSpout(self, self.check_replay)


class OpaquePartitionedTransactionalSpout(PartitionedContract[Metadata]):
    """A source of partitions that may have to replay a batch with different tuples, or without a partition.

    Required: a tuple that was in a committed batch is in no other, and none is skipped. For that `next_batch` continues
    exactly where `previous` ends. A replay calls `partitions` and `next_batch` again; `previous` then is where the
    previous transaction ends now. The result may differ from before: less, more, None, other partitions. A replay
    without any data is a batch too. Use it with an opaque state; the builder warns about any other.
    """

    def as_spout(self, parallelism: int) -> ContractSpout:
        return PartitionsContractSpout(self, None)
