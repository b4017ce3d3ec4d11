"""`Health`: an observer that knows whether a run is alive, and whether it does its work or waits to."""

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
        self._doing = "starting"
        self._turned_at_s: float | None = None
        self._limit_s = 0.0

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **how: object) -> None:
        """The driver's loop begins. It may stand still while it waits for the store, but not longer than its lease
        holds."""
        self._limit_s = max(TICKS * config.tick_ms, config.lease_ms) / 1_000
        self._turned_at_s = self._now_s()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """The loop has turned."""
        self._turned_at_s = self._now_s()

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Note what the run is doing."""
        match notice:
            case StandingBy():
                self._doing = "standing by"
            case Leading():
                self._doing = "leading"
            case Ended():
                self._doing, self._turned_at_s = "ended", None

    def live(self) -> tuple[bool, str]:
        """Whether the driver's loop turns, and what to say about it. It needs not turn before it begins."""
        if self._turned_at_s is None:
            return True, self._doing
        stood_s = self._now_s() - self._turned_at_s
        if stood_s > self._limit_s:
            return (
                False,
                f"the driver has stood still for {stood_s:.0f} s, more than the {self._limit_s:g} s of its lease",
            )
        return True, self._doing

    def ready(self) -> tuple[bool, str]:
        """Whether the run leads, or stands by."""
        is_live, text = self.live()
        return is_live and self._doing in ("leading", "standing by"), text
