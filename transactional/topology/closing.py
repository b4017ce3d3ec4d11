"""Windows of windows, which windows are open after a batch, and whether a transaction is made to close some.

A transaction closes the windows that the watermark has passed by the records before it. Behind the last record there is
none, so that `ClosingRule` decides whether one is planned. It is pure, and goes by what is recorded and by the time of
planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from transactional.core.machine.window_assignment import WindowsAbove, WindowsBehind
from transactional.core.ports import Windowed
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.facts import BatchFacts, Listed, follows_clock
from transactional.model.groupings import Grouping
from transactional.topology.topology import Topology

PAUSE_MS = 1_000
"""At least so long after the last transaction the clock may cause one, if the configuration says nothing else."""


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
        if windows is not None and not windows.depends_on_order:
            above[component.id] = {component.id: windows}
            if found:
                known[component.id] = tuple(_above(name, of, windows) for name, of in found.items())
    return known


def _above(name: str, of: Windowed, windows: Windowed) -> WindowsAbove:
    return WindowsAbove(name, of.closes_without_input, partial(of.first_time, by_end=windows.time_is_window_end))


def windows_behind(components: Iterable[Wired]) -> WindowsBehind:
    """The same, of those components alone whose windows go by event time."""
    components = list(components)
    by_event = {each.id for each in components if each.windows is not None and not each.windows.closes_without_input}
    return {name: above for name, above in windows_above(components).items() if name in by_event}


@dataclass(frozen=True, slots=True)
class TimedWindows:
    """The windows of a topology that close as time passes, by component, and whose rows they count. Times are
    microseconds since 1970."""

    windows: Mapping[str, Windowed]
    above: WindowsBehind

    @classmethod
    def of_topology(cls, topology: Topology) -> TimedWindows:
        """Those of a topology, each after those that it counts."""
        timed = {each.id: each.windows for each in topology.components if each.windows is not None}
        windows = {name: each for name, each in timed.items() if not each.depends_on_order}
        return cls(windows, windows_above(topology.components) if windows else {})

    def follow_transactions(self) -> set[str]:
        """The components whose windows go by the time of transactions, or count the rows of such windows."""
        names = set[str]()
        for name, windows in self.windows.items():
            if windows.closes_without_input or any(each.name in names for each in self.above.get(name, ())):
                names.add(name)
        return names

    def watermark_us(self, name: str, facts: BatchFacts) -> int | None:
        """The time up to which windows of a component close in a transaction with these facts."""
        by_transaction = self.windows[name].closes_without_input
        return facts.time_ms * 1_000 if by_transaction else facts.for_component(name).watermark_us

    def last_ends_us(self, after: BatchMetadata) -> dict[str, int]:
        """By component, when the last window ends that may have a row by then; none if no window can have one."""
        newest_us = max((seen.event_us for seen in after.event_times.values()), default=None)
        ends = dict[str, int]()
        for name, windows in self.windows.items():
            if windows.closes_without_input:
                rows = [] if after.facts is None else [self._last_row_ms(name, after.facts) * 1_000]
            else:
                above = [ends[each.name] for each in self.above.get(name, ()) if each.name in ends]
                rows = above if newest_us is None else [newest_us, *above]
            if rows:
                ends[name] = max(rows) + windows.longest_us
        return ends

    def open_until_us(self, after: BatchMetadata) -> dict[str, tuple[int | None, int]]:
        """By component with windows that may be open after a batch: its watermark, and when the last of them ends."""
        if (facts := after.facts) is None:
            return {}
        ends = {name: (self.watermark_us(name, facts), end) for name, end in self.last_ends_us(after).items()}
        return {name: (us, end) for name, (us, end) in ends.items() if us is None or us < end}

    def closing(self, after: BatchMetadata, facts: BatchFacts) -> list[str]:
        """The components of which a window may close in a transaction with these facts, after a batch: the watermark
        has passed an end, or moved, where windows end at any time."""
        return [
            name
            for name, (was_us, _) in self.open_until_us(after).items()
            if self._is_passed(name, was_us, self.watermark_us(name, facts))
        ]

    def _is_passed(self, name: str, was_us: int | None, now_us: int | None) -> bool:
        if was_us is None or now_us is None:
            return now_us is not None
        first_start = self.windows[name].first_time
        return first_start(was_us, by_end=False) < first_start(now_us, by_end=False)

    def with_last_rows(self, facts: BatchFacts, after: BatchMetadata, *, has_rows: bool) -> BatchFacts:
        """The facts of the batch after `after` with the time of the last row of each component with windows by the
        transactions' own time: from records, or from windows above that close."""
        by_transaction = [name for name, windows in self.windows.items() if windows.closes_without_input]
        if not by_transaction:
            return facts
        closing, last_row_ms = set(self.closing(after, facts)), dict[str, int]()
        for name in by_transaction:
            if has_rows or after.facts is None or any(each.name in closing for each in self.above.get(name, ())):
                last_row_ms[name] = facts.time_ms
            else:
                last_row_ms[name] = self._last_row_ms(name, after.facts)
        return replace(facts, last_row_ms=last_row_ms)

    @staticmethod
    def _last_row_ms(name: str, facts: BatchFacts) -> int:
        """Nothing is recorded of a component that has joined since: then any transaction may have brought rows."""
        return facts.last_row_ms.get(name, facts.time_ms)

    def closing_watermark_us(self, after: BatchMetadata) -> int | None:
        """The watermark of the source at which all windows by event time have closed, level by level: the newest event
        time and the longest window. None: there is no event time, or no such window.

        Windows above pass on nothing that is late for those behind them. So these need a later one, by what the windows
        above keep open.
        """
        ends, clocked = self.last_ends_us(after), self.follow_transactions()
        needed_us = {name: end for name, end in ends.items() if name not in clocked}
        for name in reversed(list(needed_us)):
            for above in self.above.get(name, ()):
                us, first_us = needed_us[name], above.first_time(needed_us[name])
                if first_us < us:
                    us += max(us - first_us, self.windows[above.name].longest_us)
                needed_us[above.name] = max(needed_us[above.name], us)
        return max((us for name, us in needed_us.items() if name not in self.above), default=None)


