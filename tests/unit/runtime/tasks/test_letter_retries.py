"""Dead letters are tried again: each once, as the tuple that it was, and never in the way of what comes after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit import poisoned
from tests.unit.fakes import Total, stored, total
from tests.unit.poisoned import (
    POISON,
    WORD,
    Curable,
    Picky,
    PickyUnlucky,
    Relay,
    letters,
    run,
    topology,
    try_again,
)
from transactional import TransactionalTopologyBuilder
from transactional.bolts import OutputCollector, TopologyContext
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES, values_from_json, values_to_json
from transactional.errors import ConfigError, FailedException
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.letter_spout import LetterSpout, all_letters, waiting_letters
from transactional.runtime.executors.local import LocalExecutor


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


class Recoils(PickyUnlucky):
    """Has no luck with single words, whatever is done."""

    def finish_batch(self) -> None:
        if self.count == 1:
            raise FailedException("what, one word?")
        Total.finish_batch(self)

    def execute(self, tuple: Tuple) -> None:
        if poisoned.CURED:
            Total.execute(self, tuple)
        else:
            super().execute(tuple)


def test_letters_that_nobody_can_finish_stay_where_they_are(tmp_path: Path, cured: Callable[[], None]) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    table = MemoryTable("total")
    made.set_committer_bolt("total", Recoils(), state=total(table)).global_grouping("spout")
    made.set_dead_letters(letters())
    run(made, tmp_path)
    cured()
    topology = made.build()
    spout = LetterSpout(topology, [(1, 0)])
    assert try_again(topology, tmp_path, spout=spout).failures == 1
    assert spout.returned == {(1, 0)}
    assert [row["tried_again_in"] for row in all_letters(topology)] == [None] * 3
    assert run(made, tmp_path).failures == 0, "the topology goes on"
    assert try_again(topology, tmp_path).failures == 0, "with two others it is one that can be finished"
    assert [row["tried_again_in"] for row in all_letters(topology)] == [3] * 3
    assert stored(table) == {(): 7}


NESTED = "word string, tags map<string,int>, at struct<x:int,y:array<double>>"


def test_a_letter_is_the_tuple_that_it_was_whatever_its_types(tmp_path: Path, cured: Callable[[], None]) -> None:
    rows = [("poison", [("a", 1), ("b", None)], {"x": 1, "y": [0.5]}), ("cat", None, None)]
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout([rows], NESTED, 10))
    seen = MemoryTable("seen")
    state = MemoryMapState("word string", "tags map<string,int>, at struct<x:int,y:array<double>>", table=seen)
    made.set_committer_bolt("seen", Keeps(), state=state).shuffle_grouping("spout")
    made.set_dead_letters(letters("nested letters"))
    run(made, tmp_path)
    assert stored_whole(seen) == {}
    cured()
    assert try_again(made.build(), tmp_path).failures == 0
    assert stored_whole(seen)["poison"] == (rows[0][1], rows[0][2])


class Keeps(Relay):
    """Keeps whole tuples; at first it does not like any."""

    output = ""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.state = context.state
        self.rows: list[Any] = []

    def execute(self, tuple: Tuple) -> None:
        assert poisoned.CURED
        self.rows.append(tuple.values)

    def finish_batch(self) -> None:
        assert self.state is not None
        for values in self.rows:
            self.state.put(values[0], values[1:])


def stored_whole(table: MemoryTable) -> dict[Any, Any]:
    return {key[0]: row.value for key, row in table.rows.items()}


@pytest.mark.parametrize("recorded", ["planned today", "recorded by the version before"])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("word string, size long", "dead letter 1:0 lacks size; 'spout' emits word, size now"),
        ("word long", "dead letter 1:0 does not match what 'spout' emits now: 'spout' declares field 'word' as long"),
        ("word struct<x:int>", "dead letter 1:0 does not match what 'spout' emits now: "),
    ],
)
def test_a_letter_that_is_no_tuple_any_more_is_a_letter_anew(
    fields: str, reason: str, recorded: str, tmp_path: Path, cured: Callable[[], None]
) -> None:
    made, _, _ = topology(Curable(), partitions=[[("poison",)]])
    run(made, tmp_path)
    cured()
    now = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout([[]], fields, 10))
    now.set_bolt("picky", Curable()).shuffle_grouping("spout")
    now.set_committer_bolt("counts", MemoryMapState("word").count()).shuffle_grouping("picky")
    now.set_dead_letters(made.build().dead_letters)  # type: ignore[arg-type]
    topology_now = now.build()
    planned_by = topology_now if recorded == "planned today" else made.build()
    batch = LetterSpout(planned_by).plan(BatchMetadata({}), replay=False)
    assert batch is not None
    attempt = TransactionAttempt(TxId(2), AttemptId(9))
    CommitPhase(topology_now).run(attempt, LocalExecutor(topology_now).run(attempt, batch))
    rows = all_letters(topology_now)
    assert [(row["transaction"], row["number"], row["tried_again_in"]) for row in rows] == [(1, 0, 2), (2, 0, None)]
    assert rows[1]["error"].startswith(reason)
    assert rows[1]["tuple"] == rows[0]["tuple"]


@pytest.mark.parametrize("where", ["processing", "commit"])
def test_a_tuple_of_every_task_is_one_letter_and_reaches_every_task_again(
    where: str, tmp_path: Path, cured: Callable[[], None]
) -> None:
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    if where == "commit":
        made.set_committer_bolt("relay", Relay(), state=total()).global_grouping("spout")
    made.set_bolt("picky", Curable(), 3).all_grouping("relay" if where == "commit" else "spout")
    per_word = MemoryTable("counts")
    made.set_committer_bolt("counts", MemoryMapState("word", table=per_word).count()).shuffle_grouping("picky")
    made.set_dead_letters(letters(f"all {where}"))
    run(made, tmp_path)
    assert stored(per_word) == {"cat": 9, "dog": 3}
    cured()
    topology = made.build()
    assert len(all_letters(topology)) == 3
    assert try_again(topology, tmp_path, [(1, 0)]).transactions == 1
    assert stored(per_word) == {"cat": 9, "dog": 3, "poison": 3}


def test_a_recorded_letter_of_a_bolt_that_is_gone_is_not_lost(tmp_path: Path) -> None:
    made, _, _ = topology(Picky())
    run(made, tmp_path)
    letter = waiting_letters(made.build(), [(1, 0)])[0]
    renamed = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    renamed.set_bolt("choosy", Picky()).shuffle_grouping("spout")
    renamed.set_committer_bolt("counts", MemoryMapState("word").count()).shuffle_grouping("choosy")
    renamed.set_dead_letters(made.build().dead_letters)  # type: ignore[arg-type]
    now, attempt = renamed.build(), TransactionAttempt(TxId(2), AttemptId(9))
    report = CommitPhase(now).run(attempt, LocalExecutor(now).run(attempt, BatchMetadata({}, letters=(letter,))))
    assert report.letters == {"picky": 1}
    [again] = [row for row in all_letters(now) if row["transaction"] == 2]
    assert "topology 'words' no longer has such a subscription" in again["error"]


def test_letters_that_can_not_be_tried_again_are_reported(tmp_path: Path) -> None:
    made, _, _ = topology(Picky())
    run(made, tmp_path)
    topology_now = made.build()
    with pytest.raises(ConfigError, match=r"^there is no dead letter 7:7; topology 'words' has 3$"):
        waiting_letters(topology_now, [(7, 7)])
    renamed = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(POISON, WORD, 10))
    renamed.set_bolt("choosy", Picky()).shuffle_grouping("spout")
    renamed.set_committer_bolt("counts", MemoryMapState("word").count()).shuffle_grouping("choosy")
    renamed.set_dead_letters(topology_now.dead_letters)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="bolt 'picky' from 'spout', stream 'default'; topology 'words' no longer has such"
    ):
        waiting_letters(renamed.build(), None)


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
