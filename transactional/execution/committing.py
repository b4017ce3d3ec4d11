"""The commit phase of one transaction, in the driver: committers finish their batch, and bolts behind them work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from transactional.attempt import TransactionAttempt
from transactional.bolts import Bolt, Key
from transactional.dead_letters import letter_rows
from transactional.errors import OperatingError, SchemaMismatch, TransactionalError
from transactional.execution.emitting import (
    Emitter,
    TaskFailed,
    error_of,
    guarded,
    make_emitter,
    told_of_all,
)
from transactional.execution.faults import Faults
from transactional.execution.operators import Operator
from transactional.execution.placing import TaskInfo, load_operator, make_operator
from transactional.execution.program import make_program
from transactional.execution.trying_again import batch_of_letter, subscription, takes_letters
from transactional.ports import DeadLetter, DiskState, Partials, Processed, TransactionState
from transactional.syncing import sync
from transactional.topology.topology import Component, Topology, WorkPhase

Batches = list[tuple[Sequence[pa.RecordBatch], str, str]]
"""Record batches with their source and stream."""

Inbox = dict[tuple[str, int], Batches]
"""Tuples for the bolts that are still to come: by component and task."""


class CommitPhase:
    """The commit phase of one attempt: what finishes in it, component after component, each behind those that it reads
    from. A committer's table is written before what it has emitted is worked on (row T5).

    A crash between two tables does no harm: on the replay the first committer reads its state as it was before the
    transaction (row R24), so it emits what fits to what it writes then.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.program = make_program(topology)
        self.phases = self.program.plan.phases
        self.components = [c for c in topology.components if self.phases[c.id] is not WorkPhase.PROCESSING]

        states: list[object] = [component.state for component in topology.committers]
        self.disk_states = [state for state in states if isinstance(state, DiskState)]

    def run(self, attempt: TransactionAttempt, processed: Processed) -> None:
        """Run it. Every committer writes to its table, also when it has nothing to change: so every table's version
        says at which transaction it is.

        Raises `Fenced`, an `OperatingError`, or what a bolt has raised as `BoltFailed`.
        """
        inbox: Inbox = {}
        letters = list(processed.letters)
        partials: dict[str, list[pa.Table]] = {}
        for tuples in processed.late:
            inbox.setdefault((tuples.target, tuples.task), []).append((tuples.batches, tuples.source, tuples.stream))
        self._take_letters(processed, inbox)
        for component in self.components:
            if component.is_update:
                self._merge(component, attempt, processed, partials.get(component.id, []))
            else:
                letters += self._finish(component, attempt, processed, inbox, partials)
        if self.topology.dead_letters is not None:
            self.topology.dead_letters.put(attempt, letter_rows(attempt, letters, processed.tried_again))
        self._make_durable()

    def _make_durable(self) -> None:
        """The transaction commit that comes next is durable, so what it speaks of has to be."""
        paths = {path for state in self.disk_states for path in state.unsynced()}
        try:
            sync(paths)
        except OSError as error:
            raise OperatingError(f"{error.filename or 'a table'} can't be synced to its disk: {error}") from error
        for state in self.disk_states:
            state.synced()

    def _merge(
        self, component: Component, attempt: TransactionAttempt, processed: Processed, late: list[pa.Table]
    ) -> None:
        assert component.state is not None
        part = processed.parts[component.id]
        assert isinstance(part, Partials)
        if late:
            early = [part.table] if part.table is not None else []
            part = replace(part, table=self.program.aggregators[component.id].combine([*early, *late]))
        component.state.merge(attempt, part)

    def _take_letters(self, processed: Processed, inbox: Inbox) -> None:
        for letter in processed.tried_again:
            batch = batch_of_letter(self.program, letter)
            if isinstance(batch, str) or self.phases[letter.component] is not WorkPhase.COMMIT:
                continue
            grouping = subscription(self.program, letter)
            for task in range(self.program.bolts[letter.component].parallelism):
                if takes_letters(grouping, task):
                    inbox.setdefault((letter.component, task), []).append(([batch], letter.source, letter.stream))

    def _finish(
        self,
        component: Component,
        attempt: TransactionAttempt,
        processed: Processed,
        inbox: Inbox,
        partials: dict[str, list[pa.Table]],
    ) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        view = MapStateView(component.id, component.state, attempt) if component.state is not None else None
        failures: list[tuple[int, TaskFailed]] = []
        for task in range(component.parallelism):
            info = TaskInfo(self.program, attempt, task, component.parallelism, view, tuple(processed.excluded))
            received = inbox.pop((component.id, task), [])
            try:
                operator = self._run_task(info, component, processed, received)
            except TaskFailed as failed:
                failures.append((task, self._closer(failed, info, component, processed, received)))
                if not failures[-1][1].at_fault:
                    break
                continue
            letters += operator.letters
            for committer, partial in operator.emitter.partials():
                partials.setdefault(committer, []).append(partial)
            for edge, target_task, emitted in operator.emitter.addressed():
                inbox.setdefault((edge.target, target_task), []).append((emitted, component.id, edge.grouping.stream))
        if failures:
            raise self._error(component, failures) from failures[-1][1]
        if view is not None:
            assert component.state is not None
            component.state.put(attempt, view.written)
        return letters

    def _run_task(
        self,
        info: TaskInfo,
        component: Component,
        processed: Processed,
        received: Batches,
        *,
        looks_closer: bool = False,
    ) -> Operator:
        """One task of a component, finished. Tuples that it fails on are named all together."""
        emitter = make_emitter(self.program, component.id, info.task, looks_closer=looks_closer)
        operator = self._operator(info, component, processed, emitter)
        operator.faults = Faults()
        for batches, source, stream in received:
            for batch in batches:
                operator.receive(batch, source, stream)
        operator.faults.fail()
        operator.finish()
        emitter.flush()
        return operator

    def _closer(
        self, failed: TaskFailed, info: TaskInfo, component: Component, processed: Processed, received: Batches
    ) -> TaskFailed:
        """Where many tuples don't fit, the task is run once more to find out which."""
        if failed.is_of_many:
            try:
                self._run_task(info, component, processed, received, looks_closer=True)
            except TaskFailed as closer:
                return closer if closer.at_fault else failed
        return failed

    def _operator(self, info: TaskInfo, component: Component, processed: Processed, emitter: Emitter) -> Operator:
        """As it came out of the processing phase; or a new one, where there was nothing to be kept."""
        spec = self.program.bolts[component.id]
        if self.phases[component.id] is WorkPhase.BOTH and isinstance(component.bolt, Bolt):
            instances = processed.parts[component.id]
            assert not isinstance(instances, Partials)
            return load_operator(info, spec, instances[info.task], emitter)
        with guarded(component.id):
            operator = make_operator(info, spec, emitter)
        operator.prepare()
        return operator

    @staticmethod
    def _error(component: Component, failures: Sequence[tuple[int, TaskFailed]]) -> BaseException:
        """What a state has raised inside of a bolt goes on as it is."""
        task, failed = failures[-1] if not failures[-1][1].at_fault else failures[0]
        if isinstance(failed.__cause__, TransactionalError) and not failed.at_fault:
            return failed.__cause__
        where = f"task {task} of {component.parallelism}, in the commit phase"
        return error_of(failed.code, *told_of_all(f"{where}: {failed}", [each.at_fault for _, each in failures]))


