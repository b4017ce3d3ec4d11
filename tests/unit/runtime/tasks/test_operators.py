"""Bolts at work: how tuples spread over tasks, what each kind of bolt is given and when, how failures are told."""

from __future__ import annotations

import gc
import os
import re
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from state.updates import StateUpdate
from tests.unit.attempts import FIRST, instances, keep, kept, processed
from tests.unit.fakes import Total, Upper, builder, total, words
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.errors import AttemptLost, BoltFailed, FailedException, Fenced, SourceUnavailable
from transactional.model.aggregates import Count, TableAggregator
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, Offset, OffsetRange, PartitionId
from transactional.model.groupings import Grouping, GroupingKind
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.tasks import emitting
from transactional.runtime.tasks.emitting import Emitter
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.stages import StageEdge
from transactional.topology.topology import Topology

NUMBERS = [[(number,) for number in range(100)]]


def numbers(partitions: Any = NUMBERS, *, parallelism: int = 1) -> TransactionalTopologyBuilder:
    return builder(MemoryTransactionalSpout(partitions, "number long", 1_000), parallelism=parallelism)


# --- groupings ----------------------------------------------------------------------------------------------------


def test_shuffled_tuples_are_spread_evenly() -> None:
    made = numbers()
    keep(made, 7).shuffle_grouping("spout")
    rows = kept(made.build())
    assert sorted(len(part) for part in rows) == [14, 14, 14, 14, 14, 15, 15]
    assert sorted(row for part in rows for row in part) == NUMBERS[0]


def test_shuffled_tuples_stay_in_their_task_where_parallelism_allows() -> None:
    made = numbers([[(0,), (1,)], [(10,)], []], parallelism=3)
    keep(made, 3).shuffle_grouping("spout")
    assert kept(made.build()) == [[(0,), (1,)], [(10,)], []]


def shuffled(sizes: list[int], task: int, task_count: int) -> list[int]:
    """How many rows each target gets of record batches of the given sizes."""
    edge = StageEdge("source", "target", Grouping(GroupingKind.SHUFFLE, "source"), 1, task_count)
    emitter = Emitter("source", {"default": Schema.parse("number long")}, task, [edge])
    for size in sizes:
        emitter.emit_batch(pa.RecordBatch.from_pydict({"number": pa.array(range(size), pa.int64())}))
    rows = {target: sum(part.num_rows for part in parts) for _, target, parts in emitter.addressed()}
    return [rows.get(target, 0) for target in range(task_count)]


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(0, 5), st.integers(1, 5))
def test_shuffling_is_even_whatever_record_batches_come(sizes: list[int], task: int, task_count: int) -> None:
    rows = shuffled(sizes, task, task_count)
    assert sum(rows) == sum(sizes)
    assert max(rows) - min(rows) <= 1


def test_small_batches_of_several_tasks_do_not_all_go_to_the_same_target() -> None:
    assert [shuffled([1], task, 3) for task in range(3)] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("fields", [("word",), ("number", "word")])
def test_equal_fields_go_to_the_same_task(fields: tuple[str, ...]) -> None:
    rows = [(word, number) for word in ("cat", "dog", None) for number in range(3)]
    made = builder(MemoryTransactionalSpout([rows * 2, rows], "word string, number long", 100), parallelism=2)
    keep(made, 4).fields_grouping("spout", *fields)
    tasks = kept(made.build())
    assert sorted(map(str, (row for part in tasks for row in part))) == sorted(map(str, rows * 3))
    keys = [{row[: len(fields)] if fields == ("word",) else row for row in part} for part in tasks]
    assert sum(map(len, keys)) == len(set().union(*keys))
    assert sum(map(bool, keys)) > 1


def test_all_tasks_get_every_tuple() -> None:
    made = numbers()
    keep(made, 3).all_grouping("spout")
    assert kept(made.build()) == NUMBERS * 3


def test_all_tuples_go_to_task_0() -> None:
    made = numbers([[(1,)], [(2,)]], parallelism=2)
    keep(made, 3).global_grouping("spout")
    assert kept(made.build()) == [[(1,), (2,)], [], []]


def test_a_bolt_with_several_inputs_knows_where_a_tuple_is_from() -> None:
    made = builder(words([[("cat",)]]))
    made.set_bolt("upper", Upper(), 2).shuffle_grouping("spout")
    keep(made).shuffle_grouping("spout").global_grouping("upper")
    topology = made.build()
    [instance] = instances(topology, processed(topology))
    assert sorted(zip(instance.rows, instance.sources, strict=True)) == [(("CAT",), "upper"), (("cat",), "spout")]


