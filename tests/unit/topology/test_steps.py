"""Which steps of a commit phase may run as jobs: those whose grouping puts each key of the state into one task."""

from __future__ import annotations

from typing import Any

import pytest

from spouts import MemoryTransactionalSpout
from state import SqlMapState
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import builder
from transactional.bolts import BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports import State
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.steps import Step, plan_steps


class Stateful(StatefulBolt):
    """Does nothing."""

    def init_state(self, state: KeyValueState) -> None: ...

    def execute(self, tuple: Tuple) -> None: ...


class Hooked(Stateful):
    """Is called when all states are written."""

    def pre_commit(self, txid: int) -> None: ...


class Committer(BatchBolt):
    """Does nothing."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None: ...

    def execute(self, tuple: Tuple) -> None: ...

    def finish_batch(self) -> None: ...


def made() -> TransactionalTopologyBuilder:
    rows: list[list[tuple[Any, ...]]] = [[("a", 1, 2)]]
    return builder(MemoryTransactionalSpout(rows, "word string, number long, small int", take=1))


def state(key: str = "word string") -> State:
    return MemoryMapState(key, "count long", table=MemoryTable("t"))


def in_sql() -> State:
    return SqlMapState("sqlite://", "t", "word string", "count long")


def step_of(declare: Any) -> Step:
    """The only step of a topology."""
    topology = made()
    declare(topology)
    [step] = plan_steps(topology.build())
    return step


def stateful(bolt: StatefulBolt, fields: tuple[str, ...], of: State | None = None, tasks: int = 3) -> Step:
    def declare(made: TransactionalTopologyBuilder) -> None:
        made.set_stateful_bolt("count", bolt, tasks, state=of or state()).fields_grouping("spout", *fields)

    return step_of(declare)


def committer(fields: tuple[str, ...], of: State) -> Step:
    return step_of(
        lambda made: made.set_committer_bolt("c", Committer(), 3, state=of).fields_grouping("spout", *fields)
    )


def test_a_stateful_bolt_that_is_grouped_by_exactly_its_key() -> None:
    assert stateful(Stateful(), ("word",)) == Step("count", 3, ("word",))
    both = state("word string, number long")
    assert stateful(Stateful(), ("number", "word"), both) == Step("count", 3, ("number", "word"))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda: stateful(Stateful(), ("number",)), r"grouped by \(number\), and the key of its state is \(word\)"),
        (lambda: stateful(Stateful(), ("word", "number")), "grouped by"),
        (lambda: stateful(Stateful(), ("word",), state("word string, number long")), "grouped by"),
        (lambda: stateful(Stateful(), ("small",), state("small long")), "field 'small' has another type"),
        (lambda: stateful(Stateful(), ("word",), tasks=1), "one task"),
        (lambda: stateful(Hooked(), ("word",)), "pre_commit"),
        (
            lambda: stateful(Stateful(), ("word",), SqlMapState("sqlite://", "t", "word string", "count long")),
            "read in",
        ),
        (lambda: committer(("number",), state()), "grouped by"),
    ],
)
def test_what_stays_in_the_driver_and_why(step: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        assert step().driver_reason == "", step().driver_reason


def test_a_committer_may_be_grouped_more_coarsely_than_its_key() -> None:
    assert committer(("word",), state("word string, number long")) == Step("c", 3, ("word",))


def test_every_input_has_to_split_the_keys_alike() -> None:
    def declare(made: TransactionalTopologyBuilder) -> None:
        declarer = made.set_committer_bolt("c", Committer(), 3, state=state("word string, number long"))
        declarer.fields_grouping("spout", "word").fields_grouping("other", "number")
        made.set_bolt(
            "other", lambda row: row.values, 2, output="word string, number long, small int"
        ).shuffle_grouping("spout")

    assert "not all grouped by the same fields" in step_of(declare).driver_reason


def test_an_update_and_a_function_stay_and_a_bolt_without_a_state_need_not() -> None:
    topology = made()
    topology.set_stateful_bolt("count", Emitting(), 2, state=state()).fields_grouping("spout", "word")
    topology.set_bolt("function", lambda row: row.values, 2, output="word string").shuffle_grouping("count")
    topology.set_bolt("behind", Passing(), 2).shuffle_grouping("count")
    topology.set_committer_bolt("update", MemoryMapState("word").count()).fields_grouping("behind", "word")
    driver_reason = {step.component: bool(step.driver_reason) for step in plan_steps(topology.build())}
    assert driver_reason == {"count": False, "function": True, "behind": False, "update": True}


class Emitting(Stateful):
    """Emits."""

    output = "word string"


class Passing(Committer):
    """Has no state."""

    output = "word string"
