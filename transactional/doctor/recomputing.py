"""Windows, computed again: what each transaction has read is read again and processed by the topology's own code, up to
its windows. How they are cut, what is late and what closes is the verifier's, by what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.attempt import TransactionAttempt
from transactional.errors import ConfigError, TransactionalError
from transactional.phases.local_executor import LocalExecutor
from transactional.ports import WindowedAggregate
from transactional.store import AttemptRecord, StoreReader
from transactional.topology.topology import CLOSED, Component, Topology
from transactional.trident.pipelines.pipeline import Pipeline
from transactional.trident.windows.counting import CountUpdate
from transactional.trident.windows.sessions import InSessions, SessionUpdate
from transactional.trident.windows.windowing import WINDOW_START, InPanes, WindowedUpdate, numbers_of
from verifier.evidence.findings import Findings, Report
from verifier.evidence.store import Store
from verifier.windows import Recomputed, TimedTuple, WindowRules, check_windows

ATTEMPTS_MAX = 10_000_000
_HOW: Mapping[str, str] = {
    "Count": "sum",
    "CountOf": "count",
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
}
_IN_ORDER = ("first", "last")
"""Windows of several parts have them part by part, and sessions that become one session by session."""


@dataclass(slots=True)
class _Windows:
    """The windows of one committer. `time` is the field of their tuples; None: they go by transactions."""

    component: Component
    update: WindowedUpdate | SessionUpdate
    time: str | None
    recomputed: Recomputed
    seen: list[Any] = field(default_factory=list)

    @property
    def origin(self) -> tuple[str, str]:
        [grouping] = self.component.inputs
        return grouping.origin

    def tuples(self, now_us: int) -> Iterator[TimedTuple]:
        """Those of a transaction that it has just seen."""
        fields = {of for _, of in self.recomputed.rules.columns.values() if of is not None}
        for batch in self.seen:
            times = [now_us] * batch.num_rows if self.time is None else numbers_of(batch.column(self.time)).to_pylist()
            keys = zip(*(batch.column(name).to_pylist() for name in self.update.key), strict=True)
            found = batch.select(sorted(fields)).to_pylist() if fields else [{}] * batch.num_rows
            every_key = list(keys) if self.update.key else [()] * batch.num_rows
            for key, us, values in zip(every_key, times, found, strict=True):
                if us is not None:
                    yield TimedTuple(key, us, values)
        self.seen.clear()


def recompute_windows(topology: Topology, reader: StoreReader, store: str) -> Report:
    """Compare the tables of windows with what is read again. `reader` reads the store at the URL `store`."""
    findings = Findings()
    with closing(Store(store)) as rows:
        history = rows.history(topology.id)
    joined = {component.id: history.joined_at(component.id) for component in topology.committers}
    _recompute(topology, reader, joined, findings)
    return findings.report()


def _recompute(topology: Topology, store: StoreReader, joined: Mapping[str, int], findings: Findings) -> None:
    """`joined` says after which transaction a committer came."""
    windows = list(_windows_of(topology, findings))
    if not windows:
        findings.note("the topology has no windows that could be computed again")
        return
    records = [r for r in store.attempts(topology.id, limit=ATTEMPTS_MAX) if r.phase == "committed"]
    records.sort(key=lambda record: record.attempt.txid)
    if [record.attempt.txid for record in records] != list(range(1, len(records) + 1)):
        findings.note("the store no longer has the first transactions: windows were not computed again")
        return
    by_origin: dict[tuple[str, str], list[_Windows]] = {}
    for each in windows:
        by_origin.setdefault(each.origin, []).append(each)
    try:
        for by_event in (True, False):
            some = [each for each in windows if (each.time is not None) is by_event]
            if some:
                _read_again(topology, records, some, joined, by_event=by_event)
        for each in windows:
            _compare(topology, each, len(records), findings)
    except ConfigError:
        raise
    except TransactionalError as error:
        findings.note(f"windows were not computed again: {error}")


def _read_again(
    topology: Topology,
    records: list[AttemptRecord],
    windows: list[_Windows],
    joined: Mapping[str, int],
    *,
    by_event: bool,
) -> None:
    def record(attempt: TransactionAttempt, component: str, stream: str, batch: Any) -> None:
        for each in windows:
            if each.origin == (component, stream):
                each.seen.append(batch)

    executor = LocalExecutor(topology, record=record)
    for each in records:
        facts = each.batch.facts
        # Without facts no tuple is late, so that all of them are seen here.
        executor.run(each.attempt, replace(each.batch, facts=None) if by_event else each.batch)
        now_us = 0 if facts is None else facts.time_ms * 1_000
        late_before_us = None if facts is None else facts.late_before_us if by_event else now_us
        for one in windows:
            if each.attempt.txid > joined.get(one.component.id, 0):
                one.recomputed.commit(late_before_us, one.tuples(now_us))
            one.seen.clear()


def _windows_of(topology: Topology, findings: Findings) -> Iterator[_Windows]:
    for component in topology.components:
        update = component.bolt
        if not isinstance(update, WindowedAggregate):
            continue
        if isinstance(update, CountUpdate):
            findings.note(f"windows of {component.id!r} are by count, which no time decides: not computed again")
            continue
        step = _step_of(topology, component)
        if step is None or not isinstance(update, WindowedUpdate | SessionUpdate):
            findings.note(f"windows of {component.id!r} are of tuples of the commit phase: not computed again")
            continue
        columns, others = _columns(update)
        if others:
            findings.note(f"windows of {component.id!r}: {', '.join(others)} not computed again")
        yield _Windows(component, update, step.time, Recomputed(_rules(update, columns)))


def _step_of(topology: Topology, component: Component) -> InPanes | InSessions | None:
    [grouping] = component.inputs
    early = topology.begins_early()
    source = next((each for each in topology.components if each.id == grouping.source), None)
    if source is None or source.id not in early or topology.phases()[source.id].value != "processing":
        return None
    steps = source.bolt.steps if isinstance(source.bolt, Pipeline) else ()
    return steps[-1] if steps and isinstance(steps[-1], InPanes | InSessions) else None


def _columns(update: WindowedUpdate | SessionUpdate) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    aggregator: Any = update.aggregator()
    aggregates = getattr(aggregator, "inner", aggregator).aggregates
    known = {name: (_HOW[type(each).__name__], each.field) for name, each in aggregates if type(each).__name__ in _HOW}
    if isinstance(update, SessionUpdate) or update.window.start != WINDOW_START:
        known = {name: each for name, each in known.items() if each[0] not in _IN_ORDER}
    known.pop("window_end", None)
    return known, [name for name, _ in aggregates if name not in known and name != "window_end"]


def _rules(update: WindowedUpdate | SessionUpdate, columns: Mapping[str, tuple[str, str | None]]) -> WindowRules:
    if isinstance(update, SessionUpdate):
        of = update.window.sessions
        return WindowRules(0, 1, columns, of.gap_us, of.longest_us)
    return WindowRules(update.window.windows.length_us, update.window.windows.every_us, columns)


def _compare(topology: Topology, each: _Windows, committed: int, findings: Findings) -> None:
    name, start = each.component.id, each.update.window.start
    recomputed = each.recomputed
    if recomputed.was_cut:
        findings.note(f"windows of {name!r}: sessions were cut at their greatest length, so they were not compared")
        return
    state: Any = each.component.state
    found = _rows(state.read(committed), (*each.update.key, start), {c: c for c in recomputed.rules.columns})
    check_windows(f"table of {name!r}", recomputed.rows(), found, findings)
    for reader in topology.subscribers(name):
        columns = _kept_columns(reader, name, (*each.update.key, "window_start"), recomputed)
        if columns is not None:
            state = reader.state
            rows = _rows(state.read(committed), (*each.update.key, "window_start"), columns)
            check_windows(f"table of {reader.id!r}", recomputed.closed_rows(), rows, findings)


def _kept_columns(
    reader: Component, windows: str, key: tuple[str, ...], recomputed: Recomputed
) -> dict[str, str] | None:
    """By column of the windows the column of a state that keeps closed windows as they are; None: it is no such one."""
    if not reader.is_update or reader.state is None or [g.origin for g in reader.inputs] != [(windows, CLOSED)]:
        return None
    aggregates = getattr(reader.bolt.aggregator(), "aggregates", ())  # type: ignore[union-attr]
    kept = {each.field: name for name, each in aggregates if type(each).__name__ == "Last"}
    if len(kept) < len(aggregates) or set(reader.state.key.names) != set(key):
        return None
    return {name: kept[name] for name in recomputed.rules.columns if name in kept}


def _rows(table: Any, key: tuple[str, ...], columns: Mapping[str, str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    starts = numbers_of(table[key[-1]].combine_chunks()).to_pylist()
    groups = [table[name].to_pylist() for name in key[:-1]]
    values = {name: table[column].to_pylist() for name, column in columns.items()}
    return {
        (*(group[at] for group in groups), start): {name: column[at] for name, column in values.items()}
        for at, start in enumerate(starts)
    }
