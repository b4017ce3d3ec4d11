"""`RichBolt`: a bolt that itself says which tuples belong together, and when it is done with one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import Bolt, TopologyContext

Anchors = Tuple | Sequence[Tuple] | None


class TupleCollector(Protocol):
    """What a `RichBolt` emits to, and where it acks and fails its tuples.

    A tuple that is emitted with `anchors` (one tuple, or several) belongs to the messages of these: they are done only
    once it is acked, too. Without anchors it belongs to none, and nobody notices if it fails.
    """

    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple: a value for each field of the stream, in order."""

    def emit_direct(
        self, component: str, task: int, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one tuple to one task, counted from 0, of a bolt that has subscribed with `direct_grouping`."""

    def ack(self, tuple: Tuple) -> None:
        """The bolt is done with a tuple. Every tuple is acked or failed once; a second ack changes nothing."""

    def fail(self, tuple: Tuple, reason: str = "") -> None:
        """The messages that a tuple belongs to have failed: they are processed again."""


class RichBolt(Bolt, ABC):
    """Processes one tuple at a time, and acks or fails each. Only for topologies without exactly once.

    A tuple that is neither acked nor failed when its batch ends has timed out: its messages are processed again. So are
    they if `execute` raises. An instance passed to the builder is a prototype; each task of each batch uses a copy.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: TupleCollector) -> None:
        """Called once, before the first tuple of the batch; also if there is none."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple."""

    def finish_batch(self) -> None:
        """Called once, after the last tuple of the batch: the last opportunity to emit, and to ack what was held."""
