"""`WindowedBolt` and `TupleWindow`: a bolt that is called with windows of tuples, as Storm's `BaseWindowedBolt`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import Bolt, OutputCollector, TopologyContext

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TupleWindow:
    """The tuples of one window, in the order in which they came, and its difference from the window before it.

    `key` are the values of the fields by which windows are separated. `start` and `end` are times, None for a window by
    count.
    """

    tuples: Sequence[Tuple]
    new: Sequence[Tuple]
    expired: Sequence[Tuple]
    key: tuple[Any, ...] = ()
    start: datetime | None = None
    end: datetime | None = None

    def get(self) -> list[Tuple]:
        """Return all tuples of the window."""
        return list(self.tuples)

    def get_new(self) -> list[Tuple]:
        """Return the tuples that were not in the window before."""
        return list(self.new)

    def get_expired(self) -> list[Tuple]:
        """Return the tuples that were in the window before and are not in this one."""
        return list(self.expired)


class WindowedBolt(Bolt, ABC):
    """Processes windows of tuples, one at a time, each when it closes. Added with `set_windowed_bolt`.

    It runs in the commit phase, one transaction at a time. The tuples of open windows are in its state. Each attempt
    uses a fresh copy of the instance that was passed to the builder.
    """

    collector: OutputCollector

    def declare_output(self, name: str, inputs: Mapping[tuple[str, str], Schema]) -> None:
        """Determine the output. Called by `build`, before `output` and `streams` are read.

        `inputs` has the fields of each component and stream that the bolt subscribes to. Override it to set an output
        that depends on them. `name` is for messages.
        """

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare for an attempt. Called once, first; keeps the collector as `self.collector`."""
        self.collector = collector

    @abstractmethod
    def execute(self, window: TupleWindow) -> None:
        """Process a window, which has at least one tuple."""


def to_microseconds(time: datetime | None) -> int | None:
    """Convert a time to microseconds since 1970."""
    return None if time is None else (time - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(us: int) -> datetime:
    """Convert microseconds since 1970 to a time."""
    return _EPOCH + timedelta(microseconds=us)
