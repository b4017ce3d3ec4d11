"""Which windows, and which rows that expire, can be computed again from tuples alone, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from transactional.core.ports import PersistentAggregate
from transactional.core.ports.expiry import Time
from transactional.model.aggregates import Aggregate, make_step
from transactional.model.groupings import GroupingKind
from transactional.operations.doctor.replaying import expiry_of
from transactional.topology.streams.pipelines.pipeline import Pipeline
from transactional.topology.streams.windows.sessions import AssignSessions, SessionUpdate
from transactional.topology.streams.windows.times import WINDOW_START, to_microseconds
from transactional.topology.streams.windows.windowing import AssignPanes, WindowedUpdate
from transactional.topology.topology import CLOSED, Component, Topology, WorkPhase
from verifier.evidence.store import CommittedBatch
from verifier.horizons import ExpiryRule
from verifier.keys import KeyedTuple, RecomputedKeys
from verifier.windows import Recomputed, TimedTuple, WindowRules

_IN_ORDER = ("first", "last")
"""Windows of several parts have them part by part, and sessions that become one session by session."""


@dataclass(slots=True)
class WindowsAgain:
    """The windows of one committer. `time` is the field of their tuples; None: they go by transactions.

    `is_late`: their tuples are of the commit phase. Columns in `others` are not computed again.
    """

    component: Component
    update: WindowedUpdate | SessionUpdate
    time: str | None
    recomputed: Recomputed
    is_late: bool
    others: list[str]
    seen: list[Any] = field(default_factory=list)

    def commit(self, batch: CommittedBatch) -> None:
        """The next transaction, whose tuples it has seen."""
        now_us = 0 if batch.time_ms is None else batch.time_ms * 1_000
        closed_until_us = now_us if self.time is None else batch.watermark_of(self.component.id)
        self.recomputed.commit(closed_until_us, self._tuples(now_us))

    def _tuples(self, now_us: int) -> Iterator[TimedTuple]:
        fields = {of for _, of in self.recomputed.rules.columns.values() if of is not None}
        for batch in self.seen:
            times = (
                [now_us] * batch.num_rows if self.time is None else to_microseconds(batch.column(self.time)).to_pylist()
            )
            for (key, values), us in zip(_keyed(batch, self.update.key, fields), times, strict=True):
                if us is not None:
                    yield TimedTuple(key, us, values)


@dataclass(slots=True)
class KeysAgain:
    """The rows of a committer that expire."""

    component: Component
    recomputed: RecomputedKeys
    seen: list[Any] = field(default_factory=list)

    def commit(self, batch: CommittedBatch) -> None:
        """The next transaction, whose tuples it has seen."""
        fields = {of for _, of in self.recomputed.columns.values() if of is not None}
        found = (each for batch in self.seen for each in _keyed(batch, self.recomputed.key, fields))
        self.recomputed.commit(batch, (KeyedTuple(key, values) for key, values in found))


def _keyed(batch: Any, key: tuple[str, ...], fields: set[str]) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    keys = zip(*(batch.column(name).to_pylist() for name in key), strict=True) if key else [()] * batch.num_rows
    return zip(keys, batch.select(sorted(fields)).to_pylist() if fields else [{}] * batch.num_rows, strict=True)


def windows_of(topology: Topology) -> Iterator[WindowsAgain]:
    """Windows by time, wherever their tuples come from."""
    for component in topology.components:
        update = component.bolt
        if isinstance(update, WindowedUpdate | SessionUpdate) and (found := _step_of(topology, component)) is not None:
            step, is_late = found
            columns, others = _columns(update)
            yield WindowsAgain(component, update, step.time, Recomputed(_rules(update, columns)), is_late, others)


def _step_of(topology: Topology, component: Component) -> tuple[AssignPanes | AssignSessions, bool] | None:
    """What gives its tuples their windows, and whether it does in the commit phase; None: unknown."""
    [grouping] = component.inputs
    source = next((each for each in topology.components if each.id == grouping.source), None)
    if source is None:
        return None
    is_early = source.id in topology.begins_early() and topology.phases()[source.id] is WorkPhase.PROCESSING
    steps = source.bolt.steps if isinstance(source.bolt, Pipeline) else ()
    return (steps[-1], not is_early) if steps and isinstance(steps[-1], AssignPanes | AssignSessions) else None


def keys_of(topology: Topology) -> Iterator[KeysAgain]:
    """Updates of states whose rows expire, all of whose columns are known."""
    for component in topology.committers:
        expiry = expiry_of(component)
        if expiry is None or component.update is None or component.windows is not None:
            continue
        columns, others = _known(component.update)
        assert component.state is not None
        key = component.state.key.names
        is_whole = all(grouping.kind is not GroupingKind.ALL for grouping in component.inputs)
        if is_whole and not others:
            expires = ExpiryRule(expiry.column, expiry.after_us, expiry.by is Time.EVENT)
            yield KeysAgain(component, RecomputedKeys(key, columns, expires))


def _known(update: PersistentAggregate) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    """How the columns of an update are computed, and those of which that is not known."""
    aggregates = update.aggregates
    known = {name: (make_step(each)[1], each.field) for name, each in aggregates.items() if isinstance(each, Aggregate)}
    return known, [name for name in aggregates or ["all"] if name not in known]


def _columns(update: WindowedUpdate | SessionUpdate) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    known, others = _known(update)
    if isinstance(update, SessionUpdate) or update.window.start != WINDOW_START:
        others += [name for name, each in known.items() if each[0] in _IN_ORDER]
    known.pop("window_end", None)
    return {name: known[name] for name in known if name not in others}, [
        each for each in others if each != "window_end"
    ]


def _rules(update: WindowedUpdate | SessionUpdate, columns: Mapping[str, tuple[str, str | None]]) -> WindowRules:
    if isinstance(update, SessionUpdate):
        of = update.window.sessions
        return WindowRules(0, 1, columns, of.gap_us, of.longest_us)
    return WindowRules(update.window.windows.length_us, update.window.windows.every_us, columns)


def kept_columns(
    reader: Component, windows: str, key: tuple[str, ...], recomputed: Recomputed
) -> dict[str, str] | None:
    """By column of the windows the column of a state that keeps closed windows as they are; None: it is no such one."""
    if reader.update is None or reader.state is None or [g.origin for g in reader.inputs] != [(windows, CLOSED)]:
        return None
    known, others = _known(reader.update)
    kept = {of: name for name, (how, of) in known.items() if how == "last"}
    if others or len(kept) < len(known) or set(reader.state.key.names) != set(key):
        return None
    return {name: kept[name] for name in recomputed.rules.columns if name in kept}
