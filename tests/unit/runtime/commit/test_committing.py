"""The commit phase: every table is written, in order, once per transaction; what committers see of their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from state.memory import MemoryMapState, MemoryTable
from tests.unit.attempts import processed
from tests.unit.fakes import Total, Upper, builder, counts, stored, total, words
from transactional.bolts import BatchBolt, MapState, OutputCollector, TopologyContext
from transactional.core.ports import StateKind
from transactional.errors import BoltFailed, Fenced, SchemaMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.tuples import Key, Tuple
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.tasks.map_state import MapStateView
from transactional.topology.topology import Topology

NOTHING = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(0), Offset(0))})


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def opened(state: MemoryMapState) -> MemoryMapState:
    """Open, for attempts whose id is ten times the txid and something."""
    state.open("words/it", lambda attempt_id: TxId(attempt_id // 10))
    return state


def two_committers(kind: StateKind = StateKind.OPAQUE) -> tuple[Topology, MemoryTable, MemoryTable]:
    per_word, in_all = MemoryTable("counts"), MemoryTable("total")
    made = builder(words([[("cat",), ("dog",), ("cat",)]]))
    update = MemoryMapState("word", kind=kind, table=per_word).count()
    made.set_committer_bolt("counts", update).fields_grouping("spout", "word")
    state = MemoryMapState((), "count long", kind=kind, table=in_all)
    made.set_committer_bolt("total", Total(), 2, state=state).shuffle_grouping("spout")
    topology = made.build()
    for component in topology.committers:
        opened(component.state)  # type: ignore[arg-type]
    return topology, per_word, in_all


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_updates_are_merged_and_bolts_finished_in_every_transaction(kind: StateKind) -> None:
    topology, per_word, in_all = two_committers(kind)
    for number in (1, 2):
        CommitPhase(topology).run(attempt(number, 10 * number), processed(topology))
        assert stored(per_word) == {"cat": 2 * number, "dog": number}
        assert stored(in_all) == {(): 3 * number}
        assert per_word.version == in_all.version == 10 * number


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_a_replay_changes_nothing_but_the_version(kind: StateKind) -> None:
    topology, per_word, in_all = two_committers(kind)
    for attempt_id in (10, 11, 12):
        CommitPhase(topology).run(attempt(1, attempt_id), processed(topology))
    assert stored(per_word) == {"cat": 2, "dog": 1}
    assert stored(in_all) == {(): 3}
    assert per_word.version == in_all.version == 12


def test_a_transaction_with_nothing_to_change_is_written_to_every_table() -> None:
    """Storm row T40."""
    topology, per_word, in_all = two_committers()
    CommitPhase(topology).run(attempt(1, 10), processed(topology, NOTHING))
    assert (stored(per_word), stored(in_all)) == ({}, {(): 0})
    assert (per_word.version, in_all.version) == (10, 10)


def test_a_bolt_that_puts_nothing_is_written_too() -> None:
    table = MemoryTable()
    made = builder(words([[("cat",)]]))
    made.set_committer_bolt("idle", Finishing(lambda state: None), state=opened(counts(table))).global_grouping("spout")
    topology = made.build()
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    assert (table.version, stored(table)) == (10, {})


def test_a_committer_without_its_part_is_a_bug() -> None:
    topology, _, in_all = two_committers()
    made = processed(topology)
    with pytest.raises(KeyError):
        CommitPhase(topology).run(attempt(1, 10), replace(made, parts={"counts": made.parts["counts"]}))
    assert in_all.version is None


class UpperAggregator(Upper):
    aggregator = None


class TotalAggregator(Total):
    aggregator = None


def test_a_committer_may_have_an_attribute_of_any_name() -> None:
    table = MemoryTable()
    made = builder(words([[("cat",), ("dog",)]]))
    made.set_bolt("upper", UpperAggregator()).shuffle_grouping("spout")
    made.set_committer_bolt("total", TotalAggregator(), state=opened(total(table))).global_grouping("upper")
    topology = made.build()
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    assert stored(table) == {(): 2}


# --- failures -----------------------------------------------------------------------------------------------------


class Finishing(BatchBolt):
    """A committer that does something with its state in `finish_batch`."""

    def __init__(self, finish: Callable[[MapState], Any]) -> None:
        self.finish = finish

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.state = context.state

    def execute(self, tuple: Tuple) -> None: ...

    def finish_batch(self) -> None:
        assert self.state is not None
        self.finish(self.state)


def finished(finish: Callable[[MapState], Any], state: MemoryMapState | None = None) -> MemoryMapState:
    """The state after the commit phase of a committer that finishes so."""
    state = opened(state or counts())
    made = builder(words([[("cat",)]]))
    made.set_committer_bolt("it", Finishing(finish), state=state).global_grouping("spout")
    topology = made.build()
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    return state


def test_what_a_committer_raises_fails_the_attempt_with_its_traceback() -> None:
    state = counts()
    with pytest.raises(BoltFailed) as caught:
        finished(lambda state: state.get("cat") + 1, state)
    first, *rest = str(caught.value).splitlines()
    where = "task 0 of 1, in the commit phase: component 'it' raised TypeError: "
    assert first.startswith(
        where + "unsupported operand type(s) for +: 'NoneType' and 'int' (tests/unit/runtime/commit/"
    )
    assert "state.get" in "".join(rest)
    assert state.stored.version is None


def test_an_error_of_the_framework_stays_what_it_is() -> None:
    def refuse(_: MapState) -> None:
        raise Fenced("another one has taken over")

    with pytest.raises(Fenced, match="another one has taken over"):
        finished(refuse)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (
            lambda state: state.put(("cat", 1), 1),
            r"committer 'it' used key \('cat', 1\); the key of its state is \(word\)",
        ),
        (lambda state: state.get(), r"committer 'it' used key \(\); the key of its state is \(word\)"),
        (lambda state: state.put("cat", "many"), "the given values do not match: .*'many'"),
        (lambda state: state.put(1, 1), "the given values do not match: "),
    ],
)
def test_what_does_not_fit_the_state_is_reported(finish: Callable[[MapState], Any], expected: str) -> None:
    state = counts()
    with pytest.raises(SchemaMismatch, match=expected):
        finished(finish, state)
    assert state.stored.version is None


def test_too_few_values_are_reported() -> None:
    state = MemoryMapState("word string", "count long, last string")
    with pytest.raises(SchemaMismatch, match="committer 'it' put 1 values; its state has count, last"):
        finished(lambda state: state.put("cat", (1,)), state)


# --- the view -----------------------------------------------------------------------------------------------------


class Asked(MemoryMapState):
    """Notes which keys are read."""

    def __init__(self, key: str, values: str) -> None:
        super().__init__(key, values)
        self.asked: list[Sequence[Key]] = []

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        self.asked.append(list(keys))
        return super().get(attempt, keys)


def view_of(values: Mapping[Key, tuple[Any, ...]], key: str = "word string", value: str = "count long") -> MapStateView:
    """A view in the second transaction; the first has put the values."""
    state = Asked(key, value)
    opened(state).put(attempt(1, 10), values)
    return MapStateView("it", state, attempt(2, 20))


def asked(view: MapStateView) -> list[Sequence[Key]]:
    assert isinstance(view._state, Asked)
    return view._state.asked


def test_one_value_is_read_and_put_bare() -> None:
    view = view_of({("cat",): (1,), ("dog",): (None,)})
    assert view.multi_get([("cat",), ("dog",), ("owl",)]) == [1, None, None]
    assert view.get("cat") == 1
    view.put("cat", 2)
    view.put(("owl",), 3)
    assert view.multi_get([("cat",), ("owl",)]) == [2, 3]
    assert view.changes == {("cat",): (2,), ("owl",): (3,)}


def test_several_values_and_key_columns_are_tuples() -> None:
    view = view_of({("a", 1): (1, "x")}, "word string, number int", "count long, last string")
    assert view.get("a", 1) == (1, "x")
    assert view.multi_get([("a", 1), ("b", 2)]) == [(1, "x"), None]
    view.put(("b", 2), [5, "y"])
    assert view.get("b", 2) == (5, "y")


def test_a_state_of_one_row_has_the_empty_key() -> None:
    view = view_of({(): (7,)}, "", "count long")
    assert view.get() == 7
    assert view.multi_update([()], lambda count: count + 1) == [8]
    assert view.changes == {(): (8,)}


def test_a_key_of_several_columns_is_read_as_it_is_put() -> None:
    view = view_of({("a", 1): ("x",)}, "word string, number long", "note string")
    assert (view.get("a", 1), view.get(("a", 1))) == ("x", "x")
    view.put(("b", 2), "y")
    assert (view.get("b", 2), view.get(("b", 2))) == ("y", "y")
    single = view_of({("cat",): (1,)})
    assert (single.get("cat"), single.get(("cat",))) == (1, 1)


def test_keys_are_read_at_once_and_only_once() -> None:
    view = view_of({("cat",): (1,)})
    view.multi_get([("cat",), ("dog",), ("cat",)])
    view.multi_get([("dog",), ("owl",)])
    view.put("ant", 1)
    view.multi_update([("cat",), ("ant",), ("bee",)], lambda count: (count or 0) + 1)
    assert asked(view) == [[("cat",), ("dog",)], [("owl",)], [("bee",)]]
    assert view.changes == {("ant",): (2,), ("cat",): (2,), ("bee",): (1,)}


def test_a_key_that_is_given_twice_is_updated_twice() -> None:
    view = view_of({("cat",): (1,)})
    assert view.multi_update([("cat",), ("dog",), ("cat",)], lambda count: (count or 0) + 1) == [2, 1, 3]
    assert view.changes == {("cat",): (3,), ("dog",): (1,)}


def test_the_tasks_of_a_committer_see_what_the_ones_before_have_put() -> None:
    table = MemoryTable()
    made = builder(words([[("cat",), ("dog",), ("owl",)]]))
    made.set_committer_bolt("total", Total(), 3, state=opened(total(table))).all_grouping("spout")
    topology = made.build()
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    assert stored(table) == {(): 9}
