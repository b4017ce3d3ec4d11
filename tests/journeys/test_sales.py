"""A journey over a real broker on Spark: two streams, windows, a bolt's letters, and all that an operator does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pyspark.sql import SparkSession

from spouts.kafka_admin import create_topic
from spouts.local_broker import LocalBroker
from tests.integration.kafka_count import COMMITTED
from tests.integration.test_console_live import page_of
from tests.journeys.journey import PARTITIONS, Journey
from tests.journeys.sales import TOPICS
from tests.unit.command_line import Command

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.browser]


@dataclass(frozen=True)
class Step:
    """What is done, in words, and by what; the function changes `Journey.plain` as tables have to change."""

    name: str
    does: Callable[[Journey], None]


def counted(journey: Journey) -> None:
    journey.sell(range(12), words=[2])
    journey.run()


def examined(journey: Journey) -> None:
    leader = journey.start("--ui", "--ui-port", "0")
    url = leader.await_line(r"the console is at (\S+)")[1]
    leader.await_line("leading topology")
    journey.start().await_line("standing by")
    with page_of(journey.browser, url) as visit:
        visit.page.get_by_role("link", name="sales").first.click()
        visit.page.get_by_role("link", name="Doctor").click()
        for minute in (12, 13):
            with visit.page.expect_navigation():
                visit.page.get_by_role("link", name="Examine").click()
            expect(visit.page.get_by_text("Nothing is wrong.", exact=True)).to_be_visible()
            journey.sell([minute])
            journey.await_counts()


def taken_over(journey: Journey) -> None:
    leader, standby = journey.programs
    journey.sell(range(14, 26), words=[17])
    leader.await_line(COMMITTED)
    leader.kill()
    journey.programs.remove(leader)
    standby.await_line("leading topology")
    journey.await_counts()


def noted(journey: Journey) -> None:
    """While the process runs, which is stopped then."""
    journey.does("savepoint", "before")
    journey.savepoint = journey.plain
    journey.sell([26, 27], words=[26])
    journey.await_counts()
    [leader] = journey.programs
    leader.interrupt()
    assert leader.wait() == 0, leader.text
    journey.programs.clear()


def replayed(journey: Journey) -> None:
    journey.target = "tests.journeys.sales:mended"
    journey.does("deadletters", "--replay", "--master", "local[2]")
    journey.plain = journey.plain.with_letters()


def swapped(journey: Journey) -> None:
    journey.target = "tests.journeys.sales:swapped"
    journey.sell(range(28, 36), words=[30])
    journey.run()


def rewound(journey: Journey) -> None:
    journey.unread += journey.plain.read - journey.savepoint.read
    journey.does("rewind", "--to-savepoint", "before", "--yes")
    journey.plain = journey.savepoint


STEPS = (
    Step("counts what was sent, and sets aside what has no price", counted),
    Step("is examined in Chromium while it runs", examined),
    Step("is killed with SIGKILL, and the standby takes over", taken_over),
    Step("has a savepoint, and is stopped", noted),
    Step("replays the letters with a release that reads their prices", replayed),
    Step("declares its streams in another order", swapped),
    Step("is rewound to the savepoint", rewound),
    Step("reads again what came after it", Journey.run),
    Step("replays the letters that the rewind has brought back", replayed),
)


@pytest.mark.timeout(600)
def test_every_step_leaves_each_sale_counted_once(
    tmp_path: Path, spark: SparkSession, browser: Browser, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalBroker() as broker, ExitStack() as opened:
        monkeypatch.setenv("BOOTSTRAP", broker.bootstrap)
        for topic in TOPICS:
            create_topic(broker.bootstrap, topic, PARTITIONS)
        journey = Journey(broker.bootstrap, tmp_path, command, browser, opened)
        for step in STEPS:
            try:
                step.does(journey)
                journey.holds()
            except BaseException as error:
                error.add_note(f"in the step: it {step.name}")
                raise
