"""Who is at fault when a bolt fails: every tuple that it can't work on, found in one attempt; and never another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total, stored, total
from transactional import RunSummary, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import RetriesExhausted
from transactional.model.arrow import origin_of
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.tasks import emitting
from transactional.runtime.tasks.failing import faults

NUMBER = "number long"
COUNT, EVERY = 100, 10
NUMBERS = [[(n,) for n in range(task, COUNT, 2)] for task in range(2)]
BAD = set(range(0, COUNT, EVERY))
"""Every tenth number is bad: all of them are in the first of the two tasks, and more than one in each record batch."""


def refuse_bad(number: int) -> None:
    if number in BAD:
        raise ValueError(f"{number} is bad")


def function(row: Tuple) -> tuple[int]:
    refuse_bad(row["number"])
    return (row["number"],)


def misfit(row: Tuple) -> tuple[Any]:
    return ("bad" if row["number"] in BAD else row["number"],)


def arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    for number in batch.column("number").to_pylist():
        refuse_bad(number)
    return batch


class Basic(BasicBolt):
    output = NUMBER

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        refuse_bad(tuple["number"])
        collector.emit(tuple["number"])


class Misfit(BasicBolt):
    """Emits what is no number."""

    output = NUMBER

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(10**30 if tuple["number"] in BAD else tuple["number"])


class Batchwise(BatchBolt):
    output = NUMBER

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.seen = collector, [0][:0]

    def execute(self, tuple: Tuple) -> None:
        refuse_bad(tuple["number"])
        self.seen.append(tuple["number"])

    def finish_batch(self) -> None:
        for number in self.seen:
            self.collector.emit(number)


class Breaks(Batchwise):
    """As a database connection that refuses everything behind the first error."""

    is_broken = False

    def execute(self, tuple: Tuple) -> None:
        assert not self.is_broken
        try:
            super().execute(tuple)
        except ValueError:
            self.is_broken = True
            raise


class Balances(Batchwise):
    """Can't finish when it has begun with more tuples than it has got through."""

    begun = 0

    def execute(self, tuple: Tuple) -> None:
        self.begun += 1
        super().execute(tuple)

    def finish_batch(self) -> None:
        assert len(self.seen) == self.begun
        super().finish_batch()


class NeedsTheFirst(Batchwise):
    """Can't do anything without having seen the first tuple of its batch."""

    def execute(self, tuple: Tuple) -> None:
        if tuple["number"] < 2:
            self.first = tuple["number"]
        if tuple["number"] - self.first:
            super().execute(tuple)
        else:
            self.seen.append(tuple["number"])


class Arrowwise(ArrowBatchBolt):
    output = NUMBER

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.collector.emit_batch(arrow(batch))


KINDS = [function, misfit, arrow, Basic(), Misfit(), Batchwise(), Arrowwise()]


def named(bolt: Any) -> str:
    return getattr(bolt, "__name__", type(bolt).__name__)


class Numbers:
    """A topology that counts numbers: what is counted, and what was set aside."""

    def __init__(self, folder: Path, partitions: Any = NUMBERS, parallelism: int = 2) -> None:
        spout = OpaqueMemoryTransactionalSpout(partitions, NUMBER, max(COUNT, len(partitions[0])))
        self.builder = TransactionalTopologyBuilder("numbers", "spout", spout, parallelism)
        self.folder, self.counts, self.letters = folder, MemoryTable("counts"), MemoryTable("letters")

    def run(self, *, attempts_max: int = 1, **config: Any) -> RunSummary:
        if "counts" not in self.builder._bolts:
            counts = MemoryMapState("number", table=self.counts).count()
            self.builder.set_committer_bolt("counts", counts).fields_grouping("bad", "number")
            self.builder.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=self.letters))
        options = TopologyConfig(attempts_max=attempts_max, retry_pause_ms=1, stop_when_drained=True, **config)
        store = f"sqlite:///{self.folder}/store.db"
        return run_topology(self.builder.build(), store=store, config=options, master="none")

    @property
    def counted(self) -> dict[int, int]:
        return stored(self.counts)

    @property
    def set_aside(self) -> list[int]:
        return sorted(json.loads(row.value[3])["number"] for row in self.letters.rows.values())

    def errors(self) -> Iterator[str]:
        return (row.value[4] for row in self.letters.rows.values())


