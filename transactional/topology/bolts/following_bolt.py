"""`FollowingBolt`: a bolt of the framework's own in a topology that is at least once."""

from __future__ import annotations

from abc import abstractmethod

from transactional.core.ports import Sink
from transactional.model.messages import Unfinished
from transactional.topology.bolts.bolts import ArrowBatchBolt


class FollowingBolt(ArrowBatchBolt):
    """A bolt that returns, after `finish_batch`, which messages its task has not finished."""

    @property
    def sink(self) -> Sink | None:
        """The sink to which the bolt sends, if it is that of a sink."""
        return None

    @abstractmethod
    def unfinished(self) -> Unfinished:
        """Return the messages of this batch that are not finished."""
