"""Storm's three failure cases on a standalone cluster: a task dies, a task of the ackers, the spout's process."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.cluster.dying_mails import WORDS
from tests.integration.cluster.one_driver import OneDriver
from tests.integration.cluster.spark_cluster import kill_executor
from tests.integration.kafka_count import end_lease
from tests.integration.reliable_bolts import sent
from tests.integration.signals import Gate, Signals
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.runtime.executors.spark.run_once import STAGE_ATTEMPTS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
MAILS = "tests.integration.cluster.dying_mails:run"
CONF = {"at-most-once": (f"{STAGE_ATTEMPTS}=1",), "at-least-once": ()}
"""Of the session: Spark may run no stage a second time. In an order in which drivers are shared."""


def await_tasks(component: str, signals: Signals) -> list[int]:
    """Wait until both tasks wait; the pids of their workers."""
    lines = [signals.receive().split() for _ in range(2)]
    assert [waiting for waiting, _ in lines] == [component, component]
    return [int(pid) for _, pid in lines]


def lost(folder: Path) -> int:
    """Messages that the store has counted as lost."""
    with closing(SqlCoordinatorStore(f"sqlite:///{folder}/transactional.db")) as store:
        return sum(each.batch.lost for each in store.attempts("mails", limit=100) if each.phase == "committed")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("guarantee", "waits"), [("at-least-once", "send"), ("at-least-once", "__acker"), ("at-most-once", "send")]
)
def test_a_task_dies(guarantee: str, waits: str, driver: OneDriver, tmp_path: Path, signals: Signals) -> None:
    gate = Gate(tmp_path)
    with driver.running(MAILS, tmp_path, CONF[guarantee], GUARANTEE=guarantee, WAITS=waits):
        kill_executor(await_tasks(waits, signals)[0])
        gate.open()
    check(guarantee, tmp_path)


@pytest.mark.long("test_a_task_dies, and tests/integration/faults/test_kills.py")
@pytest.mark.parametrize("guarantee", CONF)
def test_the_process_of_the_spout_dies(guarantee: str, driver: OneDriver, tmp_path: Path, signals: Signals) -> None:
    gate = Gate(tmp_path)
    with driver.dying(MAILS, tmp_path, CONF[guarantee], GUARANTEE=guarantee, WAITS="send"):
        await_tasks("send", signals)
    end_lease(tmp_path, "mails", "transactional.db")
    gate.open()
    driver.run(MAILS, tmp_path, CONF[guarantee], GUARANTEE=guarantee, WAITS="send")
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
