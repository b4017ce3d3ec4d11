"""Storm's three failure cases on a standalone cluster: a task dies, a task of the ackers, the spout's process."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from state.store.sql_store import SqlCoordinatorStore
from tests.integration.cluster.dying_mails import WORDS
from tests.integration.cluster.one_driver import OneDriver
from tests.integration.cluster.spark_cluster import Cluster, kill_executor
from tests.integration.programs import CLI, Program, finished
from tests.integration.reliable_bolts import sent
from tests.integration.signals import Gate, Signals

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def command(cluster: Cluster) -> list[str]:
    run = [*CLI, "run", "tests.integration.cluster.dying_mails:build", "--master", cluster.master, "--until-drained"]
    return [*run, "--set", "lease_ms=2000"]


def lost(folder: Path) -> int:
    """Messages that the store has counted as lost."""
    with closing(SqlCoordinatorStore(f"sqlite:///{folder}/transactional.db")) as store:
        return sum(each.batch.lost for each in store.attempts("mails", limit=100) if each.phase == "committed")


@pytest.mark.parametrize(
    ("guarantee", "waits"), [("at-least-once", "send"), ("at-least-once", "__acker"), ("at-most-once", "send")]
)
def test_a_task_dies(guarantee: str, waits: str, driver: OneDriver, tmp_path: Path, signals: Signals) -> None:
    gate = Gate(tmp_path)
    target = "tests.integration.cluster.dying_mails:run"
    with driver.running(target, tmp_path, GUARANTEE=guarantee, WAITS=waits):
        lines = [signals.receive(timeout_s=120).split() for _ in range(2)]
        assert [component for component, _ in lines] == [waits, waits]
        kill_executor(int(lines[0][1]))
        gate.open()
    check(guarantee, tmp_path)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_the_process_of_the_spout_dies(guarantee: str, cluster: Cluster, tmp_path: Path, signals: Signals) -> None:
    gate = Gate(tmp_path)
    with Program(command(cluster), tmp_path, GUARANTEE=guarantee, WAITS="send") as program:
        for _ in range(2):
            signals.receive(timeout_s=120)
        program.kill()
    gate.open()
    finished([*command(cluster), "--standby"], tmp_path, timeout_s=200, GUARANTEE=guarantee, WAITS="send")
    check(guarantee, tmp_path)


def check(guarantee: str, folder: Path) -> None:
    """Nothing is lost, or nothing is repeated; and what is lost is counted."""
    given = Counter(sent(folder))
    if guarantee == "at-least-once":
        assert set(given) == WORDS
        assert lost(folder) == 0
    else:
        assert max(given.values()) == 1
        assert set(given) <= WORDS, "a Python worker may survive its executor, and work to its end"
        assert lost(folder) == 20, "the batch that was being processed: 10 messages of each partition"
