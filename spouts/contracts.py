"""The contracts for a spout of your own: say what the next batch is and emit it, and leave the bookkeeping to us.

There are three, as in Storm. What you return on the driver as metadata is recorded before anything is emitted,
comes back to you as `previous`, and is what executors emit from. `docs/howto/own-spout.md` builds one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from spouts.contract_spout import ContractSpout, PartitionsContractSpout, PartsContractSpout
from transactional.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.batch import BatchLimit

    Emission = Iterable[tuple[Any, ...] | pa.RecordBatch | pa.Table]

Metadata = TypeVar("Metadata")
"""What a spout keeps of a batch: anything but None that JSON gives back as it was written."""


class SpoutContract(ABC):
    """What the three contracts share. Derive from one of them and hand an instance to the topology's builder.

    `output` declares the fields of the tuples in Spark's DDL, as bolts do: `output = "line string, number long"`.

    **Where it runs.** The driver keeps your instance. Executors get pickled copies of it as it was when it was handed
    to the builder, so what `open` has taken stays in the driver. Each task may get a copy of its own: what is to live
    longer, such as a connection, belongs in a variable of your module. On the driver nothing is called twice at a
    time, and everything has to return within a bounded time; raise `SourceUnavailable` when the source doesn't answer.
    Whatever else you raise fails the attempt, which is tried again.

    **What you emit** are tuples with a value for each field; or, quicker by far, `pyarrow` record batches or tables
    with the columns of `output`; or both, in any order. Best write a generator: then only a part of the batch is in
    memory.

    **Metadata** come back to you by way of JSON. So return lists, not tuples, and text for the keys of
    dictionaries; a `ConfigError` tells what JSON would not give back. Keep them small, below a million characters per
    partition: say where the tuples are, not what they are.
    """

    output: ClassVar[str] = ""

    def open(self) -> None:  # noqa: B027 - optional
        """Called on the driver before anything else of it: connect and check. Raises `ConfigError`."""

    def close(self) -> None:  # noqa: B027 - optional
        """Called on the driver at the end of a run, also of one that failed; release what `open` has taken."""

    def is_ready(self) -> bool:
        """Whether a new transaction may begin now. Return at once: while it is False, we ask again and again.

        A replay begins without it.
        """
        return True

    def limit_batches(self, limit: BatchLimit) -> None:
        """On the driver, before a batch is asked for, when `target_latency_ms` is set: keep `limit`, and take no more
        than `limit.records` tuples into the next batch.

        Without a method of yours the target is refused: nobody else can say where a batch of yours ends.
        """
        name = type(self).__name__
        raise ConfigError(
            f"target_latency_ms is set, but spout {name} decides by itself how much it takes: give it a method "
            "limit_batches(self, limit) and keep to limit.records, or leave the target away"
        )

    def identity(self) -> Mapping[str, str]:
        """What has to stay the same over restarts, besides the class' name and `output`: a place, a cluster's id.

        A topology whose source is another one than the stored progress is about, is refused. Asked for after `open`.
        """
        return {}

    @abstractmethod
    def as_spout(self, parallelism: int) -> ContractSpout:
        """The spout as the engine sees it; the builder calls this. Raises `ConfigError` for an `output` that is missing
        or wrong."""


class TransactionalSpout(SpoutContract, Generic[Metadata]):
    """A source whose batches can be emitted again exactly, and that is not made of partitions.

    What must hold: `emit_batch` is a pure function of its arguments, so that any attempt, on any executor, today or
    after a restart, emits the same tuples in the same order; and each tuple belongs to one batch. This is checked by
    number and checksum: a replay that differs fails with `ReplayMismatch`.
    """

    @abstractmethod
    def initialize_transaction(self, previous: Metadata | None) -> Metadata | None:
        """On the driver: the metadata of the batch that comes after the one with the metadata `previous`.

        `previous` is None for the very first batch. Return None when there is nothing new: then no transaction begins.
        Asked once for each new transaction, in their order; but asked again with the same `previous` when what was
        answered could not be recorded, so don't count the calls. A replay uses what was recorded and asks nothing.
        """

    @abstractmethod
    def emit_batch(self, metadata: Metadata, part: int, parts: int) -> Emission:
        """On the executors: the tuples of part number `part` (from 0 on) of the batch.

        Called once for each of `parts`, at the same time. Together the parts are the batch; how tuples are dealt out to
        them is up to you. `parts` is the spout's parallelism when the batch was new, and stays so for its replays.
        """

    def check_replay(self, metadata: Metadata) -> None:
        """On the driver, when an attempt has failed: raise `BatchLost` if this can never be emitted again.

        That ends the process and says why, instead of trying for ever.
        """

    def committed(self, metadata: Metadata) -> None:
        """On the driver, after the transaction commit of a batch, in txid order; Storm's committer spouts were told so.

        For telling the source that all up to here may be forgotten. All tables have the batch by then, and the store
        knows. Nothing depends on it: what it raises is logged, and **it may be left out, or come twice**, because a
        process can die between the transaction commit and this call; a run begins with a call for the last committed
        batch. It is never called for an attempt that was not committed. So let each call include what a missing one
        before it would have done, and don't let it delete what the batch after it still needs.
        """

    def as_spout(self, parallelism: int) -> ContractSpout:
        """See `SpoutContract.as_spout`."""
        return PartsContractSpout(self, parallelism)


class PartitionedContract(SpoutContract, Generic[Metadata]):
    """What the two contracts over partitions share."""

    @abstractmethod
    def partitions(self) -> Collection[str]:
        """On the driver: the names of the partitions that are there now; one may have nothing to read.

        Names may come and go. A name stands for the same partition for ever: one that is not there keeps its position,
        and goes on from it when it comes back. A new one joins with the next batch that it has something for.
        """

    @abstractmethod
    def next_batch(self, partition: str, previous: Metadata | None) -> Metadata | None:
        """On the driver: the metadata of what comes next in this partition; None when there is nothing new.

        `previous` are those of the last batch that had something of the partition, None if there was none. The answer
        starts exactly where `previous` ends, takes in no more than is good for one batch, and is final: it
        says where the tuples end as well, so that what arrives later is not among them.
        """

    @abstractmethod
    def emit_partition_batch(self, partition: str, metadata: Metadata) -> Emission:
        """On an executor: the tuples that the metadata tell of, in their order.

        Raise something when they can't be read to the end: never emit less in silence.
        """

    def committed(self, metadata: Mapping[str, Metadata]) -> None:
        """On the driver, after the transaction commit of a batch, in txid order; Storm's committer spouts were told so.

        `metadata` holds those of the partitions of which the batch had something. It may be left out when a process
        dies, is never called for what was not committed, and what it raises is logged: `TransactionalSpout.committed`
        says what that means for you.
        """


class PartitionedTransactionalSpout(PartitionedContract[Metadata]):
    """A source of partitions whose batches can be emitted again exactly.

    What must hold: `emit_partition_batch` is a pure function of its arguments, so that any attempt emits the same
    tuples in the same order, after a restart as well, and whatever has come to the partition since. This is checked by
    number and checksum: a replay that differs fails with `ReplayMismatch`. A replay uses what was recorded and does not
    ask the driver's side, so a partition that has come meanwhile waits for the next transaction. If you can't
    promise this, use `OpaquePartitionedTransactionalSpout`.
    """

    def check_replay(self, partition: str, metadata: Metadata) -> None:
        """On the driver, when an attempt has failed: raise `BatchLost` if this can never be emitted again.

        That ends the process and says why, instead of trying for ever.
        """

    def as_spout(self, parallelism: int) -> ContractSpout:
        """See `SpoutContract.as_spout`."""
        return PartitionsContractSpout(self, self.check_replay)


class OpaquePartitionedTransactionalSpout(PartitionedContract[Metadata]):
    """A source of partitions that may have to replay a batch with other tuples, or without a partition.

    What must hold: a tuple that was in a committed batch is in no other, and none is skipped. For that `next_batch`
    goes on exactly where `previous` ends. A replay asks `partitions` and `next_batch` again; `previous` then says where
    the transaction before it ends now. The answer may be another one than before: less, more, None, other partitions. A
    replay without anything is a batch too. Use an opaque state behind it; the builder warns of any other.
    """

    def as_spout(self, parallelism: int) -> ContractSpout:
        """See `SpoutContract.as_spout`."""
        return PartitionsContractSpout(self, None)
