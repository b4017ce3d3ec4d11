"""Groupings: how the tuples of a stream are distributed over the tasks of a subscribing bolt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

DEFAULT_STREAM = "default"


class GroupingKind(Enum):
    """Storm's groupings. NONE and LOCAL_OR_SHUFFLE do what SHUFFLE does, which keeps tuples in their task if it can."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local or shuffle"
    NONE = "none"
    FIELDS = "fields"
    PARTIAL_KEY = "partial key"
    ALL = "all"
    GLOBAL = "global"
    DIRECT = "direct"
    CUSTOM = "custom"

    @property
    def is_shuffle(self) -> bool:
        """True if any task may get a tuple, as long as the load is balanced."""
        return self in (GroupingKind.SHUFFLE, GroupingKind.LOCAL_OR_SHUFFLE, GroupingKind.NONE)


class CustomStreamGrouping(ABC):
    """Chooses which tasks get a tuple (Storm's CustomStreamGrouping).

    An instance is a prototype: each emitting task of each attempt uses a fresh copy. The choice must depend only on the
    arguments, so that a task that Spark runs again distributes its tuples as before.
    """

    def prepare(self, source_task: int, task_count: int) -> None:  # noqa: B027 - optional
        """Prepare for the first tuple, with the number of the emitting task, and the number of tasks to choose from."""

    @abstractmethod
    def choose_tasks(self, values: tuple[Any, ...]) -> Sequence[int]:
        """Return the tasks, counted from 0, that get the tuple with these values: none, one or several."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """One input of a bolt: the stream that it subscribes to, and how tuples are distributed over the bolt's tasks."""

    kind: GroupingKind
    source: str
    fields: tuple[str, ...] = ()
    stream: str = DEFAULT_STREAM
    custom: CustomStreamGrouping | None = None
    spout: str = ""
    """The spout that is meant, if a component reads several: its tuples are a stream of that component."""

    @property
    def origin(self) -> tuple[str, str]:
        """The ids of the component and the stream."""
        return self.source, self.stream

    @property
    def shown_origin(self) -> tuple[str, str]:
        """The component and the stream that bolts see as the origin of tuples: the spout if one is named."""
        return (self.spout, DEFAULT_STREAM) if self.spout else self.origin

    def __str__(self) -> str:
        fields = f"({', '.join(self.fields)})" if self.fields else ""
        return f"{self.kind.value}{fields}" + ("" if self.stream == DEFAULT_STREAM else f" of stream {self.stream}")
