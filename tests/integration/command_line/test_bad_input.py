"""What a user gets wrong is told on the command line: soon, in one line that names it, without a stack trace."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from spouts.local_broker import LocalBroker
from tests.integration.programs import CLI, Program
from tests.integration.signals import Gate, Signals
from transactional.errors import by_code

MISTAKES = "tests.integration.command_line.mistakes"
TIMEOUT_S = 240


def run(target: str, folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`transactional run MODULE:TARGET` to its end, which has to come soon."""
    command = [*CLI, "run", target, "--until-drained", *options]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def refusal(target: str, folder: Path, *options: str, **variables: str) -> str:
    """The one line that a run is refused with."""
    done = run(target, folder, *(options or ("--master", "none")), **variables)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    [line] = lines
    error = by_code(line.partition(":")[0])
    assert error is not None
    assert (done.returncode, done.stdout) == (error.exit_code, "")
    return line


def run_well(target: str, folder: Path) -> None:
    done = run(target, folder, "--master", "none")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (f"{MISTAKES}:fien", r"TX100: module .*\.mistakes has no 'fien' — did you mean 'fine'\?"),
        (f"{MISTAKES}:no_return", r"TX100: .*:no_return returned nothing: end it with `return builder\.build\(\)`"),
        (f"{MISTAKES}:no_topology", r"TX100: .*:no_topology is a int, not a Topology"),
        (
            f"{MISTAKES}:no_build",
            r"TX100: .* is a TransactionalTopologyBuilder, not a Topology: did you forget \.build",
        ),
        (f"{MISTAKES}:kafka", r"TX100: .*:kafka can't be called without arguments: missing .* 'topic'"),
        (MISTAKES, r"TX100: 'tests\.integration\.command_line\.mistakes' is not of the form MODULE:TOPOLOGY"),
        ("no_such_module:build", r"TX100: no_such_module:build: No module named 'no_such_module'; run from the folder"),
        (
            f"{MISTAKES}:unknown_component",
            r"TX100: bolt 'waits' subscribes to 'wrods', .* are: words, waits, count — did you mean 'words'",
        ),
        (f"{MISTAKES}:unknown_field", r"TX100: bolt 'count' uses field 'wrod', .* — did you mean 'word'\?"),
        (f"{MISTAKES}:committer_without_state", r"TX100: committer bolt 'total' has no state: pass state="),
    ],
)
def test_a_topology_that_can_not_be(target: str, line: str, tmp_path: Path) -> None:
    assert re.match(line, refusal(target, tmp_path))
    assert list(tmp_path.iterdir()) == [], "nothing was made"


@pytest.mark.parametrize(
    ("store", "line"),
    [
        ("mysql://localhost/progress", r"TX100: no store for 'mysql' URLs; known: postgresql, sqlite"),
        ("sqlite", r"TX100: "),
        (
            "sqlite:///no/such/folder/store.db",
            r"TX100: the folder of the coordinator's store, .*, does not exist; create it",
        ),
    ],
)
def test_a_store_that_can_not_be(store: str, line: str, tmp_path: Path) -> None:
    assert re.match(line, refusal(f"{MISTAKES}:fine", tmp_path, "--master", "none", "--store", store))


def test_a_broker_that_can_not_be_reached(tmp_path: Path) -> None:
    line = refusal(f"{MISTAKES}:kafka_topology", tmp_path, BOOTSTRAP="127.0.0.1:9")
    assert re.match(r"TX301: no Kafka broker at 127\.0\.0\.1:9 answers within 2000 ms", line)


@pytest.mark.kafka
def test_a_topic_that_is_not_there(kafka_broker: LocalBroker, tmp_path: Path) -> None:
    line = refusal(f"{MISTAKES}:kafka_topology", tmp_path, BOOTSTRAP=kafka_broker.bootstrap)
    assert re.match(r"TX100: there is no topic 'flihgts' at .*; create it first", line)


