"""Dead letters on Spark and Delta: set aside once, listed and tried again by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from spouts import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from state.rows.value_limits import ValueLimits
from tests.integration.programs import CLI, finished
from tests.integration.tables import counts, rows
from transactional import TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.operations.loading import load_topology

pytestmark = pytest.mark.spark

MODULE = '''
"""Lengths of words; some are no words, until the bolt has learnt better."""

from pathlib import Path

from spouts import OpaqueMemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from transactional import TransactionalTopologyBuilder, Tuple

HERE = Path(__file__).parent
WORDS = [["cat"], [None], ["horse"], ["dog"], [None]], [["cat"], ["12"], ["cow"]]


def length(row: Tuple) -> tuple[str, int]:
    if not (HERE / "learnt").exists() and not row["word"].isalpha():
        raise ValueError("no word")
    return (str(row["word"]), len(row["word"] or ""))


def build():
    spout = OpaqueMemoryTransactionalSpout(WORDS, "word string", 3)
    builder = TransactionalTopologyBuilder("lengths", "words", spout, 2)
    builder.set_bolt("length", length, 2, output="word string, length long").shuffle_grouping("words")
    builder.set_committer_bolt("count", DeltaMapState(HERE / "count", "word").count()).fields_grouping("length", "word")
    builder.set_dead_letters(DeadLetterTable(HERE / "letters"))
    return builder.build()
'''


def command(folder: Path, *arguments: str) -> str:
    """What a subcommand prints that ends well."""
    program = finished([*CLI, *arguments], folder)
    return program.text


def test_tuples_are_set_aside_and_tried_again(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lengths.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    store = f"sqlite:///{tmp_path}/transactional.db"
    config = TopologyConfig(attempts_max=2, stop_when_drained=True, max_spout_pending=2, retry_pause_ms=1)
    summary = run_topology(load_topology("lengths:build"), store=store, config=config, session=spark)
    right = {"cat": 2, "horse": 1, "dog": 1, "cow": 1}
    assert counts(tmp_path / "count", "word") == right
    assert summary.failures >= 4
    kept = rows(tmp_path / "letters", "transaction", "component", "source", "tuple")
    assert kept == [
        (1, "length", "words", '{"word": "12"}'),
        (1, "length", "words", '{"word": null}'),
        (2, "length", "words", '{"word": null}'),
    ]
    listed = [json.loads(line) for line in command(tmp_path, "deadletters", "lengths:build", "--json").splitlines()]
    assert [(row["transaction"], row["number"], row["tried_again_in"]) for row in listed] == [
        (1, 0, None),
        (1, 1, None),
        (2, 0, None),
    ]
    assert "ValueError: no word" in listed[0]["error"]
    (tmp_path / "learnt").touch()
    told = command(tmp_path, "deadletters", "lengths:build", "1:0", "--replay", "--master", "none")
    assert told.endswith("1 transactions of dead letters committed, the last is 3")
    assert counts(tmp_path / "count", "word") == {**right, "12": 1}
    lines = command(tmp_path, "deadletters", "lengths:build").splitlines()
    assert [line.split() for line in lines if "tried again" in line] == [["tried", "again", "in", "transaction", "3"]]
    command(tmp_path, "deadletters", "lengths:build", "--replay", "--master", "none")
    assert rows(tmp_path / "letters", "tried_again_in") == [(3,), (4,), (4,)]


class NoZeroBytes(MemoryMapState):
    """Refuses text that some databases refuse."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **options)
        self.declared.value_limits = ValueLimits(self.declared.table, zero_bytes=False)


def lower(words: DataFrame) -> DataFrame:
    """Catalyst only."""
    return words.select(functions.lower("word").alias("word"))


def test_what_a_state_refuses_of_a_dataframe_bolt_is_set_aside(tmp_path: Path, spark: SparkSession) -> None:
    spout = OpaqueMemoryTransactionalSpout([[("Cat",), ("A\0b",), ("dog",), ("CAT",)]], "word string", 9)
    builder = TransactionalTopologyBuilder("lower", "words", spout)
    counted, letters = MemoryTable("counts"), MemoryTable("letters")
    builder.set_bolt("lower", lower, 2, output="word string").shuffle_grouping("words")
    builder.set_committer_bolt("counts", NoZeroBytes("word", table=counted).count()).shuffle_grouping("lower")
    builder.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=letters))
    config = TopologyConfig(attempts_max=2, stop_when_drained=True, retry_pause_ms=1)
    summary = run_topology(builder.build(), store=f"sqlite:///{tmp_path}/store.db", config=config, session=spark)
    assert (summary.transactions, summary.failures) == (1, 2)
    assert {key[0]: row.value[0] for key, row in counted.rows.items()} == {"cat": 2, "dog": 1}
    [row] = letters.rows.values()
    assert row.value[:4] == ("counts", "lower", "default", '{"word": "a\\u0000b"}')
