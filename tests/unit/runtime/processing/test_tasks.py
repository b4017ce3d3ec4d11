"""Tasks and the driver's end of them: what is dealt out, sent, counted, checked, and put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given, settings

from examples.stateful_words import WordCount
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.attempts import FIRST, everything, processed
from tests.unit.fakes import WORD_COUNTS, WORDS, Total, Upper, builder, counts, opaque_words, total, words
from tests.unit.shapes import topologies
from transactional.core.ports import Partials, PartitionReader, Processed
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import (
    AttemptLost,
    BoltFailed,
    ConfigError,
    FailedException,
    ReplayMismatch,
    SourceUnavailable,
    TuplesLost,
)
from transactional.model.arrow import from_ipc, to_ipc
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.groupings import GroupingKind
from transactional.model.letters import Exclusion
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.processing.gathering import gather
from transactional.runtime.processing.tasks import run_task
from transactional.runtime.tasks.items import (
    Item,
    TaskFailure,
    TaskReport,
    Tuples,
    TuplesToCommit,
    is_for_level,
    is_for_task,
)
from transactional.runtime.tasks.program import AttemptInput, NoReader, SpoutSpec, TaskProgram, make_program
from transactional.topology.topology import Topology


def partition(index: int) -> PartitionId:
    return PartitionId("memory", index)


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def spout_of(tasks: int) -> SpoutSpec:
    return SpoutSpec("spout", {}, tasks, NoReader(), with_checksum=False)


# --- input --------------------------------------------------------------------------------------------------------


def test_partitions_are_dealt_out_by_their_position_and_empty_ranges_left_out() -> None:
    """Storm row T22: task i has partitions i, i + P, …"""
    ranges = {partition(3): offsets(0, 2), partition(1): offsets(5, 5), partition(0): offsets(1, 4)}
    inputs = AttemptInput.of(FIRST, BatchMetadata(ranges), spout_of(2))
    first = (((*partition(0), 1, 4), None), ((*partition(3), 0, 2), None))
    assert inputs == AttemptInput(FIRST, (first, ()))


def test_a_partition_that_joins_may_move_others_but_is_dealt_once() -> None:
    for count in range(1, 6):
        batch = BatchMetadata({partition(index): offsets(0, 1) for index in range(count)})
        dealt = [
            PartitionId(*row[:2]) for task in AttemptInput.of(FIRST, batch, spout_of(3)).portions for row, _ in task
        ]
        assert sorted(dealt) == [partition(index) for index in range(count)]


# --- the program --------------------------------------------------------------------------------------------------


def test_states_and_the_drivers_side_of_the_spout_are_not_sent() -> None:
    made = builder(words())
    made.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("spout")
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("spout")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=MemoryTable("letters")))
    topology = made.build(options={"limit": 3})
    program = make_program(topology, topology.spout.reader())
    sent = cloudpickle.dumps(program)
    assert b"MemoryMapState" in cloudpickle.dumps(topology)
    assert not any(name in sent for name in (b"MemoryMapState", b"MemoryTable", type(topology.spout).__name__.encode()))
    assert [bolt.is_committer for bolt in program.bolts.values()] == [True, True]
    assert program.bolts["count"].bolt is None
    assert program.outputs_of("spout") == {"default": topology.spout.output}
    assert (program.spout.with_checksum, program.options) == (True, {"limit": 3})
    assert sorted(program.aggregators) == ["count"]


class Held(Upper):
    def __init__(self, held: object) -> None:
        self.held = held


def test_a_bolt_that_can_not_be_sent_is_reported_before_anything_runs() -> None:
    made = builder()
    made.set_bolt("held", Held(iter(()) for _ in WORDS)).shuffle_grouping("spout")
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("held")
    topology = made.build()
    with pytest.raises(
        ConfigError,
        match=r"^bolt 'held' \(Held, .*test_tasks\.py:\d+\) can't be sent to other processes: cannot pickle "
        r"'generator' object: it is `self\.held`; open connections, locks and the like in prepare$",
    ):
        LocalExecutor(topology)


def test_options_that_can_not_be_sent_are_reported() -> None:
    made = builder()
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("spout")
    topology = made.build(options={"lines": (row for row in WORDS)})
    with pytest.raises(ConfigError, match=r"^options of the topology can't be sent .*: it is `\['lines'\]`; "):
        LocalExecutor(topology)


def frame_bolt(frame: DataFrame) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - Spark is not needed here


def test_dataframe_bolts_need_spark() -> None:
    made = builder()
    made.set_bolt("frame", frame_bolt, output="word string").shuffle_grouping("spout")
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("frame")
    with pytest.raises(ConfigError, match=r"^bolt 'frame' works on a Spark DataFrame: run the topology with Spark"):
        LocalExecutor(made.build())


# --- what an attempt leaves behind ----------------------------------------------------------------------------------


def counted_words(spout: Any = None) -> Topology:
    """Words over an exchange to two tasks, counted per word and in all."""
    made = builder(spout or words(take=10), parallelism=2)
    made.set_bolt("upper", Upper(), 2).fields_grouping("spout", "word")
    made.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("upper", "word")
    made.set_committer_bolt("total", Total(), 2, state=total()).shuffle_grouping("upper")
    return made.build()


def test_an_attempt_leaves_counts_digests_partials_and_instances() -> None:
    made = processed(counted_words())
    assert made.counts == {"upper": 19, "total": 19}
    assert {p: digest.records for p, digest in made.digests.items()} == {
        partition(i): n for i, n in enumerate([6, 4, 9])
    }
    assert len(made.parts["total"]) == 2  # type: ignore[arg-type]
    partials = made.parts["count"]
    assert isinstance(partials, Partials)
    assert partials.combine == {"count": "sum"}
    assert partials.table is not None
    assert {row["word"].lower(): row["count"] for row in partials.table.to_pylist()} == WORD_COUNTS


def test_the_same_batch_has_the_same_digests_however_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before = processed(counted_words()).digests
    monkeypatch.setattr("spouts.memory._BATCH_ROWS_MAX", 2)
    assert processed(counted_words()).digests == before
    assert len({digest.checksum for digest in before.values()}) == 3


def test_an_opaque_spout_needs_no_checksums() -> None:
    digests = processed(counted_words(opaque_words(take=10))).digests
    assert {digest.checksum for digest in digests.values()} == {0}


def test_a_replay_that_reads_the_same_is_taken() -> None:
    topology = counted_words()
    batch = everything(topology)
    recorded = batch.with_digests(processed(topology, batch).digests)
    assert processed(topology, recorded).digests == recorded.digests


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (Digest(4, 7), r"read 4 records with checksum \d+, recorded were 4 with 7"),
        (Digest(3, 0), r"read 4 records with checksum \d+, recorded were 3 with 0"),
    ],
)
def test_a_replay_that_reads_something_else_is_refused(known: Digest, text: str) -> None:
    topology = counted_words()
    batch = everything(topology)
    digests = {**processed(topology, batch).digests, partition(1): known}
    with pytest.raises(
        ReplayMismatch, match=rf"^the replay of partition memory\[1\] \[0, 4\) {text}: the source does not"
    ):
        processed(topology, batch.with_digests(digests))


def test_a_partition_that_was_not_read_at_all_is_missed() -> None:
    topology = counted_words()
    batch = everything(topology)
    recorded = batch.with_digests(processed(topology, batch).digests)
    with pytest.raises(ReplayMismatch, match=r"memory\[2\] .* read 0 records with checksum 0, recorded were 9"):
        processed(topology, replace(recorded, ranges={**batch.ranges, partition(2): offsets(9, 9)}))


class OtherColumns(PartitionReader):
    """Reads the right values in another form: a spout's records are brought into their declared one."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Any:
        yield pa.RecordBatch.from_pydict({"word": pa.array([w for (w,) in WORDS[partition.index]], pa.large_string())})


