"""`Health`: an observer that says whether a run is alive, and whether it leads or stands by."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from transactional.core.machine.protocol import Action, Event
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.history.observing import Ended, Leading, Notice, StandingBy

TICKS = 3


class Health:
    """May be queried from other threads. `now_s` is a monotonic time in seconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._state = "starting"
        self._last_event_s: float | None = None
        self._limit_s = 0.0

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **details: object) -> None:
        """Record that the driver's loop begins. It may stand still while it waits for the store, but not longer than
        its lease holds."""
        self._limit_s = max(TICKS * config.tick_ms, config.lease_ms) / 1_000
        self._last_event_s = self._now_s()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Record that the driver's loop is running."""
        self._last_event_s = self._now_s()

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Record whether the run leads, stands by or has ended."""
        match notice:
            case StandingBy():
                self._state = "standing by"
            case Leading():
                self._state = "leading"
            case Ended():
                self._state, self._last_event_s = "ended", None

    def live(self) -> tuple[bool, str]:
        """Return whether the driver's loop runs, with a text that says so. Before it begins it needs not run."""
        if self._last_event_s is None:
            return True, self._state
        stood_s = self._now_s() - self._last_event_s
        if stood_s > self._limit_s:
            return (
                False,
                f"the driver has stood still for {stood_s:.0f} s, more than the {self._limit_s:g} s of its lease",
            )
        return True, self._state

    def ready(self) -> tuple[bool, str]:
        """Return whether the run leads or stands by, with a text that says so."""
        is_live, text = self.live()
        return is_live and self._state in ("leading", "standing by"), text
