"""A topology once more, over tables in memory: its committed transactions, one after the other, by its own code."""

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
from transactional.topology.topology import Component, Topology, committer_of

IN_MEMORY = "memory"
"""The provider of the states."""


def expiry_of(component: Component) -> Expiry | None:
    """When the rows of a committer's table expire, as far as its address says so."""
    address = None if component.state is None else component.state.address()
    return None if address is None else address.expiry


def in_memory(topology: Topology) -> tuple[Topology, dict[str, Any]]:
    """A copy whose states are in memory, with these states by component; nothing of the topology's own is touched."""
    states, known = dict[str, Any](), dict[int, Any]()
    for component in topology.committers:
        assert component.state is not None
        columns = str(component.state.key), str(component.state.values)
        state: Any = make_provided_state(IN_MEMORY, topology.id, component.id, *columns)
        if (expiry := expiry_of(component)) is not None:
            state.expire(expiry)
        states[component.id] = known[id(component.state)] = state
    kept: list[Any] = [topology.spout, *topology.static_tables]
    known |= {id(each): each for each in kept}
    return deepcopy(topology, known), states


def only_for(topology: Topology, components: Collection[str]) -> Topology:
    """What these components need, and nothing besides: whoever only reads from them does not run again."""
    needed = set(components)
    for component in reversed(topology.components):
        if component.id in needed:
            needed |= {grouping.source for grouping in component.inputs}
            needed |= {committer_of(read)[0] for read in component.reads}
    return replace(topology, components=tuple(each for each in topology.components if each.id in needed))


class Replay:
    """Runs the committed transactions over tables in memory. `record` receives what components emit, in both phases;
    `joined` says after which transaction a committer has come."""

    def __init__(self, topology: Topology, joined: Mapping[str, int], record: Record) -> None:
        again, self.states = in_memory(topology)
        self._joined, self._txids = joined, dict[AttemptId, TxId]()
        for component, state in self.states.items():
            state.open(f"{topology.id}/{component}", self._txids.__getitem__)
        self._executor = LocalExecutor(again, record=record)
        self._executor.open()
        self._commit_phase = CommitPhase(again, record=record, jobs=None, choice="driver")

    def run(self, record: AttemptRecord) -> None:
        """The next one."""
        attempt = record.attempt
        self._txids[attempt.attempt_id] = attempt.txid
        self._commit_phase.run(attempt, self._executor.run(attempt, record.batch))
        for component, state in self.states.items():
            if self._joined.get(component, 0) == attempt.txid:
                # The table was not there yet.
                state.stored.rows = {}