def read_by(program: TaskProgram, reader: PartitionReader) -> TaskProgram:
    return replace(program, spout=replace(program.spout, reader=reader))


def test_what_a_reader_yields_is_brought_into_its_declared_form() -> None:
    topology = counted_words()
    executor = LocalExecutor(topology)
    executor.program = read_by(executor.program, OtherColumns())
    assert executor.run(FIRST, everything(topology)).digests == processed(topology).digests


@dataclass
class Expecting(OtherColumns):
    """Notes what is expected and what is read."""

    calls: list[Any] = field(default_factory=list)

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        self.calls.append(list(ranges))

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Any:
        self.calls.append((partition, offsets))
        return super().read(partition, offsets)


def test_a_task_says_what_it_is_going_to_read() -> None:
    """In the order in which it reads it."""
    topology = counted_words()
    executor, reader = LocalExecutor(topology), Expecting()
    executor.program = read_by(executor.program, reader)
    executor.run(FIRST, everything(topology))
    tasks = [call for call in reader.calls if isinstance(call, list)]
    assert len(tasks) == 2
    assert reader.calls == [each for task in tasks for each in (task, *task)]


# --- what is lost or doubled ----------------------------------------------------------------------------------------

Tamper = Callable[[list[Item]], list[Item]]


def run_tampered(topology: Topology, tamper: Tamper) -> Processed:
    """An attempt whose items are tampered with on their way, level by level."""
    program, batch = make_program(topology, topology.spout.reader()), everything(topology)
    inputs = AttemptInput.of(FIRST, batch, program.spout)
    items: list[Item] = []
    for level in range(program.plan.depth):
        items = tamper([*items, *level_items(program, inputs, level, items)])
    return gather(program, batch, [item for item in items if not is_for_task(item)])


