"""In which phase bolts work, for shapes drawn as text; and what bolts behind committers get, emit and leave behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from state.memory import MemoryMapState, MemoryTable
from tests.unit.attempts import FIRST, processed
from tests.unit.fakes import Upper, builder, stored, words
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports import StateKind
from transactional.errors import BoltFailed, TableConflict
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit.committing import CommitPhase
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.stages import plan_stages
from transactional.topology.topology import Topology

WORD = "word string"
PROCESSING, BOTH, COMMIT = "processing", "processing + commit", "commit"


class Passing(BatchBolt):
    """Emits its tuples in `finish_batch`, marked with its name. As a committer it adds their number to its state."""

    output = WORD

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.context, self.collector = context, collector
        self.words: list[str] = []

    def execute(self, tuple: Tuple) -> None:
        self.words.append(tuple["word"])

    def finish_batch(self) -> None:
        if self.context.state is not None:
            self.context.state.multi_update([()], lambda count: (count or 0) + len(self.words))
        for word in self.words:
            self.collector.emit(f"{word}>{self.name}")


class Counting(Passing):
    """A committer that keeps how often each word came, and emits the old and the new count (row E2)."""

    output = "word string, old long, new long"

    def finish_batch(self) -> None:
        assert self.context.state is not None
        for word in sorted(set(self.words)):
            old = self.context.state.get(word) or 0
            self.context.state.put(word, old + self.words.count(word))
            self.collector.emit(word, old, old + self.words.count(word))


def per_word(name: str, kind: StateKind = StateKind.OPAQUE) -> MemoryMapState:
    return MemoryMapState("word string", "count long", kind=kind, table=MemoryTable(name))


def in_all(name: str, kind: StateKind = StateKind.OPAQUE) -> MemoryMapState:
    return MemoryMapState((), "count long", kind=kind, table=MemoryTable(name))


def bolt(made: TransactionalTopologyBuilder, name: str, parallelism: int = 1) -> Any:
    return made.set_bolt(name, Passing(name), parallelism)


def committer(made: TransactionalTopologyBuilder, name: str, parallelism: int = 1, **more: Any) -> Any:
    return made.set_committer_bolt(name, Passing(name), parallelism, state=in_all(name, **more))


def update(made: TransactionalTopologyBuilder, name: str) -> Any:
    return made.set_committer_bolt(name, MemoryMapState("word", table=MemoryTable(name)).count())


def opened(topology: Topology) -> dict[str, MemoryTable]:
    """Open the states, for attempts whose id is ten times the txid and something; their tables."""
    for component in topology.committers:
        assert isinstance(component.state, MemoryMapState)
        component.state.open(f"words/{component.id}", lambda attempt_id: TxId(attempt_id // 10))
    return {c.id: c.state.stored for c in topology.committers if isinstance(c.state, MemoryMapState)}


def run(topology: Topology, txid: int = 1, attempt_id: int | None = None) -> None:
    attempt = TransactionAttempt(TxId(txid), AttemptId(10 * txid if attempt_id is None else attempt_id))
    CommitPhase(topology).run(attempt, processed(topology))


# --- shapes (seed 004, "Design 3": A, B (committer), C, D (committer); row T5) -------------------------------------


def a_committer_alone(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")


def a_chain_before(made: TransactionalTopologyBuilder) -> None:
    bolt(made, "A").shuffle_grouping("spout")
    committer(made, "B").shuffle_grouping("A")


def the_seeds_picture(made: TransactionalTopologyBuilder) -> None:
    bolt(made, "A").shuffle_grouping("spout")
    committer(made, "B").shuffle_grouping("A")
    bolt(made, "C", 2).shuffle_grouping("A").shuffle_grouping("B")
    committer(made, "D").shuffle_grouping("C")


def a_chain_behind(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")
    bolt(made, "C").shuffle_grouping("B")
    bolt(made, "E", 3).shuffle_grouping("C")
    update(made, "D").fields_grouping("E", "word")


def committers_in_a_row(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")
    committer(made, "D").global_grouping("B")
    committer(made, "F").global_grouping("D")


def two_committers_side_by_side(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")
    committer(made, "D").global_grouping("spout")
    bolt(made, "C").shuffle_grouping("B").shuffle_grouping("D")
    update(made, "F").fields_grouping("C", "word")


def an_update_with_a_branch(made: TransactionalTopologyBuilder) -> None:
    update(made, "B").fields_grouping("spout", "word")
    bolt(made, "A").shuffle_grouping("spout")
    committer(made, "D").global_grouping("A")


def joined_late(made: TransactionalTopologyBuilder) -> None:
    bolt(made, "A").shuffle_grouping("spout")
    committer(made, "B").global_grouping("A")
    committer(made, "D").global_grouping("A").global_grouping("B").global_grouping("spout")


def a_diamond_behind(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")
    bolt(made, "left").shuffle_grouping("B")
    bolt(made, "right", 2).all_grouping("B")
    committer(made, "D").global_grouping("left").global_grouping("right")


def late_and_early(made: TransactionalTopologyBuilder) -> None:
    bolt(made, "A").shuffle_grouping("spout")
    committer(made, "B").global_grouping("spout")
    bolt(made, "C").shuffle_grouping("B").shuffle_grouping("A")
    bolt(made, "E").shuffle_grouping("A")
    committer(made, "D").global_grouping("C").global_grouping("E")


def seen_by_nobody(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")
    bolt(made, "C").shuffle_grouping("B")


class Numbering(StatefulBolt):
    """Counts all words, and passes them on."""

    output = WORD

    def init_state(self, state: KeyValueState) -> None:
        self.kept = state

    def execute(self, tuple: Tuple) -> None:
        self.kept.put((), self.kept.get((), 0) + 1)
        self.collector.emit(tuple.word)


def stateful(made: TransactionalTopologyBuilder, name: str, parallelism: int = 1) -> Any:
    return made.set_stateful_bolt(name, Numbering(), parallelism, state=in_all(name))


def a_stateful_bolt_alone(made: TransactionalTopologyBuilder) -> None:
    stateful(made, "S", 3).shuffle_grouping("spout")


def a_stateful_bolt_in_between(made: TransactionalTopologyBuilder) -> None:
    bolt(made, "A").shuffle_grouping("spout")
    stateful(made, "S", 2).fields_grouping("A", "word")
    bolt(made, "C").shuffle_grouping("S")
    update(made, "D").fields_grouping("C", "word")


def stateful_bolts_in_a_row_and_a_committer_before(made: TransactionalTopologyBuilder) -> None:
    committer(made, "B").global_grouping("spout")
    stateful(made, "S").all_grouping("B").shuffle_grouping("spout")
    stateful(made, "T", 2).shuffle_grouping("S")
    committer(made, "D").global_grouping("T").global_grouping("spout")


SHAPES: list[tuple[Callable[[TransactionalTopologyBuilder], None], dict[str, str], int, dict[str, int]]] = [
    # declares the bolts, their phases, the levels of the Spark job, what each committer counts of 3 tuples
    (a_committer_alone, {"B": BOTH}, 2, {"B": 3}),
    (a_chain_before, {"A": PROCESSING, "B": BOTH}, 1, {"B": 3}),
    (the_seeds_picture, {"A": PROCESSING, "B": BOTH, "C": BOTH, "D": COMMIT}, 2, {"B": 3, "D": 6}),
    (a_chain_behind, {"B": BOTH, "C": COMMIT, "E": COMMIT, "D": COMMIT}, 2, {"B": 3, "D": 3}),
    (committers_in_a_row, {"B": BOTH, "D": COMMIT, "F": COMMIT}, 2, {"B": 3, "D": 3, "F": 3}),
    (two_committers_side_by_side, {"B": BOTH, "D": BOTH, "C": COMMIT, "F": COMMIT}, 2, {"B": 3, "D": 3, "F": 6}),
    (an_update_with_a_branch, {"B": BOTH, "A": PROCESSING, "D": BOTH}, 2, {"B": 3, "D": 3}),
    (joined_late, {"A": PROCESSING, "B": BOTH, "D": BOTH}, 2, {"B": 3, "D": 9}),
    (a_diamond_behind, {"B": BOTH, "left": COMMIT, "right": COMMIT, "D": COMMIT}, 2, {"B": 3, "D": 9}),
    (late_and_early, {"A": PROCESSING, "B": BOTH, "C": BOTH, "E": PROCESSING, "D": BOTH}, 2, {"B": 3, "D": 9}),
    (seen_by_nobody, {"B": BOTH, "C": COMMIT}, 2, {"B": 3}),
    (a_stateful_bolt_alone, {"S": COMMIT}, 1, {"S": 3}),
    (a_stateful_bolt_in_between, {"A": PROCESSING, "S": COMMIT, "C": COMMIT, "D": COMMIT}, 1, {"S": 3, "D": 3}),
    (
        stateful_bolts_in_a_row_and_a_committer_before,
        {"B": BOTH, "S": COMMIT, "T": COMMIT, "D": BOTH},
        2,
        {"B": 3, "S": 6, "T": 6, "D": 9},
    ),
]


@pytest.mark.parametrize(("declare", "phases", "depth", "counted"), SHAPES, ids=[shape[0].__name__ for shape in SHAPES])
def test_shapes(
    declare: Callable[[TransactionalTopologyBuilder], None],
    phases: dict[str, str],
    depth: int,
    counted: dict[str, int],
) -> None:
    made = builder(words([[("cat",), ("dog",), ("cat",)]]))
    declare(made)
    topology = made.build()
    plan = plan_stages(topology)
    assert {name: plan.phase_text(name) for name in plan.phases} == {"spout": PROCESSING, **phases}
    assert plan.depth == depth
    tables = opened(topology)
    for txid in (1, 2):
        run(topology, txid)
        assert {name: sum(stored(table).values()) for name, table in tables.items()} == {
            name: txid * count for name, count in counted.items()
        }
        assert {table.version for table in tables.values()} == {10 * txid}


# --- the seed's picture, tuple by tuple ------------------------------------------------------------------------------


def test_a_bolt_fed_by_a_committer_takes_other_tuples_in_the_processing_phase() -> None:
    made = builder(words([[("cat",)], [("dog",)]]), parallelism=2)
    the_seeds_picture(made)
    topology = made.build()
    part = processed(topology)
    assert set(part.parts) == {"B", "C"}
    assert part.counts == {"A": 2, "B": 2, "C": 2, "D": 0}, "C has had what A emits, and not yet what B will"
    tables = opened(topology)
    CommitPhase(topology).run(TransactionAttempt(TxId(1), AttemptId(10)), part)
    assert {name: stored(table) for name, table in tables.items()} == {"B": {(): 2}, "D": {(): 4}}


class Early(Passing):
    """Emits while tuples come, not only when the batch ends."""

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.collector.emit(f"{tuple['word']} early")


def test_what_is_emitted_early_for_a_late_bolt_waits_for_the_commit_phase() -> None:
    made = builder(words([[("cat",), ("dog",)]]))
    made.set_committer_bolt("B", Early("B"), state=in_all("B")).global_grouping("spout")
    committer(made, "D", 2).fields_grouping("B", "word")
    topology = made.build()
    part = processed(topology)
    late = [
        (tuples.target, tuples.source, tuples.stream, sum(b.num_rows for b in tuples.batches))
        for tuples in part.deferred
    ]
    assert sorted({tuples[:3] for tuples in late}) == [("D", "B", "default")]
    assert sum(tuples[3] for tuples in late) == 2
    tables = opened(topology)
    CommitPhase(topology).run(TransactionAttempt(TxId(1), AttemptId(10)), part)
    assert stored(tables["D"]) == {(): 4}


# --- crashes between two tables (rows T60, R24) ----------------------------------------------------------------------


def counted_twice(kind: StateKind = StateKind.OPAQUE) -> Topology:
    """Words are counted; behind it, how many words have which count is kept, by decrements and increments."""
    made = builder(words([[("cat",), ("dog",), ("cat",)]]))
    made.set_committer_bolt("counts", Counting("counts"), state=per_word("counts", kind)).global_grouping("spout")

    def bucketize(row: Tuple) -> list[tuple[str, int]]:
        return [(f"{row['old']}", -1), (f"{row['new']}", 1)]

    made.set_bolt("bucketize", bucketize, output="bucket string, step long").shuffle_grouping("counts")
    buckets = MemoryMapState("bucket", kind=kind, table=MemoryTable("buckets")).sum("step")
    made.set_committer_bolt("buckets", buckets).fields_grouping("bucketize", "bucket")
    return made.build()


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_a_crash_between_two_tables_leaves_no_trace(kind: StateKind, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = counted_twice(kind)
    tables = opened(topology)
    run(topology, 1)
    assert stored(tables["buckets"]) == {"0": -2, "1": 1, "2": 1}
    second = topology.committers[1].state
    with monkeypatch.context() as broken:

        def conflict(*_: Any) -> None:
            raise TableConflict("another writer came between")

        broken.setattr(type(second), "merge", conflict)
        with pytest.raises(TableConflict):
            run(topology, 2)
    assert (tables["counts"].version, tables["buckets"].version) == (20, 10)
    run(topology, 2, 21)
    assert stored(tables["counts"]) == {"cat": 4, "dog": 2}
    assert stored(tables["buckets"]) == {"0": -2, "1": 0, "2": 1, "4": 1}, "as if nothing had happened"


# --- kinds of bolt, streams, failures ---------------------------------------------------------------------------------


class Splitting(BasicBolt):
    """Short words go to a stream of their own; counts what it has seen of this batch."""

    output = WORD
    streams: ClassVar = {"short": "word string, length long", "chosen": WORD}

    def prepare(self, context: TopologyContext) -> None:
        self.tasks = context.subscribers

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        word = tuple["word"]
        if len(word) < 4:
            collector.emit(word, len(word), stream="short")
        else:
            collector.emit(word)
        for task in range(self.tasks["direct"]):
            collector.emit_direct("direct", task, f"{word} {task}", stream="chosen")


class Where(Passing):
    """Keeps which task got what, from where."""

    def execute(self, tuple: Tuple) -> None:
        self.words.append(f"{self.context.task_index}: {tuple['word']} of {tuple.source}/{tuple.stream}")

    def finish_batch(self) -> None:
        for line in self.words:
            self.collector.emit(line)


def lines(made: TransactionalTopologyBuilder, *sources: str) -> list[str]:
    """What arrives behind the given bolts, each line once per tuple."""
    for number, source in enumerate(sources):
        name = f"lines{number}"
        made.set_committer_bolt(name, MemoryMapState("word", table=MemoryTable(name)).count()).fields_grouping(
            source, "word"
        )
    topology = made.build()
    tables = opened(topology)
    run(topology)
    return sorted(
        line
        for name, table in tables.items()
        if name.startswith("lines")
        for line, n in stored(table).items()
        for _ in range(n)
    )


@pytest.mark.parametrize("behind", ["spout", "late"])
def test_streams_and_direct_tuples_reach_whom_they_are_for_in_either_phase(behind: str) -> None:
    made = builder(words([[("cat",), ("horse",)]]))
    if behind == "late":
        made.set_committer_bolt("late", Quoting(), state=in_all("late")).global_grouping("spout")
    made.set_bolt("split", Splitting()).shuffle_grouping(behind)
    made.set_bolt("both", Where("both")).shuffle_grouping("split").shuffle_grouping("split", stream="short")
    made.set_bolt("direct", Where("direct"), 2).direct_grouping("split", stream="chosen")
    assert lines(made, "both", "direct") == [
        "0: cat 0 of split/chosen",
        "0: cat of split/short",
        "0: horse 0 of split/chosen",
        "0: horse of split/default",
        "1: cat 1 of split/chosen",
        "1: horse 1 of split/chosen",
    ]


class Quoting(Passing):
    """A committer that emits its tuples as they are."""

    def __init__(self) -> None:
        super().__init__("late")

    def finish_batch(self) -> None:
        for word in self.words:
            self.collector.emit(word)


class Origins(ArrowBatchBolt):
    """Tells where its record batches are from."""

    output = WORD

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        from transactional.model.arrow import origin_of

        source, stream = origin_of(batch)
        for word in batch.column("word").to_pylist():
            self.collector.emit(f"{word} of {source}/{stream}")


def test_an_arrow_bolt_with_several_inputs_can_show_where_a_batch_is_from() -> None:
    made = builder(words([[("cat",)]]))
    made.set_bolt("upper", Upper()).shuffle_grouping("spout")
    made.set_committer_bolt("late", Quoting(), state=in_all("late")).global_grouping("spout")
    made.set_bolt("origins", Origins()).shuffle_grouping("spout").shuffle_grouping("upper").shuffle_grouping("late")
    assert lines(made, "origins") == ["CAT of upper/default", "cat of late/default", "cat of spout/default"]


def test_functions_work_behind_committers() -> None:
    def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"word": [f"{word}!" for word in batch.column("word").to_pylist()]})

    made = builder(words([[("cat",), ("dog",)]]))
    made.set_committer_bolt("late", Quoting(), state=in_all("late")).global_grouping("spout")
    made.set_bolt("exclaim", exclaim, 2, output=WORD).shuffle_grouping("late")
    assert lines(made, "exclaim") == ["cat!", "dog!"]


def test_a_failure_behind_a_committer_names_bolt_and_task() -> None:
    def broken(row: Tuple) -> tuple[str]:
        return (row["word"] + 1,)

    made = builder(words([[("cat",)]]))
    made.set_committer_bolt("late", Quoting(), state=in_all("late")).global_grouping("spout")
    made.set_bolt("broken", broken, 3, output=WORD).global_grouping("late")
    topology = made.build()
    opened(topology)
    with pytest.raises(BoltFailed, match=r"^task 0 of 3, in the commit phase: component 'broken' raised TypeError: "):
        CommitPhase(topology).run(FIRST, processed(topology))
