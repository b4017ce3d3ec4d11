"""The port of sinks: what a topology publishes and can't take back, such as the records of a Kafka topic.

States are written before the decision, sinks after it. Tasks encode tuples; `record_commit` stores the records in the
outbox; the leader's relay publishes them in order of txid. A sink never sees an attempt that was not committed. Its
target holds a position beside the records, written atomically with them, so a relay that died can be continued. A
target without a position gets records again that the outbox still has, and recognizes them by their keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from transactional.core.store.outbox import Publication
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.overrides import OverridesChecked

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SinkOwner:
    """The one publisher of a sink: the topology and the name of the sink in it, and the store that has the outbox.

    `fence_id` is that of the leader's lease, higher than that of every earlier leader. Zero is no leader's. `store_id`
    is empty for a look at the target of a lost store, whose id only the target knows.
    """

    topology_id: str
    sink: str
    store_id: str
    fence_id: AttemptId = AttemptId(0)


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """The newest publication that a target holds, and the id of the store that it comes from.

    `fence_id` is that of the newest leader that the target has seen, 0 if the target does not note it.
    """

    store_id: str
    publication: Publication
    fence_id: AttemptId = field(default=AttemptId(0), compare=False)


@dataclass(frozen=True, slots=True)
class PublishedRecords:
    """The records of one committed transaction, as returned by `Sink.stage`."""

    publication: Publication
    records: pa.Table


@dataclass(frozen=True, slots=True)
class SinkAddress:
    """The place of published records, for readers without the sink.

    With `is_chosen_by_records` each record names its target, which is part of its checksum.

    `format` is `"kafka"`, with the topics as `targets`, the brokers' addresses as `uri`, and librdkafka's `options`; or
    `"delta"`, with the column of the transaction as the one target, the table as `uri`, and delta-rs' `options`.
    """

    format: str
    targets: Sequence[str]
    uri: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    is_chosen_by_records: bool = False


class Sink(OverridesChecked, ABC):
    """Where a topology publishes records. Instances are declared by users and pickled to tasks, without connections.

    `encode` runs in tasks, and so does `stage` for many records. All other methods run in the leader's process:
    `prepare` before tasks get the sink, then `look`, then `open`, then `position`, then `publish` any number of times.
    After `SinkUnavailable` with `is_fenced`, `look` comes again.
    """

    kind: ClassVar[str] = "sink"
    stages_in_tasks: ClassVar[bool] = False
    """True if `stage` writes somewhere: then tasks stage their records themselves if these are large."""
    needs_disk: ClassVar[bool] = False
    """True if a power cut would lose what `stage` has written, unless the topology is durable on disk."""
    can_go_back: ClassVar[bool] = False
    """True if `go_back` takes published records away. Otherwise they stay, and are published again after a rewind."""
    has_position: ClassVar[bool] = True
    """False if the target has no place for a position: then `look` and `position` return None, and `publish` gets
    records again that the target may have. It has to recognize them (`sinks.KeyedSink`)."""
    can_read: ClassVar[bool] = False
    """True if `read` returns published records as rows, so that they can be read beside the tables of states."""
    can_send: ClassVar[bool] = False
    """True if `send` sends records from tasks, as a topology that is at least once needs."""

    @property
    def target_name(self) -> str:
        """The name of the target for messages, such as `topic 'alerts'`."""
        return f"its {self.kind}"

    @abstractmethod
    def check_input(self, fields: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if a stream lacks fields that the sink needs, or has them with other types."""

    def record_fields(self, fields: Schema) -> Schema:
        """Return the fields of a stream that its records have, for the fingerprint of a topology."""
        return fields

    def prepare(self) -> None:
        """Read from the target what `identity` and tasks depend on, such as the size of its largest record.

        Changes nothing that others see, and fences nobody. Raises `SinkUnavailable`, and `ConfigError` if the target
        can't be used.
        """

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """The target of a prepared sink and the form of its records, for the fingerprint of a topology.

        A mapping with the name `topics` may gain entries in a later run, and `table_id` is left out while a table does
        not exist. Everything else has to stay.
        """

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        """Turn tuples into records that are ready to be sent. Pure. Raises `SchemaMismatch` for a tuple that can't."""

    def stage(self, attempt: TransactionAttempt, records: pa.Table) -> pa.Table:
        """Write encoded records where `publish` finds them, and return what the outbox holds instead.

        Called before the transaction commit, for attempts that may never be committed. By default the outbox holds the
        records. Raises `OperatingError`.
        """
        del attempt
        return records

    def checksum(self, staged: pa.Table) -> int | None:
        """Return a checksum of staged records by which a reader of the target recognizes them; None if there is none.

        It does not depend on their order, so a reader can sum up the checksums of any parts.
        """
        del staged
        return None

    def address(self) -> SinkAddress | None:
        """Return the place of published records, None if readers need the sink."""
        return None

    def risks(self, topology_id: str) -> Iterable[str]:
        """Return the settings of the target with which it may lose what is published, in words, for the doctor.

        Raises `SinkUnavailable`.
        """
        del topology_id
        return ()

    def check_staged(self, attempt: TransactionAttempt, staged: pa.Table) -> None:
        """Raise `OperatingError` if the leader does not see what tasks have staged."""

    def find_missing(self, staged: pa.Table) -> str:
        """Return which staged records the target lacks, in words; an empty text if `publish` finds all of them.

        Raises `OperatingError` if the target can't be read.
        """
        del staged
        return ""

    @abstractmethod
    def look(self, owner: SinkOwner) -> SinkPosition | None:
        """Read the position without fencing anybody, and check the target.

        Records of a publisher that is still at work may be missing. Raises `SinkUnavailable`, and `ConfigError` if the
        target can't be used.
        """

    @abstractmethod
    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        """Fence every earlier publisher of this owner. Whatever it had begun is published or aborted afterwards.

        With `has_published` nothing is created in which a position would be missing. Raises `SinkUnavailable`.
        """

    def fence_removed(self, owner: SinkOwner, identity: Mapping[str, Any]) -> bool:
        """Fence every publisher of another sink, which has left the topology. Return whether this sink can.

        This sink is prepared. `owner` and `identity` are those of the other one. Raises `SinkUnavailable`.
        """
        del owner, identity
        return False

    @abstractmethod
    def position(self) -> SinkPosition | None:
        """Read the final position of an open sink; None if nothing was ever published. Raises `SinkUnavailable`."""

    @abstractmethod
    def publish(self, group: Sequence[PublishedRecords]) -> None:
        """Publish transactions in the given order, and the position of the last one: all of it or nothing.

        Raises `SinkUnavailable` if nothing was published, `RecordRefused` for a record that the target never takes.
        """

    def send(self, records: pa.Table) -> Mapping[int, str]:
        """Send encoded records at least once, and return why the target refuses some, by their numbers.

        Called in tasks of topologies that are at least once, on a sink that was prepared and never opened. Raises
        `SinkUnavailable` if it is not known whether all others have arrived.
        """
        raise ConfigError(f"a {self.kind} can't send records at least once")

    def check_go_back(self) -> None:
        """Raise `TableUnfit` if the target as it is does not let `go_back` take records away.

        Called before a rewind changes anything, also on a sink that was never opened. Raises `OperatingError`.
        """

    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        """Take away what is published of later transactions than `txid`, as far as the target can.

        Called during a rewind, and for a sink with `can_go_back` when the position of its target is accepted.
        The sink is open. `fence_id` is higher than every earlier attempt and fence. The call is repeated if the rewind
        is begun again. Raises `SinkUnavailable`.
        """

    def read(self, txid: TxId) -> pa.Table:
        """Return the published rows of transactions up to one, of a sink that may never have been opened.

        Raises `OperatingError`.
        """
        raise ConfigError(f"what a {self.kind} has published can't be read as rows")

    @abstractmethod
    def close(self) -> None:
        """Release connections within a few seconds. What is under way is published or aborted by the next `open`.

        Called when a run ends, and in each worker process that has called `send`.
        """
