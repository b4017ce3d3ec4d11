"""What a bolt puts into its state and the state refuses names the tuples that it was made of: they are set aside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from state.rows.value_limits import ValueLimits
from tests.unit.attempts import FIRST
from tests.unit.fakes import stored
from tests.unit.poisoned import found, run, try_again
from transactional import StatefulBolt, TransactionalTopologyBuilder
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import RetriesExhausted
from transactional.model.arrow import from_ipc
from transactional.model.letters import Exclusion
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.processing.tasks import run_dataframe_task
from transactional.runtime.tasks.items import Item, PartialAggregates, SetAside, TaskFailure
from transactional.runtime.tasks.program import AttemptInput, TaskProgram, make_program

HUGE = 10**30
ROWS = [[("cat", 1), ("dog", 2), ("huge", 3), ("cat", 4)], [("a\0b", 5), ("owl", 6), ("huge", 7)]]


class WithoutZeroBytes(MemoryMapState):
    """Refuses text that some databases refuse."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self.declared.value_limits = ValueLimits(self.declared.table, zero_bytes=False)

    def put(self, attempt: Any, rows: Any) -> None:
        self.declared.check_rows(rows)  # as a database does, which has no need to look at it before
        super().put(attempt, rows)


def amount(row: Tuple) -> int:
    """What no column takes, of some words."""
    return HUGE if row.word == "huge" else int(row.amount)


class Counts(StatefulBolt):
    """Adds up as it goes."""

    output = "word string"

    def init_state(self, state: Any) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        self.counts.put(tuple.word, self.counts.get(tuple.word, 0) + amount(tuple))
        self.collector.emit(tuple.word)


class AtTheEnd(BatchBolt):
    """Adds up, and puts when its batch ends."""

    output = "word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: Any) -> None:
        self.state, self.sums = context.state, Counter[str]()

    def execute(self, tuple: Tuple) -> None:
        self.sums[tuple.word] += amount(tuple)

    def finish_batch(self) -> None:
        assert self.state is not None
        for word, more in self.sums.items():
            self.state.put(word, (self.state.get(word) or 0) + more)


class Relay(BasicBolt):
    """Makes other tuples of the spout's, in a task of its own."""

    output = "word string, amount long"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple.word, tuple.amount)


def counting(
    bolt: Any, rows: Any = ROWS, *, parallelism: int = 1, relayed: bool = False, passed: bool = False
) -> tuple[TransactionalTopologyBuilder, MemoryTable, MemoryTable]:
    spout = OpaqueMemoryTransactionalSpout(rows, "word string, amount long", 10)
    made = TransactionalTopologyBuilder("words", "spout", spout, 2)
    table, letters, source = MemoryTable("sums"), MemoryTable("letters"), "spout"
    if relayed:
        made.set_bolt("relay", Relay(), 2).shuffle_grouping("spout")
        source = "relay"
    if passed:
        seen = MemoryMapState("word string", "seen long", table=MemoryTable("seen"))
        made.set_stateful_bolt("relay", CommitExchange(), 2, state=seen).fields_grouping("spout", "word")
        source = "relay"
    state = WithoutZeroBytes("word string", "sum long", table=table)
    add = made.set_stateful_bolt if isinstance(bolt, StatefulBolt) else made.set_committer_bolt
    add("sums", bolt, parallelism, state=state).fields_grouping(source, "word")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=letters))
    return made, table, letters


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("bolt", [Counts(), AtTheEnd()], ids=["stateful bolt", "finish_batch"])
def test_tuples_whose_values_a_state_refuses_are_set_aside(
    bolt: Any, parallelism: int, *, relayed: bool, tmp_path: Path
) -> None:
    made, table, letters = counting(bolt, parallelism=parallelism, relayed=relayed)
    assert run(made, tmp_path).failures == 2, "two attempts, each of which names all"
    assert stored(table) == {"cat": 5, "dog": 2, "owl": 6}
    where = ("sums", "relay" if relayed else "spout", "default")
    assert found(letters) == [(1, *where, "a\0b"), (1, *where, "huge"), (1, *where, "huge")]
    errors = {row.value[4] for row in letters.rows.values()}
    assert any("can't store the value in column 'word'" in error for error in errors)


class CommitExchange(StatefulBolt):
    """Passes its tuples on in the commit phase."""

    output = "word string, amount long"

    def init_state(self, state: Any) -> None:
        self.seen = state

    def execute(self, tuple: Tuple) -> None:
        self.seen.put(tuple.word, 1)
        self.collector.emit(tuple.word, tuple.amount)


