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
    """The collector of a `RichBolt`: it emits tuples, and acks and fails the received ones.

    A tuple that is emitted with `anchors` (one tuple, or several) belongs to their messages, which are done only once
    it is acked, too. Without anchors it belongs to no message, and is not processed again if it fails.
    """

    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple, with a value for each field of the stream, in order."""

    def emit_direct(
        self, component: str, task: int, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a tuple to one task, counted from 0, of a bolt that has subscribed with `direct_grouping`."""

    def ack(self, tuple: Tuple) -> None:
        """Record that the bolt is done with a tuple. Every tuple is acked or failed once; a second ack changes
        nothing."""

    def fail(self, tuple: Tuple, reason: str = "") -> None:
        """Record that the messages of a tuple have failed: they are processed again."""


class RichBolt(Bolt, ABC):
    """Processes one tuple at a time, and acks or fails each. Only for topologies without exactly once.

    A tuple that is neither acked nor failed when its batch ends has timed out: its messages are processed again. So are
    they if `execute` raises. An instance passed to the builder is a prototype; each task of each batch uses a copy.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: TupleCollector) -> None:
        """Prepare for a batch. Called once, before the first tuple, even if there is none."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple, and ack or fail it, now or later in the batch."""

    def finish_batch(self) -> None:
        """Emit and ack what was held back. Called once, after the last tuple of the batch."""
