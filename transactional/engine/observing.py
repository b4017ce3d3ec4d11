"""Observers of a run: the journal, the display, and anything else that is notified of all events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from transactional.config import TopologyConfig
from transactional.core.protocol import Action, Event
from transactional.guarantees import Guarantee
from transactional.progress import Snapshot


class Observer(Protocol):
    """Notified of every event and the actions that followed, after they were performed."""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """`at_ms` is wall-clock time."""


@runtime_checkable
class RunObserver(Observer, Protocol):
    """An observer that is also notified of the start of a run, before the first event."""

    def begin(
        self,
        at_ms: int,
        snapshot: Snapshot,
        config: TopologyConfig,
        *,
        replays_exactly: bool,
        sets_aside: bool,
        guarantee: Guarantee,
    ) -> None:
        """Everything that a coordinator is created from."""