@pytest.mark.parametrize("behind", ["the spout", "a task", "a step"])
@pytest.mark.parametrize("bolt", [Counts(), AtTheEnd()], ids=["stateful bolt", "finish_batch"])
def test_so_are_those_of_a_step_that_runs_as_a_job(bolt: Any, behind: str, tmp_path: Path) -> None:
    rows = [[(word, amount) for word, amount in part if word.isalpha()] for part in ROWS]
    made, table, letters = counting(bolt, rows, parallelism=3, relayed=behind == "a task", passed=behind == "a step")
    assert run(made, tmp_path, commit_steps="jobs").failures == 2, "two attempts, each of which names all"
    assert stored(table) == {"cat": 5, "dog": 2, "owl": 6}
    where = ("sums", {"the spout": "spout"}.get(behind, "relay"), "default")
    assert found(letters) == [(1, *where, "huge"), (1, *where, "huge")]


def test_what_was_set_aside_is_counted_when_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, table, letters = counting(AtTheEnd())
    run(made, tmp_path)
    monkeypatch.setitem(globals(), "HUGE", 100)
    again = [key for key, row in letters.rows.items() if '"huge"' in row.value[3]]
    try_again(made.build(), tmp_path, again)
    assert stored(table)["huge"] == 200


class TooMuchTogether(AtTheEnd):
    """Each tuple is fine, their sum is not."""

    def execute(self, tuple: Tuple) -> None:
        self.sums["all"] += 2**62


def test_what_no_single_tuple_is_the_cause_of_stops(tmp_path: Path) -> None:
    made, table, letters = counting(TooMuchTogether())
    with pytest.raises(RetriesExhausted, match="transaction 1 failed 2 times"):
        run(made, tmp_path)
    assert (table.rows, letters.rows) == ({}, {})


CALLS = list[int]()


class Hooked(Counts):
    """Notes when its state is about to be written."""

    def pre_prepare(self, txid: int) -> None:
        CALLS.append(txid)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_hooks_are_called_once_though_tuples_are_looked_at_again(parallelism: int, tmp_path: Path) -> None:
    """Also in a task whose tuples are fine, and which is looked at again for another one's."""
    CALLS.clear()
    made, _, _ = counting(Hooked(), parallelism=parallelism)
    assert run(made, tmp_path).failures == 2
    assert [1] * 3 * parallelism == CALLS, "once in each attempt"


# --- a DataFrame bolt in front of an update -----------------------------------------------------------------------


def of_a_frame(words: DataFrame) -> DataFrame:  # type: ignore[name-defined]  # noqa: F821 - Spark's, which computes it
    return words


def behind_a_frame(letters: MemoryTable | None) -> TaskProgram:
    spout = OpaqueMemoryTransactionalSpout([[("cat",)]], "word string", 10)
    made = TransactionalTopologyBuilder("words", "spout", spout)
    made.set_bolt("frame", of_a_frame, output="word string").shuffle_grouping("spout")
    made.set_committer_bolt("counts", WithoutZeroBytes("word").count()).shuffle_grouping("frame")
    if letters is not None:
        made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=letters))
    topology = made.build()
    return make_program(topology, topology.spout.reader())


def computed(program: TaskProgram, *words: str, excluded: tuple[Exclusion, ...] = ()) -> list[Item]:
    """What a task makes of what Spark has computed, which comes once."""
    [stage] = [each for each in program.plan.stages if each.is_dataframe]
    batches = (pa.record_batch([[word]], schema=pa.schema([("word", pa.string())])) for word in words)
    return list(run_dataframe_task(program, AttemptInput(FIRST, ((),), excluded=excluded), stage, 0, batches))


def test_what_a_state_refuses_of_a_frame_is_set_aside() -> None:
    program = behind_a_frame(MemoryTable("letters"))
    [failure] = [each for each in computed(program, "cat", "a\0b", "dog", "\0") if isinstance(each, TaskFailure)]
    assert [each.component for each in failure.at_fault] == ["counts", "counts"]
    items = computed(program, "cat", "a\0b", "dog", "\0", excluded=failure.at_fault)
    assert sorted(each.letter.tuple for each in items if isinstance(each, SetAside)) == [
        '{"word": "\\u0000"}',
        '{"word": "a\\u0000b"}',
    ]
    [partial] = [each for each in items if isinstance(each, PartialAggregates)]
    assert sorted(row["word"] for batch in from_ipc(partial.data) for row in batch.to_pylist()) == ["cat", "dog"]


def test_without_dead_letters_nothing_of_a_frame_is_kept() -> None:
    [failure] = [each for each in computed(behind_a_frame(None), "cat", "a\0b") if isinstance(each, TaskFailure)]
    assert failure.at_fault == ()
