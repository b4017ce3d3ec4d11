"""Windows and rows that expire, computed again: what each transaction has read is read again and processed by the
topology's own code, up to them. How windows are cut, what is late, closes or expires is the verifier's, by what was
recorded. What stands behind them, or is the topology's own code's alone, is compared with tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from transactional.core.store import AttemptRecord, StoreReader
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError, TransactionalError
from transactional.operations.doctor.recomputable import KeysAgain, WindowsAgain, kept_columns, keys_of, windows_of
from transactional.operations.doctor.replaying import Replay, expiry_of, only_for
from transactional.runtime.engine.fencing import close_tables
from transactional.runtime.engine.streams import stream_names
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.streams.windows.times import to_microseconds
from transactional.topology.topology import Component, Topology
from verifier.evidence.findings import Findings, Report
from verifier.evidence.store import CommittedBatch, Store
from verifier.windows import check_windows

ATTEMPTS_MAX = 10_000_000


def recompute_windows(topology: Topology, reader: StoreReader, store: str) -> Report:
    """Compare the tables of windows, and of rows that expire, with what is read again. `reader` reads the store at the
    URL `store`."""
    findings = Findings()
    with closing(Store(store)) as rows:
        history = rows.history(topology.id)
    joined = {component.id: history.joined_at(component.id) for component in topology.committers}
    try:
        _Recomputing(topology, joined, findings).run(reader, history.committed)
    except ConfigError:
        raise
    except TransactionalError as error:
        findings.note(f"windows were not computed again: {error}")
    finally:
        close_tables(topology)
    return findings.report()


class _Recomputing:
    """`joined` says after which transaction a committer came."""

    def __init__(self, topology: Topology, joined: Mapping[str, int], findings: Findings) -> None:
        self.topology, self.joined, self.findings = topology, joined, findings
        self.windows = list(windows_of(topology))
        self.keys = list(keys_of(topology))
        self.compared = {each.component.id for each in self.windows if not each.others}
        self.compared |= {each.component.id for each in self.keys}
        self.compared |= {reader.id for each in self.windows for reader, _ in self._kept(each) if not each.others}
        self.made_again = self._made_again()

    def run(self, store: StoreReader, batches: Iterable[CommittedBatch]) -> None:
        """Read, process, compare."""
        if not self.windows and not self.keys and not self.made_again:
            self.findings.note("the topology has no windows that could be computed again")
            return
        names = stream_names(self.topology, store)
        records = [
            replace(record, batch=names.with_current_names(record.batch, record.attempt.txid))
            for record in store.attempts(self.topology.id, limit=ATTEMPTS_MAX)
            if record.phase == "committed"
        ]
        records.sort(key=lambda record: record.attempt.txid)
        by_txid = {batch.txid: batch for batch in batches}
        if [record.attempt.txid for record in records] != list(range(1, len(records) + 1)):
            self.findings.note("the store no longer has the first transactions: windows were not computed again")
            return
        both = [(record, by_txid[record.attempt.txid]) for record in records]
        for by_event in (True, False):
            some = [each for each in self.windows if not each.is_late and (each.time is not None) is by_event]
            if some:
                self._read_again(both, some, by_event=by_event)
        replay = self._replay(both)
        for each in self.windows:
            self._compare(each, len(records))
        for one in self.keys:
            self._compare_keys(one, len(records))
        for component in self.made_again:
            self._compare_made(self.topology.component(component), replay, len(records))

    def _read_again(
        self, records: Iterable[tuple[AttemptRecord, CommittedBatch]], windows: list[WindowsAgain], *, by_event: bool
    ) -> None:
        """Windows of tuples of the processing phase. What is late is found out here, not by the topology's code."""
        executor = LocalExecutor(self.topology, record=_into(windows))
        for record, batch in records:
            # Without facts no tuple is late, so that all of them are seen here.
            executor.run(record.attempt, replace(record.batch, facts=None) if by_event else record.batch)
            for each in windows:
                if batch.txid > self.joined.get(each.component.id, 0):
                    each.commit(batch)
                each.seen.clear()

    def _replay(self, records: Iterable[tuple[AttemptRecord, CommittedBatch]]) -> Replay | None:
        """All else, as it comes in both phases over tables in memory."""
        late = [each for each in self.windows if each.is_late]
        wanted = [*(each.component.id for each in late), *(each.component.id for each in self.keys), *self.made_again]
        if not wanted:
            return None
        seen: list[WindowsAgain | KeysAgain] = [*late, *self.keys]
        replay = Replay(only_for(self.topology, wanted), self.joined, _into(seen))
        for record, batch in records:
            replay.run(record)
            for each in seen:
                if batch.txid > self.joined.get(each.component.id, 0):
                    each.commit(batch)
                each.seen.clear()
        return replay

    def _made_again(self) -> list[str]:
        """The committers whose tables only the topology's own code can make again: with windows, with rows that expire,
        or behind such ones."""
        behind, found = set[str](), list[str]()
        for component in self.topology.components:
            is_timed = component.windows is not None or expiry_of(component) is not None
            if is_timed or any(grouping.source in behind for grouping in component.inputs):
                behind.add(component.id)
                if component.state is not None and component.id not in self.compared:
                    found.append(component.id)
        return found

    def _kept(self, windows: WindowsAgain) -> list[tuple[Component, dict[str, str]]]:
        """The readers of windows that close which keep them as they are, with the column of each value."""
        name, key = windows.component.id, (*windows.update.key, "window_start")
        readers = self.topology.subscribers(name)
        found = [(reader, kept_columns(reader, name, key, windows.recomputed)) for reader in readers]
        return [(reader, columns) for reader, columns in found if columns is not None]

    def _compare(self, each: WindowsAgain, committed: int) -> None:
        name, start, recomputed = each.component.id, each.update.window.start, each.recomputed
        if recomputed.was_cut:
            self.findings.note(
                f"windows of {name!r}: sessions were cut at their greatest length, so they were not compared"
            )
            return
        state: Any = each.component.state
        found = _windows(state.read(committed), (*each.update.key, start), {c: c for c in recomputed.rules.columns})
        check_windows(f"table of {name!r}", recomputed.rows(), found, self.findings)
        for reader, columns in self._kept(each):
            state = reader.state
            rows = _windows(state.read(committed), (*each.update.key, "window_start"), columns)
            check_windows(f"table of {reader.id!r}", recomputed.closed_rows(), rows, self.findings)

    def _compare_keys(self, each: KeysAgain, committed: int) -> None:
        state: Any = each.component.state
        found = _rows(state.read(committed), each.recomputed.key, tuple(each.recomputed.columns))
        check_windows(f"table of {each.component.id!r}", each.recomputed.rows(), found, self.findings, "row")

    def _compare_made(self, component: Component, replay: Replay | None, committed: int) -> None:
        assert replay is not None
        state: Any = component.state
        columns = state.key.names, state.values.names
        expected, found = (
            _rows(table, *columns) for table in (replay.states[component.id].read(), state.read(committed))
        )
        if (windows := component.windows) is not None:
            expected, found = ({k: dict(windows.comparable(v)) for k, v in rows.items()} for rows in (expected, found))
        check_windows(f"table of {component.id!r}", expected, found, self.findings, "row")


def _into(each: Sequence[WindowsAgain | KeysAgain]) -> Callable[[TransactionAttempt, str, str, Any], None]:
    """What is emitted goes to those that it is for."""
    wanted = [(one, {grouping.origin for grouping in one.component.inputs}) for one in each]

    def record(attempt: TransactionAttempt, component: str, stream: str, batch: Any) -> None:
        for one, origins in wanted:
            if (component, stream) in origins:
                one.seen.append(batch)

    return record


def _windows(table: Any, key: tuple[str, ...], columns: Mapping[str, str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    starts = to_microseconds(table[key[-1]].combine_chunks()).to_pylist()
    groups = [table[name].to_pylist() for name in key[:-1]]
    values = {name: table[column].to_pylist() for name, column in columns.items()}
    return {
        (*(group[at] for group in groups), start): {name: column[at] for name, column in values.items()}
        for at, start in enumerate(starts)
    }


def _rows(table: Any, key: tuple[str, ...], columns: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = table.to_pylist()
    return {tuple(row[name] for name in key): {name: row[name] for name in columns} for row in rows}
