"""The Trident word count as users run it: from memory without Spark, and from Kafka on Spark."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.trident_word_count import FREQUENT, SENTENCES
from state import DeltaMapState
from tests.integration.programs import CLI, finished

WORDS = Counter(word for line in SENTENCES for word in line.split())
FREQUENT_WORDS = {word: 1 for word, count in WORDS.items() if count >= FREQUENT}


def check(folder: Path) -> None:
    for name, value, expected in (("words", "count", WORDS), ("frequent", "times", FREQUENT_WORDS)):
        rows = DeltaMapState(folder / name, "word string", f"{value} long").read().to_pylist()
        assert {row["word"]: row[value] for row in rows} == expected
    assert FREQUENT_WORDS


def test_the_command_line_runs_it_without_spark(tmp_path: Path) -> None:
    command = [*CLI, "run", "examples.trident_word_count:build", "--master", "none", "--until-drained"]
    assert finished(command, tmp_path).lines[-1] == "3 transactions committed, the last is 3; 0 attempts failed"
    check(tmp_path / "data" / "trident-words")
    query = [*CLI, "query", "examples.trident_word_count:build", "words", "the cow emu"]
    assert finished(query, tmp_path).lines == [f'{{"total": {WORDS["the"] + WORDS["cow"]}}}', "as of transaction 3"]


@pytest.mark.spark
@pytest.mark.kafka
def test_on_spark_it_counts_what_is_in_kafka(tmp_path: Path) -> None:
    lines = finished([sys.executable, "-m", "examples.trident_word_count"], tmp_path).lines
    told = ", ".join(f"{word} {count}" for word, count in sorted(FREQUENT_WORDS.items()))
    assert lines[-1] == f"frequent: {told}"
    check(tmp_path / "data" / "trident-words")
