"""What else can be asked of several spouts: letters, rewinds, sizes, lag, an examination, verification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa
import pytest

from spouts.decoding.json_records import JsonTranslator
from spouts.kafka.spout import OpaqueKafkaSpout
from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Logs, PartitionLog
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import stored
from tests.unit.poisoned import letters
from tests.unit.runtime.processing.test_refused_records import NUMBER, RecordSpout
from transactional import RunSummary
from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.examining import Problem
from transactional.core.ports.several.readers import SeveralReaders
from transactional.core.ports.several.spouts import SeveralSpouts
from transactional.core.ports.spout_parts import SourceExamination, SpoutParts
from transactional.core.ports.stream_names import add_stream_name
from transactional.errors import BeyondKept, ConfigError
from transactional.model.attempt import TxId
from transactional.model.batch import EMPTY_BATCH, BatchLimit, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.facts import Listing
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.operations.doctor.checked_tables import checked_sources
from transactional.operations.doctor.examine import examine
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.letter_spout import LetterSpout, all_letters
from transactional.runtime.engine.rewinding import describe_rereading
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

WORD = "word string"
CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, retry_pause_ms=1, tick_ms=1)


class Picky:
    """A filter that fails on a word, until it is mended."""

    mended = False

    def __call__(self, row: Tuple) -> bool:
        if row.word == "bad" and not Picky.mended:
            raise ValueError("bad word")
        return True


class Both:
    """A topology of two streams whose steps fail on a word, and what it leaves behind."""

    def __init__(self, *order: str, kind: type[MemoryTransactionalSpout] = MemoryTransactionalSpout) -> None:
        self.store, self.table, self.aside = MemoryCoordinatorStore(), MemoryTable("counts"), letters("letters")
        self.rows: dict[str, list[tuple[str]]] = {"web": [("home",), ("bad",)], "app": [("start",), ("bad",), ("end",)]}
        self.kind = kind

    def topology(self, *order: str) -> Topology:
        topology, streams = TridentTopology("both"), {}
        for name in order or ("web", "app"):
            streams[name] = topology.new_stream(name, self.kind([self.rows[name]], WORD, 1))
        each = [streams[name].filter(Picky()) for name in sorted(streams)]
        counted = each[0] if len(each) == 1 else each[0].merge(*each[1:])
        counted.group_by("word").persistent_aggregate(MemoryMapState(table=self.table), Count(), name="counts")
        topology.set_dead_letters(self.aside)
        return topology.build(strict=True)

    def run(self, topology: Topology, **given: Any) -> RunSummary:
        return TopologyDriver(topology, self.store, LocalExecutor(topology), CONFIG, owner="test", **given).run()


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_letters_of_two_streams_are_replayed(kind: type[MemoryTransactionalSpout]) -> None:
    Picky.mended = False
    both = Both(kind=kind)
    both.run(both.topology())
    assert stored(both.table) == {"home": 1, "start": 1, "end": 1}
    made = both.topology()
    assert sorted(row["stream"] for row in all_letters(made)) == ["app", "default"]
    Picky.mended = True
    both.run(replace(made, spout=LetterSpout(made, None)))
    assert stored(both.table) == {"home": 1, "start": 1, "end": 1, "bad": 2}
    assert all(row["tried_again_in"] for row in all_letters(made))
    both.rows["web"].append(("late",))
    both.run(both.topology())
    assert stored(both.table) == {"home": 1, "start": 1, "end": 1, "bad": 2, "late": 1}


def test_what_was_skipped_and_replayed_is_so_again_when_the_streams_have_changed_places() -> None:
    Picky.mended = False
    both = Both(kind=OpaqueMemoryTransactionalSpout)
    made = both.topology()
    both.run(made)
    Picky.mended = True
    both.run(replace(made, spout=LetterSpout(made, None)))
    recorded = [each for each in both.store.attempts("both", limit=100) if each.phase == "committed"]
    aside = [len(each.batch.excluded) for each in recorded]
    assert sum(aside) == sum(len(each.batch.letters) for each in recorded) == 2
    for topology in (made, both.topology("app", "web")):
        executor = LocalExecutor(topology)
        # What is skipped is a letter; a letter that had no way to its bolt would be another one.
        assert [len(executor.run(each.attempt, each.batch).letters) for each in recorded] == aside


class Records(RecordSpout):
    """Records that may be no tuples."""


def test_records_of_one_of_several_streams_are_set_aside_and_read_again() -> None:
    table, aside, store = MemoryTable("counts"), letters("letters"), MemoryCoordinatorStore()
    values: dict[str, list[bytes | None]] = {"one": [b'{"number": 1}', b"no"], "two": [b"2", b'{"number": 3}']}

    def made(*order: str, translator: Any = None) -> Topology:
        topology, streams = TridentTopology("both"), {}
        for name in order:
            reads = translator or JsonTranslator(NUMBER, on_error="dead_letter")
            streams[name] = topology.new_stream(name, Records(values[name], reads))
        both = streams["one"].merge(streams["two"]).group_by("number")
        both.persistent_aggregate(MemoryMapState(table=table), Count(), name="counts")
        topology.set_dead_letters(aside)
        return topology.build(strict=True)

    def run(topology: Topology) -> None:
        TopologyDriver(topology, store, LocalExecutor(topology), CONFIG, owner="test").run()

    run(made("one", "two"))
    assert stored(table) == {1: 1, 3: 1}
    topology = made("one", "two")
    rows = [(row["component"], row["source"], row["stream"]) for row in all_letters(topology)]
    assert sorted(rows) == [("one", "one", "default"), ("one", "one", "two")]
    run(replace(topology, spout=LetterSpout(topology, None)))
    waiting = [row for row in all_letters(topology) if row["tried_again_in"] is None]
    assert sorted(row["stream"] for row in waiting) == ["default", "two"], "today's translator refuses them as well"


def test_a_stream_whose_spout_sets_records_aside_needs_a_table_for_them() -> None:
    topology = TridentTopology("both")
    for name in ("one", "two"):
        spout = Records([], JsonTranslator(NUMBER, on_error="dead_letter"))
        stream = topology.new_stream(name, spout)
        stream.group_by("number").persistent_aggregate(MemoryMapState(), Count())
    with pytest.raises(ConfigError, match=r"spout 'one' sets records aside .* has no table for them"):
        topology.build()


# --- examination ------------------------------------------------------------------------------------------------------


class Kept(MemoryTransactionalSpout, SourceExamination):
    """Its source keeps nothing before an offset, and says so."""

    first = 0
    opened = closed = 0

    @property
    def parts(self) -> SpoutParts:
        return replace(super().parts, examination=self)

    def logs(self, after: BatchMetadata) -> Logs:
        return {at: log and PartitionLog(Offset(self.first), log.end) for at, log in super().logs(after).items()}

    def read_held_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        return {at: OffsetRange(Offset(self.first), Offset(len(self._partitions[at.index]))) for at in partitions}

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1


def kept(store: MemoryCoordinatorStore, spouts: Mapping[str, Spout]) -> Topology:
    topology, table = TridentTopology("kept"), MemoryTable("counts")
    first, *others = [topology.new_stream(name, spout) for name, spout in spouts.items()]
    counted = first.merge(*others).group_by("word")
    counted.persistent_aggregate(MemoryMapState(table=table), Count(), name="counts")
    built = topology.build(strict=True)
    TopologyDriver(built, store, LocalExecutor(built), CONFIG, owner="test").run()
    return built


def at(store: MemoryCoordinatorStore, txid: int) -> BatchMetadata:
    return next(record.batch for record in store.attempts_at("kept", TxId(txid)))


def test_a_rewind_of_two_streams_asks_both_sources() -> None:
    store, rows = MemoryCoordinatorStore(), [(str(n),) for n in range(6)]
    spouts = {name: Kept([rows], WORD, 1) for name in ("a", "b")}
    topology = kept(store, spouts)
    words = describe_rereading(topology.spout, at(store, 6), at(store, 2))
    assert len(words) == 2
    spouts["b"].first = 5
    with pytest.raises(BeyondKept, match=r"a transactional spout may not skip records, and b/memory\[0\]: .* offset 5"):
        describe_rereading(topology.spout, at(store, 6), at(store, 2))


def test_the_doctor_examines_each_source_apart_from_the_run() -> None:
    store, rows = MemoryCoordinatorStore(), [(str(n),) for n in range(6)]
    lists = {name: list(rows) for name in ("a", "b")}
    spouts = {name: Kept([each], WORD, 1) for name, each in lists.items()}
    topology = kept(store, spouts)
    before = {name: (spout.opened, spout.closed) for name, spout in spouts.items()}
    assert [each.problem for each in examine(topology, store) if not each.is_harmless] == []
    lists["b"] += rows
    spouts["b"].first = 8
    found = [(each.problem, each.where) for each in examine(topology, store) if not each.is_harmless]
    assert found == [(Problem.SOURCE_LOST, "source of 'a', b/memory[0]")]
    assert {name: (spout.opened, spout.closed) for name, spout in spouts.items()} == before


def test_a_source_that_can_not_be_examined_is_planned_by_the_doctor_apart_from_the_run() -> None:
    class Counting(MemoryTransactionalSpout):
        planned: list[Any] = []  # noqa: RUF012

        def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
            self.planned.append(self)
            return super().plan(after, replay=replay)

    store, spout = MemoryCoordinatorStore(), Counting([[("a",)]], WORD, 1)
    topology = kept(store, {"a": spout, "b": Kept([[("a",)]], WORD, 1)})
    Counting.planned.clear()
    assert [each.problem for each in examine(topology, store) if not each.is_harmless] == []
    assert len(Counting.planned) == 1
    assert Counting.planned[0] is not spout


def test_each_source_is_verified_where_it_is() -> None:
    one = OpaqueKafkaSpout("localhost:1", ["clicks"], options={"client.id": "one"})
    two = OpaqueKafkaSpout("localhost:2", ["clicks"], isolation="read_uncommitted")
    both = SeveralSpouts({"one": one, "two": two, "three": MemoryTransactionalSpout([[]], WORD, 1)})
    topology = TridentTopology("both")
    topology.new_stream("one", one).group_by("value").persistent_aggregate(MemoryMapState(), Count())
    sources = checked_sources(replace(topology.build(), spout=both))
    assert [(each.bootstrap_servers, each.options["isolation.level"]) for each in sources] == [
        ("localhost:1", "read_committed"),
        ("localhost:2", "read_uncommitted"),
    ]
    assert sources[1].topic_of("two/clicks#abc") == "clicks"


# --- how far behind, and sizes ----------------------------------------------------------------------------------------


def test_the_lag_is_known_by_partition() -> None:
    both = SeveralSpouts({"a": MemoryTransactionalSpout([[("x",)] * 3], WORD, 1), "b": Kept([[("x",)] * 5], WORD, 2)})
    first = both.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    lags = both.parts.backlog.lag_by_partition(first)
    assert lags is not None
    assert sorted((each.source.rpartition("/")[2], lag) for each, lag in lags.items()) == [("memory", 2), ("memory", 3)]
    assert both.parts.backlog.lag(first) == 5


def test_the_partitions_of_all_are_listed() -> None:
    web = OpaqueMemoryTransactionalSpout([[("x",)], []], WORD, 1, disabled=[1])
    both = SeveralSpouts({"web": web, "app": MemoryTransactionalSpout([[]], WORD, 1)})
    expected = {
        PartitionId("web/memory", 0): Listing.UNREAD,
        PartitionId("web/memory", 1): Listing.AWAY,
        PartitionId("app/memory", 0): Listing.EMPTY,
    }
    first = both.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    assert both.parts.backlog.list_partitions(EMPTY_BATCH) == expected
    assert both.parts.backlog.list_partitions(first) == {**expected, PartitionId("web/memory", 0): Listing.EMPTY}


SHARED = (((9, 90), 40, (9, 31)), ((90, 9), 40, (31, 9)), ((90, 90), 40, (20, 20)), ((0, 90), 40, (0, 40)))
"""What two are behind, a limit, and what each then has in a batch."""


@pytest.mark.parametrize(("behind", "limit", "planned"), [*SHARED, ((5, 5), 1, (1, 1))])
def test_a_limit_is_shared_so_that_what_one_leaves_is_for_the_other(
    behind: tuple[int, int], limit: int, planned: tuple[int, int]
) -> None:
    rows = {f"s{number}": [("x",)] * rows for number, rows in enumerate(behind)}
    both = SeveralSpouts({name: MemoryTransactionalSpout([each], WORD, 10**6) for name, each in rows.items()})
    both.plan(EMPTY_BATCH, replay=False)
    both.parts.planning.limit_batches(BatchLimit(limit, None, "a test"))
    batch = both.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    found = Counter({both.reader().stream_of(partition): len(offsets) for partition, offsets in batch.non_empty()})
    assert (found["default"], found["s1"]) == planned


def test_a_target_latency_limits_both() -> None:
    store, table = MemoryCoordinatorStore(), MemoryTable("counts")
    topology = TridentTopology("kept")
    one, two = (topology.new_stream(n, MemoryTransactionalSpout([[("x",)] * 3_000], WORD, 10**6)) for n in ("a", "b"))
    one.merge(two).group_by("word").persistent_aggregate(MemoryMapState(table=table), Count(), name="counts")
    built, config = topology.build(), replace(CONFIG, target_latency_ms=1_000)
    TopologyDriver(built, store, LocalExecutor(built), config, owner="test").run()
    assert stored(table) == {"x": 6_000}
    assert at(store, 1).offset_count <= 1_000


def test_each_reader_knows_what_is_recorded_of_the_batch() -> None:
    given = list[tuple[str, list[str]]]()

    class Reader(PartitionReader):
        def __init__(self, name: str) -> None:
            self.name = name

        def read(self, *_: Any) -> Iterator[pa.RecordBatch]:
            return iter(())

        def with_facts(self, facts: Collection[str]) -> Self:
            given.append((self.name, list(facts)))
            return self

    SeveralReaders({"web": Reader("web"), "app": Reader("app")}, "web").with_facts(["schema id 7"])
    assert given == [("web", ["schema id 7"]), ("app", ["schema id 7"])]


class Expecting(MemoryPartitionReader):
    """Notes what is expected of it."""

    def expect(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        EXPECTED.append(list(ranges))


EXPECTED: list[list[tuple[PartitionId, OffsetRange]]] = []


def test_each_reader_expects_what_is_its_own() -> None:
    EXPECTED.clear()
    readers = SeveralReaders({name: Expecting({}, Schema.parse(WORD)) for name in ("web", "app")}, "web")
    one, other = (OffsetRange(Offset(0), Offset(until)) for until in (1, 2))
    pages, clicks = PartitionId("pages", 0), PartitionId("clicks", 3)
    readers.expect(
        [
            (add_stream_name("web", pages), one),
            (add_stream_name("app", clicks), other),
            (add_stream_name("web", pages), other),
        ]
    )
    assert [[(pages, one), (pages, other)], [(clicks, other)]] == EXPECTED


def test_a_stream_is_read_together_by_its_reader() -> None:
    class Together(MemoryPartitionReader):
        def read_together(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> Any:
            return iter([ranges])

    readers = SeveralReaders(
        {"web": Together({}, Schema.parse(WORD)), "app": MemoryPartitionReader({}, Schema.parse(WORD))}, "web"
    )
    offsets, clicks = OffsetRange(Offset(0), Offset(1)), [PartitionId("clicks", index) for index in (3, 4)]
    records = readers.read_together([(add_stream_name("web", each), offsets) for each in clicks])
    assert [*(records or ())] == [[(each, offsets) for each in clicks]]
    assert readers.read_together([(add_stream_name("app", clicks[0]), offsets)]) is None
