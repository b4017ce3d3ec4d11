"""`Softly`: an observer that may fail without harm to the run. Metrics and traces are worth no transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from transactional.core.machine.protocol import Action, Event
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.history.observing import Notice, NoticeObserver, Observer, RunObserver

_log: Final = logging.getLogger(__name__)


class Softly:
    """Passes on to an observer; after the first error of its own that observer is notified no more."""

    def __init__(self, observer: Observer, what: str) -> None:
        self.observer, self.what = observer, what
        self._has_failed = False

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **how: object) -> None:
        """The run begins."""
        if isinstance(self.observer, RunObserver):
            self._try(self.observer.begin, at_ms, progress, config, **how)

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Process an event."""
        self._try(self.observer, at_ms, event, actions)

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Process a notice."""
        if isinstance(self.observer, NoticeObserver):
            self._try(self.observer.notice, at_ms, notice)

    def _try(self, process: Callable[..., None], *given: Any, **named: object) -> None:
        if self._has_failed:
            return
        try:
            process(*given, **named)
        except Exception:
            self._has_failed = True
            _log.exception("%s failed, and are given up until the next start; the run continues", self.what)