def level_items(program: TaskProgram, inputs: AttemptInput, level: int, items: list[Item]) -> list[Item]:
    slots = range(len(program.plan.slots(level)))
    reach = {slot: [item for item in items if is_for_level(item, level) and item.slot == slot] for slot in slots}
    return [item for slot in slots for item in run_task(program, inputs, level, slot, reach[slot])]


def is_for_upper(item: Item) -> TypeGuard[Tuples]:
    return isinstance(item, Tuples) and item.level == 1


def lose_a_row(items: list[Item]) -> list[Item]:
    def shorter(item: Tuples) -> Tuples:
        batches = from_ipc(item.data)
        return replace(item, data=to_ipc([batches[0].slice(1), *batches[1:]], batches[0].schema))

    return [shorter(item) if is_for_upper(item) and item.order[1] == 0 else item for item in items]


def lose_items(items: list[Item]) -> list[Item]:
    return [item for item in items if not is_for_upper(item)]


def double_items(items: list[Item]) -> list[Item]:
    return [*items, *filter(is_for_upper, items)]


@pytest.mark.parametrize(("tamper", "received"), [(lose_a_row, "1[78]"), (lose_items, "0"), (double_items, "38")])
def test_tuples_that_are_lost_or_doubled_fail_the_attempt(tamper: Tamper, received: str) -> None:
    """Storm row T12."""
    with pytest.raises(
        TuplesLost, match=f"^bolt 'upper' received {received} tuples of 19 that 'spout' has emitted for it$"
    ):
        run_tampered(counted_words(), tamper)


def test_so_do_those_for_the_commit_phase() -> None:
    """They are counted when they arrive at the driver: no task receives them."""

    def tamper(items: list[Item]) -> list[Item]:
        late = next(item for item in items if isinstance(item, TuplesToCommit))
        assert isinstance(late.data, bytes)
        batches = from_ipc(late.data)
        shorter = replace(late, data=to_ipc([batches[0].slice(1), *batches[1:]], batches[0].schema))
        return [shorter if item is late else item for item in items]

    made = builder(words(), parallelism=2)
    made.set_stateful_bolt("count", WordCount(), state=counts()).fields_grouping("spout", "word")
    with pytest.raises(TuplesLost, match="'count' received 8 tuples of 9 that 'spout' has emitted for it"):
        run_tampered(made.build(), tamper)


