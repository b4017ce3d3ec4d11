"""Tuples that can't be worked on are set aside, alone and once; what can't be laid at a tuple's door stops."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total, counts, stored, total
from transactional import RunSummary, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.attempt import TransactionAttempt
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, TopologyContext, Tuple
from transactional.dead_letters import LETTER_KEY, LETTER_VALUES, values_from_json, values_to_json
from transactional.errors import ConfigError, FailedException, RetriesExhausted
from transactional.journal import JournalWriter, read_journal
from transactional.letter_spout import LetterSpout, all_letters, letters_of
from transactional.ports import StateKind
from transactional.replay import replay
from transactional.topology import Topology

WORD = "word string"
POISON = [[("cat",), ("poison",), ("dog",), ("poison",), ("cat",)], [("cat",), ("venom",)]]


def letters(name: str = "letters") -> MemoryMapState:
    return MemoryMapState(LETTER_KEY, LETTER_VALUES, table=MemoryTable(name))


class Picky(BasicBolt):
    """Does not like some words."""

    output = WORD

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if tuple["word"] in ("poison", "venom"):
            raise FailedException(f"can't stomach {tuple['word']}")
        collector.emit(tuple["word"])


class PickyTotal(Total):
    """Does not like some words, while it counts them for the commit phase."""

    def execute(self, tuple: Tuple) -> None:
        if tuple["word"] in ("poison", "venom"):
            raise ValueError(tuple["word"])
        super().execute(tuple)


def picky(row: Tuple) -> tuple[str]:
    assert row["word"] not in ("poison", "venom")
    return (row["word"],)


def topology(
    bolt: Any, *, opaque: bool = True, take: int = 10, parallelism: int = 1, partitions: Any = POISON
) -> tuple[TransactionalTopologyBuilder, MemoryTable, MemoryTable]:
    kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    made = TransactionalTopologyBuilder("words", "spout", kind(partitions, WORD, take), parallelism)
    output = WORD if callable(bolt) else None
    made.set_bolt("picky", bolt, parallelism, output=output).shuffle_grouping("spout")
    per_word, set_aside = MemoryTable("counts"), MemoryTable("letters")
    made.set_committer_bolt("counts", MemoryMapState("word", table=per_word).count()).fields_grouping("picky", "word")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    return made, per_word, set_aside


def run(made: TransactionalTopologyBuilder, folder: Path, observers: Any = (), **config: Any) -> RunSummary:
    options = {"attempts_max": 2, "retry_pause_ms": 1, "stop_when_drained": True, **config}
    return run_topology(
        made.build(),
        store=f"sqlite:///{folder}/store.db",
        config=TopologyConfig(**options),
        master="none",
        observers=observers,
    )


def found(table: MemoryTable) -> list[tuple[int, str, str, str, str]]:
    """transaction, component, source, stream, word."""
    rows = [(key[0], *row.value[:3], json.loads(row.value[3])["word"]) for key, row in table.rows.items()]
    return sorted(rows)


@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("bolt", [Picky(), picky], ids=["bolt", "function"])
def test_poison_tuples_alone_are_set_aside_once(bolt: Any, *, opaque: bool, tmp_path: Path) -> None:
    made, per_word, set_aside = topology(bolt, opaque=opaque)
    journal = JournalWriter(tmp_path / "journal")
    summary = run(made, tmp_path, [journal])
    journal.close()
    assert stored(per_word) == {"cat": 3, "dog": 1}
    where = ("picky", "spout", "default")
    assert found(set_aside) == [(1, *where, "poison"), (1, *where, "poison"), (1, *where, "venom")]
    assert (summary.transactions, summary.failures) == (1, 2), "two attempts, which name both words"
    assert replay(read_journal(tmp_path / "journal")) > 0, "the journal tells why, and a fresh coordinator agrees"


def test_several_tasks_set_aside_at_once_what_each_failed_on(tmp_path: Path) -> None:
    made, per_word, set_aside = topology(Picky(), parallelism=2)
    assert run(made, tmp_path).failures == 2
    assert stored(per_word) == {"cat": 3, "dog": 1}
    assert len(set_aside.rows) == 3


def test_other_transactions_are_not_touched(tmp_path: Path) -> None:
    partitions = [[("cat",), ("poison",)], [("poison",), ("dog",)]]
    made, per_word, set_aside = topology(Picky(), take=1, partitions=partitions)
    run(made, tmp_path, max_spout_pending=3)
    assert stored(per_word) == {"cat": 1, "dog": 1}
    assert [row[0] for row in found(set_aside)] == [1, 2], "each transaction has to find out by itself"


def test_a_committer_may_set_tuples_aside(tmp_path: Path) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    table, set_aside = MemoryTable("total"), MemoryTable("letters")
    made.set_committer_bolt("total", PickyTotal(), state=total(table)).global_grouping("spout")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    run(made, tmp_path)
    assert stored(table) == {(): 4}
    assert [row[1:] for row in found(set_aside)] == [
        ("total", "spout", "default", "poison"),
        ("total", "spout", "default", "poison"),
        ("total", "spout", "default", "venom"),
    ]


class Relay(BatchBolt):
    """A committer that emits its tuples in `finish_batch`."""

    output = WORD

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.words = collector, [""][:0]

    def execute(self, tuple: Tuple) -> None:
        self.words.append(tuple["word"])

    def finish_batch(self) -> None:
        for word in self.words:
            self.collector.emit(word)


def test_a_bolt_in_the_commit_phase_may_set_tuples_aside(tmp_path: Path) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    made.set_committer_bolt("relay", Relay(), state=total()).global_grouping("spout")
    made.set_bolt("picky", Picky()).shuffle_grouping("relay")
    per_word, set_aside = MemoryTable("counts"), MemoryTable("letters")
    made.set_committer_bolt("counts", MemoryMapState("word", table=per_word).count()).shuffle_grouping("picky")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    run(made, tmp_path)
    assert stored(per_word) == {"cat": 3, "dog": 1}
    assert [row[1:3] for row in found(set_aside)] == [("picky", "relay")] * 3


# --- what stops ---------------------------------------------------------------------------------------------------


class FailsAtTheEnd(Relay):
    """No tuple is to blame for what goes wrong when the batch is finished."""

    def finish_batch(self) -> None:
        raise FailedException("the end of the batch is no good")


class EmitsNonsenseAtTheEnd(Relay):
    """What it emits in the end can't be put into a column."""

    output = "word long"