def test_a_table_of_another_schema(tmp_path: Path) -> None:
    run_well(f"{MISTAKES}:fine", tmp_path)
    target = f"{MISTAKES}:of_another_schema"
    line = refusal(target, tmp_path, "--master", "none", "--store", "sqlite:///another.db")
    assert re.match(
        r"TX101: Delta table .*/count has the columns .*count int64.*; the state needs .*count double", line
    )


def test_a_topology_that_is_another_one_now(tmp_path: Path) -> None:
    run_well(f"{MISTAKES}:fine", tmp_path)
    line = refusal(f"{MISTAKES}:of_another_schema", tmp_path)
    assert re.match(r"TX403: topology 'words' is not the one .* committers\.count\.values: .*--accept-changes", line)


def test_a_table_without_its_store(tmp_path: Path) -> None:
    run_well(f"{MISTAKES}:fine", tmp_path)
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "none", "--store", "sqlite:///another.db")
    assert re.match(
        r"TX404: committer 'count': its table .*: it was last written by attempt \d+, .*the store was wiped", line
    )


def test_a_store_of_a_newer_version(tmp_path: Path) -> None:
    run_well(f"{MISTAKES}:fine", tmp_path)
    with sqlite3.connect(tmp_path / "transactional.db") as store:
        store.execute("UPDATE transactional_schema SET version = 99")
    store.close()
    line = refusal(f"{MISTAKES}:fine", tmp_path)
    assert re.match(r"TX405: the store .* has schema version 99, .* install the version that wrote it", line)


def test_a_second_run_at_the_same_time(tmp_path: Path, signals: Signals, gate: Gate) -> None:
    first = [*CLI, "run", f"{MISTAKES}:that_waits", "--master", "none", "--until-drained"]
    with Program(first, tmp_path) as program:
        signals.receive()
        line = refusal(f"{MISTAKES}:that_waits", tmp_path)
        assert re.match(r"TX402: topology 'words' is coordinated by '.*', whose lease \(epoch 1\) is valid until", line)
        gate.open()
        assert program.wait() == 0, program.text
    assert program.lines[-1] == "3 transactions committed, the last is 3; 0 attempts failed"


def test_a_master_that_is_none(tmp_path: Path) -> None:
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "sprak://there:7077")
    assert re.match(r"TX100: 'sprak://there:7077' is not a Spark master: use local\[\*\], .* or none, to run", line)


def test_a_store_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "none", "--store", "sqlite:///folder")
    assert line == "TX100: the coordinator's store, folder, is a folder; name a file in it, such as folder/store.db"
    (tmp_path / "notes.txt").write_text("no database")
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "none", "--store", "sqlite:///notes.txt")
    assert line.startswith("TX100: the coordinator's store, notes.txt, is not a SQLite file; use")


@pytest.mark.spark
def test_spark_without_java(tmp_path: Path) -> None:
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "local[2]", PATH="/nowhere", JAVA_HOME="")
    assert re.match(r"TX100: Java 17 or newer is needed, and there is none at 'java': install Java 17 or newer", line)


@pytest.mark.spark
def test_executors_without_the_packages(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', "utf-8")
    python.chmod(0o755)
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "local[2]", PYSPARK_PYTHON=str(python))
    assert re.match(r"TX100: Spark's executors lack the Python packages .*pyarrow.*: install transactional on", line)


OTHER_VERSION = """\
#!/bin/sh
exec {python} -c '
import runpy, sys, pyspark.worker
sys.version_info = (3, 9, 0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@"
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (OTHER_VERSION, "it is Python 3.9"),
        ("#!/bin/sh\necho No module named pyspark >&2; exit 1\n", "No module named pyspark"),
        (None, "Cannot run program .* No such file or directory"),
    ],
)
def test_executors_with_another_python(script: str | None, reason: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(script.format(python=sys.executable), "utf-8")
        python.chmod(0o755)
    line = refusal(f"{MISTAKES}:fine", tmp_path, "--master", "local[2]", PYSPARK_PYTHON=str(python))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert re.match(
        rf"TX100: Spark's executors can't work with '{python}', .*: {reason}. This driver is Python {version} "
        rf"\({sys.executable}\): set PYSPARK_PYTHON to",
        line,
    )
