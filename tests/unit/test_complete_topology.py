"""`complete_topology`: what it returns is what components have emitted in the transactions that were committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import builder, opaque_words, stored, words
from tests.unit.telling import Told, merges
from transactional import testing
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import ConfigError, FailedException, FatalError, SchemaMismatch
from transactional.model.config import TopologyConfig
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.tasks.emitting import _Stream
from transactional.testing import complete_topology
from transactional.testing.recording import Recorder
from transactional.testing.rows_spout import RowsSpout
from transactional.topology.topology import Topology

LINES = [("the cat",), ("",), ("the dog",), ("a cat",)]


class Split(BasicBolt):
    """Words, one by one; how long lines are; empty ones to nobody. Fails at first, when it has emitted everything."""

    output = "word string"
    streams: ClassVar = {"length": "n long", "empty": "n long"}
    failures: ClassVar[list[str]] = []

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        for word in tuple.line.split():
            collector.emit(word)
        collector.emit_direct("lengths", 0, len(tuple.line), stream="length")
        if not tuple.line:
            collector.emit(0, stream="empty")
        if self.failures and tuple.line == self.failures[0]:
            raise FailedException(self.failures.pop())


class Lengths(BatchBolt):
    """A committer: the sum, which it also tells; and each length, when it is given."""

    output = "n int, sum int"

    def prepare(self, context: Any, collector: OutputCollector, attempt: Any) -> None:
        self.collector, self.state, self.lengths = collector, context.state, list[int]()

    def execute(self, tuple: Tuple) -> None:
        self.lengths.append(tuple.n)

    def finish_batch(self) -> None:
        for number in self.lengths:
            self.collector.emit(number, *self.state.multi_update([()], lambda stored, n=number: (stored or 0) + n))


class Capitals(BasicBolt):
    """In the same task as `Split`."""

    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple.word.upper())


def lines(counts: MemoryTable | None = None, tasks: int = 2) -> Topology:
    """Bolts in the stage of the spout, behind an exchange, and behind a committer; streams that nobody reads."""
    made = builder(OpaqueMemoryTransactionalSpout([[("never read",)]], "line string", take=1), parallelism=tasks)
    made.set_bolt("split", Split(), tasks).shuffle_grouping("spout")
    made.set_bolt("capitals", Capitals(), tasks).shuffle_grouping("split")
    made.set_bolt("exchanged", Capitals(), tasks).fields_grouping("capitals", "word")
    lengths = MemoryMapState((), "sum long", table=MemoryTable("lengths"))
    made.set_committer_bolt("lengths", Lengths(), state=lengths).direct_grouping("split", stream="length")
    made.set_bolt("behind", lambda row: (row.n * 1.5,), output="n double").shuffle_grouping("lengths")
    state = MemoryMapState("word string", table=counts or MemoryTable("counts"))
    made.set_committer_bolt("count", state.count()).fields_grouping("exchanged", "word")
    return made.build()


EXPECTED: dict[Any, list[tuple[Any, ...]]] = {
    "spout": LINES,
    "split": [("the",), ("cat",), ("the",), ("dog",), ("a",), ("cat",)],
    ("split", "length"): [(7,), (0,), (7,), (5,)],
    ("split", "empty"): [(0,)],
    "capitals": [("THE",), ("CAT",), ("THE",), ("DOG",), ("A",), ("CAT",)],
    "lengths": [(7, 7), (0, 7), (7, 14), (5, 19)],
    "behind": [(10.5,), (0.0,), (10.5,), (7.5,)],
    "count": [],
}
"""All but `exchanged`, whose tuples come in the order of its tasks."""


def check(take: int | None, failures: list[str]) -> None:
    Split.failures[:] = failures
    table = MemoryTable("counts")
    emitted = complete_topology(lines(table), LINES, take=take)
    exchanged = emitted.pop("exchanged")
    assert emitted == EXPECTED
    assert Counter(row.values for row in exchanged) == Counter(EXPECTED["capitals"])
    assert stored(table) == {"THE": 2, "CAT": 2, "DOG": 1, "A": 1}
    for key, rows in emitted.items():
        origin = (key, DEFAULT_STREAM) if isinstance(key, str) else key
        assert all((row.source, row.stream) == origin for row in rows)


@pytest.mark.parametrize("failures", [[], ["the dog"], ["", "the dog"]], ids=["well", "one", "two"])
@pytest.mark.parametrize("take", [None, 1, 3])
def test_what_components_emit_is_returned(take: int | None, failures: list[str]) -> None:
    check(take, failures)


# --- wrong variants ---------------------------------------------------------------------------------------------------

EMITTED, NOTE, FLUSH = Recorder.emitted, _Stream._record_batch, _Stream.flush
PLAN: Any = RowsSpout.plan


def of_all_attempts(recorder: Recorder, topology: Topology, attempts: Any) -> Any:
    return EMITTED(recorder, topology, recorder._batches)


def of_the_last_attempt(recorder: Recorder, topology: Topology, attempts: Any) -> Any:
    return EMITTED(recorder, topology, attempts[-1:])


def on_the_default_stream(recorder: Recorder, topology: Topology, attempts: Any) -> Any:
    return {key: rows for key, rows in EMITTED(recorder, topology, attempts).items() if isinstance(key, str)}


def what_is_taken(stream: _Stream, batch: Any) -> None:
    """Only what somebody subscribes to is noted."""
    record = stream.record
    if not stream.routers and not stream.inner and not stream.aggregators:
        stream.record = None
    NOTE(stream, batch)
    stream.record = record


def not_what_is_direct(stream: _Stream) -> None:
    record = stream.record
    if stream.is_direct:
        stream.record = None
    FLUSH(stream)
    stream.record = record


def in_tasks_only(topology: Topology, *, record: Any) -> CommitPhase:
    return CommitPhase(topology)


def rows_again(spout: RowsSpout, after: Any, *, replay: bool) -> Any:
    """A replay goes on where the failed attempt ended."""
    return PLAN(spout, PLAN(spout, after, replay=True) if replay else after, replay=replay)


WRONG: dict[str, tuple[Any, str, Any]] = {
    "attempts that failed count": (Recorder, "emitted", of_all_attempts),
    "only the last transaction counts": (Recorder, "emitted", of_the_last_attempt),
    "only default streams": (Recorder, "emitted", on_the_default_stream),
    "only what somebody gets": (_Stream, "_record_batch", what_is_taken),
    "not what is emitted directly": (_Stream, "flush", not_what_is_direct),
    "not in the commit phase": (testing, "CommitPhase", in_tasks_only),
    "a replay skips its rows": (RowsSpout, "plan", rows_again),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_variant_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(1, ["the dog"])
    monkeypatch.setattr(*WRONG[wrong])
    with pytest.raises((AssertionError, KeyError)):
        check(1, ["the dog"])


# --- any shape, own spouts, failures ----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(merges())
def test_all_that_bolts_of_any_shape_emit_is_returned(topology: Topology) -> None:
    Told.events.clear()
    emitted = complete_topology(topology)
    told = Counter((e.source, e.stream, e.label) for e in Told.events if e.what == "emit")
    bolts = [rows for key, rows in emitted.items() if key != "spout"]
    assert Counter((row.source, row.stream, row[0]) for rows in bolts for row in rows) == told
    assert len(emitted["spout"]) == 19


@pytest.mark.parametrize("spout", [words, opaque_words])
def test_without_rows_the_own_spout_is_read_until_it_is_drained(spout: Callable[..., MemoryTransactionalSpout]) -> None:
    made = builder(spout(take=2))
    table = MemoryTable()
    made.set_committer_bolt("count", MemoryMapState("word string", table=table).count()).fields_grouping(
        "spout", "word"
    )
    assert Counter(row.word for row in complete_topology(made.build())["spout"]) == Counter(stored(table))


def test_nothing_is_emitted_for_no_rows() -> None:
    assert set(map(len, complete_topology(lines(), []).values())) == {0}


def test_a_bolt_that_always_fails_fails_the_test_with_its_error() -> None:
    made = builder()
    made.set_bolt("half", lambda row: (1 / 0,), output="n double").shuffle_grouping("spout")
    made.set_committer_bolt("count", MemoryMapState(()).count()).global_grouping("half")
    with pytest.raises(FatalError, match="component 'half' raised ZeroDivisionError"):
        complete_topology(made.build(), [("cat",)])


def test_dead_letters_are_kept_by_the_topologys_own_table() -> None:
    def picky(row: Tuple) -> tuple[str]:
        assert row.word != "poison"
        return (row.word,)

    letters = MemoryMapState(LETTER_KEY, LETTER_VALUES)
    made = builder(opaque_words())
    made.set_bolt("picky", picky, output="word string").shuffle_grouping("spout")
    made.set_committer_bolt("count", MemoryMapState("word string").count()).fields_grouping("picky", "word")
    made.set_dead_letters(letters)
    config = TopologyConfig(attempts_max=1, retry_pause_ms=1)
    emitted = complete_topology(made.build(), [("cat",), ("poison",), ("dog",)], config=config)
    assert emitted["picky"] == [("cat",), ("dog",)]
    assert letters.read().num_rows == 1


@pytest.mark.parametrize("row", ["cat", ("cat", "dog"), (), {"word": "cat"}, 7])
def test_a_row_that_is_none_is_reported_before_anything_runs(row: Any) -> None:
    made = builder()
    made.set_committer_bolt("count", MemoryMapState("word string").count()).fields_grouping("spout", "word")
    with pytest.raises(
        ConfigError, match=r"row 1 for spout 'spout' is .*; expected a tuple with a value for each of its 1"
    ):
        complete_topology(made.build(), [("cat",), row])
    with pytest.raises(SchemaMismatch, match="'spout' declares field 'word' as string"):
        complete_topology(made.build(), [(7,)])
    with pytest.raises(ConfigError, match="take is the number of rows per batch, at least 1; got 0"):
        complete_topology(made.build(), [("cat",)], take=0)
