"""Somebody who looks on while leaders and standbys die."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Watcher(ABC):
    """A thread that looks until it is asked what it has found, or its block ends."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @abstractmethod
    def check(self) -> str:
        """What it has seen, of which nothing may be wrong, once the soak has ended."""

    @abstractmethod
    def _look(self) -> None:
        """Until `_ended`."""

    def _end(self) -> None:
        self._ended.set()
        self._thread.join(60)
