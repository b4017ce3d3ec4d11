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
    """The observers of one run. An observer only gets what its port in `history/observing.py` has methods for."""

    def __init__(self, observers: Sequence[Observer], clock: Clock) -> None:
        self._observers, self._clock = observers, clock
        self._notice_observers = [observer for observer in observers if isinstance(observer, NoticeObserver)]

    def begin(
        self, progress: Progress, config: TopologyConfig, coordinator: Coordinator, leading: Callable[[], Leading]
    ) -> None:
        """Notify observers that the run begins. `leading` makes a notice, and is only called if an observer takes
        notices."""
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
        if self._notice_observers:
            self.notify(leading())

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """Notify all observers of an event and the actions that were performed for it."""
        at_ms = self._clock.wall_ms()
        for observe in self._observers:
            observe(at_ms, event, actions)

    def notify(self, notice: Notice) -> None:
        """Notify observers of a notice, which is no event of the protocol."""
        at_ms = self._clock.wall_ms()
        for observer in self._notice_observers:
            observer.notice(at_ms, notice)
