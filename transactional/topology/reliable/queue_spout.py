"""`QueueSpout`: Storm's spout contract, for sources that hand out messages and need to know what became of each.

Its instances live in the driver. What they emit is recorded with the batch, so a batch can be repeated although a queue
hands a message out only once.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.core.ports.spout_parts import Messages, SpoutParts
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.zones import naive_times_in
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.messages import FailedMessage
from transactional.model.schema import Schema
from transactional.model.user_code.overrides import OverridesChecked

_log = logging.getLogger(__name__)
_SOURCE = "queue"


class SpoutCollector:
    """The collector of an instance of a `QueueSpout`."""

    def __init__(self, output: Schema, component: str) -> None:
        self._schema, self._component = arrow_schema(output), component
        self.emitted: list[tuple[dict[str, Any], Any]] = []

    def emit(self, *values: object, message_id: Any = None) -> None:
        """Emit a tuple, with a value for each field. Raises `SchemaMismatch` for values that do not match the fields.

        Without a `message_id`, the message is not followed: neither `ack` nor `fail` is called for it.
        """
        names = self._schema.names
        if len(values) != len(names):
            raise SchemaMismatch(f"{self._component} declares the fields {names} and emitted {len(values)} values")
        with naive_times_in("UTC"):  # the topology says what becomes of times without a zone, when they are read
            batch_from_rows([values], self._schema, component=self._component)
        self.emitted.append((dict(zip(names, values, strict=True)), message_id))


class QueueSpout(OverridesChecked, ABC):
    """A spout whose instances live in the driver, as many as its parallelism. For topologies without exactly once.

    `next_tuple` is called again and again for each batch, until it emits nothing, or until `message_pending_max`
    messages of the instance are neither acked nor failed. `ack` and `fail` reach the instance that has emitted the
    message, once its transaction is committed; it is up to the instance to emit a failed one again. At most once, a
    message is acked when it is emitted.

    What was emitted is recorded with the batch: if its job fails, or the driver dies, it is processed again from the
    record. The messages that a dead driver had not acked yet are the queue's business: one that puts them back when its
    client disconnects hands them out again. `output` declares the fields in Spark's DDL. The object that is passed to
    the builder is a prototype, which is copied.
    """

    output: ClassVar[str] = ""
    message_pending_max: ClassVar[int] = 1_000

    def open(self, instance: int, instances: int, collector: SpoutCollector) -> None:
        """Connect to the queue. Called once per run, with the number of this instance, from 0, and the number of
        instances.

        What it emits is in the first new batch of the run.
        """
        self.collector = collector

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit the next message with `self.collector.emit(…, message_id=…)`, or nothing if there is none. Must not
        wait."""

    def ack(self, message_id: Any) -> None:
        """Remove a message from the queue: every bolt has processed it."""

    def fail(self, message_id: Any) -> None:
        """Put a message back: a bolt has failed it, or has not acked it."""

    def close(self) -> None:
        """Disconnect from the queue. Called when the run ends."""

    def as_spout(self, parallelism: int) -> QueueInstances:
        """Return the spout, with this many instances."""
        return QueueInstances(self, parallelism)


