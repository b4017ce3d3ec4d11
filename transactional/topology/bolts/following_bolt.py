"""`FollowingBolt`: a bolt of the framework's own in a topology that is at least once."""

from __future__ import annotations

from abc import abstractmethod

from transactional.model.messages import Unfinished
from transactional.topology.bolts.bolts import ArrowBatchBolt


class FollowingBolt(ArrowBatchBolt):
    """A bolt that returns, after `finish_batch`, which messages its task has not finished."""

    @abstractmethod
    def unfinished(self) -> Unfinished:
        """Return the messages of this batch that are not finished."""
