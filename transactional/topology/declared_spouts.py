"""`DeclaredSpouts`: the spouts of a builder. To its bolts, each spout is a component of its own."""

from __future__ import annotations

from dataclasses import replace

from transactional.core.ports import Spout
from transactional.core.ports.several.spouts import SeveralSpouts
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM, Grouping


class DeclaredSpouts:
    """The spouts of a builder of bolts, in the order in which they were declared."""

    def __init__(self) -> None:
        self._spouts: dict[str, Spout] = {}
        self._tasks: dict[str, int] = {}

    def __contains__(self, spout_id: str) -> bool:
        return spout_id in self._spouts

    def add(self, spout_id: str, spout: Spout, tasks: int) -> None:
        """Add a spout. Raises `ConfigError` for a spout of several streams that is not the only one."""
        spouts = {**self._spouts, spout_id: spout}
        SeveralSpouts(spouts)
        self._spouts = spouts
        self._tasks[spout_id] = tasks

    @property
    def first(self) -> str:
        """The id of the component that reads all spouts. Empty as long as there is none."""
        return next(iter(self._spouts), "")

    @property
    def tasks(self) -> int:
        """The number of tasks of that component: the largest number of a spout."""
        return max(self._tasks.values(), default=1)

    def combined_spout(self) -> Spout:
        """Return the spout of the topology. A single one stays as it is, with the names of its partitions."""
        return self._spouts[self.first] if len(self._spouts) == 1 else SeveralSpouts(self._spouts, self._tasks)

    def stream_of(self, spout_id: str) -> str | None:
        """The stream that another spout than the first has; None for the first, and for what is no spout."""
        return spout_id if spout_id in self._spouts and spout_id != self.first else None

    def resolve(self, grouping: Grouping) -> Grouping:
        """Turn a subscription to a spout into one to its stream of the component that reads all spouts."""
        stream = self.stream_of(grouping.source)
        if stream is None:
            return grouping
        if grouping.stream != DEFAULT_STREAM:
            raise ConfigError(f"spout {grouping.source!r} has no stream {grouping.stream!r}: it is one of several")
        return replace(grouping, source=self.first, stream=stream, spout=grouping.source)
