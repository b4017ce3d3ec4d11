"""Runs the committed transactions of a topology a second time, one after the other, over tables in memory.

The topology's own code runs in both phases, but none of its own tables is read or written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from transactional.core.ports.expiry import Expiry
from transactional.core.ports.providing import make_provided_state
from transactional.core.store import AttemptRecord
from transactional.model.attempt import AttemptId, TxId
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.program import Record
from transactional.topology.topology import Component, Topology, split_lookup_name

IN_MEMORY = "memory"
"""The state provider whose tables are in memory."""


def expiry_of(component: Component) -> Expiry | None:
    """Return when the rows of a committer's table expire, as its address says; None if they don't."""
    address = None if component.state is None else component.state.parts.examination.address()
    return None if address is None else address.expiry


def copy_in_memory(topology: Topology) -> tuple[Topology, dict[str, Any]]:
    """Return a copy of a topology whose states are in memory, and these states by component."""
    states, copies = dict[str, Any](), dict[int, Any]()
    for component in topology.committers:
        assert component.state is not None
        columns = str(component.state.key), str(component.state.values)
        state: Any = make_provided_state(IN_MEMORY, topology.id, component.id, *columns)
        if (expiry := expiry_of(component)) is not None:
            state.parts.declared.set_expiry(expiry)
        states[component.id] = copies[id(component.state)] = state
    shared: list[Any] = [topology.spout, *topology.static_tables]
    copies |= {id(original): original for original in shared}
    return deepcopy(topology, copies), states


def reduce_to(topology: Topology, components: Collection[str]) -> Topology:
    """Return a topology of these components and of those that they read from, without any downstream ones."""
    needed = set(components)
    for component in reversed(topology.components):
        if component.id in needed:
            needed |= {grouping.source for grouping in component.inputs}
            needed |= {split_lookup_name(read)[0] for read in component.reads}
    return replace(topology, components=tuple(component for component in topology.components if component.id in needed))


class Replay:
    """Runs committed transactions over tables in memory. `record` receives what components emit, in both phases;
    `joined` has, by committer, the transaction after which it joined the topology."""

    def __init__(self, topology: Topology, joined: Mapping[str, int], record: Record) -> None:
        copy, self.states = copy_in_memory(topology)
        self._joined, self._txids = joined, dict[AttemptId, TxId]()
        for component, state in self.states.items():
            state.open(f"{topology.id}/{component}", self._txids.__getitem__)
        self._executor = LocalExecutor(copy, record=record)
        self._executor.open()
        self._commit_phase = CommitPhase(copy, record=record, jobs=None, choice="driver")

    def run(self, record: AttemptRecord) -> None:
        """Run the next committed transaction. Transactions have to come in the order of their txids."""
        attempt = record.attempt
        self._txids[attempt.attempt_id] = attempt.txid
        self._commit_phase.run(attempt, self._executor.run(attempt, record.batch))
        for component, state in self.states.items():
            if self._joined.get(component, 0) == attempt.txid:
                # The table was not there yet.
                state.stored.rows = {}
