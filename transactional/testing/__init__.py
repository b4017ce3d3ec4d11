"""For tests: a run of a topology over given rows, a coordinator's store in memory, a clock that only moves when
advanced, and the contracts of spouts, states and sinks, for those of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from transactional.core.machine.protocol import Action, Event, RecordCommit
from transactional.model.arrow.zones import naive_times_in
from transactional.model.attempt import TransactionAttempt
from transactional.model.config import TopologyConfig
from transactional.operations.telemetry.run_log import RunLog
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing.clock import ManualClock
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.testing.recording import Emitted, Recorder
from transactional.testing.rows_spout import RowsSpout
from transactional.testing.sinks import CASES as SINK_CASES
from transactional.testing.sinks.check import check_sink
from transactional.testing.spouts import CASES as SPOUT_CASES
from transactional.testing.spouts.check import check_spout
from transactional.testing.states import CASES as STATE_CASES
from transactional.testing.states.check import check_state
from transactional.topology.topology import Topology

__all__ = [
    "SINK_CASES",
    "SPOUT_CASES",
    "STATE_CASES",
    "Emitted",
    "ManualClock",
    "MemoryCoordinatorStore",
    "check_sink",
    "check_spout",
    "check_state",
    "complete_topology",
]


def complete_topology(
    topology: Topology,
    rows: Iterable[Sequence[Any]] | None = None,
    *,
    take: int | None = None,
    config: TopologyConfig | None = None,
) -> Emitted:
    """Run a topology over some rows until all are committed, and return what each component has emitted.

    `rows` stand for what the spout reads, a tuple with a value for each of its fields; `take` of them make a batch, or
    all make one. Without rows the topology's own spout is read until it is drained. Bolts run in this process, with all
    that failures and replays mean to them; each batch has three attempts, if `config` does not say otherwise. States
    and the table of dead letters are the topology's own, and **are written**: build it with states in memory.

    `emitted["split"]` are the tuples that the component `split` has emitted on its default stream, in txid order, and
    in the order of its tasks; `emitted["split", "late"]` are those on its stream `late`. What attempts emitted that had
    to be replayed is not among them. Raises what a run raises.
    """
    if rows is not None:
        with naive_times_in(topology.naive_times):
            spout = RowsSpout(topology.spout_id, topology.spout, rows, take)
        topology = replace(topology, spout=spout)
    recorder, committed = Recorder(), list[TransactionAttempt]()

    def note(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        committed.extend(action.attempt for action in actions if isinstance(action, RecordCommit))

    config = replace(config or TopologyConfig(attempts_max=3, retry_pause_ms=1), stop_when_drained=True)
    executor, commit_phase = LocalExecutor(topology, record=recorder), CommitPhase(topology, record=recorder)
    store = MemoryCoordinatorStore()
    TopologyDriver(
        topology, store, executor, config, observers=[note, RunLog(topology.id)], commit_phase=commit_phase
    ).run()
    return recorder.emitted(topology, committed)
