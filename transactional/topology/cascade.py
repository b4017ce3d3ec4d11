"""Windows of windows: which ones count the rows of which others."""

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


def windows_above(components: Iterable[Wired]) -> WindowsBehind:
    """By component with windows of time those next above it, whatever stands between."""
    above, known = dict[str, dict[str, Windowed]](), dict[str, tuple[WindowsAbove, ...]]()
    for component in components:
        found = dict[str, Windowed]()
        for grouping in component.inputs:
            found |= above.get(grouping.source, {})
        windows = component.windows
        above[component.id] = found
        if windows is not None and not windows.goes_by_order:
            above[component.id] = {component.id: windows}
            if found:
                known[component.id] = tuple(_above(name, of, windows) for name, of in found.items())
    return known


def _above(name: str, of: Windowed, windows: Windowed) -> WindowsAbove:
    return WindowsAbove(name, of.closes_without_input, partial(of.first_time, by_end=windows.goes_by_end))


def windows_behind(components: Iterable[Wired]) -> WindowsBehind:
    """The same, of those components alone whose windows go by event time."""
    components = list(components)
    by_event = {each.id for each in components if each.windows is not None and not each.windows.closes_without_input}
    return {name: above for name, above in windows_above(components).items() if name in by_event}