def test_an_outage_beside_what_is_at_fault_is_an_outage() -> None:
    """What one task found unknown may be so because of what fails another."""
    fact = Exclusion("spout", "schema id 7", "unknown")

    def failing(items: list[Item]) -> list[Item]:
        unknown = TaskFailure((0, 0, 0), "spout", "TX310", "unknown", (fact,))
        return [*items, unknown, TaskFailure((0, 1, 0), "spout", "TX301", "away")]

    with pytest.raises(SourceUnavailable, match="away") as raised:
        run_tampered(counted_words(), failing)
    assert raised.value.at_fault == ()


def lose_a_report(items: list[Item]) -> list[Item]:
    return [item for item in items if not (isinstance(item, TaskReport) and item.order[:2] == (0, 1))]


def lose_a_task(items: list[Item]) -> list[Item]:
    return [item for item in items if item.order[:2] != (0, 1)]


def double_the_reports(items: list[Item]) -> list[Item]:
    return [*items, *(item for item in items if isinstance(item, TaskReport) and item.order[0] == 0)]


@pytest.mark.parametrize(("tamper", "found"), [(lose_a_report, 1), (lose_a_task, 1), (double_the_reports, 4)])
def test_every_task_has_to_report_once(tamper: Tamper, found: int) -> None:
    """A task whose partial aggregates are all that it sends would be missed by nothing else."""
    made = builder(words(), parallelism=2)
    made.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("spout")
    with pytest.raises(TuplesLost, match=f"^2 tasks were to report once each, {found} reports have come$"):
        run_tampered(made.build(), tamper)


def shift_ranges(items: list[Item]) -> list[Item]:
    """As if the items of an attempt at an earlier batch had come."""

    def shifted(item: TaskReport) -> TaskReport:
        rows = (((*row[:2], row[2] + 30, row[3] + 30), *evidence) for row, *evidence in item.digests)
        return replace(item, digests=tuple(rows))  # type: ignore[arg-type]

    return [shifted(item) if isinstance(item, TaskReport) else item for item in items]


def forget_ranges(items: list[Item]) -> list[Item]:
    return [replace(item, digests=()) if isinstance(item, TaskReport) else item for item in items]


def read_by_all(items: list[Item]) -> list[Item]:
    read = tuple(row for item in items if isinstance(item, TaskReport) for row in item.digests)
    return [replace(item, digests=read) if isinstance(item, TaskReport) else item for item in items]


@pytest.mark.parametrize(
    ("tamper", "told"), [(shift_ranges, "0 times"), (forget_ranges, "0 times"), (read_by_all, "2 times")]
)
def test_the_tasks_have_to_read_each_range_of_the_batch_once(tamper: Tamper, told: str) -> None:
    """All counts may agree, and yet it is another batch that was read."""
    made = builder(words(), parallelism=2)
    made.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("spout")
    with pytest.raises(TuplesLost, match=f"were read {told}, and are 1 times in the batch"):
        run_tampered(made.build(), tamper)


def test_items_may_come_in_any_order() -> None:
    expected = run_tampered(counted_words(), lambda items: items)
    assert run_tampered(counted_words(), lambda items: items[::-1]) == expected


def test_the_first_failure_is_reported() -> None:
    def failed(stage: int, task: int, code: str) -> Item:
        return TaskFailure((stage, task, 0), "upper", code, f"failed in {stage}, {task}")

    program = make_program(counted_words(), NoReader())
    items = [failed(1, 0, "TX302"), failed(0, 1, FailedException.code), failed(1, 1, "TX302")]
    with pytest.raises(FailedException, match=r"^failed in 0, 1$"):
        gather(program, everything(counted_words()), items)
    with pytest.raises(BoltFailed, match=r"^failed in 0, 0$"):
        gather(program, everything(counted_words()), [failed(0, 0, "TX101"), *items])


# --- any shape ------------------------------------------------------------------------------------------------------


def expected_counts(topology: Topology, read: int) -> dict[str, int]:
    """How many tuples each bolt receives, by the definition of the groupings. Every bolt emits what it receives."""
    received: dict[str, int] = {}
    for component in topology.components:
        tasks = {GroupingKind.ALL: component.parallelism, GroupingKind.CUSTOM: 2}
        copies = [tasks.get(grouping.kind, 1) for grouping in component.inputs]
        sources = [read if g.source == topology.spout_id else received[g.source] for g in component.inputs]
        received[component.id] = sum(count * copy for count, copy in zip(sources, copies, strict=True))
    return received


