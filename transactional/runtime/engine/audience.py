"""The observers of a run, notified one after the other, in the driver's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.protocol import Action, Event
from transactional.core.ports import Clock
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.history.observing import Leading, Notice, NoticeObserver, Observer, RunObserver


class Audience:
    """All observers of one run. Not all of them want everything: see the ports in `history/observing.py`."""

    def __init__(self, observers: Sequence[Observer], clock: Clock) -> None:
        self._observers, self._clock = observers, clock
        self._noticing = [each for each in observers if isinstance(each, NoticeObserver)]

    def begin(
        self, progress: Progress, config: TopologyConfig, coordinator: Coordinator, leading: Callable[[], Leading]
    ) -> None:
        """The run begins, by a coordinator that leads. `leading` is called if anybody wants to know."""
        at_ms = self._clock.wall_ms()
        for observer in self._observers:
            if isinstance(observer, RunObserver):
                observer.begin(
                    *(at_ms, progress, config),
                    replays_exactly=coordinator.replays_exactly,
                    sets_aside=coordinator.sets_aside,
                    guarantee=coordinator.guarantee,
                    has_windows=coordinator.has_windows,
                )
        if self._noticing:
            self.notify(leading())

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """An event, and the actions that were performed for it."""
        at_ms = self._clock.wall_ms()
        for observe in self._observers:
            observe(at_ms, event, actions)

    def notify(self, notice: Notice) -> None:
        """What is no event."""
        at_ms = self._clock.wall_ms()
        for observer in self._noticing:
            observer.notice(at_ms, notice)