COUNTED = {n: 1 for n in range(COUNT) if n not in BAD}


# --- all of them at once --------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("exchange", ["in its task", "behind an exchange"])
@pytest.mark.parametrize("bolt", KINDS, ids=named)
def test_one_attempt_names_every_tuple_that_a_bolt_fails_on(bolt: Any, exchange: str, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    tasks = 2 if exchange == "in its task" else 3
    output = NUMBER if callable(bolt) else None
    numbers.builder.set_bolt("bad", bolt, tasks, output=output).shuffle_grouping("spout")
    assert numbers.run().failures == 1
    assert numbers.set_aside == sorted(BAD)
    assert numbers.counted == COUNTED


@pytest.mark.parametrize("bolt", KINDS, ids=named)
def test_one_attempt_is_enough_in_the_commit_phase_too(bolt: Any, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    state = MemoryMapState((), "count long", table=MemoryTable("relay"))
    numbers.builder.set_committer_bolt("relay", Relay(), state=state).global_grouping("spout")
    output = NUMBER if callable(bolt) else None
    numbers.builder.set_bolt("bad", bolt, 3, output=output).shuffle_grouping("relay")
    assert numbers.run().failures == 1
    assert numbers.set_aside == sorted(BAD)
    assert numbers.counted == COUNTED


class Relay(Batchwise):
    """A committer that passes all on."""

    def execute(self, tuple: Tuple) -> None:
        self.seen.append(tuple["number"])


def test_tuples_that_a_committer_fails_on_are_named_at_once(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    state = MemoryMapState((), "count long", table=MemoryTable("relay"))
    numbers.builder.set_committer_bolt("bad", Batchwise(), 2, state=state).shuffle_grouping("spout")
    assert numbers.run().failures == 1
    assert (numbers.set_aside, numbers.counted) == (sorted(BAD), COUNTED)


def test_bolts_behind_one_another_need_one_attempt(tmp_path: Path) -> None:
    """Each exchange would cost one more, if nothing went on behind what has failed."""

    def thirds(row: Tuple) -> tuple[int]:
        assert row["number"] % 3 or row["number"] in BAD
        return (row["number"],)

    class Sevenths(Batchwise):
        def execute(self, tuple: Tuple) -> None:
            assert tuple["number"] % 7 or tuple["number"] % 3 == 0
            self.seen.append(tuple["number"])

    left_out = {n for n in range(COUNT) if n in BAD or n % 3 == 0 or n % 7 == 0}
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("first", function, 3, output=NUMBER).fields_grouping("spout", "number")
    numbers.builder.set_bolt("second", thirds, 2, output=NUMBER).fields_grouping("first", "number")
    numbers.builder.set_bolt("bad", Sevenths(), 1).global_grouping("second")
    assert numbers.run().failures == 1
    assert numbers.set_aside == sorted(left_out)


class NeedsSome(Relay):
    """Takes no empty batch."""

    def finish_batch(self) -> None:
        assert self.seen, "there is nothing"
        super().finish_batch()


def test_what_lacks_the_tuples_of_a_failed_task_is_not_finished(tmp_path: Path) -> None:
    """Its failure would be nobody's fault, and so nobody were at fault."""
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("first", Batchwise(), 1).global_grouping("spout")
    numbers.builder.set_bolt("middle", Relay(), 2).fields_grouping("first", "number")
    numbers.builder.set_bolt("bad", NeedsSome(), 1).global_grouping("middle")
    assert numbers.run().failures == 1
    assert (numbers.set_aside, numbers.counted) == (sorted(BAD), COUNTED)


def test_a_task_names_no_more_than_can_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "NAMED_MAX", 4)
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("bad", function, 2, output=NUMBER).shuffle_grouping("spout")
    with pytest.raises(RetriesExhausted, match=r"on 4 tuples \(dead_letters_max = 3\)"):
        numbers.run(dead_letters_max=3)


# --- and no other one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bolt", [Breaks(), Balances(), NeedsTheFirst()], ids=named)
def test_a_tuple_is_not_at_fault_because_the_bolt_is_broken(bolt: Any, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path, partitions=[[(n,) for n in (1, 2, 10, 3, 20, 4)]], parallelism=1)
    numbers.builder.set_bolt("bad", bolt).shuffle_grouping("spout")
    numbers.run()
    assert numbers.set_aside == [10, 20]
    assert set(numbers.counted) == {1, 2, 3, 4}


class Outage:
    """Something that bolts need is away, during the first attempt."""

    is_over = False


class NeedsIt(BatchBolt):
    """Needs what is away: task 0 for each tuple, task 1 in the end."""

    output = NUMBER

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.task, self.collector = context.task_index, collector

    def execute(self, tuple: Tuple) -> None:
        if self.task == 0 and not Outage.is_over:
            raise ValueError("nobody answers")
        self.collector.emit(tuple["number"])

    def finish_batch(self) -> None:
        if self.task == 1 and not Outage.is_over:
            raise ValueError("nobody answers")


@pytest.mark.parametrize("phase", ["processing", "commit"])
def test_a_tuple_that_fails_beside_an_error_of_nobody_is_innocent(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(tmp_path)
    source = "spout"
    if phase == "commit":
        state = MemoryMapState((), "count long", table=MemoryTable("relay"))
        numbers.builder.set_committer_bolt("relay", Relay(), state=state).global_grouping("spout")
        source = "relay"
    numbers.builder.set_bolt("bad", NeedsIt(), 2).shuffle_grouping(source)
    with pytest.raises(RetriesExhausted, match="nobody answers"):
        numbers.run()
    monkeypatch.setattr(Outage, "is_over", True)
    assert numbers.run().failures == 0
    assert (numbers.set_aside, numbers.counted) == ([], dict.fromkeys(range(COUNT), 1))


def test_a_tuple_that_fills_a_record_batch_is_not_at_fault_for_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitting, "ROWS_PER_BATCH", 7)
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("bad", misfit, 2, output=NUMBER).shuffle_grouping("spout")
    numbers.run()
    assert (numbers.set_aside, numbers.counted) == (sorted(BAD), COUNTED)


def far_days(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Days, of which those of bad numbers are beyond the year 9999."""
    days = [4_000_000 + n if n in BAD else n for n in batch.column("number").to_pylist()]
    return pa.RecordBatch.from_pydict({"day": pa.array(days, pa.int32()).cast(pa.date32())})


@pytest.mark.parametrize("phase", ["processing", "commit"])
def test_a_tuple_that_a_state_refuses_is_found_in_either_phase(phase: str, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    if phase == "commit":
        state = MemoryMapState((), "count long", table=MemoryTable("relay"))
        numbers.builder.set_committer_bolt("relay", Relay(), state=state).global_grouping("spout")
    far = numbers.builder.set_bolt("far", far_days, 2, output="day date")
    far.shuffle_grouping("relay" if phase == "commit" else "spout")
    days = MemoryMapState("day", table=numbers.counts).count()
    numbers.builder.set_committer_bolt("counts", days).fields_grouping("far", "day")
    numbers.builder.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=numbers.letters))
    assert numbers.run().failures == 1
    assert (numbers.set_aside, len(numbers.counted)) == (sorted(BAD), COUNT - len(BAD))


class Both(BasicBolt):
    """The same numbers on two streams."""

    output = NUMBER
    streams: ClassVar[dict[str, str]] = {"others": NUMBER}

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple["number"])
        collector.emit(tuple["number"], stream="others")


def only_default(row: Tuple) -> tuple[int]:
    if row.stream == "default":
        refuse_bad(row["number"])
    return (row["number"],)


def only_default_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return arrow(batch) if origin_of(batch)[1] == "default" else batch


@pytest.mark.parametrize("bolt", [only_default, only_default_arrow], ids=named)
def test_an_equal_tuple_of_another_stream_is_not_set_aside(bolt: Callable[..., Any], tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("both", Both(), 2).shuffle_grouping("spout")
    picky = numbers.builder.set_bolt("bad", bolt, 2, output=NUMBER)
    picky.shuffle_grouping("both").shuffle_grouping("both", stream="others")
    numbers.run()
    assert numbers.set_aside == sorted(BAD)
    assert numbers.counted == {n: 1 if n in BAD else 2 for n in range(COUNT)}


def together(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows > 1:
        raise ValueError("too many at once")
    return batch


def test_what_fails_only_together_is_nobodys_fault(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("bad", together, 2, output=NUMBER).shuffle_grouping("spout")
    with pytest.raises(RetriesExhausted, match="too many at once"):
        numbers.run()
    assert numbers.set_aside == []


def test_who_is_at_fault_is_found_in_a_few_passes(tmp_path: Path) -> None:
    """A record batch with one bad tuple in two hundred goes through the bolt again two or three times, not eight."""
    given, numbers = [0], Numbers(tmp_path, [[(n,) for n in range(10_000)]], 1)

    def counting(batch: pa.RecordBatch) -> pa.RecordBatch:
        given[0] += batch.num_rows
        if any(n % 200 == 0 for n in batch.column("number").to_pylist()):
            raise ValueError("one is bad")
        return batch

    numbers.builder.set_bolt("bad", counting, 1, output=NUMBER).shuffle_grouping("spout")
    assert numbers.run().failures == 1
    assert numbers.set_aside == list(range(0, 10_000, 200))
    assert given[0] < 4.5 * 10_000, "with the pass of the second attempt"


# --- what is told ----------------------------------------------------------------------------------------------------


def test_the_error_shows_where_the_tuple_is_from(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("bad", function, 2, output=NUMBER).shuffle_grouping("spout")
    with pytest.raises(RetriesExhausted) as caught:
        numbers.run(dead_letters_max=1)
    assert "10 tuples failed, the first: task 0 of 2: component 'bad' raised ValueError: 0 is bad" in str(caught.value)
    assert """, on {"number": 0} from 'spout', in memory[0] [0, 50)\n""" in str(caught.value)


def placed(row: Tuple) -> None:
    raise ValueError("no")


def test_the_error_shows_topic_partition_and_offset_where_they_are_known(tmp_path: Path) -> None:
    spout = OpaqueMemoryTransactionalSpout([[("orders", 3, 77)]], "topic string, partition int, offset long", 10)
    made = TransactionalTopologyBuilder("numbers", "spout", spout)
    made.set_bolt("bad", placed, output=NUMBER).shuffle_grouping("spout")
    made.set_committer_bolt("total", Total(), state=total()).shuffle_grouping("bad")
    config = TopologyConfig(attempts_max=1, stop_when_drained=True)
    with pytest.raises(RetriesExhausted, match=r"from 'spout', at offset 77 of partition 3 of topic 'orders'\n"):
        run_topology(made.build(), store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")


def test_a_letter_keeps_its_own_error(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path)
    numbers.builder.set_bolt("bad", function, 2, output=NUMBER).shuffle_grouping("spout")
    numbers.run()
    told = {error.splitlines()[0] for error in numbers.errors()}
    place = f"tests/unit/runtime/tasks/failing/test_faults.py:{refuse_bad.__code__.co_firstlineno + 2}"
    assert told == {f"component 'bad' raised ValueError: {n} is bad ({place}), in memory[0] [0, 50)" for n in BAD}
