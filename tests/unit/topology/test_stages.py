"""How topologies are cut into stages and levels: shapes that are drawn here as text, and what holds for any shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.unit.fakes import Total, builder, total
from tests.unit.shapes import committer, frame, topologies, update, upper
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.stages import StagePlan, plan_stages
from transactional.topology.topology import Component, Topology, WorkPhase


class TotalTold(Total):
    output = "word string"


Declare = Callable[[TransactionalTopologyBuilder], None]


def drawn(plan: StagePlan) -> str:
    """A line per level with its stages, then the edges that cross stages, then what is aggregated where."""
    levels = [
        f"{number}: " + " | ".join(f"{' '.join(s.components)} x{s.task_count}" for s in plan.level(number))
        for number in range(plan.depth)
    ]
    edges = [
        f"{source} -{edge.grouping.kind.value}-> {edge.target} in {edge.target_stage}"
        for source, targets in plan.edges.items()
        for edge in targets
    ]
    aggregated = [f"{source} => {' '.join(committers)}" for source, committers in plan.aggregated.items()]
    return "\n".join(levels + edges + aggregated)


def a_committer_alone(made: TransactionalTopologyBuilder) -> None:
    committer(made, "sum").global_grouping("spout")


def a_chain_that_fuses(made: TransactionalTopologyBuilder) -> None:
    upper(made, "a", 2).shuffle_grouping("spout")
    upper(made, "b", 2).shuffle_grouping("a")
    committer(made, "sum", 2).shuffle_grouping("b")


def a_chain_of_changing_parallelism(made: TransactionalTopologyBuilder) -> None:
    upper(made, "a", 3).shuffle_grouping("spout")
    upper(made, "b", 3).shuffle_grouping("a")
    committer(made, "sum").shuffle_grouping("b")


def regrouped(made: TransactionalTopologyBuilder) -> None:
    upper(made, "a", 2).fields_grouping("spout", "word")
    upper(made, "b", 2).all_grouping("a")
    committer(made, "sum", 2).global_grouping("b")


def an_update_behind_the_spout(made: TransactionalTopologyBuilder) -> None:
    update(made, "count").fields_grouping("spout", "word")


def two_updates_of_a_fused_bolt(made: TransactionalTopologyBuilder) -> None:
    upper(made, "a", 2).shuffle_grouping("spout")
    update(made, "first").fields_grouping("a", "word")
    update(made, "second").shuffle_grouping("a")


def fanned_out_inside_a_stage(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left", 2).shuffle_grouping("spout")
    upper(made, "right", 2).shuffle_grouping("spout")
    committer(made, "sum", 2).shuffle_grouping("right")


def fanned_out_to_stages(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left").shuffle_grouping("spout")
    upper(made, "right", 3).shuffle_grouping("spout")
    committer(made, "sum").global_grouping("spout")


def fanned_in(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left", 2).shuffle_grouping("spout")
    upper(made, "right", 3).shuffle_grouping("spout")
    committer(made, "sum", 2).shuffle_grouping("left").shuffle_grouping("right")


def over_levels(made: TransactionalTopologyBuilder) -> None:
    upper(made, "a", 3).shuffle_grouping("spout")
    upper(made, "b", 4).shuffle_grouping("a")
    committer(made, "sum").global_grouping("b").global_grouping("spout").global_grouping("a")


def a_fan_in_of_one_stage(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left", 2).shuffle_grouping("spout")
    upper(made, "right", 2).shuffle_grouping("spout")
    upper(made, "both", 2).shuffle_grouping("left").shuffle_grouping("right")
    committer(made, "sum", 2).shuffle_grouping("both")


def a_fan_in_that_also_groups(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left", 2).shuffle_grouping("spout")
    upper(made, "right", 2).shuffle_grouping("spout")
    upper(made, "both", 2).shuffle_grouping("left").fields_grouping("right", "word")
    update(made, "count").shuffle_grouping("both")


def a_fan_in_of_another_parallelism(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left", 2).shuffle_grouping("spout")
    upper(made, "right", 2).shuffle_grouping("spout")
    upper(made, "both", 3).shuffle_grouping("left").shuffle_grouping("right")
    update(made, "count").shuffle_grouping("both")


def a_fan_in_behind_a_committer(made: TransactionalTopologyBuilder) -> None:
    upper(made, "left", 2).shuffle_grouping("spout")
    made.set_committer_bolt("told", TotalTold(), 2, state=total()).shuffle_grouping("spout")
    upper(made, "both", 2).shuffle_grouping("left").shuffle_grouping("told")


def several_committers(made: TransactionalTopologyBuilder) -> None:
    upper(made, "a").fields_grouping("spout", "word")
    committer(made, "first").shuffle_grouping("a")
    committer(made, "second", 2).shuffle_grouping("a")
    update(made, "third").shuffle_grouping("a")
    update(made, "fourth").shuffle_grouping("spout")


def with_a_frame(made: TransactionalTopologyBuilder) -> None:
    frame(made, "frame", 2).shuffle_grouping("spout")
    upper(made, "a", 2).shuffle_grouping("frame")
    update(made, "count").shuffle_grouping("frame")
    committer(made, "sum", 2).shuffle_grouping("a")


SHAPES = {
    a_committer_alone: """
        0: spout x2
        1: sum x1
        spout -global-> sum in 1""",
    a_chain_that_fuses: """
        0: spout a b sum x2""",
    a_chain_of_changing_parallelism: """
        0: spout x2
        1: a b x3
        2: sum x1
        spout -shuffle-> a in 1
        b -shuffle-> sum in 2""",
    regrouped: """
        0: spout x2
        1: a x2
        2: b x2
        3: sum x2
        spout -fields-> a in 1
        a -all-> b in 2
        b -global-> sum in 3""",
    an_update_behind_the_spout: """
        0: spout x2
        spout => count""",
    two_updates_of_a_fused_bolt: """
        0: spout a x2
        a => first second""",
    fanned_out_inside_a_stage: """
        0: spout left right sum x2""",
    fanned_out_to_stages: """
        0: spout x2
        1: left x1 | right x3 | sum x1
        spout -shuffle-> left in 1
        spout -shuffle-> right in 2
        spout -global-> sum in 3""",
    fanned_in: """
        0: spout left x2
        1: right x3
        2: sum x2
        left -shuffle-> sum in 2
        spout -shuffle-> right in 1
        right -shuffle-> sum in 2""",
    over_levels: """
        0: spout x2
        1: a x3
        2: b x4
        3: sum x1
        spout -shuffle-> a in 1
        spout -global-> sum in 3
        a -shuffle-> b in 2
        a -global-> sum in 3
        b -global-> sum in 3""",
    a_fan_in_of_one_stage: """
        0: spout left right both sum x2""",
    a_fan_in_that_also_groups: """
        0: spout left right x2
        1: both x2
        left -shuffle-> both in 1
        right -fields-> both in 1
        both => count""",
    a_fan_in_of_another_parallelism: """
        0: spout left right x2
        1: both x3
        left -shuffle-> both in 1
        right -shuffle-> both in 1
        both => count""",
    a_fan_in_behind_a_committer: """
        0: spout left told x2
        1: both x2
        left -shuffle-> both in 1
        told -shuffle-> both in -1""",
    several_committers: """
        0: spout x2
        1: a first x1
        2: second x2
        spout -fields-> a in 1
        a -shuffle-> second in 2
        a => third
        spout => fourth""",
    with_a_frame: """
        0: spout x2
        1: frame x2
        2: a sum x2
        spout -shuffle-> frame in 1
        frame -shuffle-> a in 2
        frame => count""",
}


@pytest.mark.parametrize(("declare", "expected"), SHAPES.items(), ids=[declare.__name__ for declare in SHAPES])
def test_shapes(declare: Declare, expected: str) -> None:
    made = builder(parallelism=2)
    declare(made)
    plan = plan_stages(made.build())
    lines = [line.strip() for line in expected.strip().splitlines()]
    drawing = drawn(plan).splitlines()
    stages = sum(line[0].isdigit() for line in lines)
    assert drawing[:stages] == lines[:stages]
    assert sorted(drawing) == sorted(lines)


def test_only_the_stage_of_a_frame_is_one_of_frames() -> None:
    made = builder(parallelism=2)
    with_a_frame(made)
    assert [stage.is_dataframe for stage in plan_stages(made.build()).stages] == [False, True, False]


def test_slots_number_the_tasks_of_a_level() -> None:
    made = builder(parallelism=2)
    fanned_out_to_stages(made)
    plan = plan_stages(made.build())
    slots = [[(stage.components[0], task) for stage, task in plan.slots(level)] for level in range(plan.depth)]
    assert slots == [
        [("spout", 0), ("spout", 1)],
        [("left", 0), ("right", 0), ("right", 1), ("right", 2), ("sum", 0)],
    ]


# --- any shape ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(topologies(frames=True))
def test_every_bolt_gets_each_of_its_inputs_once_and_from_a_higher_level(topology: Topology) -> None:
    plan = plan_stages(topology)
    stage_of = {component: stage for stage in plan.stages for component in stage.components}
    placed = [component for component in topology.components if component.id != "count"]
    assert sorted(stage_of) == sorted([topology.spout_id, *(component.id for component in placed)])
    assert [stage.index for stage in plan.stages] == list(range(len(plan.stages)))
    for component in placed:
        check_inputs(plan, component, stage_of[component.id].components)
    for source, edges in plan.edges.items():
        for edge in edges:
            assert plan.stages[edge.target_stage].level > stage_of[source].level
            assert plan.stages[edge.target_stage].task_count == edge.task_count
    assert plan.aggregated == {next(c for c in topology.components if c.id == "count").inputs[0].source: ("count",)}


def check_inputs(plan: StagePlan, component: Component, chain: tuple[str, ...]) -> None:
    """Each input comes over one edge, or, where the bolt is not the first of its stage, inside of the stage."""
    edges = [
        (source, edge.grouping) for source in plan.edges for edge in plan.edges[source] if edge.target == component.id
    ]
    if chain[0] == component.id:
        assert sorted(edges, key=str) == sorted(((g.source, g) for g in component.inputs), key=str)
    else:
        assert edges == []
        for grouping in component.inputs:
            assert grouping.kind.is_shuffle
            assert plan.phases[grouping.source] is WorkPhase.PROCESSING
            assert chain.index(grouping.source) < chain.index(component.id)
        assert not component.is_dataframe
        assert component.parallelism == next(s for s in plan.stages if component.id in s.components).task_count
