"""Stateful bolts (rows C9, C10): what they read and write, in which order, what a replay changes, when hooks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from examples.stateful_words import WordCount
from state.memory import MemoryMapState, MemoryTable
from tests.unit.attempts import everything, processed
from tests.unit.drivers import DRAINED
from tests.unit.fakes import WORD_COUNTS, Upper, builder, counts, opaque_words, stored, words
from transactional.bolts import OutputCollector, TopologyContext
from transactional.errors import BoltFailed, ConfigError, SchemaMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology

NOTHING = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(0), Offset(0))})
PETS = [("cat",), ("dog",), ("cat",)]


class Noting(WordCount):
    """Notes what is called; fails where it is told to, once."""

    def __init__(self, calls: list[str], fails_in: str = "") -> None:
        self.notes = _Notes(calls, fails_in)

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.notes.add("prepare")

    def init_state(self, state: KeyValueState) -> None:
        super().init_state(state)
        self.notes.add("init_state")

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.notes.add(f"execute {tuple.word}")

    def pre_prepare(self, txid: int) -> None:
        self.notes.add(f"pre_prepare {txid}")

    def pre_commit(self, txid: int) -> None:
        self.notes.add(f"pre_commit {txid}")

    def pre_rollback(self, txid: int) -> None:
        self.notes.add(f"pre_rollback {txid}")


class _Notes:
    """One for all copies of a bolt."""

    by_id: ClassVar[dict[int, tuple[list[str], list[str]]]] = {}

    def __init__(self, calls: list[str], fails_in: str) -> None:
        self.number = len(self.by_id)
        self.by_id[self.number] = calls, [fails_in]

    def add(self, what: str) -> None:
        calls, fails_in = _Notes.by_id[self.number]
        calls.append(what)
        if fails_in and what.startswith(fails_in[0] or "nothing"):
            fails_in.clear()
            raise ValueError(f"not {what}")


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def opened(topology: Topology) -> Topology:
    """Opened for attempts whose id is ten times the txid and something."""
    for component in topology.committers:
        assert component.state is not None
        component.state.open(f"words/{component.id}", lambda attempt_id: TxId(attempt_id // 10))
    return topology


def counting(
    bolt: StatefulBolt, table: MemoryTable, rows: Sequence[tuple[str]] = PETS, parallelism: int = 1
) -> Topology:
    made = builder(opaque_words([list(rows)], take=len(rows)))
    made.set_stateful_bolt("count", bolt, parallelism, state=counts(table)).fields_grouping("spout", "word")
    return opened(made.build(strict=True))


# --- exactly once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spout", [words, opaque_words])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_run_counts_every_word_once(spout: Any, parallelism: int) -> None:
    table, changes = MemoryTable("counts"), MemoryTable("changes")
    made = builder(spout(), parallelism=2)
    made.set_bolt("same", Upper(), 2).shuffle_grouping("spout")
    made.set_stateful_bolt("count", WordCount(), parallelism, state=counts(table)).fields_grouping("same", "word")
    update = MemoryMapState("word", table=changes).count("changes")
    made.set_committer_bolt("changes", update).fields_grouping("count", "word")
    topology = made.build(strict=True)
    TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology), DRAINED).run()
    assert stored(table) == stored(changes) == {word.upper(): count for word, count in WORD_COUNTS.items()}


def test_the_parallelism_may_change_with_every_run() -> None:
    table, store = MemoryTable("counts"), MemoryCoordinatorStore()
    rows: list[list[tuple[str]]] = [[], []]
    for number, parallelism in enumerate([1, 8, 3]):
        rows = [[*part, *[(f"w{(number + each) % 11}",) for each in range(40)]] for part in rows]
        made = builder(opaque_words(rows))
        declarer = made.set_stateful_bolt("count", WordCount(), parallelism, state=counts(table))
        declarer.fields_grouping("spout", "word")
        topology = made.build(strict=True)
        TopologyDriver(topology, store, LocalExecutor(topology), DRAINED).run()
    assert stored(table) == Counter(word for part in rows for (word,) in part)


def test_what_it_emits_comes_in_the_same_order_per_key() -> None:
    seen: list[Any] = []
    topology = counting(WordCount(), MemoryTable(), [("cat",), ("dog",)] * 3)
    phase = CommitPhase(topology, record=lambda *told: seen.extend(told[3].to_pylist()))
    phase.run(attempt(1, 10), processed(topology))
    assert [row["count"] for row in seen if row["word"] == "cat"] == [1, 2, 3]
    assert [row["word"] for row in seen] == ["cat", "dog"] * 3


def test_a_replay_of_another_batch_starts_from_what_was_before() -> None:
    """What an earlier attempt at the transaction has put is not seen, and what only it has put is undone."""
    table = MemoryTable()
    topology = counting(WordCount(), table, [("cat",), ("dog",)])
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    CommitPhase(topology).run(attempt(2, 20), processed(topology))
    assert stored(table) == {"cat": 2, "dog": 2}
    other = counting(WordCount(), table, [("cat",), ("cat",), ("owl",)])
    CommitPhase(other).run(attempt(2, 21), processed(other))
    assert stored(table) == {"cat": 3, "dog": 1, "owl": 1}
    CommitPhase(other).run(attempt(2, 22), processed(other, NOTHING))
    assert stored(table) == {"cat": 1, "dog": 1}


def test_it_reads_the_state_of_no_other_attempt() -> None:
    """An instance, its state and its collector live as long as one attempt."""

    class Remembering(WordCount):
        def execute(self, tuple: Tuple) -> None:
            assert self.__dict__.setdefault("seen", self.counts) is self.counts
            super().execute(tuple)

    table = MemoryTable()
    topology = counting(Remembering(), table)
    phase = CommitPhase(topology)
    for number in (1, 2, 3):
        phase.run(attempt(number, 10 * number), processed(topology))
    assert stored(table) == {"cat": 6, "dog": 3}


def test_a_bolt_that_gets_nothing_writes_the_version() -> None:
    table = MemoryTable()
    topology = counting(WordCount(), table)
    CommitPhase(topology).run(attempt(1, 10), processed(topology, NOTHING))
    assert (table.version, stored(table)) == (10, {})


def test_all_keys_of_a_batch_are_read_at_once() -> None:
    asked: list[int] = []

    class Counting(MemoryMapState):
        def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
            asked.append(keys.num_rows)
            return super().rows_before(attempt, keys)

    made = builder(words([[("cat",), ("dog",)], [("cat",), ("owl",)]], take=10), parallelism=2)
    state = Counting("word string", "count long")
    made.set_stateful_bolt("count", WordCount(), 3, state=state).fields_grouping("spout", "word")
    topology = opened(made.build())
    CommitPhase(topology).run(attempt(1, 10), processed(topology, everything(topology)))
    assert asked == [3]


# --- the state ----------------------------------------------------------------------------------------------------


class Doing(StatefulBolt):
    """Does something with its state, and emits what comes of it as text."""

    output = "seen string"

    def __init__(self, do: Any) -> None:
        self.do = do

    def init_state(self, state: KeyValueState) -> None:
        self.kept = state

    def execute(self, tuple: Tuple) -> None:
        self.collector.emit(repr(self.do(self.kept)))


def done(do: Any, state: MemoryMapState, txid: int = 1) -> list[str]:
    seen: list[str] = []
    made = builder(words([[("cat",)]]))
    made.set_stateful_bolt("it", Doing(do), state=state).global_grouping("spout")
    topology = opened(made.build())
    phase = CommitPhase(topology, record=lambda *told: seen.extend(told[3].column("seen").to_pylist()))
    phase.run(attempt(txid, 10 * txid), processed(topology))
    return seen


def test_a_default_stands_for_a_key_that_does_not_exist_and_not_for_null() -> None:
    def do(state: KeyValueState) -> Any:
        state.put("null", None)
        return state.get("none"), state.get("none", 7), state.get("null", 7), "none" in state, "null" in state

    assert done(do, counts()) == ["(None, 7, None, False, True)"]


def test_items_are_what_was_before_and_what_was_put_in_order() -> None:
    table = MemoryTable("counts")

    def first(state: KeyValueState) -> Any:
        state.put("b", 1)
        state.put("a", 2)

    def second(state: KeyValueState) -> Any:
        state.put("c", 3)
        state.put("a", 4)
        state.put(None, 5)
        return list(state.items())

    done(first, counts(table))
    assert done(second, counts(table), 2) == ["[('a', 4), ('b', 1), ('c', 3), (None, 5)]"]
    # What an attempt at the same transaction has put is not among them.
    assert done(second, counts(table), 2) == ["[('a', 4), ('b', 1), ('c', 3), (None, 5)]"]


def test_keys_and_values_of_several_columns_are_tuples() -> None:
    def do(state: KeyValueState) -> Any:
        state.put(("a", 1), [1, 2])
        return state.get(("a", 1)), ("a", 1) in state, list(state.items()), state.get(Tuple(["x", "y"], ["a", 1], "s"))

    state = MemoryMapState("word string, number long", "low long, high long")
    assert done(do, state) == ["((1, 2), True, [(('a', 1), (1, 2))], (1, 2))"]


def test_a_deleted_key_is_absent_until_it_is_put_again() -> None:
    table = MemoryTable("counts")

    def first(state: KeyValueState) -> Any:
        state.put("a", 1)
        state.put("b", 2)
        assert state.delete("never there") is None

    def second(state: KeyValueState) -> Any:
        assert (state.delete("a"), state.delete("b"), state.delete("b")) == (1, 2, None)
        seen = state.get("a"), state.get("a", 7), "a" in state, list(state.items())
        state.put("b", 3)
        return *seen, list(state.items())

    deleting = [MemoryMapState("word string", "count long", table=table, deletes=True) for _ in range(4)]
    done(first, deleting[0])
    for _ in range(2):
        assert done(second, deleting[1], 2) == ["(None, 7, False, [], [('b', 3)])"]
    assert done(lambda state: list(state.items()), deleting[2], 3) == ["[('b', 3)]"]
    assert stored(table) == {"b": 3}


def test_a_state_that_keeps_no_tombstones_refuses_to_delete() -> None:
    with pytest.raises(ConfigError, match=r"state 'counts' of words/it can't delete a key.*deletes=True"):
        done(lambda state: state.delete("a"), counts(MemoryTable("counts")))


def test_a_state_of_one_row() -> None:
    def do(state: KeyValueState) -> Any:
        state.put((), state.get((), 0) + 1)
        return list(state.items())

    assert done(do, MemoryMapState((), "count long")) == ["[((), 1)]"]


def test_an_instant_is_one_key_in_every_time_zone() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def do(state: KeyValueState) -> Any:
        state.put(noon, 1)
        there = noon.astimezone(timezone(timedelta(hours=2)))
        return state.get(there), len(list(state.items()))

    assert done(do, MemoryMapState("at timestamp", "count long")) == ["(1, 1)"]


@pytest.mark.parametrize(
    ("do", "of_two", "message"),
    [
        (lambda state: state.get("a"), True, "used the key 'a'; the key of its state is .word, number."),
        (lambda state: state.put(("a", 1, 2), (1, 2)), True, "used the key .'a', 1, 2.; the key of its state is"),
        (lambda state: state.put(("a", 1), 1), True, "'it' put 1; its state has the values low, high"),
        (lambda state: state.get(7), False, "the given values do not match"),
        (lambda state: state.put("a", "b"), False, "the given values do not match"),
        (lambda state: state.put(("a",), 1), False, "the given values do not match"),
    ],
)
def test_a_key_or_value_that_does_not_fit_is_named(do: Any, of_two: Any, message: str) -> None:
    state = MemoryMapState("word string, number long", "low long, high long") if of_two else counts()
    with pytest.raises((BoltFailed, SchemaMismatch), match=message):
        done(do, state)


# --- hooks --------------------------------------------------------------------------------------------------------


def test_hooks_are_called_in_order() -> None:
    calls: list[str] = []
    topology = counting(Noting(calls), MemoryTable(), [("cat",), ("dog",)])
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    assert calls == ["prepare", "init_state", "execute cat", "execute dog", "pre_prepare 1", "pre_commit 1"]


def test_a_rollback_is_reported_of_before_the_state_is_given_and_only_if_something_was_written() -> None:
    calls: list[str] = []
    topology = counting(Noting(calls), MemoryTable(), [("cat",)])
    for attempt_id in (10, 11):
        calls.clear()
        CommitPhase(topology).run(attempt(1, attempt_id), processed(topology))
    assert calls == ["prepare", "pre_rollback 1", "init_state", "execute cat", "pre_prepare 1", "pre_commit 1"]
    calls.clear()
    CommitPhase(topology).run(attempt(2, 20), processed(topology))
    assert "pre_rollback 2" not in calls


@pytest.mark.parametrize("hook", ["pre_prepare", "pre_commit", "pre_rollback"])
def test_a_hook_that_fails_fails_the_attempt_and_the_next_one_is_exact(hook: str) -> None:
    calls: list[str] = []
    table = MemoryTable()
    topology = counting(Noting(calls, hook), table, [("cat",)])
    if hook == "pre_rollback":
        CommitPhase(topology).run(attempt(1, 10), processed(topology))
    with pytest.raises(BoltFailed, match=f"component 'count' raised ValueError: not {hook} 1"):
        CommitPhase(topology).run(attempt(1, 11), processed(topology))
    calls.clear()
    CommitPhase(topology).run(attempt(1, 12), processed(topology))
    assert stored(table) == {"cat": 1}
    assert ("pre_rollback 1" in calls) is (hook != "pre_prepare")


class Looking(WordCount):
    """Looks at tables when it is about to be committed."""

    tables: ClassVar[list[MemoryTable]] = []
    seen: ClassVar[list[Any]] = []

    def pre_commit(self, txid: int) -> None:
        self.seen.append([table.version for table in self.tables])


def test_every_task_has_its_hooks_and_all_tables_are_written_before_the_first_pre_commit() -> None:
    tables = [MemoryTable("one"), MemoryTable("two")]
    Looking.tables, Looking.seen = tables, []
    made = builder(words([PETS]))
    for number, table in enumerate(tables):
        bolt = made.set_stateful_bolt(f"count{number}", Looking(), 2, state=counts(table))
        bolt.fields_grouping("spout", "word")
    topology = opened(made.build())
    CommitPhase(topology).run(attempt(1, 10), processed(topology))
    assert Looking.seen == [[10, 10]] * 4


def test_what_comes_too_late_is_refused() -> None:
    class Late(WordCount):
        def __init__(self, late: Any) -> None:
            self.late = late

        def pre_commit(self, txid: int) -> None:
            self.late(self)

    lates = [
        (lambda bolt: bolt.counts.put("cat", 100), "changed 'cat' in pre_commit, when its state was written already"),
        (lambda bolt: bolt.counts.delete("cat"), "changed 'cat' in pre_commit"),
        (lambda bolt: bolt.collector.emit("cat", 100), "emitted in pre_commit"),
    ]
    for late, message in lates:
        topology = counting(Late(late), MemoryTable())
        with pytest.raises((BoltFailed, ConfigError), match=message):
            CommitPhase(topology).run(attempt(1, 10), processed(topology))


def test_pre_prepare_may_still_put_and_emit() -> None:
    class Closing(WordCount):
        def pre_prepare(self, txid: int) -> None:
            self.counts.put("all", sum(count for _, count in self.counts.items()))
            self.collector.emit("all", 0)

    table, seen = MemoryTable(), list[Any]()
    topology = counting(Closing(), table)
    phase = CommitPhase(topology, record=lambda *told: seen.extend(told[3].column("word").to_pylist()))
    phase.run(attempt(1, 10), processed(topology))
    assert stored(table) == {"cat": 2, "dog": 1, "all": 3}
    assert seen == ["cat", "dog", "cat", "all"]


def test_hooks_are_called_once_in_an_attempt_that_looks_closer() -> None:
    """Values that do not match are found by running the task again."""
    calls: list[str] = []

    class Wrong(Noting):
        output = "word string, count long"

        def execute(self, tuple: Tuple) -> None:
            self.collector.emit(tuple.word, "many")

    table = MemoryTable()
    first = counting(Noting([]), table)
    CommitPhase(first).run(attempt(1, 10), processed(first))
    topology = counting(Wrong(calls), table)
    with pytest.raises(BoltFailed, match="count"):
        CommitPhase(topology).run(attempt(1, 11), processed(topology))
    assert Counter(calls)["pre_rollback 1"] == 1
    assert Counter(calls)["pre_prepare 1"] <= 1


# --- declarations -------------------------------------------------------------------------------------------------


def declared(declare: Any) -> Topology:
    made = builder()
    declare(made).fields_grouping("spout", "word")
    return made.build()


def test_a_bolt_may_name_the_columns_of_its_state() -> None:
    made = declared(lambda made: made.set_stateful_bolt("count", WordCount(), state=MemoryMapState()))
    assert str(made.component("count").state.key) == "word string"  # type: ignore[union-attr]


class Unclear(WordCount):
    state = "word string, count long"


Declare = Any
MISTAKES: list[tuple[Declare, str]] = [
    (lambda made: made.set_bolt("count", WordCount()), "bolt 'count' is a StatefulBolt: add it with set_stateful_bolt"),
    (lambda made: made.set_committer_bolt("count", WordCount(), state=counts()), "add it with set_stateful_bolt"),
    (lambda made: made.set_stateful_bolt("count", Upper(), state=counts()), "is a Upper, not a StatefulBolt"),
    (lambda made: made.set_stateful_bolt("count", WordCount, state=counts()), "is the class WordCount"),
    (lambda made: made.set_stateful_bolt("count", WordCount(), state="counts"), "is a str, which is not a state"),
    (lambda made: made.set_stateful_bolt("count", Unclear(), state=counts()), "is not of the form 'key -> values'"),
    (
        lambda made: made.set_stateful_bolt("count", WordCount(), state=MemoryMapState("word string", "n long")),
        "stateful bolt 'count' declares the state 'word string -> count long': .* declared with values 'n long'",
    ),
]


@pytest.mark.parametrize(("declare", "message"), MISTAKES)
def test_what_can_not_work_is_refused_when_it_is_declared(declare: Declare, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(declare)


def test_the_same_table_for_two_bolts_is_refused() -> None:
    made: TransactionalTopologyBuilder = builder()
    for name in ("one", "two"):
        made.set_stateful_bolt(name, WordCount(), state=counts(MemoryTable("it"))).fields_grouping("spout", "word")
    with pytest.raises(ConfigError, match="keep the same table"):
        made.build()
