"""`GuardedObserver`: an observer that may fail without harm to the run. Metrics and traces are worth no transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from transactional.core.machine.protocol import Action, Event
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.history.observing import Notice, NoticeObserver, Observer, RunObserver

_log: Final = logging.getLogger(__name__)


class GuardedObserver:
    """Notifies another observer until its first error, which is logged; `name` names the observer in the log."""

    def __init__(self, observer: Observer, name: str) -> None:
        self.observer, self.name = observer, name
        self._has_failed = False

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **details: object) -> None:
        """Notify the observer that the run begins, if it wants to know."""
        if isinstance(self.observer, RunObserver):
            self._try(self.observer.begin, at_ms, progress, config, **details)

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Notify the observer of an event and the actions that followed."""
        self._try(self.observer, at_ms, event, actions)

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Notify the observer of a notice, if it wants to know."""
        if isinstance(self.observer, NoticeObserver):
            self._try(self.observer.notice, at_ms, notice)

    def _try(self, process: Callable[..., None], *arguments: Any, **keywords: object) -> None:
        if self._has_failed:
            return
        try:
            process(*arguments, **keywords)
        except Exception:
            self._has_failed = True
            _log.exception("%s failed, and are given up until the next start; the run continues", self.name)
