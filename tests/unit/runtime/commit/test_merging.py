"""Bolts with several inputs out of the stage that they stand in: what they are given, in which order, and when it ends.

Every bolt writes down what is done to it. What holds is checked on that, whatever the stages are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from tests.unit.attempts import everything
from tests.unit.fakes import builder, total, words
from tests.unit.shapes import update
from tests.unit.telling import TASKS, Event, Told, merges
from transactional.errors import TransactionalError
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.groupings import DEFAULT_STREAM, GroupingKind
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.processing import tasks
from transactional.runtime.tasks import emitting
from transactional.runtime.tasks.emitting import Emitter
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.stages import _Planner, plan_stages
from transactional.topology.topology import Component, Topology, WorkPhase


def told(topology: Topology) -> list[Event]:
    """Run one transaction, without Spark."""
    Told.events.clear()
    attempt = TransactionAttempt(TxId(1), AttemptId(1))
    processed = LocalExecutor(topology).run(attempt, everything(topology))
    CommitPhase(topology).run(attempt, processed)
    return list(Told.events)


def check(topology: Topology) -> None:
    """Everybody is given what it subscribes to, once, in the order of each task that has emitted it, and nothing after
    its end, which is behind those of all that it reads from in its task. What goes to the first task is given there."""
    events = told(topology)
    emitted = Counter((e.source, e.stream, e.label) for e in events if e.what == "emit")
    for component in (each for each in topology.components if not each.is_update):
        inputs = [g for g in component.inputs if g.source != topology.spout_id]
        wanted = Counter(each for each in emitted.elements() for g in inputs if each[:2] == g.origin)
        given_here = [e for e in events if e.component == component.id and e.what == "given"]
        assert Counter((e.source, e.stream, e.label) for e in given_here if e.source != topology.spout_id) == wanted
        to_the_first = {g.origin for g in component.inputs if g.kind is GroupingKind.GLOBAL}
        assert all(e.task == 0 for e in given_here if (e.source, e.stream) in to_the_first)
        for task in range(component.parallelism):
            check_task([e for e in events if (e.component, e.task) == (component.id, task)])
            check_end(events, component, task)


def check_task(mine: list[Event]) -> None:
    assert [e.what for e in mine if e.what in ("prepare", "finish")] == ["prepare", "finish"]
    assert (mine[0].what, mine[-1].what) == ("prepare", "finish")
    order: dict[tuple[str, str, str], list[int]] = {}
    for event in mine:
        if event.what == "given" and "." in event.label:
            _, task, number = event.label.split(".")
            order.setdefault((event.source, event.stream, task), []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in order.values())


def check_end(events: list[Event], component: Component, task: int) -> None:
    ends = {(e.component, e.task): number for number, e in enumerate(events) if e.what == "finish"}
    for grouping in component.inputs:
        before = ends.get((grouping.source, task))
        assert before is None or before < ends[component.id, task]


# --- shapes -----------------------------------------------------------------------------------------------------------


def told_by(made: TransactionalTopologyBuilder, bolt_id: str, parallelism: int = TASKS) -> Any:
    return made.set_bolt(bolt_id, Told(), parallelism)


def split_and_merged(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "left").shuffle_grouping("spout")
    told_by(made, "right").shuffle_grouping("spout")
    told_by(made, "both").shuffle_grouping("left").shuffle_grouping("right")


def of_two_streams_and_the_spout(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "first").shuffle_grouping("spout")
    told_by(made, "second").shuffle_grouping("first").shuffle_grouping("first", stream="late").shuffle_grouping("spout")


def over_several_lengths(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "first").shuffle_grouping("spout")
    told_by(made, "second").shuffle_grouping("first", stream="late")
    told_by(made, "third").shuffle_grouping("second").shuffle_grouping("first")
    told_by(made, "both").shuffle_grouping("third").shuffle_grouping("first").shuffle_grouping("second")


def behind_a_committer(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "left").shuffle_grouping("spout")
    made.set_committer_bolt("sum", Told(), TASKS, state=total()).shuffle_grouping("spout")
    told_by(made, "both").shuffle_grouping("left").shuffle_grouping("sum")


def into_a_committer(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "left").shuffle_grouping("spout")
    committer = made.set_committer_bolt("sum", Told(), TASKS, state=total())
    committer.shuffle_grouping("spout").shuffle_grouping("left")
    told_by(made, "behind", 1).shuffle_grouping("sum")


def grouped_on_one_side(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "left").shuffle_grouping("spout")
    told_by(made, "right").shuffle_grouping("spout")
    told_by(made, "both").shuffle_grouping("left").global_grouping("right")


def of_two_stages(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "left").shuffle_grouping("spout")
    told_by(made, "right").fields_grouping("spout", "word")
    told_by(made, "both").shuffle_grouping("left").shuffle_grouping("right")


def of_another_parallelism(made: TransactionalTopologyBuilder) -> None:
    told_by(made, "left").shuffle_grouping("spout")
    told_by(made, "right").shuffle_grouping("spout")
    told_by(made, "both", 3).shuffle_grouping("left").shuffle_grouping("right")


SHAPES: list[Callable[[TransactionalTopologyBuilder], None]] = [
    split_and_merged,
    of_two_streams_and_the_spout,
    over_several_lengths,
    behind_a_committer,
    into_a_committer,
    grouped_on_one_side,
    of_two_stages,
    of_another_parallelism,
]


def built(declare: Callable[[TransactionalTopologyBuilder], None]) -> Topology:
    made = builder(parallelism=TASKS)
    declare(made)
    update(made, "count").shuffle_grouping("spout")
    return made.build()


@pytest.mark.parametrize("declare", SHAPES, ids=lambda declare: declare.__name__)
def test_what_bolts_with_several_inputs_are_given(declare: Callable[[TransactionalTopologyBuilder], None]) -> None:
    check(built(declare))


@pytest.mark.parametrize(
    "declare", [split_and_merged, of_two_streams_and_the_spout, over_several_lengths], ids=lambda d: d.__name__
)
def test_a_split_and_merge_costs_no_exchange(declare: Callable[[TransactionalTopologyBuilder], None]) -> None:
    plan = plan_stages(built(declare))
    assert (plan.depth, plan.edges) == (1, {})


@settings(max_examples=40)
@given(merges())
def test_what_bolts_are_given_in_any_shape(topology: Topology) -> None:
    check(topology)


def test_tuples_are_handed_on_in_order_while_more_are_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "ROWS_PER_BATCH", 4)
    made = builder(words([[(f"word {n}",) for n in range(50)]], take=50), parallelism=1)
    for bolt_id in ("left", "right"):
        told_by(made, bolt_id, 1).shuffle_grouping("spout")
    told_by(made, "both", 1).shuffle_grouping("left").shuffle_grouping("right")
    update(made, "count").shuffle_grouping("spout")
    topology = made.build()
    assert plan_stages(topology).depth == 1
    check(topology)


# --- wrong variants ---------------------------------------------------------------------------------------------------

CONNECT, BEGIN = Emitter.connect, tasks._Task.begin


def first_only(emitter: Emitter, operator: Any, stream: str) -> None:
    """A second input is forgotten."""
    if not hasattr(operator, "is_connected"):
        operator.is_connected = True
        CONNECT(emitter, operator, stream)


def twice(emitter: Emitter, operator: Any, stream: str) -> None:
    CONNECT(emitter, operator, stream)
    CONNECT(emitter, operator, stream)


def to_the_default_stream(emitter: Emitter, operator: Any, stream: str) -> None:
    CONNECT(emitter, operator, DEFAULT_STREAM)


def any_shuffle(planner: _Planner, component: Component) -> bool:
    """The first input decides."""
    grouping, phases = component.inputs[0], planner.phases
    return (
        all(phases[each.source] is WorkPhase.PROCESSING for each in component.inputs)
        and len({planner.stage_of[each.source] for each in component.inputs}) == 1
        and grouping.kind.is_shuffle
        and planner.tasks[planner.stage_of[grouping.source]] == component.parallelism
    )


def any_stage(planner: _Planner, component: Component) -> bool:
    """Inputs of other stages are taken for ones of this stage."""
    sources = [each.source for each in component.inputs]
    return all(planner.phases[each] is WorkPhase.PROCESSING for each in sources) and all(
        each.kind.is_shuffle for each in component.inputs
    )


def any_phase(planner: _Planner, component: Component) -> bool:
    """What is emitted in the commit phase is taken for something of this stage."""
    stages = {planner.stage_of.get(each.source) for each in component.inputs}
    return len(stages) == 1 and all(each.kind.is_shuffle for each in component.inputs)


def any_parallelism(planner: _Planner, component: Component) -> bool:
    return len({planner.stage_of[g.source] for g in component.inputs}) == 1 and all(
        each.kind.is_shuffle for each in component.inputs
    )


def last_first(run: Any) -> None:
    """Bolts are finished from the end."""
    BEGIN(run)
    run.components = [run.components[0], *reversed(run.components[1:])]


WRONG: dict[str, tuple[Any, str, Any, Callable[[TransactionalTopologyBuilder], None]]] = {
    "a second input is forgotten": (Emitter, "connect", first_only, split_and_merged),
    "an input is connected twice": (Emitter, "connect", twice, split_and_merged),
    "the stream is forgotten": (Emitter, "connect", to_the_default_stream, of_two_streams_and_the_spout),
    "an input that is grouped stays in its task": (_Planner, "_fuses", any_shuffle, grouped_on_one_side),
    "an input of another stage": (_Planner, "_fuses", any_stage, of_two_stages),
    "an input of the commit phase": (_Planner, "_fuses", any_phase, behind_a_committer),
    "another number of tasks": (_Planner, "_fuses", any_parallelism, of_another_parallelism),
    "finished from the end": (tasks._Task, "begin", last_first, split_and_merged),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_variant_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, variant, declare = WRONG[wrong]
    check(built(declare))
    monkeypatch.setattr(place, name, variant)
    with pytest.raises((AssertionError, TransactionalError, KeyError)):
        check(built(declare))
