"""Finds the windows, and the rows that expire, that can be computed a second time from tuples alone.

A column can be computed if its aggregate is a built-in one of a field; first and last can't where windows have several
parts, because only the topology's own code knows the order of the parts.
"""

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
from transactional.topology.streams.windows.time_columns import WINDOW_START, to_microseconds
from transactional.topology.streams.windows.windowing import AssignPanes, WindowedUpdate
from transactional.topology.topology import CLOSED, Component, Topology, WorkPhase
from verifier.evidence.store import CommittedBatch
from verifier.expiring_rows import KeyedTuple, RecomputedRows
from verifier.horizons import ExpiryRule
from verifier.windows import Recomputed, TimedTuple, WindowRules

_IN_ORDER = ("first", "last")
"""Aggregates whose value depends on the order in which the parts of a window, or merged sessions, are combined."""


@dataclass(slots=True)
class RecomputedWindowTable:
    """The windows of one committer, and the record batches of the present transaction.

    `time` is the field with the event time, or None if windows are cut by transactions. `is_of_commit_phase` is true if
    the tuples are emitted in the commit phase. `unknown_columns` are not computed.
    """

    component: Component
    update: WindowedUpdate | SessionUpdate
    time: str | None
    recomputed: Recomputed
    is_of_commit_phase: bool
    unknown_columns: list[str]
    batches: list[Any] = field(default_factory=list)

    def commit(self, batch: CommittedBatch) -> None:
        """Add the tuples in `batches` as those of the next transaction, and close the windows that it closes."""
        now_us = 0 if batch.time_ms is None else batch.time_ms * 1_000
        closed_until_us = now_us if self.time is None else batch.watermark_of(self.component.id)
        self.recomputed.commit(closed_until_us, self._tuples(now_us))

    def _tuples(self, now_us: int) -> Iterator[TimedTuple]:
        fields = {field for _, field in self.recomputed.rules.columns.values() if field is not None}
        for batch in self.batches:
            times = (
                [now_us] * batch.num_rows if self.time is None else to_microseconds(batch.column(self.time)).to_pylist()
            )
            for (key, values), us in zip(_pair_keys_with_values(batch, self.update.key, fields), times, strict=True):
                if us is not None:
                    yield TimedTuple(key, us, values)


@dataclass(slots=True)
class RecomputedExpiringRows:
    """The rows of a committer that expire, and the record batches of the present transaction."""

    component: Component
    recomputed: RecomputedRows
    batches: list[Any] = field(default_factory=list)

    def commit(self, batch: CommittedBatch) -> None:
        """Add the tuples in `batches` as those of the next transaction, and let rows expire."""
        fields = {field for _, field in self.recomputed.columns.values() if field is not None}
        rows = (row for batch in self.batches for row in _pair_keys_with_values(batch, self.recomputed.key, fields))
        self.recomputed.commit(batch, (KeyedTuple(key, values) for key, values in rows))


def _pair_keys_with_values(
    batch: Any, key: tuple[str, ...], fields: set[str]
) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    keys = zip(*(batch.column(name).to_pylist() for name in key), strict=True) if key else [()] * batch.num_rows
    return zip(keys, batch.select(sorted(fields)).to_pylist() if fields else [{}] * batch.num_rows, strict=True)


def find_window_tables(topology: Topology) -> Iterator[RecomputedWindowTable]:
    """Yield the time windows of a topology whose tuples get their windows from a known step."""
    for component in topology.components:
        update = component.bolt
        if (
            isinstance(update, WindowedUpdate | SessionUpdate)
            and (step_and_phase := _window_step_of(topology, component)) is not None
        ):
            step, is_of_commit_phase = step_and_phase
            columns, unknown_columns = _computable_columns(update)
            yield RecomputedWindowTable(
                component,
                update,
                step.time,
                Recomputed(_window_rules(update, columns)),
                is_of_commit_phase,
                unknown_columns,
            )


def _window_step_of(topology: Topology, component: Component) -> tuple[AssignPanes | AssignSessions, bool] | None:
    """Return the step that assigns windows to a component's tuples, and whether it does so in the commit phase. None if
    the topology's own code assigns them."""
    [grouping] = component.inputs
    source = next((component for component in topology.components if component.id == grouping.source), None)
    if source is None:
        return None
    is_early = source.id in topology.begins_early() and topology.phases()[source.id] is WorkPhase.PROCESSING
    steps = source.bolt.steps if isinstance(source.bolt, Pipeline) else ()
    return (steps[-1], not is_early) if steps and isinstance(steps[-1], AssignPanes | AssignSessions) else None


def find_expiring_tables(topology: Topology) -> Iterator[RecomputedExpiringRows]:
    """Yield the tables whose rows expire, and all of whose columns can be computed."""
    for component in topology.committers:
        expiry = expiry_of(component)
        if expiry is None or component.update is None or component.windows is not None:
            continue
        columns, unknown_columns = _aggregates_by_column(component.update)
        assert component.state is not None
        key = component.state.key.names
        is_whole = all(grouping.kind is not GroupingKind.ALL for grouping in component.inputs)
        if is_whole and not unknown_columns:
            expires = ExpiryRule(expiry.column, expiry.after_us, expiry.by is Time.EVENT)
            yield RecomputedExpiringRows(component, RecomputedRows(key, columns, expires))


def _aggregates_by_column(update: PersistentAggregate) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    """Return by column the name and the field of the aggregate that computes it, and the columns that can't be
    computed."""
    aggregates = update.aggregates
    rules = {
        name: (make_step(aggregate)[1], aggregate.field)
        for name, aggregate in aggregates.items()
        if isinstance(aggregate, Aggregate)
    }
    return rules, [name for name in aggregates or ["all"] if name not in rules]


def _computable_columns(update: WindowedUpdate | SessionUpdate) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    rules, unknown_columns = _aggregates_by_column(update)
    if isinstance(update, SessionUpdate) or update.window.start != WINDOW_START:
        unknown_columns += [name for name, rule in rules.items() if rule[0] in _IN_ORDER]
    rules.pop("window_end", None)
    return {name: rules[name] for name in rules if name not in unknown_columns}, [
        rule for rule in unknown_columns if rule != "window_end"
    ]


def _window_rules(update: WindowedUpdate | SessionUpdate, columns: Mapping[str, tuple[str, str | None]]) -> WindowRules:
    if isinstance(update, SessionUpdate):
        sessions = update.window.sessions
        return WindowRules(0, 1, columns, sessions.gap_us, sessions.longest_us)
    return WindowRules(update.window.windows.length_us, update.window.windows.every_us, columns)


def columns_of_copy(
    reader: Component, windows: str, key: tuple[str, ...], recomputed: Recomputed
) -> dict[str, str] | None:
    """Return the columns of a state that stores closed windows unchanged, by the windows' columns. None if the state
    stores something else."""
    if reader.update is None or reader.state is None or [g.origin for g in reader.inputs] != [(windows, CLOSED)]:
        return None
    rules, unknown_columns = _aggregates_by_column(reader.update)
    columns_by_field = {field: name for name, (aggregate, field) in rules.items() if aggregate == "last"}
    if unknown_columns or len(columns_by_field) < len(rules) or set(reader.state.key.names) != set(key):
        return None
    return {name: columns_by_field[name] for name in recomputed.rules.columns if name in columns_by_field}