# --- lifecycle ----------------------------------------------------------------------------------------------------


class Logged(BatchBolt):
    """Notes every call with the instance that it was made to; emits one tuple in `finish_batch`."""

    output = "word string"
    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        self.calls.append((self, "prepare", self.name, context, attempt))

    def execute(self, tuple: Tuple) -> None:
        self.calls.append((self, "execute", self.name, tuple))

    def finish_batch(self) -> None:
        self.calls.append((self, "finish_batch", self.name))
        self.collector.emit(f"end of {self.name}")


@pytest.fixture
def calls() -> Iterator[list[tuple[Any, ...]]]:
    Logged.calls.clear()
    yield Logged.calls
    Logged.calls.clear()


def logged(spout: MemoryTransactionalSpout, parallelism: int = 1) -> Topology:
    made = builder(spout, parallelism=parallelism)
    made.set_bolt("first", Logged("first"), parallelism).shuffle_grouping("spout")
    made.set_bolt("second", Logged("second"), parallelism).shuffle_grouping("first")
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("second")
    return made.build(options={"limit": 3})


def test_a_batch_bolt_is_prepared_executed_and_finished_after_all_its_tuples(calls: list[tuple[Any, ...]]) -> None:
    """Storm row T6: `prepare` is told the attempt, tuples do not carry it."""
    processed(logged(words([[("cat",), ("dog",)]])))
    assert [call[1:3] for call in calls] == [
        ("prepare", "first"),
        ("prepare", "second"),
        ("execute", "first"),
        ("execute", "first"),
        ("finish_batch", "first"),
        ("execute", "second"),
        ("finish_batch", "second"),
    ]
    assert calls[0][3:] == (TopologyContext("words", "first", 0, 1, {"limit": 3}, None, {"second": 1}), FIRST)
    assert calls[2][3] == Tuple(("word",), ("cat",), "spout")
    assert calls[5][3] == Tuple(("word",), ("end of first",), "first")


def test_a_batch_without_tuples_is_prepared_and_finished_too(calls: list[tuple[Any, ...]]) -> None:
    """Storm row T12."""
    assert processed(logged(words([[]]))).counts == {"first": 0, "second": 1, "total": 1}
    assert [call[1] for call in calls if call[2] == "first"] == ["prepare", "finish_batch"]


def test_every_task_and_attempt_has_an_instance_of_its_own(calls: list[tuple[Any, ...]]) -> None:
    """Storm row T4."""
    topology = logged(words([[("cat",)], [("dog",)]]), parallelism=2)
    for attempt_id in (1, 2):
        processed(topology, attempt=TransactionAttempt(TxId(1), AttemptId(attempt_id)))
    prepared = [
        (call[0], call[3].task_index, call[4].attempt_id) for call in calls if call[1:3] == ("prepare", "first")
    ]
    assert sorted(each[1:] for each in prepared) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    prototype = topology.components[0].bolt
    assert len({id(instance) for instance, _, _ in prepared} | {id(prototype)}) == 5
    assert vars(prototype) == {"name": "first"}


class Tagged(BasicBolt):
    """Emits each word with a number that `prepare` has drawn once."""

    output = "word string, task long"
    prepared: ClassVar[int] = 0

    def prepare(self, context: TopologyContext) -> None:
        type(self).prepared += 1
        self.task = context.task_index

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if tuple["word"] != "apple":
            collector.emit(tuple["word"], self.task)


def test_a_basic_bolt_is_prepared_once_per_task() -> None:
    Tagged.prepared = 0
    made = builder(words([[("cat",), ("apple",)], [("dog",)]]), parallelism=2)
    made.set_bolt("tagged", Tagged(), 2).shuffle_grouping("spout")
    keep(made, 2).shuffle_grouping("tagged")
    assert kept(made.build()) == [[("cat", 0)], [("dog", 1)]]
    assert Tagged.prepared == 2


class Lengths(ArrowBatchBolt):
    """Emits each record batch's number of rows; at the end the number of all, as columns."""

    output = "length long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.rows = collector, 0

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        assert batch.schema.names == ["word"]
        self.collector.emit(batch.num_rows)
        self.rows += batch.num_rows

    def finish_batch(self) -> None:
        self.collector.emit_batch(pa.table({"length": pa.array([self.rows], pa.int32())}))

    def unfinished(self) -> int:
        """A method of its own, which bolts that follow messages have, too."""
        return self.rows