def windows_left_open(topology: Topology) -> dict[str, str]:
    """By component, why its windows stay open at the end of a run with `close_windows`."""
    windows = {each.id: each.windows for each in topology.components if each.windows is not None}
    by_count = {name: "by count" for name, each in windows.items() if each.depends_on_order}
    timed = TimedWindows.of_topology(topology)
    by_transaction = sorted(timed.follow_transactions())
    own = {name: "by transaction time" for name in by_transaction if windows[name].closes_without_input}
    return by_count | dict.fromkeys(by_transaction, "of windows by transaction time") | own


class ClosingRule:
    """Decides whether a transaction without records follows, when there is nothing to read and nothing is in flight.

    It does if the watermark that it would record has passed the end of a window since the batch before. What the clock
    has moved counts once a second, or as often as `window_tick_ms` says. While windows are open and only transactions
    can move their watermark by the clock, one is made for that. A run that ends when its source is drained does not
    wait for the clock.
    """

    def __init__(self, topology: Topology, config: TopologyConfig) -> None:
        self.windows = TimedWindows.of_topology(topology)
        self._topology, self._config = topology, config
        self._clocked = self.windows.follow_transactions()
        self._by_event = [name for name, each in self.windows.windows.items() if not each.closes_without_input]
        # Sessions end at any time, so that each move of a watermark may close one.
        self._at_any_time = {
            name
            for name, each in self.windows.windows.items()
            if each.first_time(0, by_end=False) < each.first_time(1, by_end=False)
        }
        times = topology.event_times.values()
        self._goes_on = bool(times) and all(of.idle_after_ms is not None for of in times)
        self._pause_ms = config.window_tick_ms or PAUSE_MS

    def facts_without_records(
        self, after: BatchMetadata, facts: BatchFacts, listed: Iterable[Listed], *, has_ended: bool
    ) -> BatchFacts | None:
        """The facts of a transaction without records after the batch `after`. None: none is made.

        `facts` are those that it has by the rule of watermarks. `has_ended`: the source is drained, as far as it knows.
        """
        if after.facts is None or not self.windows.windows:
            return None
        closing = self.windows.closing(after, facts)
        if self._is_due(after, after.facts, facts, closing, listed):
            return facts
        if has_ended and self._config.close_windows:
            return self._closing_facts(after, facts, closing)
        return None

    def _is_due(
        self,
        after: BatchMetadata,
        before: BatchFacts,
        facts: BatchFacts,
        closing: Iterable[str],
        listed: Iterable[Listed],
    ) -> bool:
        closing = set(closing)
        if closing - self._moved_by_clock(after, before):
            return True
        if facts.time_ms - before.time_ms < self._pause_ms:
            return False
        return bool(closing) or self._has_to_look(after, listed)

    def _moved_by_clock(self, after: BatchMetadata, before: BatchFacts) -> set[str]:
        """The components whose watermark the clock has moved since the batch `after`."""
        times = self._topology.event_times_of(after.event_times)
        is_silent = follows_clock(before, [(of, after.event_times[at]) for at, of in times.items()])
        levels, drains = set(self.windows.above), self._config.stop_when_drained
        moved = set(self._clocked)
        if is_silent:
            moved |= self.windows.windows.keys()
        elif after.is_empty and not drains:
            moved |= self.windows.windows.keys() - levels
        if drains:
            # They end only at fixed times, so that the clock does not keep such a run alive.
            moved -= {name for name in levels & set(self._by_event) if name not in self._at_any_time}
        return moved

    def _has_to_look(self, after: BatchMetadata, listed: Iterable[Listed]) -> bool:
        """Whether a transaction is made so that its time is recorded, which watermarks that follow the clock go by."""
        if self._config.stop_when_drained or not self._by_event:
            return False
        if self._config.window_tick_ms is not None:
            return True
        goes_on = self._goes_on and not any(each.listing.is_lasting for each in listed)
        open_ones = self.windows.open_until_us(after)
        return any(name in open_ones and (goes_on or name in self._clocked) for name in self._by_event)

    def _closing_facts(self, after: BatchMetadata, facts: BatchFacts, closing: Iterable[str]) -> BatchFacts | None:
        """Those of the transaction that closes all windows by event time, or the next level of them."""
        target_us = self.windows.closing_watermark_us(after)
        if target_us is not None and (facts.watermark_us is None or facts.watermark_us < target_us):
            return replace(facts, watermark_us=target_us)
        return facts if set(closing) - self._clocked else None
