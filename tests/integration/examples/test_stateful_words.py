"""The example of a stateful bolt (row C9) as users run it, without Spark and on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from state import SqlMapState
from tests.integration.examples.conftest import Example
from tests.unit.command_line import RUN, Command

COUNTS = {"apple": 2, "banana": 1, "cat": 8, "chicken": 1, "dog": 7}


def check(url: str) -> None:
    counts = SqlMapState(url, "counts", "word string", "count long")
    assert {row["word"]: row["count"] for row in counts.read().to_pylist()} == COUNTS
    leader = SqlMapState(url, "leader", (), "word string, count long, changes long")
    assert [tuple(row.values()) for row in leader.read().to_pylist()] == [("cat", 8, 2)]


def test_the_command_line_runs_and_describes_it_without_spark(tmp_path: Path, command: Command) -> None:
    for committed in (3, 0):
        lines = command(*RUN, "examples.stateful_words:build").out.splitlines()
        assert lines[-1] == f"{committed} transactions committed, the last is 3; 0 attempts failed"
        check(f"sqlite:///{tmp_path}/words.db")
    described = command("describe", "examples.stateful_words:build").out
    assert "WordCount" in described
    assert "commit" in described


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_on_spark_it_prints_both_tables(tmp_path: Path, example: Example) -> None:
    lines = example("stateful_words")
    assert lines[-2:] == ["counts: apple 2, banana 1, cat 8, chicken 1, dog 7", "leader: cat 8, 2 changes"]
    check(f"sqlite:///{tmp_path}/data/stateful-words/words.db")
