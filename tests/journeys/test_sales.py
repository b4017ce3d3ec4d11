"""A journey over a real broker on Spark: two streams, windows, a bolt's letters, and all that an operator does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pyspark.sql import SparkSession

from spouts.local_broker import LocalBroker
from tests.integration.brokers import FIRST, NOBODY, SECOND, SecondBroker, await_leaders, create_topics
from tests.integration.console.test_live import page_of
from tests.integration.console.test_pages import PAGES
from tests.integration.kafka_count import COMMITTED
from tests.journeys.journey import BUILD, MENDED, SWAPPED, StartedJourney
from tests.journeys.sales import TOPOLOGY, TUMBLING
from tests.journeys.sources import APP, WEB
from tests.unit.command_line import Command
from transactional.operations.console.beside import console_beside
from transactional.operations.loading import load_topology, open_for_reading
from transactional.operations.web.server import Address

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.browser]


LEADERS = {WEB: [FIRST, FIRST], APP: [FIRST, SECOND]}
AWAY = APP, 1
TABLES = 8


def without_one(journey: StartedJourney) -> None:
    """The first run, while a partition is away that has records."""
    journey.sell(range(12), words=[2])
    journey.second.kill()
    await_leaders(os.environ["BOOTSTRAP"], {**LEADERS, APP: [FIRST, NOBODY]})
    away = [sale for sale in journey.unread if sale.source == AWAY]
    journey.unread = [sale for sale in journey.unread if sale.source != AWAY]
    journey.run()
    journey.unread = away
    assert re.search(r"windows wait for app/\S*\[1\] \(no answer\), no record yet", journey.status())


def back(journey: StartedJourney) -> None:
    journey.second.start()
    await_leaders(os.environ["BOOTSTRAP"], LEADERS)
    journey.run()
    assert "windows wait" not in journey.status()


def examined(journey: StartedJourney) -> None:
    """By who leads; that process is left running, and another one stands by."""
    leader = journey.start(BUILD, "--ui")
    url = leader.await_line(r"the console is at (\S+)")[1]
    with page_of(journey.browser, url) as visit:
        leader.await_line("leading topology")
        journey.start(SWAPPED)
        visit.page.get_by_role("link", name="sales").first.click()
        visit.page.get_by_role("link", name="Doctor").click()
        for minute in (12, 13):
            with visit.page.expect_navigation():
                visit.page.get_by_role("link", name="Examine").click()
            expect(visit.page.get_by_text("Nothing is wrong.", exact=True)).to_be_visible()
            journey.sell([minute])
            journey.await_counts()


def killed(journey: StartedJourney) -> None:
    """Who leads, in the middle of its work: the other one takes over, with its streams in another order."""
    leader, standby = journey.programs
    standby.await_line("standing by")
    journey.sell(range(14, 26), words=[17])
    leader.await_line(COMMITTED)
    leader.kill()
    journey.programs.remove(leader)
    standby.await_line("leading topology")
    journey.await_counts()


def noted(journey: StartedJourney) -> None:
    """A savepoint, while the process runs, which is stopped then."""
    journey.does("savepoint", "before")
    journey.savepoint = journey.plain
    journey.sell([26, 27], words=[26])
    journey.await_counts()
    [leader] = journey.programs
    leader.interrupt()
    assert leader.wait() == 0, leader.text
    journey.programs.clear()


def swapped(journey: StartedJourney) -> None:
    """Its streams change places between two runs."""
    for target, minute in ((SWAPPED, 28), (BUILD, 32)):
        journey.target = target
        journey.sell(range(minute, minute + 4), words=[minute + 1])
        journey.run()


def rewound(journey: StartedJourney) -> None:
    journey.go_back("--to-savepoint", "before")


def looked_at(journey: StartedJourney) -> None:
    """Every page of the console, with what all the steps have left behind."""
    lines, topology, store = list[str](), load_topology(journey.target), f"sqlite:///{journey.folder}/transactional.db"
    with (
        console_beside(open_for_reading(store), Address(port=0), topology, lines.append, store_url=store),
        page_of(journey.browser, lines[0].rpartition(" ")[2]) as visit,
    ):
        for path in PAGES:
            visit.open(f"/t/{TOPOLOGY}/{path}")
        expect(visit.page.get_by_text("table-rewound")).to_have_count(TABLES)


@dataclass(frozen=True)
class Step:
    """What is done, and to which release; the function changes `Journey.plain` as the tables have to change."""

    does: Callable[[StartedJourney], object]
    target: str


STEPS = (
    Step(without_one, BUILD),
    Step(back, BUILD),
    Step(examined, BUILD),
    Step(killed, SWAPPED),
    Step(noted, SWAPPED),
    Step(StartedJourney.replay, MENDED),
    Step(swapped, SWAPPED),
    Step(rewound, SWAPPED),
    Step(StartedJourney.run, SWAPPED),
    Step(StartedJourney.replay, MENDED),
    Step(looked_at, MENDED),
)


@pytest.mark.timeout(600)
def test_every_step_leaves_each_sale_counted_once(
    tmp_path: Path, spark: SparkSession, browser: Browser, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalBroker() as broker, SecondBroker(broker, tmp_path / "second") as second, ExitStack() as opened:
        given = {"SOURCE": "two streams", "STATES": "merge layout", "WINDOWS": TUMBLING, "BOOTSTRAP": broker.bootstrap}
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        create_topics(broker.bootstrap, LEADERS)
        journey = StartedJourney("two streams", tmp_path, command, second=second, browser=browser, opened=opened)
        for number, step in enumerate(STEPS, start=1):
            try:
                journey.target = step.target
                step.does(journey)
                journey.holds()
            except BaseException as error:
                error.add_note(f"in step {number}, {step.does.__name__} with {step.target}")
                raise