def test_an_arrow_batch_bolt_is_given_record_batches_and_may_emit_either_way() -> None:
    made = builder(words([[("cat",), ("dog",)], [("cat",)]]))
    made.set_bolt("lengths", Lengths(), 1).shuffle_grouping("spout")
    keep(made).shuffle_grouping("lengths")
    assert kept(made.build()) == [[(2,), (1,), (3,)]]


def test_many_tuples_travel_in_several_record_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "ROWS_PER_BATCH", 2)
    made = builder(words([[("a",), ("b",), ("c",), ("d",), ("e",)]], take=5))
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    made.set_bolt("lengths", Lengths()).shuffle_grouping("upper")
    keep(made).shuffle_grouping("lengths")
    assert kept(made.build()) == [[(2,), (2,), (1,), (5,)]]


def test_tuples_that_wait_are_nothing_that_garbage_collection_looks_through() -> None:
    """It took more than half of the time of bolts that emit many."""
    emitter = Emitter("split", {"default": Schema.parse("word string, count long")}, 0, [])
    gc.disable()
    try:
        before = gc.get_count()[0]
        for number in range(1_000):
            emitter.emit("cat", number)
        assert gc.get_count()[0] - before < 100
    finally:
        gc.enable()


# --- functions ----------------------------------------------------------------------------------------------------


def only_cats(row: Tuple) -> Any:
    return row if row["word"] == "cat" else None


def with_length(row: Tuple) -> Any:
    return row["word"], len(row["word"])


def letters(row: Tuple) -> Iterator[tuple[str]]:
    return ((letter,) for letter in row["word"])


def in_lists(row: Tuple) -> Any:
    return [[row["word"]], row, (row[0],)]


def filtered(batch: pa.RecordBatch) -> Any:
    return batch.filter(pa.compute.equal(batch.column("word"), "cat"))


@pytest.mark.parametrize(
    ("function", "output", "expected"),
    [
        (only_cats, "word string", [("cat",)]),
        (with_length, "word string, length int", [("cat", 3), ("dog", 3)]),
        (letters, "letter string", [(letter,) for letter in "catdog"]),
        (in_lists, "word string", [("cat",)] * 3 + [("dog",)] * 3),
        (filtered, "word string", [("cat",)]),
        (lambda row: None, "word string", []),
        (lambda row: [], "word string", []),
    ],
)
def test_functions(function: Callable[[Any], Any], output: str, expected: list[tuple[Any, ...]]) -> None:
    made = builder(words([[("cat",), ("dog",)]]))
    made.set_bolt("function", function, output=output).shuffle_grouping("spout")
    keep(made).shuffle_grouping("function")
    assert kept(made.build()) == [expected]


# --- failures -----------------------------------------------------------------------------------------------------


