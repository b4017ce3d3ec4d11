"""The rules by which windows close: which windows are open after a batch, and whether a transaction closes some.

A transaction closes the windows that the watermark has passed by the records before it. Behind the last record there is
no further one, so `ClosingRule` decides whether a transaction without records is planned. It is pure: it depends on
what is recorded, and on the time of planning. Windows may count the rows of other windows: *outer* windows count
the rows of *inner* ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from transactional.core.machine.window_assignment import InnerWindows, InnerWindowsByName
from transactional.core.ports import Windowed
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.facts import BatchFacts, Listed, follows_clock
from transactional.model.groupings import Grouping
from transactional.topology.topology import Topology

PAUSE_MS = 1_000
"""The clock causes a transaction at most this often, unless the configuration sets `window_tick_ms`."""


class WindowComponent(Protocol):
    """The part of a component that matters here: its inputs, and its windows."""

    @property
    def id(self) -> str:
        """The id of the component."""

    @property
    def windows(self) -> Windowed | None:
        """The windows of the component. None if it has none."""

    @property
    def inputs(self) -> tuple[Grouping, ...]:
        """The inputs of the component, whose sources come before it."""


def find_inner_windows(components: Iterable[WindowComponent]) -> InnerWindowsByName:
    """Return, for each component with windows of time, the inner windows whose rows it counts, whatever components lie
    between."""
    reaching, inner_windows = dict[str, dict[str, Windowed]](), dict[str, tuple[InnerWindows, ...]]()
    for component in components:
        reaching_inputs = dict[str, Windowed]()
        for grouping in component.inputs:
            reaching_inputs |= reaching.get(grouping.source, {})
        windows = component.windows
        reaching[component.id] = reaching_inputs
        if windows is not None and not windows.depends_on_order:
            reaching[component.id] = {component.id: windows}
            if reaching_inputs:
                inner_windows[component.id] = tuple(
                    _inner_window(name, inner, windows) for name, inner in reaching_inputs.items()
                )
    return inner_windows


def _inner_window(name: str, inner: Windowed, windows: Windowed) -> InnerWindows:
    return InnerWindows(name, inner.closes_without_input, partial(inner.first_time, by_end=windows.time_is_window_end))


def find_event_time_inner_windows(components: Iterable[WindowComponent]) -> InnerWindowsByName:
    """Return the inner windows of components whose own windows use event time."""
    components = list(components)
    by_event = {
        component.id
        for component in components
        if component.windows is not None and not component.windows.closes_without_input
    }
    return {name: inner_windows for name, inner_windows in find_inner_windows(components).items() if name in by_event}


@dataclass(frozen=True, slots=True)
class TimedWindows:
    """The windows of a topology that close as time passes, and the windows whose rows they count. Times are
    microseconds since 1970."""

    windows: Mapping[str, Windowed]
    inner_windows: InnerWindowsByName

    @classmethod
    def from_topology(cls, topology: Topology) -> TimedWindows:
        """Return the windows of a topology, each after those whose rows it counts."""
        timed = {c.id: c.windows for c in topology.components if c.windows is not None}
        windows = {name: timed_windows for name, timed_windows in timed.items() if not timed_windows.depends_on_order}
        return cls(windows, find_inner_windows(topology.components) if windows else {})

    def names_by_transaction_time(self) -> set[str]:
        """Return the components whose windows use the time of transactions, or count the rows of such windows."""
        names = set[str]()
        for name, windows in self.windows.items():
            if windows.closes_without_input or any(inner.name in names for inner in self.inner_windows.get(name, ())):
                names.add(name)
        return names

    def watermark_us(self, name: str, facts: BatchFacts) -> int | None:
        """Return the time up to which the windows of a component close in a transaction with these facts."""
        by_transaction = self.windows[name].closes_without_input
        return facts.time_ms * 1_000 if by_transaction else facts.for_component(name).watermark_us

    def last_ends_us(self, batch: BatchMetadata) -> dict[str, int]:
        """Return for each component the end of its last window that may have a row after a batch."""
        newest_us = max((last_seen.event_us for last_seen in batch.event_times.values()), default=None)
        ends = dict[str, int]()
        for name, windows in self.windows.items():
            if windows.closes_without_input:
                rows = [] if batch.facts is None else [self._last_row_ms(name, batch.facts) * 1_000]
            else:
                inner_ends = [ends[inner.name] for inner in self.inner_windows.get(name, ()) if inner.name in ends]
                rows = inner_ends if newest_us is None else [newest_us, *inner_ends]
            if rows:
                ends[name] = max(rows) + windows.longest_wait_us
        return ends

    def open_until_us(self, batch: BatchMetadata) -> dict[str, tuple[int | None, int]]:
        """Return, for components whose windows may be open after a batch, the watermark and the end of the last
        window."""
        if (facts := batch.facts) is None:
            return {}
        ends = {name: (self.watermark_us(name, facts), end) for name, end in self.last_ends_us(batch).items()}
        return {name: (us, end) for name, (us, end) in ends.items() if us is None or us < end}

    def closing(self, batch: BatchMetadata, facts: BatchFacts) -> list[str]:
        """Return the components of which a window may close in a transaction with these facts, after a batch.

        The watermark has passed an end, or, for windows that end at any time, it has moved.
        """
        return [
            name
            for name, (was_us, _) in self.open_until_us(batch).items()
            if self._may_close(name, was_us, self.watermark_us(name, facts))
        ]

    def _may_close(self, name: str, was_us: int | None, now_us: int | None) -> bool:
        if was_us is None or now_us is None:
            return now_us is not None
        first_start = self.windows[name].first_time
        return first_start(was_us, by_end=False) < first_start(now_us, by_end=False)

    def with_last_rows(self, facts: BatchFacts, batch: BatchMetadata, *, has_rows: bool) -> BatchFacts:
        """Add the time of the last row of each component with windows by transaction time to the facts after a batch.

        Its rows are records, or inner windows that close.
        """
        by_transaction = [name for name, windows in self.windows.items() if windows.closes_without_input]
        if not by_transaction:
            return facts
        closing, last_row_ms = set(self.closing(batch, facts)), dict[str, int]()
        for name in by_transaction:
            if (
                has_rows
                or batch.facts is None
                or any(inner.name in closing for inner in self.inner_windows.get(name, ()))
            ):
                last_row_ms[name] = facts.time_ms
            else:
                last_row_ms[name] = self._last_row_ms(name, batch.facts)
        return replace(facts, last_row_ms=last_row_ms)

    @staticmethod
    def _last_row_ms(name: str, facts: BatchFacts) -> int:
        """Return the recorded time of the last row. For a new component it is unknown, so any transaction may have had
        a row."""
        return facts.last_row_ms.get(name, facts.time_ms)

    def closing_watermark_us(self, batch: BatchMetadata) -> int | None:
        """Return the watermark of the source at which all windows by event time have closed, level by level.

        It is the newest event time plus the longest window; None if there is no event time, or no such window. Inner
        windows emit nothing that is late for outer ones, which therefore need a later watermark, by what the inner
        windows keep open.
        """
        ends, by_transaction = self.last_ends_us(batch), self.names_by_transaction_time()
        needed_us = {name: end for name, end in ends.items() if name not in by_transaction}
        for name in reversed(list(needed_us)):
            for inner in self.inner_windows.get(name, ()):
                us, first_us = needed_us[name], inner.first_time(needed_us[name])
                if first_us < us:
                    us += max(us - first_us, self.windows[inner.name].longest_wait_us)
                needed_us[inner.name] = max(needed_us[inner.name], us)
        return max((us for name, us in needed_us.items() if name not in self.inner_windows), default=None)


def windows_left_open(topology: Topology) -> dict[str, str]:
    """Return why the windows of a component stay open at the end of a run with `close_windows`, by component."""
    windows = {component.id: component.windows for component in topology.components if component.windows is not None}
    by_count = {name: "by count" for name, component in windows.items() if component.depends_on_order}
    timed = TimedWindows.from_topology(topology)
    by_transaction = sorted(timed.names_by_transaction_time())
    by_own_time = {name: "by transaction time" for name in by_transaction if windows[name].closes_without_input}
    return by_count | dict.fromkeys(by_transaction, "of windows by transaction time") | by_own_time


class ClosingRule:
    """Decides whether a transaction without records follows, when there is nothing to read and nothing is in flight.

    It does if the watermark that it would record has passed the end of a window since the batch before. If only the
    clock has moved the watermark, it follows once a second at most, or as often as `window_tick_ms` says. While windows
    are open and the watermark follows the clock, a transaction is made to record the time. A run that ends when its
    source is drained does not wait for the clock.
    """

    def __init__(self, topology: Topology, config: TopologyConfig) -> None:
        self.windows = TimedWindows.from_topology(topology)
        self._topology, self._config = topology, config
        self._by_transaction = self.windows.names_by_transaction_time()
        self._by_event = [name for name, windows in self.windows.windows.items() if not windows.closes_without_input]
        # Sessions end at any time, so that each move of a watermark may close one.
        self._without_fixed_ends = {
            name
            for name, windows in self.windows.windows.items()
            if windows.first_time(0, by_end=False) < windows.first_time(1, by_end=False)
        }
        times = topology.event_times.values()
        self._all_idle = bool(times) and all(event_time.idle_after_ms is not None for event_time in times)
        self._pause_ms = config.window_tick_ms or PAUSE_MS

    def facts_without_records(
        self, batch: BatchMetadata, facts: BatchFacts, listed: Iterable[Listed], *, has_ended: bool
    ) -> BatchFacts | None:
        """Return the facts of a transaction without records after a batch. None if no transaction is made.

        `facts` are its facts by the rule of watermarks. `has_ended` is true if the source is drained, as far as it
        knows.
        """
        if batch.facts is None or not self.windows.windows:
            return None
        closing = self.windows.closing(batch, facts)
        if self._is_due(batch, batch.facts, facts, closing, listed):
            return facts
        if has_ended and self._config.close_windows:
            return self._closing_facts(batch, facts, closing)
        return None

    def _is_due(
        self,
        batch: BatchMetadata,
        batch_facts: BatchFacts,
        facts: BatchFacts,
        closing: Iterable[str],
        listed: Iterable[Listed],
    ) -> bool:
        closing = set(closing)
        if closing - self._clock_driven(batch, batch_facts):
            return True
        if facts.time_ms - batch_facts.time_ms < self._pause_ms:
            return False
        return bool(closing) or self._records_time(batch, listed)

    def _clock_driven(self, batch: BatchMetadata, batch_facts: BatchFacts) -> set[str]:
        """Return the components whose watermark only the clock has moved since a batch."""
        times = self._topology.event_times_of(batch.event_times)
        is_silent = follows_clock(
            batch_facts, [(event_time, batch.event_times[partition]) for partition, event_time in times.items()]
        )
        levels, drains = set(self.windows.inner_windows), self._config.stop_when_drained
        names = set(self._by_transaction)
        if is_silent:
            names |= self.windows.windows.keys()
        elif batch.is_empty and not drains:
            names |= self.windows.windows.keys() - levels
        if drains:
            # They end only at fixed times, so that the clock does not keep such a run alive.
            names -= {name for name in levels & set(self._by_event) if name not in self._without_fixed_ends}
        return names

    def _records_time(self, batch: BatchMetadata, listed: Iterable[Listed]) -> bool:
        """Return whether a transaction is made to record its time, for watermarks that follow the clock."""
        if self._config.stop_when_drained or not self._by_event:
            return False
        if self._config.window_tick_ms is not None:
            return True
        may_follow_clock = self._all_idle and not any(partition.listing.is_lasting for partition in listed)
        open_windows = self.windows.open_until_us(batch)
        return any(
            name in open_windows and (may_follow_clock or name in self._by_transaction) for name in self._by_event
        )

    def _closing_facts(self, batch: BatchMetadata, facts: BatchFacts, closing: Iterable[str]) -> BatchFacts | None:
        """Return the facts of the transaction that closes all windows by event time, or the next level of them."""
        target_us = self.windows.closing_watermark_us(batch)
        if target_us is not None and (facts.watermark_us is None or facts.watermark_us < target_us):
            return replace(facts, watermark_us=target_us)
        return facts if set(closing) - self._by_transaction else None