def commit_transaction(topology: Topology, attempt: TransactionAttempt, processed: Processed) -> None:
    """Run the commit phase of one attempt (see `CommitPhase`)."""
    CommitPhase(topology).run(attempt, processed)


class MapStateView:
    """A state as a committer bolt sees it: what was before the transaction, and what this attempt has put (row R25)."""

    def __init__(self, component: str, state: TransactionState, attempt: TransactionAttempt) -> None:
        self.written: dict[Key, tuple[Any, ...]] = {}
        self._component, self._state, self._attempt = component, state, attempt
        self._read: dict[Key, tuple[Any, ...] | None] = {}
        self._single = len(state.values) == 1
        self._has_times = any(field.type == "timestamp" for field in state.key)

    def get(self, *key: Any) -> Any:
        """The value of one key, None when it does not exist. A key of several columns may be given as a tuple."""
        return self.multi_get([key[0] if len(key) == 1 else key])[0]

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values of several keys, read at once."""
        wanted = [self._as_key(key) for key in keys]
        unread = [key for key in dict.fromkeys(wanted) if key not in self.written and key not in self._read]
        if unread:
            found = self._state.get(self._attempt, unread)
            self._read.update({key: found.get(key) for key in unread})
        return [self._value(self.written.get(key, self._read.get(key))) for key in wanted]

    def put(self, key: Key | Any, value: Any) -> None:
        """Set the value of one key."""
        values = (value,) if self._single else tuple(value)
        if len(values) != len(self._state.values):
            raise SchemaMismatch(
                f"committer {self._component!r} put {len(values)} values; its state has "
                f"{', '.join(self._state.values.names)}"
            )
        self.written[self._as_key(key)] = values

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Set each key to `update(its value)`; return the new values."""
        self.multi_get(keys)  # read at once; a key that is given twice is updated twice
        new = []
        for key in keys:
            new.append(update(self.multi_get([key])[0]))
            self.put(key, new[-1])
        return new

    def _as_key(self, key: Key | Any) -> Key:
        values = tuple(key) if isinstance(key, tuple) else (key,)  # a `Tuple` is not equal to one of another stream
        if len(values) != len(self._state.key):
            raise SchemaMismatch(
                f"committer {self._component!r} used key {values!r}; the key of its state is "
                f"({', '.join(self._state.key.names)})"
            )
        return tuple(map(_in_utc, values)) if self._has_times else values

    def _value(self, values: tuple[Any, ...] | None) -> Any:
        return values[0] if values is not None and self._single else values


def _in_utc(value: Any) -> Any:
    """A time without a zone is one of UTC, so that it is one key with the same time of another zone."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