@settings(max_examples=examples(25))
@given(topologies(frames=False))
def test_every_tuple_arrives_in_a_topology_of_any_shape(topology: Topology) -> None:
    made, expected = processed(topology), expected_counts(topology, 9)
    partials = made.parts["count"]
    assert isinstance(partials, Partials)
    assert partials.table is not None
    assert sum(partials.table.column("count").to_pylist()) == expected.pop("count")
    assert made.counts == expected


# --- cancelling -----------------------------------------------------------------------------------------------------


@dataclass
class Cancelling(PartitionReader):
    """A reader in whose middle the attempt is cancelled."""

    executor: LocalExecutor
    progress: list[int] = field(default_factory=list)

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Any:
        self.progress.append(self.executor.count_progress(FIRST))
        self.executor.cancel(FIRST)
        yield pa.RecordBatch.from_pydict({"word": ["cat"]})


def test_a_cancelled_attempt_ends_before_its_next_task() -> None:
    topology = counted_words()
    executor = LocalExecutor(topology)
    reading = executor.program
    reader = Cancelling(executor)
    executor.program = read_by(reading, reader)
    with pytest.raises(AttemptLost, match=r"^attempt 1:1 was cancelled$"):
        executor.run(FIRST, everything(topology))
    assert reader.progress == [1, 1], "the first task was going on when it was cancelled, and ended"
    assert executor.count_progress(FIRST) == 0
    executor.program = reading
    assert executor.run(FIRST, everything(topology)).counts == {"upper": 19, "total": 19}


def test_an_attempt_that_does_not_run_can_not_be_cancelled_ahead() -> None:
    topology = counted_words()
    executor = LocalExecutor(topology)
    executor.cancel(FIRST)
    assert executor.run(FIRST, everything(topology)).counts == {"upper": 19, "total": 19}


# --- partitions that are split ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_long_partition_is_read_by_several_tasks_and_its_digest_does_not_depend_on_how_many(parallelism: int) -> None:
    rows = [(f"word {number}",) for number in range(23)]
    made = builder(words([rows, rows[:2]]), parallelism=parallelism)
    update = made.set_committer_bolt("count", MemoryMapState("word").count())
    update.fields_grouping("spout", "word")
    topology = made.build()
    batch = BatchMetadata({partition(0): offsets(3, 23), partition(1): offsets(0, 2)}, split_records=5)
    dealt = AttemptInput.of(FIRST, batch, spout_of(parallelism)).portions
    parts = sorted(row[1:] for task in dealt for row, _ in task)
    assert parts == [(0, 3, 5), (0, 5, 10), (0, 10, 15), (0, 15, 20), (0, 20, 23), (1, 0, 2)]
    assert max(len(task) for task in dealt) <= -(-6 // parallelism) + 1, "spread over the tasks"
    found = processed(topology, batch).digests
    assert {p: digest.records for p, digest in found.items()} == {partition(0): 20, partition(1): 2}
    assert found == processed(topology, batch.with_digests(found)).digests, "a replay is held against it"
    assert found[partition(0)].checksum == 84_578_417


def test_the_event_time_of_a_partition_is_the_newest_of_its_portions() -> None:
    """Else windows would close as late as its oldest record says."""
    program = make_program(counted_words(), NoReader())
    times = ((0, 30), (5, 70), (10, None))
    portions = tuple(((*partition(0), start, start + 5), 5, start, 0, us) for start, us in times)
    tasks = [(stage.index, task) for stage in program.plan.stages for task in range(stage.task_count)]
    items = [TaskReport((*task, 0), {}, {}, portions if task == tasks[0] else ()) for task in tasks]
    batch = BatchMetadata({partition(0): offsets(0, 15)}, split_records=5)
    assert gather(program, batch, items).digests[partition(0)].event_us == 70
