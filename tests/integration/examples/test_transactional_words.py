"""Storm's TransactionalWords (row E2) as users run it, and with crashes between its two databases."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples import transactional_words
from state import SqlMapState
from tests.integration.examples.conftest import Example
from tests.integration.examples.dying_words import BUCKET_SIZE, POINTS
from tests.integration.kafka_count import end_lease
from tests.integration.postgres import postgres_server, url_of
from tests.integration.programs import Program
from tests.unit.command_line import RUN, Command
from transactional import run_topology

WORDS = {"cat": 8, "dog": 7, "apple": 2, "chicken": 1, "banana": 1}  # Storm row E2
BUCKETS = {0: 5}
BUCKETS_OF_TWO = {0: 2, 1: 1, 2: 0, 3: 1, 4: 1}


def table(url: str, name: str, key: str) -> dict[Any, int]:
    """Key → count of one of the tables."""
    state = SqlMapState(url, name, key, "count long")
    rows = [tuple(row.values()) for row in state.read().to_pylist()]
    state.close()
    return dict(rows)


def check(words: str, buckets: str, expected: dict[int, int]) -> None:
    assert table(words, "words", "word string") == WORDS
    assert table(buckets, "buckets", "bucket long") == expected


def crash_and_finish(point: str, folder: Path, words: str, buckets: str) -> None:
    """Run until the process dies, and then to the end."""
    dying = [sys.executable, "-m", "tests.integration.examples.dying_words", point]
    with Program(dying, folder, WORDS=words, BUCKETS=buckets) as program:
        assert program.wait() == -signal.SIGKILL, program.text
    topology = transactional_words.build(words, buckets, BUCKET_SIZE)
    end_lease(folder, topology.id)
    run_topology(topology, store=f"sqlite:///{folder}/store.db", config={"stop_when_drained": True}, master="none")
    check(words, buckets, BUCKETS_OF_TWO)


def test_the_command_line_runs_it_without_spark(tmp_path: Path, command: Command) -> None:
    for committed in (3, 0):
        lines = command(*RUN, "examples.transactional_words:build").out.splitlines()
        assert lines[-1] == f"{committed} transactions committed, the last is 3; 0 attempts failed"
        check(f"sqlite:///{tmp_path}/words.db", f"sqlite:///{tmp_path}/buckets.db", BUCKETS)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_on_spark_it_prints_both_tables(tmp_path: Path, example: Example) -> None:
    lines = example("transactional_words")
    assert lines[-2:] == ["words: apple 2, banana 1, cat 8, chicken 1, dog 7", "buckets: 0 5"]
    folder = tmp_path / "data" / "words"
    check(f"sqlite:///{folder}/words.db", f"sqlite:///{folder}/buckets.db", BUCKETS)


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_of_a_commit_phase_changes_no_count(point: str, tmp_path: Path) -> None:
    crash_and_finish(point, tmp_path, f"sqlite:///{tmp_path}/words.db", f"sqlite:///{tmp_path}/buckets.db")


@pytest.mark.postgres
def test_a_crash_between_two_postgres_databases_changes_no_count(tmp_path: Path) -> None:
    with postgres_server() as sockets:
        with psycopg.connect(url_of(sockets), autocommit=True) as connection:
            connection.execute("CREATE DATABASE words")
            connection.execute("CREATE DATABASE buckets")
        words, buckets = (url_of(sockets).replace("/postgres?", f"/{name}?") for name in ("words", "buckets"))
        crash_and_finish("after the words table", tmp_path, words, buckets)
