"""A cluster of which one worker has surroundings of its own: a folder that it does not see, a disk that is full, a
clock that is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from state.delta.tables.staging import STAGED_FOLDER
from tests.integration.cluster import killed_executor
from tests.integration.cluster.spark_cluster import start_master, start_worker
from tests.integration.command_line import many_words
from tests.integration.faults.full_disk import fill
from tests.integration.programs import CLI, SPARK_DEFAULTS, Program
from tests.integration.signals import Gate, Signals
from tests.integration.tables import counts

pytestmark = [pytest.mark.proof, pytest.mark.spark, pytest.mark.timeout(600)]

# Each worker has a core: the run begins when both are there, and each job has a task for each.
BOTH = "spark.scheduler.minRegisteredResourcesRatio 1\nspark.task.maxFailures 1\n"

OFF_BY_AN_HOUR = """
import time
from pathlib import Path
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + 3600
time.time_ns = lambda: now_ns() + 3_600_000_000_000
Path(__file__).with_name("was_off").touch()
"""


@contextmanager
def run_with(disk: str | None, folder: Path, *run: str, **variables: str) -> Iterator[tuple[Program, Path]]:
    """A run beside which one worker has these variables, and sees a small disk of its own in the place of that folder,
    and that disk; the other worker is an ordinary one."""
    seen = folder / disk if disk else None
    if seen:
        seen.mkdir(parents=True)
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(SPARK_DEFAULTS + BOTH, "utf-8")
    (folder / "cluster").mkdir(exist_ok=True)
    master, url = start_master(folder / "cluster")
    command = [*CLI, "run", *run, "--master", url, "--until-drained"]
    with (
        master,
        start_worker(folder / "cluster", url, disk=seen, **variables) as odd,
        start_worker(folder / "cluster", url) as ordinary,
    ):
        for worker in (odd, ordinary):
            worker.await_line("Successfully registered with master")
        with Program(command, folder, SPARK_CONF_DIR=str(folder / "conf")) as program:
            yield program, Path(f"/proc/{odd.pid}/root{seen or '/'}")


def test_a_worker_that_does_not_see_the_folder_is_one_clear_line(tmp_path: Path) -> None:
    arguments = ["tests.integration.cluster.slow_steps:build", "--set", "commit_steps=jobs"]
    with run_with(f"seen/{STAGED_FOLDER}", tmp_path, *arguments) as (program, _):
        assert program.wait() == 1, program.text
        told = program.lines[-1]
        assert "component 'seen': " in told, program.text
        assert "put it on storage that the driver and every executor mount at the same path" in told
        assert "Traceback" not in program.text
    assert not DeltaTable.is_deltatable(str(tmp_path / "counts")), "nothing has begun"


def test_a_worker_whose_disk_is_full_is_an_outage(tmp_path: Path) -> None:
    """What executors exchange they write to disks of their own."""
    Gate(tmp_path, "gate-waits").open()
    gate = Gate(tmp_path, "gate-tokens")
    arguments = ["tests.integration.cluster.killed_executor:build", "--set", "attempts_max=1"]
    with Signals(tmp_path) as signals, run_with("cluster/spark-local", tmp_path, *arguments) as (program, disk):
        for _ in range(killed_executor.PARTITIONS):
            assert signals.receive().startswith("tokens ")
        filler = fill(disk)
        gate.open()
        told = program.await_line(rf"transaction {killed_executor.MEETS}:\d+ failed in .*").string
        filler.unlink()
        assert "No space left on device" in told
        assert program.wait() == 0, program.text
        assert "Traceback" not in program.text
    assert counts(tmp_path / "words", "word") == dict(killed_executor.expected())


def test_a_worker_whose_clock_is_off_by_an_hour_is_harmless(tmp_path: Path) -> None:
    """A shim stands for it: its Python's clock is off, its JVM's and that of the files are not."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(OFF_BY_AN_HOUR, "utf-8")
    target = "tests.integration.command_line.many_words:build"
    with run_with(None, tmp_path, target, PYTHONPATH=f"{tmp_path}/shim") as (program, _):
        assert program.wait() == 0, program.text
        assert "0 attempts failed" in program.text
    assert (tmp_path / "shim" / "was_off").exists()
    assert counts(tmp_path / "count", "word") == dict(many_words.expected())
