"""Wiring: what a right topology looks like once built, and the one clear error that every mistake gets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total, Upper, builder, counts, opaque_words, same, total, with_committer, words
from transactional.core.ports import State, StateKind
from transactional.errors import ConfigError
from transactional.model.groupings import Grouping, GroupingKind
from transactional.model.plumbing.tracebacks import first_line_with_location
from transactional.model.schema import Schema
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from transactional.topology.wiring import WeakerGuaranteeWarning

WORD = "word string"
PLACE = rf"{os.path.relpath(__file__)}:\d+"
"""A line of this file, as messages name it."""


class Silent(Upper):
    """A bolt that forgot to say what it emits."""

    output = ""


class NonTransactional(MemoryMapState):
    """A state that does not guard itself against replays."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self.declared.kind = StateKind.NON_TRANSACTIONAL


# --- what is right ------------------------------------------------------------------------------------------------


def test_a_topology_is_shown_in_one_short_line() -> None:
    made = builder()
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("upper")
    assert repr(made.build()) == "Topology('words': spout → upper → total)"


def test_a_topology_holds_its_components_each_after_what_it_reads_from() -> None:
    """Storm row T2."""
    made = builder(parallelism=2)
    made.set_committer_bolt("total", Total(), 1, state=total()).global_grouping("both")
    made.set_bolt("both", same, 3, output=WORD).fields_grouping("upper", "word").all_grouping("spout")
    made.set_bolt("upper", Upper(), 2).shuffle_grouping("spout")
    topology = made.build(options={"limit": 3})
    assert [component.id for component in topology.components] == ["upper", "both", "total"]
    upper, both, committer = topology.components
    assert both.inputs == (
        Grouping(GroupingKind.FIELDS, "upper", ("word",)),
        Grouping(GroupingKind.ALL, "spout"),
    )
    assert (upper.parallelism, both.parallelism, committer.parallelism) == (2, 3, 1)
    assert [component.is_committer for component in topology.components] == [False, False, True]
    assert topology.committers == (committer,)
    assert topology.spout_parallelism == 2
    assert topology.options == {"limit": 3}
    assert topology.output_of("spout") == topology.output_of("upper") == Schema.parse(WORD)
    assert topology.output_of("total") == Schema(())


def declare(made: TransactionalTopologyBuilder, bolt_id: str) -> None:
    """One part of a topology: spout -> left and right -> both -> total."""
    match bolt_id:
        case "left" | "right":
            made.set_bolt(bolt_id, Upper()).shuffle_grouping("spout")
        case "both":
            made.set_bolt(bolt_id, Upper()).shuffle_grouping("left").shuffle_grouping("right")
        case "total":
            with_committer(made, "both")


def test_bolts_may_be_set_in_any_order() -> None:
    for order in permutations(["left", "right", "both", "total"]):
        made = builder()
        for bolt_id in order:
            declare(made, bolt_id)
        ids = [component.id for component in made.build().components]
        assert sorted(ids[:2]) == ["left", "right"]
        assert ids[2:] == ["both", "total"]


def test_the_fingerprint_holds_what_the_stored_progress_depends_on() -> None:
    made = with_committer(builder())
    made.set_committer_bolt("counts", counts().count()).shuffle_grouping("spout")
    before = made.build().fingerprint()
    assert before == {
        "spout": {"kind": "MemoryTransactionalSpout", "fields": WORD},
        "committers": {
            "total": {"memory": "total", "key": "", "values": "count long", "kind": "opaque"},
            "counts": {
                "memory": "memory",
                "key": WORD,
                "values": "count long",
                "kind": "opaque",
                "combine": {"count": "sum"},
                "aggregates": {"count": "count()"},
            },
        },
    }
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    assert made.build(options={"a": 1}).fingerprint() == before


def test_a_builder_can_go_on_after_it_has_built() -> None:
    made = with_committer(builder())
    first = made.build()
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    assert [component.id for component in first.components] == ["total"]
    assert [component.id for component in made.build().components] == ["total", "upper"]


# --- mistakes -----------------------------------------------------------------------------------------------------


