"""What a user gets wrong is told on the command line: soon, in one line that names it, without a stack trace.

Commands are called in this process, but for one of each way in which only a process can end: before Spark starts, and
while Spark starts.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts.local_broker import LocalBroker
from tests.integration.programs import CLI, Program
from tests.integration.signals import Gate, Signals
from tests.unit.command_line import RUN, Command, Done
from transactional.errors import ConfigError
from transactional.model.errors import error_class_of
from transactional.runtime.executors.spark.cluster_check import check_executors

MISTAKES = "tests.integration.command_line.mistakes"
TIMEOUT_S = 240


def checked(done: Done) -> str:
    """The one line that a run was refused with."""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    [line] = lines
    error = error_class_of(line.partition(":")[0])
    assert error is not None
    assert (done.code, done.out) == (error.exit_code, "")
    return line


def refusal(command: Command, target: str, *options: str) -> str:
    """The line that `transactional run MODULE:TARGET` without Spark is refused with, in the current folder."""
    return checked(command(*RUN, target, *options))


def refusal_of_process(folder: Path, **variables: str) -> str:
    """The line that a process is refused with which runs a topology on Spark with these variables."""
    done = subprocess.run(
        [*CLI, "run", f"{MISTAKES}:fine", "--until-drained", "--master", "local[2]"],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return checked(Done(done.returncode, done.stdout, done.stderr))


def run_well(command: Command, target: str) -> None:
    done = command(*RUN, target)
    assert done.code == 0, done.err


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
def test_a_topology_that_can_not_be(target: str, line: str, command: Command, tmp_path: Path) -> None:
    files = list(tmp_path.iterdir())
    assert re.match(line, refusal(command, target))
    assert list(tmp_path.iterdir()) == files, "nothing was made"


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
def test_a_store_that_can_not_be(store: str, line: str, command: Command) -> None:
    assert re.match(line, refusal(command, f"{MISTAKES}:fine", "--store", store))


def test_a_broker_that_can_not_be_reached(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOTSTRAP", "127.0.0.1:9")
    line = refusal(command, f"{MISTAKES}:kafka_topology")
    assert re.match(
        r"TX301: no Kafka broker at 127\.0\.0\.1:9 answers within 2000 ms: .*Check that it is running", line
    )


@pytest.mark.kafka
def test_a_topic_that_is_not_there(
    kafka_broker: LocalBroker, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOOTSTRAP", kafka_broker.bootstrap)
    line = refusal(command, f"{MISTAKES}:kafka_topology")
    assert re.match(r"TX100: there is no topic 'flihgts' at .*; create it first", line)


def test_a_table_of_another_schema(command: Command) -> None:
    run_well(command, f"{MISTAKES}:fine")
    target = f"{MISTAKES}:of_another_schema"
    line = refusal(command, target, "--store", "sqlite:///another.db")
    assert re.match(
        r"TX101: Delta table .*/count has the columns .*count int64.*; the state needs .*count double", line
    )


def test_a_topology_that_is_another_one_now(command: Command) -> None:
    run_well(command, f"{MISTAKES}:fine")
    line = refusal(command, f"{MISTAKES}:of_another_schema")
    assert re.match(r"TX403: topology 'words' is not the one .* committers\.count\.values: .*--accept-changes", line)


def test_a_table_without_its_store(command: Command) -> None:
    run_well(command, f"{MISTAKES}:fine")
    line = refusal(command, f"{MISTAKES}:fine", "--store", "sqlite:///another.db")
    assert re.match(
        r"TX404: committer 'count': its table .*: it was last written by attempt \d+, .*the store was wiped", line
    )


def test_a_store_of_a_newer_version(tmp_path: Path, command: Command) -> None:
    run_well(command, f"{MISTAKES}:fine")
    with sqlite3.connect(tmp_path / "transactional.db") as store:
        store.execute("UPDATE transactional_schema SET version = 99")
    store.close()
    line = refusal(command, f"{MISTAKES}:fine")
    assert re.match(r"TX405: the store .* has schema version 99, .* install the release that wrote it", line)


def test_a_second_run_at_the_same_time(tmp_path: Path, command: Command, signals: Signals, gate: Gate) -> None:
    first = [*CLI, "run", f"{MISTAKES}:that_waits", "--master", "none", "--until-drained"]
    with Program(first, tmp_path) as program:
        signals.receive()
        line = refusal(command, f"{MISTAKES}:that_waits")
        assert re.match(r"TX402: topology 'words' is coordinated by '.*', whose lease \(epoch 1\) is valid until", line)
        gate.open()
        assert program.wait() == 0, program.text
    assert program.lines[-1] == "3 transactions committed, the last is 3; 0 attempts failed"


def test_a_master_that_is_none(command: Command) -> None:
    line = refusal(command, f"{MISTAKES}:fine", "--master", "sprak://there:7077")
    assert re.match(r"TX100: 'sprak://there:7077' is not a Spark master: use local\[\*\], .* or none, to run", line)


def test_a_store_where_nothing_can_be_written(tmp_path: Path, command: Command) -> None:
    (tmp_path / "folder").mkdir()
    line = refusal(command, f"{MISTAKES}:fine", "--store", "sqlite:///folder")
    assert line == "TX100: the coordinator's store, folder, is a folder; name a file in it, such as folder/store.db"
    (tmp_path / "notes.txt").write_text("no database")
    line = refusal(command, f"{MISTAKES}:fine", "--store", "sqlite:///notes.txt")
    assert line.startswith("TX100: the coordinator's store, notes.txt, is not a SQLite file; use")


@pytest.mark.spark
def test_spark_without_java(tmp_path: Path) -> None:
    line = refusal_of_process(tmp_path, PATH="/nowhere", JAVA_HOME="")
    assert re.match(r"TX100: Java 17 or newer is needed, and there is none at 'java': install Java 17 or newer", line)


OTHER_VERSION = """\
#!/bin/sh
exec {python} -c '
import runpy, sys, pyspark.worker
sys.version_info = (3, 9, 0, "final", 0)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
' "$@"
"""


def write_python(folder: Path, script: str) -> Path:
    """An interpreter for executors, of this version unless the script says otherwise."""
    python = folder / "python"
    python.write_text(script.format(python=sys.executable), "utf-8")
    python.chmod(0o755)
    return python


def line_of_other_python(python: Path, reason: str) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        rf"Spark's executors can't work with '{python}', .*: {reason}. This driver is Python {version} "
        rf"\({sys.executable}\): set PYSPARK_PYTHON to"
    )


@pytest.mark.spark
def test_executors_with_another_python_end_a_run(tmp_path: Path) -> None:
    """The variable is read as Spark starts, and the run says no more than the check does."""
    python = write_python(tmp_path, OTHER_VERSION)
    line = refusal_of_process(tmp_path, PYSPARK_PYTHON=str(python))
    assert re.match(f"TX100: {line_of_other_python(python, 'it is Python 3.9')}", line)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho No module named pyspark >&2; exit 1\n", "No module named pyspark"),
        (None, "Cannot run program .* No such file or directory"),
    ],
)
def test_executors_with_another_python(
    script: str | None, reason: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python" if script is None else write_python(tmp_path, script)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(ConfigError, match=line_of_other_python(python, reason)):
        check_executors(spark.sparkContext)


@pytest.mark.spark
def test_executors_without_the_packages(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    python = write_python(tmp_path, '#!/bin/sh\nexec {python} -S "$@"\n')
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(ConfigError, match=r"Spark's executors lack the Python packages .*pyarrow.*: install transact"):
        check_executors(spark.sparkContext)
