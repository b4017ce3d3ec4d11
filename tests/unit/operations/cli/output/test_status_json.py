"""Where steps ran is said by `describe`, `status`, `txns` and the journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prometheus_client import generate_latest

from examples.stateful_words import WordCount
from state.memory import MemoryTable
from tests.unit.drivers import DRAINED, HookedState
from tests.unit.fakes import builder, counts, words
from transactional.core.machine.protocol import CommitSucceeded
from transactional.model.plumbing.failures import LASTING_COUNT, FailuresInARow
from transactional.operations.cli.output.status_json import (
    attempt_json,
    read_maintenance_failures,
    read_processing_executor,
    read_step_executors,
    status_json,
)
from transactional.operations.cli.output.statuses import describe_maintenance_failures
from transactional.operations.telemetry.metrics import Metrics
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.journal import JournalWriter, read_journal
from transactional.runtime.executors.auto.choice import ExecutorChooser
from transactional.runtime.executors.auto.executor import GearedExecutor
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.describing import describe_in_lines, describe_topology


def test_where_a_step_ran(tmp_path: Path) -> None:
    made, store = builder(words()), MemoryCoordinatorStore()
    made.set_stateful_bolt("count", WordCount(), 3, state=counts(MemoryTable("t"))).fields_grouping("spout", "word")
    made.set_stateful_bolt("alone", WordCount(), 1, state=counts(MemoryTable("u"))).fields_grouping("spout", "word")
    topology = made.build()
    journal = JournalWriter(tmp_path / "journal")
    config = replace(DRAINED, commit_steps="jobs")
    TopologyDriver(topology, store, LocalExecutor(topology), config, observers=[journal]).run()
    journal.close()

    said = "job: all steps do that can"
    [status] = store.status(topology.id)
    assert read_step_executors(store, topology.id) == {"count": said}
    assert status_json(status, read_step_executors(store, topology.id))["steps"] == {"count": said}
    newest = next(record for record in store.attempts(topology.id, limit=9) if record.phase == "committed")
    assert attempt_json(newest)["details"]["steps"] == {"count": said}
    steps = [event.steps for _, event, _ in read_journal(tmp_path / "journal") if isinstance(event, CommitSucceeded)]
    assert set(steps) == {f"count: {said}"}
    finishes = {each["id"]: each.get("finishes") for each in describe_topology(topology)["components"]}
    may_be = "in the driver, or as a job of 3 tasks, its keys split by (word): by measured cost"
    assert finishes == {"spout": None, "count": may_be, "alone": "in the driver: it has one task"}
    assert ["driver or job" in each.lines[0] for each in describe_in_lines(topology)] == [False, True, False]


def test_a_transaction_has_its_place_also_where_there_was_no_choice() -> None:
    made, store = builder(words()), MemoryCoordinatorStore()
    made.set_committer_bolt("count", counts(MemoryTable("t")).count()).fields_grouping("spout", "word")
    topology = made.build()
    TopologyDriver(topology, store, LocalExecutor(topology), DRAINED).run()
    assert read_processing_executor(store, topology.id) == "in the driver"


def test_where_a_transaction_was_processed() -> None:
    made, store = builder(words()), MemoryCoordinatorStore()
    made.set_committer_bolt("count", counts(MemoryTable("t")).count()).fields_grouping("spout", "word")
    topology = made.build()
    executor = GearedExecutor(LocalExecutor(topology), LocalExecutor(topology), ExecutorChooser(4))
    TopologyDriver(topology, store, executor, DRAINED).run()
    said = "in workers: nothing is measured yet"
    [status] = store.status(topology.id)
    assert read_processing_executor(store, topology.id) == said
    assert status_json(status, {}, {}, said)["processing"] == said


def test_a_store_that_knows_of_no_steps() -> None:
    assert read_step_executors(MemoryCoordinatorStore(), "none") == {}
    assert read_processing_executor(MemoryCoordinatorStore(), "none") == ""


def test_a_table_that_is_not_maintained() -> None:
    made, store = builder(words(take=1)), MemoryCoordinatorStore()
    state = HookedState("word", table=MemoryTable("t"))
    made.set_committer_bolt("count", state.count()).fields_grouping("spout", "word")
    topology = made.build()
    metrics = Metrics(topology.id)

    def fail(_txid: object, _may_go_on: object) -> None:
        raise OSError("No space left on device\nTraceback")

    state.maintain = fail  # type: ignore[method-assign, assignment]
    TopologyDriver(topology, store, LocalExecutor(topology), DRAINED, observers=[metrics]).run()
    said = "maintenance has failed 3 times in a row: No space left on device\nTraceback"
    assert store.status(topology.id)[0].committed_txid > LASTING_COUNT
    assert read_maintenance_failures(store, topology.id)["count"].startswith("maintenance has failed")
    [status] = store.status(topology.id)
    assert status_json(status, {}, upkeep=read_maintenance_failures(store, topology.id))[
        "maintenance_failing"
    ].keys() == {"count"}
    [line] = describe_maintenance_failures({topology.id: {"count": said}})
    assert line.endswith("open it: maintenance has failed 3 times in a row: No space left on device")
    sample = 'transactional_state_maintenance_failing{component="count",topology="words"} 1.0'
    assert sample in generate_latest(metrics.registry).decode()


def test_one_failure_is_no_trouble() -> None:
    failures = FailuresInARow()
    for _ in range(LASTING_COUNT - 1):
        failures.add("syncing", "slow")
    assert failures.lasting == ""
    failures.add("syncing", "slow")
    assert failures.lasting == "syncing has failed 3 times in a row: slow"
    failures.clear("syncing")
    assert failures.lasting == ""