@dataclass(frozen=True, slots=True)
class QueueReader(PartitionReader):
    """Reads messages from the metadata of a batch."""

    output: Schema

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        for batch, _ in self.read_with_offsets(partition, offsets, metadata):
            yield batch

    @property
    def knows_offsets(self) -> bool:
        """True: they are the messages' numbers."""
        return True

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield the messages of a range, and their numbers, NULL for a message without an id."""
        first, names = int(metadata["first"]), self.output.names
        texts = metadata["messages"][offsets.start - first : offsets.until - first]
        rows = [tuple(values[name] for name in names) for values in map(values_from_json, texts)]
        plain = set(metadata["plain"])
        numbers = [None if number in plain else number for number in range(offsets.start, offsets.until)]
        yield batch_from_rows(rows, arrow_schema(self.output), component=str(partition)), pa.array(numbers, pa.int64())


@dataclass(slots=True)
class _Instance:
    """One instance of a `QueueSpout`, with what it has emitted from offset `first` on.

    `waiting` has the ids of messages that are neither acked nor failed. Messages up to `planned_until` were in a batch.
    `first` is unknown before the first batch, which begins with what `open` emitted.
    """

    spout: QueueSpout
    collector: SpoutCollector
    first: int | None = None
    planned_until: int = 0
    waiting: dict[int, Any] = field(default_factory=dict)

    def take(self, start: int) -> list[tuple[dict[str, Any], Any]]:
        """Return what is emitted from an offset on.

        First come messages of batches that could not be planned or recorded, then new ones. If the spout raises, all of
        them are returned the next time.
        """
        emitted = self.collector.emitted
        del emitted[: start - (start if self.first is None else self.first)]
        self.first = start
        room = self.spout.message_pending_max - sum(offset < start for offset in self.waiting)
        count_before = -1
        while count_before < len(emitted) < room:
            count_before = len(emitted)
            self.spout.next_tuple()
        return emitted


class QueueInstances(Spout, Messages):
    """The `Spout` that consists of the instances of a `QueueSpout`."""

    def __init__(self, prototype: QueueSpout, parallelism: int) -> None:
        name = type(prototype).__name__
        if not prototype.output:
            raise ConfigError(f"spout {name} declares no output: give the fields of its tuples, such as 'line string'")
        self._prototype, self._parallelism, self._name = prototype, parallelism, name
        self._output = Schema.parse(prototype.output)
        self._acks_at_once = False
        self._instances: dict[PartitionId, _Instance] = {}

    @property
    def output(self) -> Schema:
        return self._output

    @property
    def replays_exactly(self) -> bool:
        """False: a queue hands a message out once."""
        return False

    @property
    def parts(self) -> SpoutParts:
        """The messages of the instances, which are notified of them."""
        return replace(super().parts, messages=self)

    @property
    def is_acked(self) -> bool:
        """True: the instances emit again what has failed."""
        return True

    def copy_unopened(self) -> Self:
        """Return a copy without instances, as those of a run hold its messages."""
        spout = super().copy_unopened()
        spout._instances = {}
        return spout

    def ack_at_once(self) -> None:
        """Ack messages when they are emitted, for at most once."""
        self._acks_at_once = True

    def identity(self) -> Mapping[str, str]:
        return {"kind": "OpaqueQueueSpout", "class": self._name, "fields": str(self.output)}

    def open(self) -> None:
        for number in range(self._parallelism):
            instance = copy.deepcopy(self._prototype)
            collector = SpoutCollector(self.output, f"spout {self._name}")
            instance.open(number, self._parallelism, collector)
            self._instances[PartitionId(_SOURCE, number)] = _Instance(instance, collector)

    def plan(self, previous: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan a batch of what the instances emit next. None if they emit nothing."""
        positions = previous.positions()
        ranges = {p: OffsetRange(offset, offset) for p, offset in positions.items()}
        metadata: dict[PartitionId, Any] = {}
        for partition, instance in self._instances.items():
            start = positions.get(partition, Offset(0))
            emitted = instance.take(start)
            ranges[partition] = OffsetRange(start, Offset(start + len(emitted)))
            if not emitted:
                continue
            plain = [start + number for number, (_, message_id) in enumerate(emitted) if message_id is None]
            messages = [values_to_json(values) for values, _ in emitted]
            metadata[partition] = {"first": start, "messages": messages, "plain": plain}
            ids = {start + number: message_id for number, (_, message_id) in enumerate(emitted)}
            self._wait_for(instance, {offset: id_ for offset, id_ in ids.items() if id_ is not None})
            instance.planned_until = start + len(emitted)
        return BatchMetadata(ranges, metadata=metadata) if metadata or replay else None

    def _wait_for(self, instance: _Instance, ids: dict[int, Any]) -> None:
        new = {offset: message_id for offset, message_id in ids.items() if offset >= instance.planned_until}
        if self._acks_at_once:
            for message_id in new.values():
                self._call(instance.spout.ack, message_id)
        else:
            instance.waiting |= new

    def acknowledge(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Ack and fail the messages of a committed batch."""
        wrong = {(message.partition, message.offset) for message in failed}
        for partition, offsets in batch.non_empty():
            if partition not in self._instances:
                continue
            instance, waiting = self._instances[partition].spout, self._instances[partition].waiting
            for offset in range(offsets.start, offsets.until):
                if offset in waiting:
                    has_failed = (partition, offset) in wrong
                    self._call(instance.fail if has_failed else instance.ack, waiting.pop(offset))

    def _call(self, notify: Callable[[Any], None], message_id: Any) -> None:
        try:
            notify(message_id)
        except Exception:
            _log.exception("spout %s raised when it was notified of message %r", self._name, message_id)

    def reader(self) -> QueueReader:
        return QueueReader(self.output)

    def close(self) -> None:
        instances, self._instances = self._instances, {}
        for instance in instances.values():
            instance.spout.close()
