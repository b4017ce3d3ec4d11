"""Computes windows, and rows that expire, a second time, and compares them with the tables.

The records of each committed transaction are read again and processed by the topology's own code, up to the windows.
The verifier then decides how windows are cut, which tuples are late, and what closes or expires, from the watermarks
and times that the store has recorded. Tables downstream of windows, and those that only the topology's code can
compute, are compared with a replay over tables in memory. Nothing is written to the topology's own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from transactional.core.store import AttemptRecord, StoreReader
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError, TransactionalError
from transactional.operations.doctor.recomputable import (
    RecomputedExpiringRows,
    RecomputedWindowTable,
    columns_of_copy,
    find_expiring_tables,
    find_window_tables,
)
from transactional.operations.doctor.replaying import Replay, expiry_of, reduce_to
from transactional.runtime.engine.fencing import close_tables
from transactional.runtime.engine.streams import stream_names
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.streams.windows.time_columns import to_microseconds
from transactional.topology.topology import Component, Topology
from verifier.evidence.findings import Findings, Report
from verifier.evidence.store import CommittedBatch, Store
from verifier.windows import check_windows

ATTEMPTS_MAX = 10_000_000


def recompute_windows(topology: Topology, reader: StoreReader, store: str) -> Report:
    """Compare the tables of windows, and of rows that expire, with what the source's records give a second time.

    `reader` reads the store at the URL `store`. Raises `ConfigError`; any other error becomes a note of the report.
    """
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
    """One comparison. `joined` has, by committer, the transaction after which it joined the topology."""

    def __init__(self, topology: Topology, joined: Mapping[str, int], findings: Findings) -> None:
        self.topology, self.joined, self.findings = topology, joined, findings
        self.windows = list(find_window_tables(topology))
        self.expiring = list(find_expiring_tables(topology))
        self.compared = {table.component.id for table in self.windows if not table.unknown_columns}
        self.compared |= {table.component.id for table in self.expiring}
        self.compared |= {
            reader.id
            for table in self.windows
            for reader, _ in self._copies_of_closed_windows(table)
            if not table.unknown_columns
        }
        self.replayed = self._components_to_replay()

    def run(self, store: StoreReader, batches: Iterable[CommittedBatch]) -> None:
        """Process all committed transactions again, and compare every table that can be computed."""
        if not self.windows and not self.expiring and not self.replayed:
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
        recorded_transactions = [(record, by_txid[record.attempt.txid]) for record in records]
        for by_event in (True, False):
            timed_tables = [
                table for table in self.windows if not table.is_of_commit_phase and (table.time is not None) is by_event
            ]
            if timed_tables:
                self._recompute_windows(recorded_transactions, timed_tables, by_event=by_event)
        replay = self._replay(recorded_transactions)
        for table in self.windows:
            self._compare_windows(table, len(records))
        for rows in self.expiring:
            self._compare_expiring(rows, len(records))
        for component in self.replayed:
            self._compare_replayed(self.topology.component(component), replay, len(records))

    def _recompute_windows(
        self,
        records: Iterable[tuple[AttemptRecord, CommittedBatch]],
        windows: list[RecomputedWindowTable],
        *,
        by_event: bool,
    ) -> None:
        """Compute windows whose tuples come from the processing phase. The verifier drops late tuples here; the
        topology's code sees all of them."""
        executor = LocalExecutor(self.topology, record=_recorder_for(windows))
        for record, batch in records:
            # Without facts no tuple is late, so that all of them are seen here.
            executor.run(record.attempt, replace(record.batch, facts=None) if by_event else record.batch)
            for table in windows:
                if batch.txid > self.joined.get(table.component.id, 0):
                    table.commit(batch)
                table.batches.clear()

    def _replay(self, records: Iterable[tuple[AttemptRecord, CommittedBatch]]) -> Replay | None:
        """Compute everything else by running both phases over tables in memory. None if there is nothing else."""
        committing_windows = [table for table in self.windows if table.is_of_commit_phase]
        component_ids = [
            *(table.component.id for table in committing_windows),
            *(table.component.id for table in self.expiring),
            *self.replayed,
        ]
        if not component_ids:
            return None
        tables: list[RecomputedWindowTable | RecomputedExpiringRows] = [*committing_windows, *self.expiring]
        replay = Replay(reduce_to(self.topology, component_ids), self.joined, _recorder_for(tables))
        for record, batch in records:
            replay.run(record)
            for table in tables:
                if batch.txid > self.joined.get(table.component.id, 0):
                    table.commit(batch)
                table.batches.clear()
        return replay

    def _components_to_replay(self) -> list[str]:
        """Return the committers whose tables only the topology's own code can compute: those with windows or rows that
        expire, and those downstream of them."""
        downstream_ids, component_ids = set[str](), list[str]()
        for component in self.topology.components:
            is_timed = component.windows is not None or expiry_of(component) is not None
            if is_timed or any(grouping.source in downstream_ids for grouping in component.inputs):
                downstream_ids.add(component.id)
                if component.state is not None and component.id not in self.compared:
                    component_ids.append(component.id)
        return component_ids

    def _copies_of_closed_windows(self, windows: RecomputedWindowTable) -> list[tuple[Component, dict[str, str]]]:
        """Return the committers that store closed windows unchanged, each with its columns by the windows' columns."""
        name, key = windows.component.id, (*windows.update.key, "window_start")
        readers = self.topology.subscribers(name)
        columns_by_reader = [(reader, columns_of_copy(reader, name, key, windows.recomputed)) for reader in readers]
        return [(reader, columns) for reader, columns in columns_by_reader if columns is not None]

    def _compare_windows(self, table: RecomputedWindowTable, committed: int) -> None:
        name, start, recomputed = table.component.id, table.update.window.start, table.recomputed
        if recomputed.was_cut:
            self.findings.note(
                f"windows of {name!r}: sessions were cut at their greatest length, so they were not compared"
            )
            return
        state: Any = table.component.state
        stored_windows = _window_rows(
            state.read(committed), (*table.update.key, start), {c: c for c in recomputed.rules.columns}
        )
        check_windows(f"table of {name!r}", recomputed.rows(), stored_windows, self.findings)
        for reader, columns in self._copies_of_closed_windows(table):
            state = reader.state
            stored_windows = _window_rows(state.read(committed), (*table.update.key, "window_start"), columns)
            check_windows(f"table of {reader.id!r}", recomputed.closed_rows(), stored_windows, self.findings)

    def _compare_expiring(self, table: RecomputedExpiringRows, committed: int) -> None:
        state: Any = table.component.state
        stored_rows = _rows(state.read(committed), table.recomputed.key, tuple(table.recomputed.columns))
        check_windows(f"table of {table.component.id!r}", table.recomputed.rows(), stored_rows, self.findings, "row")

    def _compare_replayed(self, component: Component, replay: Replay | None, committed: int) -> None:
        assert replay is not None
        state: Any = component.state
        columns = state.key.names, state.values.names
        expected, stored = (
            _rows(table, *columns) for table in (replay.states[component.id].read(), state.read(committed))
        )
        if (windows := component.windows) is not None:
            expected, stored = (
                {k: dict(windows.comparable(v)) for k, v in rows.items()} for rows in (expected, stored)
            )
        check_windows(f"table of {component.id!r}", expected, stored, self.findings, "row")


def _recorder_for(
    tables: Sequence[RecomputedWindowTable | RecomputedExpiringRows],
) -> Callable[[TransactionAttempt, str, str, Any], None]:
    """Return a recorder that hands each emitted record batch to the tables whose bolts read its stream."""
    origins_by_table = [(table, {grouping.origin for grouping in table.component.inputs}) for table in tables]

    def record(attempt: TransactionAttempt, component: str, stream: str, batch: Any) -> None:
        for table, origins in origins_by_table:
            if (component, stream) in origins:
                table.batches.append(batch)

    return record


def _window_rows(table: Any, key: tuple[str, ...], columns: Mapping[str, str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    starts = to_microseconds(table[key[-1]].combine_chunks()).to_pylist()
    groups = [table[name].to_pylist() for name in key[:-1]]
    values = {name: table[column].to_pylist() for name, column in columns.items()}
    return {
        (*(group[row] for group in groups), start): {name: column[row] for name, column in values.items()}
        for row, start in enumerate(starts)
    }


def _rows(table: Any, key: tuple[str, ...], columns: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = table.to_pylist()
    return {tuple(row[name] for name in key): {name: row[name] for name in columns} for row in rows}
