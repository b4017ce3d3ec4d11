"""A pipeline as the engine runs it: dead letters, replays, tables that equal those of a topology written by hand."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.fakes import stored
from tests.unit.topology.streams.shapes import LINES, Word, lines, split
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import FailedException, RetriesExhausted
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.testing import complete_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from transactional.trident import Count, Max, TridentTopology, field

ONE_AT_A_TIME = TopologyConfig(attempts_max=3, retry_pause_ms=1)


def letters() -> MemoryMapState:
    return MemoryMapState(str(LETTER_KEY), str(LETTER_VALUES), table=MemoryTable("letters"))


def refuse(row: Tuple) -> Word:
    if row.word in ("cow", "seven"):
        raise ValueError(f"I do not like {row.word}")
    return Word(row.word)


@pytest.mark.parametrize("in_arrow", [False, True])
def test_a_dead_letter_is_the_tuple_that_came_into_the_pipeline(*, in_arrow: bool) -> None:
    table, put_aside = MemoryTable("counts"), letters()
    topology = TridentTopology("words", parallelism=2)
    words = lines(topology).flat_map(split)
    words = words.with_columns(word=field("word")) if in_arrow else words
    words.map(refuse).filter(lambda t: t.word).group_by("word").persistent_aggregate(
        MemoryMapState(table=table), Count()
    )
    topology.set_dead_letters(put_aside)
    complete_topology(topology.build(strict=True))
    told = [json.loads(row["tuple"]) for row in put_aside.read().to_pylist()]
    assert sorted(each["line"] for each in told) == ["four score and seven", "the cow jumped over the moon"]
    assert stored(table) == Counter(["the", "man", "went", "to", "the", "store"])


def test_without_a_table_of_dead_letters_the_error_names_step_and_tuple() -> None:
    topology = TridentTopology("words")
    lines(topology).flat_map(split).map(refuse).group_by("word").persistent_aggregate(MemoryMapState(), Count())
    with pytest.raises(RetriesExhausted) as raised:
        complete_topology(topology.build())
    for part in ("b-0-split-refuse", "ValueError: I do not like cow", "the cow jumped over the moon", "in refuse"):
        assert part in str(raised.value)


class Flaky:
    """Fails an attempt at each place once; counts that live as long as the process."""

    failed: set[str] = set()  # noqa: RUF012

    def __init__(self, name: str, rate: int) -> None:
        self.name, self.rate = name, rate

    def __call__(self, row: Tuple) -> bool:
        place = f"{self.name} {tuple(row)}"
        if place not in self.failed and hash(place) % self.rate == 0:
            self.failed.add(place)
            raise FailedException(place)
        return True


def by_trident(spout: Any, tables: dict[str, MemoryTable]) -> Topology:
    topology = TridentTopology("words", parallelism=2)
    words = topology.new_stream("lines", spout).flat_map(split).filter(Flaky("before", 3))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(table=tables["counts"]), Count())
    new = counts.new_values().filter(Flaky("behind", 4)).with_columns(twice=field("count") * 2)
    new.group_by("count").persistent_aggregate(MemoryMapState(table=tables["sizes"]), most=Max("twice"), n=Count())
    return topology.build(strict=True)


def by_hand(spout: Any, tables: dict[str, MemoryTable]) -> Topology:
    builder = TransactionalTopologyBuilder("words", "lines", spout, 2)
    builder.set_bolt("split", split, 2).shuffle_grouping("lines")
    builder.set_bolt("same", keep(Flaky("before", 3)), 2, output="word string").shuffle_grouping("split")
    counts = MemoryMapState("word", table=tables["counts"]).count()
    builder.set_committer_bolt("counts", counts).fields_grouping("same", "word")
    builder.set_bolt("kept", keep(Flaky("behind", 4)), output="word string, count long").shuffle_grouping("counts")
    builder.set_bolt("twice", twice, output="count long, twice long").shuffle_grouping("kept")
    sizes = MemoryMapState("count", table=tables["sizes"]).aggregate(most=Max("twice"), n=Count())
    builder.set_committer_bolt("sizes", sizes).fields_grouping("twice", "count")
    return builder.build(strict=True)


def keep(condition: Flaky) -> Any:
    return lambda row: row if condition(row) else None


def twice(batch: pa.RecordBatch) -> pa.Table:
    counts = batch["count"]
    return pa.table({"count": counts, "twice": pa.array([2 * n for n in counts.to_pylist()], pa.int64())})


sentences = st.lists(st.sampled_from(["a", "a b", "b b c", "", "c a d"]).map(lambda line: (line,)), max_size=8)


@settings(max_examples=examples(40))
@given(sentences, st.integers(1, 3), st.sampled_from([OpaqueMemoryTransactionalSpout, MemoryTransactionalSpout]))
def test_by_trident_and_by_hand_the_tables_are_equal_whatever_fails(rows: Any, take: int, kind: Any) -> None:
    found = []
    for make in (by_trident, by_hand):
        Flaky.failed.clear()
        tables = {name: MemoryTable(name) for name in ("counts", "sizes")}
        spout = kind([rows[::2], rows[1::2]], "line string", take)
        complete_topology(make(spout, tables), config=TopologyConfig(attempts_max=99, retry_pause_ms=1))
        found.append({name: table.rows for name, table in tables.items()})
    assert found[0] == found[1]
    expected = Counter(word for (line,) in rows for word in line.split())
    assert {key: value.value for (key,), value in found[0]["counts"].items()} == {w: (n,) for w, n in expected.items()}


def test_new_values_merge_with_a_stream_of_the_processing_phase() -> None:
    tables = {name: MemoryTable(name) for name in ("counts", "all")}
    topology = TridentTopology("words", parallelism=2)
    words = lines(topology, LINES).flat_map(split)
    new = words.group_by("word").persistent_aggregate(MemoryMapState(table=tables["counts"]), Count()).new_values()
    both = words.merge(new.project("word")).filter(lambda t: len(t.word) > 3)
    both.group_by("word").persistent_aggregate(MemoryMapState(table=tables["all"]), Count())
    complete_topology(topology.build(strict=True))
    long = Counter(word for (line,) in LINES for word in line.split() if len(word) > 3)
    assert stored(tables["all"]) == {word: 2 * n for word, n in long.items()}


def test_aggregates_of_a_batch_are_reported_once_even_if_it_is_empty() -> None:
    topology = TridentTopology("words", parallelism=2)
    words = lines(topology, LINES, take=1).flat_map(split).filter(field("word") == "four")
    words.aggregate(n=Count(), most=Max("word")).named("end").persistent_aggregate(MemoryMapState(), Max("n"))
    found = complete_topology(topology.build(strict=True), config=ONE_AT_A_TIME)
    [end] = [rows for name, rows in found.items() if str(name).endswith("-end")]
    assert [tuple(row) for row in end] == [(0, None), (1, "four")]
