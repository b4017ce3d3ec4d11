"""Steps of the commit phase as jobs: the same tables and the same emissions as in the driver, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from examples.stateful_words import WordCount
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.staging import STAGED_FOLDER
from state.memory import MemoryMapState, MemoryTable
from tests.contract.states import content
from tests.unit.fakes import builder, counts, opaque_words, stored
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports import State
from transactional.errors import BoltFailed, Fenced, TableConflict, TuplesLost, WorkerDied
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.facts import BatchFacts
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit import executor_choice
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.topology import Topology

ROWS = [(f"w{number * 7 % 40}",) for number in range(300)]


class Total(WordCount):
    """Also counts all words, under a key that is of one task at most."""

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.counts.put("all", self.counts.get("all", 0) + 1)


class Writing(WordCount):
    """As `Total`, without a look at what was there."""

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.counts.put("all", 1)


class Peeking(WordCount):
    """Looks at a key that is of one task at most, and writes none but its own."""

    def execute(self, tuple: Tuple) -> None:
        super().execute(tuple)
        self.counts.get("all")


class Listing(WordCount):
    """Reads everything."""

    def pre_prepare(self, txid: int) -> None:
        list(self.counts.items())


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def counting(bolt: StatefulBolt, state: State, changes: MemoryTable | None = None) -> Topology:
    """A stateful bolt over three tasks, with an update behind it."""
    made = builder(opaque_words([ROWS[:150], ROWS[150:]], take=50), parallelism=2)
    made.set_stateful_bolt("count", bolt, 3, state=state).fields_grouping("spout", "word")
    update = MemoryMapState("word", table=changes or MemoryTable("changes")).count("changes")
    made.set_committer_bolt("changes", update).fields_grouping("count", "word")
    return opened(made.build(strict=True))


def opened(topology: Topology) -> Topology:
    """Opened for attempts whose id is ten times the txid and something."""
    for component in topology.committers:
        assert component.state is not None
        component.state.open(f"words/{component.id}", lambda attempt_id: TxId(attempt_id // 10))
    return topology


def live_files(state: DeltaMapState) -> list[str]:
    return [str(path) for path in pa.table(DeltaTable(state.location.uri).get_add_actions())["path"].to_pylist()]


def run(topology: Topology, choice: str, transactions: int = 3) -> list[Any]:
    """Run transactions; what was emitted, in order."""
    seen: list[Any] = []
    record = lambda *told: seen.extend((told[1], *row.values()) for row in told[3].to_pylist())  # noqa: E731
    executor = LocalExecutor(topology, record=record)
    executor.open()
    phase = CommitPhase(topology, record=record, jobs=executor, choice=choice)
    for txid in range(1, transactions + 1):
        ranges = {PartitionId("memory", n): OffsetRange(Offset(50 * (txid - 1)), Offset(50 * txid)) for n in (0, 1)}
        report = phase.run(attempt(txid, 10 * txid), executor.run(attempt(txid, 10 * txid), BatchMetadata(ranges)))
        assert report.steps["count"].startswith("job") == (choice == "jobs")
    return seen


def log(folder: Path) -> DeltaMapState:
    return DeltaMapState(folder, "word string", "count long", layout=LogLayout(staged_bytes=0))


def test_a_job_leaves_the_same_and_emits_the_same(tmp_path: Path) -> None:
    tables = [MemoryTable("driver"), MemoryTable("jobs")]
    changes = [MemoryTable("changes"), MemoryTable("changes")]
    told = [
        run(counting(WordCount(), counts(table), changed), choice)
        for table, changed, choice in zip(tables, changes, ("driver", "jobs"), strict=True)
    ]
    assert told[0] == told[1]
    assert stored(tables[0]) == stored(tables[1]) == Counter(word for (word,) in ROWS)
    assert stored(changes[0]) == stored(changes[1])
    state = log(tmp_path / "t")
    assert run(counting(WordCount(), state), "jobs") == told[0]
    assert content(state) == stored(tables[0])


class ByHand(BatchBolt):
    """A committer with code of its own: counts its words in `finish_batch`, and emits what it has put."""

    output = "word string, count long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.state, self.collector, self.words = context.state, collector, Counter[str]()

    def execute(self, tuple: Tuple) -> None:
        self.words[tuple.word] += 1

    def finish_batch(self) -> None:
        assert self.state is not None
        for word, number in self.words.items():
            count = (self.state.get(word) or 0) + number
            self.state.put(word, count)
            self.collector.emit(word, count)


def by_hand(state: State, highest: State) -> Topology:
    """A committer with code, a bolt behind it, and an update behind that: two steps that may be jobs."""
    made = builder(opaque_words([ROWS[:150], ROWS[150:]], take=50), parallelism=2)
    made.set_committer_bolt("count", ByHand(), 3, state=state).fields_grouping("spout", "word")
    made.set_bolt("behind", Behind(), 2).shuffle_grouping("count")
    made.set_committer_bolt("highest", highest.max("count")).fields_grouping("behind", "word")  # type: ignore[attr-defined]
    return opened(made.build(strict=True))


class Dated(BasicBolt):
    """A bolt that emits when its batch was planned."""

    output = "word string, count long"

    def prepare(self, context: TopologyContext) -> None:
        self.context = context

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        assert self.context.batch is not None
        self.context.metrics.counter("dated").increment()
        collector.emit(tuple.word, self.context.batch.time_ms)


class DatedWords(WordCount):
    """The same of a stateful bolt."""

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(context, collector)
        self.context = context

    def execute(self, tuple: Tuple) -> None:
        assert self.context.batch is not None
        self.counts.put(tuple.word, self.context.batch.time_ms)
        self.collector.emit(tuple.word, 1)


@pytest.mark.parametrize("choice", ["driver", "jobs"])
def test_every_step_knows_its_batch_wherever_it_runs(choice: str) -> None:
    table, latest = MemoryTable("counts"), MemoryMapState("word", table=MemoryTable("latest"))
    made = builder(opaque_words([ROWS[:150], ROWS[150:]], take=50), parallelism=2)
    made.set_stateful_bolt("count", DatedWords(), 3, state=counts(table)).fields_grouping("spout", "word")
    made.set_bolt("dated", Dated(), 2).shuffle_grouping("count")
    made.set_committer_bolt("latest", latest.max("count")).fields_grouping("dated", "word")
    topology = opened(made.build(strict=True))
    executor = LocalExecutor(topology)
    executor.open()
    phase = CommitPhase(topology, jobs=executor, choice=choice)
    batch = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(0), Offset(50))}, facts=BatchFacts(1_234))
    report = phase.run(attempt(1, 10), executor.run(attempt(1, 10), batch))
    assert [report.steps[name].startswith("job") for name in ("count", "dated")] == [choice == "jobs"] * 2
    assert set(stored(table).values()) == set(stored(latest.stored).values()) == {1_234}
    assert report.counters == {("dated", "dated"): 50}


class Behind(BasicBolt):
    """A bolt without a state, behind a committer."""

    output = "word string, count long"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple.word.upper(), tuple["count"])


def test_a_committer_with_code_and_the_bolt_behind_it_may_be_jobs(tmp_path: Path) -> None:
    told = []
    for choice in ("driver", "jobs"):
        state = log(tmp_path / choice)
        highest = MemoryMapState("word", table=MemoryTable(choice))
        told.append((run(by_hand(state, highest), choice), content(state), stored(highest.stored)))
    assert told[0] == told[1]
    assert told[0][1] == Counter(word for (word,) in ROWS)
    assert told[0][2] == {word.upper(): count for word, count in told[0][1].items()}
    left = {path.suffix for path in (tmp_path / "jobs" / STAGED_FOLDER).iterdir()}
    assert left == {".parquet"}, "what was for one attempt only, pickled bolts among it, is gone"


def test_a_replay_reexecutors_what_a_dead_attempt_has_staged(tmp_path: Path) -> None:
    state = log(tmp_path / "t")
    topology = counting(WordCount(), state)
    executor = LocalExecutor(topology)
    executor.open()
    for attempt_id, until in ((11, 50), (12, 20), (13, 30)):
        phase = CommitPhase(topology, jobs=executor, choice="jobs")
        batch = BatchMetadata({PartitionId("memory", 0): OffsetRange(Offset(0), Offset(until))})
        phase.run(attempt(1, attempt_id), executor.run(attempt(1, attempt_id), batch))
    assert content(state) == Counter(word for (word,) in ROWS[:30])


# --- an executor that does what Spark may do, and what it must not ---------------------------------------------------


class Executor(LocalExecutor):
    """Changes what tasks answer."""

    def __init__(self, topology: Topology, change: Callable[[Executor, StepWork], list[StepAnswer]]) -> None:
        super().__init__(topology)
        self._change = change
        self.open()

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        return self._change(self, work)

    def as_it_is(self, work: StepWork) -> list[StepAnswer]:
        return super().run_step(work)


def first_batch(topology: Topology, executor: LocalExecutor, choice: str = "jobs", attempt_id: int = 10) -> CommitPhase:
    """Run one transaction."""
    phase = CommitPhase(topology, jobs=executor, choice=choice)
    batch = BatchMetadata({PartitionId("memory", n): OffsetRange(Offset(0), Offset(150)) for n in (0, 1)})
    phase.run(attempt(1, attempt_id), executor.run(attempt(1, attempt_id), batch))
    return phase


def test_a_second_run_of_a_task_counts_once(tmp_path: Path) -> None:
    state = log(tmp_path / "t")

    def twice(executor: Executor, work: StepWork) -> list[StepAnswer]:
        first, second = executor.as_it_is(work), executor.as_it_is(work)
        return [first[0], second[1], first[2]]

    topology = counting(WordCount(), state)
    first_batch(topology, Executor(topology, twice))
    assert content(state) == Counter(word for (word,) in ROWS)
    assert len(live_files(state)) == 3
    assert len(list((tmp_path / "t" / STAGED_FOLDER).glob("*.parquet"))) == 6, "the others' files are nobody's"


def died(executor: Executor, work: StepWork) -> list[StepAnswer]:
    raise WorkerDied("worker process 7 was ended by SIGSEGV in step 'count'")


def test_after_a_process_has_died_of_it_a_step_stays_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = counting(WordCount(), log(tmp_path / "t"))
    executor = Executor(topology, died)
    phase = CommitPhase(topology, jobs=executor, choice="auto")
    [step] = [each for each in phase.steps if not each.plan.driver_reason]
    batch = BatchMetadata({PartitionId("memory", n): OffsetRange(Offset(0), Offset(150)) for n in (0, 1)})
    processed = executor.run(attempt(1, 10), batch)
    with monkeypatch.context() as patch:
        patch.setattr(executor_choice, "DRIVER_BYTES_MAX", 0)
        with pytest.raises(WorkerDied):
            phase.run(attempt(1, 10), processed)
    assert phase.context.executor_chooser.choose(step.plan, 1, 0).is_job


def both(executor: Executor, work: StepWork) -> list[StepAnswer]:
    return [*executor.as_it_is(work), executor.as_it_is(work)[0]]


def one_more(executor: Executor, work: StepWork) -> list[StepAnswer]:
    return [*executor.as_it_is(work), StepAnswer(0, 0)]


def one_lost(executor: Executor, work: StepWork) -> list[StepAnswer]:
    return executor.as_it_is(work)[1:]


def tuples_lost(executor: Executor, work: StepWork) -> list[StepAnswer]:
    less = replace(work.inputs[0], waiting=work.inputs[0].waiting[1:])
    return executor.as_it_is(replace(work, inputs=(less, *work.inputs[1:])))


def tuples_twice(executor: Executor, work: StepWork) -> list[StepAnswer]:
    more = replace(work.inputs[0], waiting=(*work.inputs[0].waiting, work.inputs[0].waiting[0]))
    return executor.as_it_is(replace(work, inputs=(more, *work.inputs[1:])))


@pytest.mark.parametrize("change", [both, one_more, one_lost, tuples_lost, tuples_twice])
def test_what_was_lost_or_came_twice_fails_the_attempt(change: Any, tmp_path: Path) -> None:
    state = log(tmp_path / "t")
    topology = counting(WordCount(), state)
    with pytest.raises(TuplesLost, match=r"step 'count', which writes the state \S+t' "):
        first_batch(topology, Executor(topology, change))
    assert content(state) == {}


@pytest.mark.parametrize("layout", [LogLayout(staged_bytes=0), "merge"])
def test_tasks_read_the_version_that_the_driver_has_checked(layout: LogLayout | str, tmp_path: Path) -> None:
    """Whatever was written and compacted since."""
    state = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
    topology = counting(WordCount(), state)
    first_batch(topology, Executor(topology, Executor.as_it_is))
    task_state = state.parts.tasks.for_tasks(attempt(2, 20))
    assert task_state is not None
    other = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
    other.open("words/count", lambda attempt_id: TxId(attempt_id // 10))
    for txid in (2, 3):
        other.put(attempt(txid, 10 * txid + 1), {("w7",): (1_000 * txid,)})
    other.compact()
    assert task_state.get([("w7",), ("none",)]) == {("w7",): (Counter(word for (word,) in ROWS)["w7"],)}


def test_a_commit_is_refused_if_the_table_has_moved(tmp_path: Path) -> None:
    state = log(tmp_path / "t")

    def overtaken(executor: Executor, work: StepWork) -> list[StepAnswer]:
        other = log(tmp_path / "t")
        other.open("words/count", lambda attempt_id: TxId(attempt_id // 10))
        other.put(attempt(1, 9), {("w7",): (1_000,)})
        return executor.as_it_is(work)

    topology = counting(WordCount(), state)
    with pytest.raises(TableConflict, match="was at version None"):
        first_batch(topology, Executor(topology, overtaken))
    assert content(state) == {"w7": 1_000}


def test_a_zombie_that_has_staged_commits_nothing(tmp_path: Path) -> None:
    state = log(tmp_path / "t")

    def taken_over(executor: Executor, work: StepWork) -> list[StepAnswer]:
        done = executor.as_it_is(work)
        other = log(tmp_path / "t")
        other.open("words/count", lambda attempt_id: TxId(attempt_id // 10))
        other.version()
        other.fence(AttemptId(19))
        return done

    topology = counting(WordCount(), state)
    with pytest.raises(Fenced):
        first_batch(topology, Executor(topology, taken_over))
    assert content(state) == {}


# --- what only the driver can do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bolt", "named"),
    [(Total(), "'all'"), (Writing(), "'all'"), (Peeking(), "'all'"), (Listing(), "items()")],
)
def test_what_only_the_driver_can_do_is_refused_and_named(bolt: StatefulBolt, named: str) -> None:
    with pytest.raises(BoltFailed) as raised:
        run(counting(bolt, counts(MemoryTable("t"))), "jobs")
    assert named in str(raised.value)
    assert "'count'" in str(raised.value)


def test_a_bolt_that_needs_the_driver_gets_it_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_choice, "DRIVER_BYTES_MAX", -1)
    table = MemoryTable("t")
    topology = counting(Total(), counts(table))
    executor = Executor(topology, Executor.as_it_is)
    phase = CommitPhase(topology, jobs=executor)
    batch = BatchMetadata({PartitionId("memory", n): OffsetRange(Offset(0), Offset(150)) for n in (0, 1)})
    with pytest.raises(BoltFailed, match="'all'"):
        phase.run(attempt(1, 10), executor.run(attempt(1, 10), batch))
    report = phase.run(attempt(1, 11), executor.run(attempt(1, 11), batch))
    assert stored(table) == {**Counter(word for (word,) in ROWS), "all": len(ROWS)}
    assert "keys of its state that belong to other tasks, as 'all'" in report.steps["count"]


@pytest.mark.parametrize(
    ("bolt", "why"),
    [
        (WordCount(), ""),
        (Total(), "keys of its state that its tuples do not have, as 'all'"),
        (Writing(), "keys of its state that its tuples do not have, as 'all'"),
        (Listing(), "it reads all keys"),
    ],
)
def test_what_a_bolt_has_used_in_the_driver_is_known_before_it_would_be_a_job(
    bolt: StatefulBolt, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no attempt has to fail for it."""
    topology = counting(bolt, counts(MemoryTable("t")))
    executor = Executor(topology, Executor.as_it_is)
    phase, executors = CommitPhase(topology, jobs=executor), list[str]()
    for txid in (1, 2):
        ranges = {PartitionId("memory", 0): OffsetRange(Offset(50 * (txid - 1)), Offset(50 * txid))}
        report = phase.run(attempt(txid, 10 * txid), executor.run(attempt(txid, 10 * txid), BatchMetadata(ranges)))
        executors.append(report.steps["count"])
        monkeypatch.setattr(executor_choice, "DRIVER_BYTES_MAX", -1)
    assert executors[1].startswith("driver" if why else "job")
    assert why in executors[1]