def of_a_frame(frame: DataFrame) -> Any: ...  # type: ignore[name-defined]  # noqa: F821 - known to type checkers alone


def unknown_component(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).shuffle_grouping("spuot")


def unknown_field(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).fields_grouping("spout", "wrd")


def fields_in_a_list(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).fields_grouping("spout", ["word"])  # type: ignore[arg-type]


def no_field(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).fields_grouping("spout")


def no_input(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper())


def the_same_input_twice(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).shuffle_grouping("spout").all_grouping("spout")


def the_same_id_twice(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper())
    made.set_committer_bolt("upper", Total(), state=total())


def the_id_of_the_spout(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("spout", Upper())


def an_id_with_a_blank(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("to upper", Upper())


def no_id(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt(Upper(), "upper")  # type: ignore[arg-type]


def no_tasks(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper(), 0)


def half_a_task(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper(), 1.5)  # type: ignore[arg-type]


def a_circle(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("first", Upper()).shuffle_grouping("second")
    made.set_bolt("second", Upper()).shuffle_grouping("third")
    made.set_bolt("third", Upper()).shuffle_grouping("second")


def itself(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).shuffle_grouping("upper")


def behind_a_silent_bolt(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("silent", Silent()).shuffle_grouping("spout")
    made.set_bolt("upper", Upper()).shuffle_grouping("silent")


class Emitting(Total):
    """A committer that emits."""

    output = WORD


def a_frame_behind_a_committer(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Emitting(), state=total()).global_grouping("spout")
    made.set_bolt("frame", of_a_frame, output=WORD).shuffle_grouping("sum")


def two_frames(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    made.set_bolt("frame", of_a_frame, output=WORD).shuffle_grouping("spout").shuffle_grouping("upper")


def a_committer_without_state(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Total()).global_grouping("spout")


def an_update_for_a_state(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Total(), state=counts().count())  # type: ignore[arg-type]


def a_class_for_a_state(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Total(), state=list)  # type: ignore[arg-type]


def a_state_for_a_committer(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", counts())  # type: ignore[arg-type]


def a_class_for_a_committer(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Total, state=total())  # type: ignore[arg-type]


def a_basic_committer(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Upper(), state=total())  # type: ignore[arg-type]


def an_update_with_a_state(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", counts().count(), state=total())


def an_update_as_a_bolt(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("sum", counts().count())  # type: ignore[arg-type]


def an_update_of_two_inputs(made: TransactionalTopologyBuilder) -> None:
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    made.set_committer_bolt("sum", counts().count()).shuffle_grouping("spout").shuffle_grouping("upper")


def an_update_by_an_unknown_field(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", MemoryMapState("wrod").count()).shuffle_grouping("spout")


def a_sum_of_words(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", MemoryMapState(()).sum("word")).shuffle_grouping("spout")


def one_table_twice(made: TransactionalTopologyBuilder) -> None:
    made.set_committer_bolt("sum", Total(), state=total()).global_grouping("spout")


def one_table_as_two_kinds(made: TransactionalTopologyBuilder) -> None:
    state = MemoryMapState((), "count long", kind=StateKind.TRANSACTIONAL, table=MemoryTable("total"))
    made.set_committer_bolt("sum", Total(), state=state).global_grouping("spout")


MISTAKES = [
    (
        unknown_component,
        (
            "bolt 'upper' subscribes to 'spuot', which is not a component of this topology; its components are: "
            "spout, total, upper — did you mean 'spout'?"
        ),
    ),
    (
        unknown_field,
        "bolt 'upper' uses field 'wrd', which 'spout' does not have; its fields are: word — did you mean 'word'?",
    ),
    (
        fields_in_a_list,
        "bolt 'upper': fields_grouping('spout', …) takes field names as separate arguments; got ['word']",
    ),
    (no_field, "bolt 'upper': fields_grouping('spout') names no field"),
    (no_input, "bolt 'upper' subscribes to nothing: add .shuffle_grouping('spout') or another grouping"),
    (the_same_input_twice, "bolt 'upper' subscribes to 'spout' twice"),
    (the_same_id_twice, "component id 'upper' is used twice"),
    (the_id_of_the_spout, "component id 'spout' is used twice"),
    (an_id_with_a_blank, "bolt id 'to upper' must be made of letters, digits and - _ ."),
    (no_tasks, "'upper': parallelism is a number of tasks, at least 1; got 0"),
    (half_a_task, "'upper': parallelism is a number of tasks, at least 1; got 1.5"),
    (a_circle, "bolts subscribe to each other in a cycle: second -> third -> second"),
    (itself, "bolts subscribe to each other in a cycle: upper -> upper"),
    (
        behind_a_silent_bolt,
        "bolt 'upper' subscribes to bolt 'silent', which declares no output, so it emits nothing",
    ),
    (
        a_frame_behind_a_committer,
        (
            "bolt 'frame' uses Spark DataFrames and is behind a committer, where bolts run in the commit "
            "phase, in the driver: make it a function of a RecordBatch or a Tuple"
        ),
    ),
    (two_frames, "bolt 'frame' maps one DataFrame to another, so it has one input, not 2"),
    (
        a_committer_without_state,
        (
            "committer bolt 'sum' has no state: pass state=…, for example "
            "state=DeltaMapState('tables/totals', key='name string', values='total long'). The state is what "
            "distinguishes a committed transaction from an uncommitted one; a committer that only needs the order "
            "keeps a state of one row, with key=()"
        ),
    ),
    (
        an_update_for_a_state,
        (
            "committer bolt 'sum': state=… is a StateUpdate, which is not a state; pass for example "
            "DeltaMapState('tables/totals', key='name string', values='total long')"
        ),
    ),
    (
        a_class_for_a_state,
        (
            "committer bolt 'sum': state=… is a type, which is not a state; pass for example "
            "DeltaMapState('tables/totals', key='name string', values='total long')"
        ),
    ),
    (
        a_state_for_a_committer,
        (
            "committer bolt 'sum' is a state, which does not say what becomes of its row when a tuple comes: pass "
            'an update of it, such as `MemoryMapState(…).count()`, `.sum("amount")`, or `.aggregate(amount='
            'Last("amount"))` for the newest value of a field (`from state import Last`); or a BatchBolt with state=…'
        ),
    ),
    (a_class_for_a_committer, "committer bolt 'sum' is the class Total; pass an instance: Total(…)"),
    (
        a_basic_committer,
        (
            "committer bolt 'sum' is a Upper; a committer is a BatchBolt with state=…, "
            "or a state's update such as DeltaMapState(…).count()"
        ),
    ),
    (an_update_with_a_state, "committer bolt 'sum' has its own state; omit state=…"),
    (an_update_as_a_bolt, "bolt 'sum' updates a state: add it with set_committer_bolt"),
    (
        an_update_of_two_inputs,
        "bolt 'sum' updates a state from one input, not 2: merge them in a bolt before it",
    ),
    (
        an_update_by_an_unknown_field,
        "bolt 'sum' uses field 'wrod', which 'spout' does not have; its fields are: word — did you mean 'word'?",
    ),
    (a_sum_of_words, "bolt 'sum': field 'word' is a string, which has no sum; use a number"),
    (one_table_as_two_kinds, "committers 'total' and 'sum' keep the same table; give each its own"),
    (one_table_twice, "committers 'total' and 'sum' keep the same table; give each its own"),
]


@pytest.mark.parametrize(("mistake", "expected"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES])
def test_a_mistake_gets_one_clear_error(mistake: Callable[[TransactionalTopologyBuilder], None], expected: str) -> None:
    def build() -> None:
        made = with_committer(builder())
        mistake(made)
        made.build()

    with pytest.raises(ConfigError) as caught:
        build()
    assert re.sub(rf" \({PLACE}\)$", "", str(caught.value)) == expected


@pytest.mark.parametrize("mistake", [unknown_component, unknown_field, no_input, a_circle, behind_a_silent_bolt])
def test_build_names_the_line_of_the_declaration(mistake: Callable[[TransactionalTopologyBuilder], None]) -> None:
    """Not that of `build`, which notices the mistake."""
    mistake(made := with_committer(builder()))
    with pytest.raises(ConfigError, match=rf" \({PLACE}\)$") as caught:
        made.build()
    line = int(str(caught.value).rpartition(":")[2].rstrip(")"))
    assert first_line_with_location(caught.value) == str(caught.value)
    lines = {number for _, _, number in mistake.__code__.co_lines()}
    assert line in lines


def test_an_id_that_is_no_text_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"^bolt id <.*Upper object.*> must be made of letters, digits and - _ \.$"):
        no_id(builder())


def test_a_topology_without_committer_has_no_effect() -> None:
    made = builder()
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    with pytest.raises(
        ConfigError, match=r"^topology 'words' has no committer, so it would have no effect: add set_com"
    ):
        made.build()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a b", "spout", words()), "topology id 'a b' must be made of letters, digits and - _ ."),
        (("", "spout", words()), "topology id '' must be made of"),
        (("words", "", words()), "spout id '' must be made of"),
        (("words", words(), 3), "spout id <spouts.memory.MemoryTransactionalSpout object"),
        (("words", "spout", words(), 0), "'spout': parallelism is a number of tasks, at least 1; got 0"),
        (("words", "spout", type(words())), "spout 'spout' is the class MemoryTransactionalSpout; pass an instance"),
        (
            ("words", "spout", [("cat",)]),
            "spout 'spout' is a list, which is not a spout such as OpaqueKafkaSpout(…)",
        ),
    ],
)
def test_a_wrong_beginning_is_reported(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}"):
        TransactionalTopologyBuilder(*arguments)


# --- guarantees ---------------------------------------------------------------------------------------------------


def guarded(spout: Any, state: State) -> Callable[..., Topology]:
    made = builder(spout)
    made.set_committer_bolt("sum", Total(), state=state).global_grouping("spout")
    return made.build


def of_kind(kind: StateKind) -> MemoryMapState:
    return MemoryMapState((), "count long", kind=kind)


@pytest.mark.parametrize(
    ("spout", "kind"),
    [
        (words(), StateKind.TRANSACTIONAL),
        (words(), StateKind.OPAQUE),
        (opaque_words(), StateKind.OPAQUE),
    ],
)
def test_what_is_exactly_once_builds_without_a_warning(spout: Any, kind: StateKind) -> None:
    """Storm row T39."""
    assert guarded(spout, of_kind(kind))(strict=True).committers[0].id == "sum"


@pytest.mark.parametrize(
    ("spout", "state", "expected"),
    [
        (
            opaque_words(),
            of_kind(StateKind.TRANSACTIONAL),
            (
                "committer 'sum' keeps a transactional state behind the opaque spout 'spout': that is not exactly once "
                "if a replayed batch differs. Use kind=StateKind.OPAQUE for exactly once"
            ),
        ),
        (
            words(),
            NonTransactional((), "count long"),
            (
                "committer 'sum' keeps a non-transactional state behind the transactional spout 'spout': that is at "
                "least once. Use kind=StateKind.OPAQUE for exactly once"
            ),
        ),
        (
            opaque_words(),
            NonTransactional((), "count long"),
            (
                "committer 'sum' keeps a non-transactional state behind the opaque spout 'spout': that is at "
                "least once. Use kind=StateKind.OPAQUE for exactly once"
            ),
        ),
    ],
)
def test_a_weaker_guarantee_is_a_warning_and_under_strict_an_error(spout: Any, state: State, expected: str) -> None:
    """Storm row T39."""
    with pytest.warns(WeakerGuaranteeWarning) as warned:
        guarded(spout, state)()
    assert [str(warning.message) for warning in warned] == [expected]
    assert warned[0].filename == __file__, "the warning must point at the line with build()"
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}$"):
        guarded(spout, state)(strict=True)


def test_two_states_of_one_shape_in_tables_of_their_own_are_fine() -> None:
    made = builder()
    made.set_committer_bolt("first", Total(), state=total(MemoryTable("first"))).global_grouping("spout")
    made.set_committer_bolt("second", Total(), state=total(MemoryTable("second"))).global_grouping("spout")
    assert len(made.build(strict=True).committers) == 2
