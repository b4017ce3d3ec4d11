"""Windows of windows: which ones count the rows of which others, and how long after a tuple the last of them ends."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from transactional.core.windows import WindowsAbove, WindowsBehind
from transactional.groupings import Grouping
from transactional.ports import Windowed


class Wired(Protocol):
    """A component of a topology, as far as it matters here."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def windows(self) -> Windowed | None:
        """What keeps its windows; None: it has none."""

    @property
    def inputs(self) -> tuple[Grouping, ...]:
        """What it reads; its sources come before it."""


def windows_behind(components: Iterable[Wired]) -> WindowsBehind:
    """By component with windows of event time those next above it, whatever stands between."""
    above, known = dict[str, dict[str, Windowed]](), dict[str, tuple[WindowsAbove, ...]]()
    for component in components:
        found = dict[str, Windowed]()
        for grouping in component.inputs:
            found |= above.get(grouping.source, {})
        windows = component.windows
        above[component.id] = found
        if windows is not None and not windows.goes_by_order:
            above[component.id] = {component.id: windows}
            if found and not windows.closes_without_input:
                known[component.id] = tuple(_above(name, of, windows) for name, of in found.items())
    return known


def _above(name: str, of: Windowed, windows: Windowed) -> WindowsAbove:
    return WindowsAbove(name, of.closes_without_input, partial(of.first_time, by_end=windows.goes_by_end))


def longest_us(components: Iterable[Wired]) -> dict[str, int]:
    """By component with windows how long after an event, in microseconds, the last one may end that counts it, also as
    a part of other windows."""
    components = list(components)
    behind, found = windows_behind(components), dict[str, int]()
    for component in components:
        windows = component.windows
        if windows is not None:
            before = [found[each.name] for each in behind.get(component.id, ())]
            found[component.id] = windows.longest_us + max(before, default=0)
    return found
