"""A run on Spark says what it does and nothing else: no word of workers that end, from any folder; what Spark says is
in a file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.command_line.idle_workers import LAST_WORD
from tests.integration.programs import Program, finished
from transactional.runtime.spark.session import DELTA_JARS

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
RUN = [sys.executable, "-m", "examples.transactional_global_count"]


JAVA_SAYS = "NOTE: Picked up JDK_JAVA_OPTIONS"  # since the tests set it


def test_workers_that_spark_closes_say_nothing(tmp_path: Path) -> None:
    with Program([sys.executable, "-m", "tests.integration.command_line.idle_workers"], tmp_path) as program:
        program.await_line(f"^{LAST_WORD}$")  # comes through the same pipe as what the others said before
        assert program.wait() == 0
    assert [line for line in program.lines if not line.startswith(JAVA_SAYS)] == [LAST_WORD]


def test_a_clone_and_a_cache_may_have_a_space_in_their_names(tmp_path: Path) -> None:
    clone, cache = tmp_path / "a clone", tmp_path / "a cache"
    for package in ("transactional", "spouts", "state", "sinks", "verifier", "examples"):
        shutil.copytree(ROOT / package, clone / package, ignore=shutil.ignore_patterns("__pycache__"))
    cache.mkdir()
    DELTA_JARS.files()
    (cache / "transactional").symlink_to(DELTA_JARS.folder().parent)

    run = finished(RUN, clone, XDG_CACHE_HOME=str(cache), PYTHONPATH=str(clone))

    assert run.lines[-1] == "global count: 19 of 19 tuples, from data/global-count/count"


NOISY = """
import sys

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder


def loud(row):
    sys.stderr.write("a worker's own noise\\n")
    return tuple(row)


def build():
    spout = MemoryTransactionalSpout([[("cat",), ("dog",)]], fields="word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_bolt("loud", loud, output="word string").shuffle_grouping("spout")
    builder.set_committer_bolt("count", DeltaMapState("counts", key="word").count()).fields_grouping("loud", "word")
    return builder.build()
"""


def test_a_log_holds_no_word_of_sparks_which_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [str(Path(sys.executable).parent / "transactional"), "run", "noisy:build", "--until-drained"]
    run = finished([*command, "--master", "local[1]", "--log", "json"], tmp_path)
    assert [json.loads(line)["event"] for line in run.lines] == ["started", "ended"]
    said = (tmp_path / "transactional-spark.log").read_text()
    assert "a worker's own noise" in said
    assert JAVA_SAYS in said
