"""Begins and ends of runs with a sink: targets that are away, runs that are stopped or deactivated meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.unit.runtime.publishing.word_sink import PUBLISHED, TARGETS, Target, build, run
from transactional import TopologyConfig, TopologyDriver
from transactional.core.store import DesiredState
from transactional.errors import OperatingError, SinkUnavailable
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.publishing import relays
from transactional.testing import MemoryCoordinatorStore

AWAY: list[Exception] = [SinkUnavailable("away")] * 1_000


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setattr(relays, "RETRY_S", 0.01)
    monkeypatch.setattr("transactional.runtime.engine.driver.RETRY_S", 0.01)
    monkeypatch.setattr("transactional.runtime.engine.driver.LOOK_EVERY_MS", 5)
    TARGETS["words"] = Target()
    return TARGETS["words"]


@contextmanager
def running(
    store: MemoryCoordinatorStore, *, drains: bool = False
) -> Iterator[tuple[TopologyDriver, Future[RunSummary]]]:
    """A run in a thread of its own."""
    topology = build()
    config = TopologyConfig(stop_when_drained=drains, tick_ms=5, retry_pause_ms=1)
    driver = TopologyDriver(topology, store, LocalExecutor(topology), config)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(driver.run)
        try:
            yield driver, future
        finally:
            driver.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s, pause = time.monotonic() + 30, threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s
        pause.wait(0.005)


def has_committed_all(store: MemoryCoordinatorStore) -> bool:
    status = store.status("words")
    return bool(status) and status[0].committed_txid == 3


@pytest.mark.parametrize("method", ["prepare", "look"])
def test_a_target_that_is_away_at_the_start_is_waited_for(target: Target, method: str) -> None:
    target.errors_of[method] = AWAY[:3]
    run(build(), MemoryCoordinatorStore())
    assert sorted(target.published) == PUBLISHED


@pytest.mark.parametrize("method", ["prepare", "look"])
def test_nothing_is_committed_before_the_position_of_a_sink_is_known(target: Target, method: str) -> None:
    store = MemoryCoordinatorStore()
    target.errors_of[method] = list(AWAY)
    with pytest.raises(OperatingError, match="the start of a sink has been failing for too long: away"):
        run(build(), store, outage_timeout_ms=20)
    assert all(status.committed_txid == 0 for status in store.status("words"))
    assert target.published == []


@pytest.mark.parametrize("method", ["prepare", "look"])
def test_a_run_that_waits_for_a_target_can_be_stopped(target: Target, method: str) -> None:
    target.errors_of[method] = list(AWAY)
    store = MemoryCoordinatorStore()
    with running(store) as (driver, future):
        assert target.was_tried.wait(30)
        driver.stop()
        future.result(30)
    assert target.errors_of[method], "it has not waited for the target to respond"
    assert not any(status.is_leased for status in store.status("words"))


def test_a_kill_ends_a_run_that_waits_for_a_target(target: Target) -> None:
    store = MemoryCoordinatorStore()
    target.errors_of["look"] = list(AWAY)
    with running(store) as (_, future):
        assert target.was_tried.wait(30)
        store.desire("words", DesiredState.KILLED)
        future.result(30)
    assert target.errors_of["look"], "it has not waited for the target to respond"


def test_a_drain_that_is_cut_short_says_what_is_unsent(target: Target) -> None:
    store = MemoryCoordinatorStore()
    target.errors = list(AWAY)
    with running(store, drains=True) as (driver, future):
        wait_until(lambda: has_committed_all(store) and driver.coordinator.is_done)
        driver.stop()
        with pytest.raises(OperatingError, match=r"everything was published: alerts: 3 transactions unsent") as cut:
            future.result(30)
    assert cut.value.exit_code == 75


def test_a_stopped_run_leaves_a_publication_that_hangs(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("transactional.runtime.engine.driver.LEAVING_S", 0.2)
    store = MemoryCoordinatorStore()
    target.is_free.clear()
    with running(store) as (driver, future):
        wait_until(lambda: has_committed_all(store))
        began_s = time.monotonic()
        driver.stop()
        future.result(30)
        assert time.monotonic() - began_s < 3
    target.is_free.set()
    assert "alerts: 3 transactions unsent" in caplog.text
    assert target.published == []


def test_a_deactivated_topology_publishes_what_is_committed(target: Target) -> None:
    store = MemoryCoordinatorStore()
    target.errors = list(AWAY)
    with running(store) as (driver, _):
        wait_until(lambda: has_committed_all(store))
        store.desire("words", DesiredState.INACTIVE)
        wait_until(lambda: driver.coordinator.paused)
        target.errors = []
        wait_until(lambda: not store.sinks("words")["alerts"].waiting)
    assert sorted(target.published) == PUBLISHED
