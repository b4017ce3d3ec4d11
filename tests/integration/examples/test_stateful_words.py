"""The example of a stateful bolt (row C9) as users run it, without Spark and on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from state import SqlMapState
from tests.integration.programs import CLI, finished

COUNTS = {"apple": 2, "banana": 1, "cat": 8, "chicken": 1, "dog": 7}


def check(url: str) -> None:
    counts = SqlMapState(url, "counts", "word string", "count long")
    assert {row["word"]: row["count"] for row in counts.read().to_pylist()} == COUNTS
    leader = SqlMapState(url, "leader", (), "word string, count long, changes long")
    assert [tuple(row.values()) for row in leader.read().to_pylist()] == [("cat", 8, 2)]


def test_the_command_line_runs_and_describes_it_without_spark(tmp_path: Path) -> None:
    command = [*CLI, "run", "examples.stateful_words:build", "--master", "none", "--until-drained"]
    for committed in (3, 0):
        lines = finished(command, tmp_path).lines
        assert lines[-1] == f"{committed} transactions committed, the last is 3; 0 attempts failed"
        check(f"sqlite:///{tmp_path}/words.db")
    described = finished([*CLI, "describe", "examples.stateful_words:build"], tmp_path).text
    assert "WordCount" in described
    assert "commit" in described


@pytest.mark.spark
def test_on_spark_it_prints_both_tables(tmp_path: Path) -> None:
    lines = finished([sys.executable, "-m", "examples.stateful_words"], tmp_path).lines
    assert lines[-2:] == ["counts: apple 2, banana 1, cat 8, chicken 1, dog 7", "leader: cat 8, 2 changes"]
    check(f"sqlite:///{tmp_path}/data/stateful-words/words.db")
