"""Tuples that can't be worked on are set aside, alone and once; what can't be laid at a tuple's door stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from state.rows.value_limits import ValueLimits
from tests.unit.fakes import counts, stored, total
from tests.unit.poisoned import (
    POISON,
    WORD,
    Picky,
    PickyCount,
    PickyTotal,
    PickyUnlucky,
    Relay,
    found,
    picky,
    run,
    topology,
    try_again,
)
from transactional import TransactionalTopologyBuilder
from transactional.core.ports import StateKind
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import ConfigError, FailedException, RetriesExhausted
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.history.journal import JournalWriter, read_journal
from transactional.runtime.engine.history.replay import replay


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


def unreadable(row: Tuple) -> tuple[str]:
    """As a name of a file is in an error: `os.fsdecode(b"\\xff")`."""
    if row.word == "venom":
        raise OSError("no file \udcff\0")
    return (row.word,)


def test_an_error_that_no_table_takes_is_written_escaped(tmp_path: Path) -> None:
    made, per_word, set_aside = topology(unreadable)
    run(made, tmp_path)
    assert "venom" not in stored(per_word)
    [row] = set_aside.rows.values()
    assert "OSError: no file \\udcff\\0" in row.value[4]


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


class WithoutZeroBytes(MemoryMapState):
    """Refuses text that some databases refuse."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self.declared.value_limits = ValueLimits(self.declared.table, zero_bytes=False)


UNSTORABLE = [[("cat",), ("a\0b",), ("dog",), ("a\0b",), ("cat",)], [("cat",), ("\0",)]]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_a_state_refuses_of_a_spout_is_set_aside(parallelism: int, tmp_path: Path) -> None:
    spout = OpaqueMemoryTransactionalSpout(UNSTORABLE, WORD, 10)
    made = TransactionalTopologyBuilder("words", "spout", spout, parallelism)
    table, set_aside = MemoryTable("counts"), MemoryTable("letters")
    update = WithoutZeroBytes("word", table=table).count()
    made.set_committer_bolt("counts", update).fields_grouping("spout", "word")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    assert run(made, tmp_path).failures == 2, "two attempts, which name all of them"
    assert stored(table) == {"cat": 3, "dog": 1}
    where = ("counts", "spout", "default")
    assert found(set_aside) == [(1, *where, "\0"), (1, *where, "a\0b"), (1, *where, "a\0b")]
    [error] = {row.value[4] for key, row in set_aside.rows.items() if json.loads(row.value[3])["word"] == "\0"}
    assert "can't store the value in column 'word'" in error


def test_what_a_state_has_refused_is_counted_when_it_is_tried_again(tmp_path: Path) -> None:
    table, set_aside = MemoryTable("counts"), MemoryTable("letters")

    def topology_of(state: Any) -> TransactionalTopologyBuilder:
        spout = OpaqueMemoryTransactionalSpout(UNSTORABLE, WORD, 10)
        made = TransactionalTopologyBuilder("words", "spout", spout)
        made.set_committer_bolt("counts", state("word", table=table).count()).fields_grouping("spout", "word")
        made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
        return made

    run(topology_of(WithoutZeroBytes), tmp_path)
    try_again(topology_of(MemoryMapState).build(), tmp_path)
    assert stored(table) == {"cat": 3, "dog": 1, "a\0b": 2, "\0": 1}


def test_a_stateful_bolt_may_set_tuples_aside(tmp_path: Path) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    table, set_aside = MemoryTable("counts"), MemoryTable("letters")
    made.set_stateful_bolt("count", PickyCount(), 2, state=counts(table)).fields_grouping("spout", "word")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    assert run(made, tmp_path).failures == 2
    assert stored(table) == {"cat": 3, "dog": 1}
    assert [row[1:] for row in found(set_aside)] == [
        ("count", "spout", "default", "poison"),
        ("count", "spout", "default", "poison"),
        ("count", "spout", "default", "venom"),
    ]


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


def test_attempts_max_has_to_be_set(tmp_path: Path) -> None:
    made, _, _ = topology(Picky())
    with pytest.raises(ConfigError, match="has a table of dead letters, but attempts_max is not set"):
        run(made, tmp_path, attempts_max=None)


def test_all_states_have_to_be_opaque() -> None:
    made, _, _ = topology(Picky(), opaque=False)
    state = MemoryMapState("word", kind=StateKind.TRANSACTIONAL, table=MemoryTable("more"))
    made.set_committer_bolt("more", state.count()).shuffle_grouping("picky")
    with pytest.raises(ConfigError, match="committer 'more' keeps a transactional state; if tuples may"):
        made.build()


def test_the_table_has_to_be_one_for_dead_letters() -> None:
    made, _, _ = topology(Picky())
    with pytest.raises(ConfigError, match="set_dead_letters takes a DeadLetterTable"):
        made.set_dead_letters(counts())