class Failing(BatchBolt):
    """Raises an error in one of its methods."""

    output = "word string"

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def _reach(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self._reach("prepare")

    def execute(self, tuple: Tuple) -> None:
        self._reach("execute")

    def finish_batch(self) -> None:
        self._reach("finish_batch")


def failing(bolt: Any, output: str | None = None) -> Topology:
    """A topology with the bolt in one of two tasks of a second stage."""
    made = builder(words([[("cat",)]]))
    made.set_bolt("bad", bolt, 2, output=output).fields_grouping("spout", "word")
    made.set_bolt("fused", Upper(), 2).shuffle_grouping("bad")
    made.set_committer_bolt("total", Total(), 2, state=total()).shuffle_grouping("fused")
    return made.build()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", ["prepare", "execute", "finish_batch"])
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("by zero"),
        SystemExit(3),
        KeyboardInterrupt("no"),
        CancelledError("late"),
        GeneratorExit("end"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_bolt_raises_fails_the_attempt_with_component_task_and_traceback(
    where: str, error: BaseException
) -> None:
    with pytest.raises(BoltFailed) as caught:
        processed(failing(Failing(where, error)))
    first, *rest = str(caught.value).splitlines()
    on = re.escape(""", on {"word": "cat"} from 'spout'""") if where == "execute" else ""
    place = rf"\({re.escape(os.path.relpath(__file__))}:\d+\)"
    assert re.fullmatch(rf"task [01] of 2: component 'bad' raised {type(error).__name__}: {error} {place}{on}", first)
    assert any("in _reach" in line for line in rest)
    assert rest[-2].endswith(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("kind", [FailedException, AttemptLost, SourceUnavailable])
def test_an_error_that_requests_a_replay_stays_what_it_is(kind: type[Exception]) -> None:
    """Storm row T7."""
    said = rf"^task \d of 2: component 'bad' raised {kind.__name__}: try again \(\S+test_operators\.py:\d+\)(, on .*)?$"
    with pytest.raises(kind, match=said):
        processed(failing(Failing("execute", kind("try again"))))


def test_no_bolt_can_stop_the_process() -> None:
    with pytest.raises(BoltFailed, match="component 'bad' raised Fenced: me too"):
        processed(failing(Failing("execute", Fenced("me too"))))


def test_a_bolt_that_can_not_be_made_fails_the_attempt() -> None:
    with pytest.raises(BoltFailed, match=r"component 'bad' raised RuntimeError: not here"):
        processed(failing(Unloadable()))


class Unloadable(Upper):
    """Can be sent, but not be made again."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("not here")


@pytest.mark.parametrize(
    ("function", "output", "expected"),
    [
        (with_length, "word string", r"'bad' declares the fields \['word'\] and emitted 2 values: emit one for"),
        (
            with_length,
            "word string, length string",
            "'bad' declares field 'length' as string and emitted some",
        ),
        (lambda row: "cat", "word string", "'bad' must return a tuple, an iterable of tuples, or None; got 'cat'"),
        (lambda row: ["cat"], "word string", "'bad' must return a tuple, an iterable of tuples, or None; got 'cat'"),
        (lambda row: {"word": 1}, "word string", "'bad' must return a tuple, an iterable of tuples, or None; got {"),
        (lambda row: 3, "word string", "'bad' must return a tuple, an iterable of tuples, or None; got 3"),
        (filtered, "wrod string", r"'bad' declares the fields \['wrod'\] and emitted \['word'\]"),
    ],
)
def test_what_does_not_fit_the_declared_fields_fails_the_attempt(
    function: Callable[[Any], Any], output: str, expected: str
) -> None:
    with pytest.raises(BoltFailed, match=rf"^task \d of 2: {expected}"):
        processed(failing(function, output))


class Swallowing(BatchBolt):
    """Catches every exception around `emit`, as a bolt that passes over bad records would."""

    output = "word string"

    def __init__(self, *emitted: tuple[Any, ...]) -> None:
        self.emitted = emitted

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None: ...

    def finish_batch(self) -> None:
        for values in self.emitted:
            try:
                self.collector.emit(*values)
            except Exception:
                continue


@pytest.mark.parametrize("emitted", [[("a", "b")], [(1,)], [("right",), (1,)]])
def test_a_bolt_can_not_swallow_what_is_wrong_with_what_it_emits(
    emitted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitting, "ROWS_PER_BATCH", 1)
    with pytest.raises(BoltFailed, match="'bad' declares"):
        processed(failing(Swallowing(*emitted)))


def test_a_bolt_can_not_swallow_the_failure_of_a_bolt_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "ROWS_PER_BATCH", 1)
    made = builder(words([[("cat",)]]))
    made.set_bolt("swallowing", Swallowing(("a",))).shuffle_grouping("spout")
    made.set_bolt("bad", Failing("execute", ValueError("no"))).shuffle_grouping("swallowing")
    made.set_committer_bolt("total", Total(), state=total()).shuffle_grouping("bad")
    with pytest.raises(BoltFailed, match="component 'bad' raised ValueError: no"):
        processed(made.build())


def test_a_range_that_can_not_be_read_names_the_spout() -> None:
    topology = logged(words([[("cat",)]]))
    beyond = {PartitionId("memory", 0): OffsetRange(Offset(0), Offset(3))}
    with pytest.raises(
        Exception, match=r"^task 0 of 1: component 'spout' raised ReplayMismatch: memory\[0\] should be"
    ):
        processed(topology, type(EMPTY_BATCH)(beyond))


class Refusing(TableAggregator):
    """Aggregates nothing."""

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        raise ValueError("too large")


class RefusingUpdate(StateUpdate):
    def aggregator(self) -> TableAggregator:
        return Refusing(self.state.key, self.state.values, ())


def test_an_update_that_fails_names_the_committer_and_the_tuple() -> None:
    made = numbers([[(1,)]])
    made.set_committer_bolt("sum", RefusingUpdate(MemoryMapState(()), {"count": Count()})).global_grouping("spout")
    says = (
        r"^task 0 of 1: component 'sum' raised ValueError: too large \(.*\), on {\"number\": 1} from 'spout', in memory"
    )
    with pytest.raises(BoltFailed, match=says):
        processed(made.build())