@pytest.mark.parametrize(("bolt", "reason"), [(FailsAtTheEnd(), "no good"), (EmitsNonsenseAtTheEnd(), "word")])
def test_an_error_that_no_tuple_is_to_blame_for_stops(bolt: Any, reason: str, tmp_path: Path) -> None:
    made, per_word, set_aside = topology(bolt)
    with pytest.raises(RetriesExhausted, match=f"transaction 1 failed 2 times.*{reason}"):
        run(made, tmp_path)
    assert (per_word.rows, set_aside.rows) == ({}, {})


def test_more_than_is_allowed_stops(tmp_path: Path) -> None:
    made, per_word, set_aside = topology(Picky())
    with pytest.raises(RetriesExhausted, match=r"on 2 tuples \(dead_letters_max = 1\).*can't stomach poison"):
        run(made, tmp_path, dead_letters_max=1)
    assert (per_word.rows, set_aside.rows) == ({}, {})


def test_without_dead_letters_a_poison_tuple_stops(tmp_path: Path) -> None:
    made, _, _ = topology(Picky())
    made._dead_letters = None
    with pytest.raises(RetriesExhausted, match="can't stomach poison"):
        run(made, tmp_path)


class PickyUnlucky(PickyTotal):
    """Does not like some words; and once it has got over them, has no luck in the end."""

    def finish_batch(self) -> None:
        if not CURED:
            raise FailedException("no luck")
        super().finish_batch()


def test_a_restart_keeps_what_was_set_aside(tmp_path: Path, cured: Callable[[], None]) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    table, set_aside = MemoryTable("total"), MemoryTable("letters")
    made.set_committer_bolt("total", PickyUnlucky(), state=total(table)).global_grouping("spout")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    with pytest.raises(RetriesExhausted, match="no luck"):
        run(made, tmp_path)
    assert set_aside.rows == {}
    cured()
    assert run(made, tmp_path).failures == 0, "the words were found by the process before"
    assert stored(table) == {(): 4}
    assert len(set_aside.rows) == 3


# --- tried again -----------------------------------------------------------------------------------------------------

CURED = False


class Curable(Picky):
    """Likes some words only later."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if not CURED:
            super().execute(tuple, collector)
        elif tuple["word"] == "venom":
            raise FailedException("still can't stomach venom")
        else:
            collector.emit(tuple["word"])


@pytest.fixture
def cured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(sys.modules[__name__], "CURED", True)


def try_again(topology: Topology, folder: Path, keys: Any = None, **config: Any) -> RunSummary:
    options = {"attempts_max": 1, "stop_when_drained": True, **config}
    return run_topology(
        replace(topology, spout=LetterSpout(topology, keys)),
        store=f"sqlite:///{folder}/store.db",
        config=TopologyConfig(**options),
        master="none",
    )


@pytest.mark.parametrize("where", ["processing", "commit"])
def test_letters_are_tried_again_once(where: str, tmp_path: Path, cured: Callable[[], None]) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    if where == "commit":
        made.set_committer_bolt("relay", Relay(), state=total()).global_grouping("spout")
    source = "relay" if where == "commit" else "spout"
    made.set_bolt("picky", Curable(), 2).shuffle_grouping(source)
    per_word, set_aside = MemoryTable("counts"), MemoryTable("letters")
    made.set_committer_bolt("counts", MemoryMapState("word", table=per_word).count()).shuffle_grouping("picky")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    run(made, tmp_path)
    assert stored(per_word) == {"cat": 3, "dog": 1}
    cured()
    topology = made.build()
    assert try_again(topology, tmp_path, [(1, 0)]).transactions == 1
    assert stored(per_word) == {"cat": 3, "dog": 1, "poison": 1}
    assert try_again(topology, tmp_path, [(1, 0)]).transactions == 0, "whoever asks, each is tried once"
    assert try_again(topology, tmp_path).transactions == 1, "what fails again is a new letter, for another time"
    assert stored(per_word) == {"cat": 3, "dog": 1, "poison": 2}
    assert [(row["transaction"], row["number"], row["tried_again_in"]) for row in all_letters(topology)] == [
        (1, 0, 2),
        (1, 1, 3),
        (1, 2, 3),
        (3, 0, None),
    ]
    assert run(made, tmp_path).transactions == 0, "the source's positions did not move"


def test_letters_that_can_not_be_tried_again_are_told(tmp_path: Path) -> None:
    made, _, _ = topology(Picky())
    run(made, tmp_path)
    topology_now = made.build()
    with pytest.raises(ConfigError, match=r"^there is no dead letter 7:7; topology 'words' has 3$"):
        letters_of(topology_now, [(7, 7)])
    renamed = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    renamed.set_bolt("choosy", Picky()).shuffle_grouping("spout")
    renamed.set_committer_bolt("counts", MemoryMapState("word").count()).shuffle_grouping("choosy")
    renamed.set_dead_letters(topology_now.dead_letters)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bolt 'picky' from 'spout', stream 'default'; topology 'words' has no such"):
        letters_of(renamed.build(), None)


def test_a_topology_without_dead_letters_has_none() -> None:
    made, _, _ = topology(Picky())
    made._dead_letters = None
    with pytest.raises(ConfigError, match="topology 'words' keeps no dead letters"):
        all_letters(made.build())


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.dates() | st.datetimes()
        | st.decimals(allow_nan=False) | st.lists(st.binary()) | st.floats(allow_nan=False),
    )
)  # fmt: skip
def test_values_are_read_back_as_they_were_written(values: dict[str, Any]) -> None:
    assert values_from_json(values_to_json(values)) == values


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_attempts_max_has_to_be_set(tmp_path: Path) -> None:
    made, _, _ = topology(Picky())
    with pytest.raises(ConfigError, match="has a table of dead letters, but attempts_max is not set"):
        run(made, tmp_path, attempts_max=None)


def test_all_states_have_to_be_opaque() -> None:
    made, _, _ = topology(Picky(), opaque=False)
    state = MemoryMapState("word", kind=StateKind.TRANSACTIONAL, table=MemoryTable("more"))
    made.set_committer_bolt("more", state.count()).shuffle_grouping("picky")
    with pytest.raises(ConfigError, match="committer 'more' keeps a transactional state; where tuples may"):
        made.build()


def test_the_table_has_to_be_one_for_dead_letters() -> None:
    made, _, _ = topology(Picky())
    with pytest.raises(ConfigError, match="set_dead_letters takes a DeadLetterTable"):
        made.set_dead_letters(counts())
