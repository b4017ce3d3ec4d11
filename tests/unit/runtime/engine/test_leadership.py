"""Standing by: who waits, what ends the waiting, and from where on is led then."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.command_line import RUN, Command
from tests.unit.drivers import DRAINED, WAIT_S, HookedStore, World, in_background
from tests.unit.fakes import WORD_COUNTS, stored
from transactional.core.store import DesiredState, Lease, StalledLease, TopologyStatus
from transactional.core.store.history import RunAbout
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import Fenced, StoreUnavailable, StoreWentBack, TopologyChanged, TopologyInUse
from transactional.model.config import TopologyConfig
from transactional.operations.cli import running
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.engine.leadership import Leadership, Standby
from transactional.testing import ManualClock, MemoryCoordinatorStore

LEASE_MS = 1_000
CONFIG = replace(DRAINED, lease_ms=20)
"""A standby with it looks every millisecond."""


class Looked(MemoryCoordinatorStore):
    """Tells how often it was looked at, and may not answer."""

    looks = 0
    is_down = False

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        self.looks += 1
        self.seen.set()
        if self.is_down:
            raise StoreUnavailable("down")
        return super().status(topology_id)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.seen = threading.Event()

    def wait_for_looks(self, count: int = 2) -> None:
        """So many looks that begin from now on."""
        for _ in range(count + 1):
            self.seen.clear()
            assert self.seen.wait(WAIT_S)


class Led(World):
    """A world whose topology is led by another process."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = Looked(self.clock)
        fingerprint = self.topology().fingerprint()
        self.lease: Lease = self.store.acquire("words", fingerprint, owner="leader", lease_ms=LEASE_MS)
        self.store.record_start(self.lease, fingerprint)

    def standby(self, config: TopologyConfig = CONFIG) -> TopologyDriver:
        return self.driver(config=config, standby=True)


def ends(world: Led) -> None:
    world.clock.advance(LEASE_MS)


def is_given_back(world: Led) -> None:
    world.store.release(world.lease)


@pytest.mark.parametrize("leave", [ends, is_given_back])
def test_a_standby_takes_over_once_the_lease_is_free(leave: Callable[[Led], None]) -> None:
    world = Led()
    with in_background(world.standby()) as run:
        world.store.wait_for_looks()
        assert not run.done()
        leave(world)
        assert run.result(WAIT_S) == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert stored(world.counts) == WORD_COUNTS


def test_a_standby_of_what_nobody_leads_leads_at_once() -> None:
    world = World()
    assert world.run(config=CONFIG, standby=True).transactions == 3


def test_a_standby_that_is_stopped_has_done_nothing() -> None:
    world = Led()
    driver = world.standby()
    with in_background(driver) as run:
        world.store.wait_for_looks()
        driver.stop()
        assert run.result(WAIT_S) == RunSummary(1, 0, 0)  # type: ignore[arg-type]
    assert [(status.owner, status.epoch) for status in world.store.status()] == [("leader", 1)]


def test_a_standby_waits_for_a_store_that_does_not_answer() -> None:
    world = Led()
    with in_background(world.standby()) as run:
        world.store.is_down = True
        world.store.wait_for_looks()
        ends(world)
        world.store.wait_for_looks()
        assert not run.done()
        world.store.is_down = False
        assert run.result(WAIT_S).transactions == 3


def test_a_standby_that_gets_no_answer_as_it_takes_the_lead_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, taken = Led(), list[Lease]()
    acquire = world.store.acquire

    def lost(*given: Any, **how: Any) -> Lease:
        taken.append(acquire(*given, **how))
        if len(taken) == 1:
            raise StoreUnavailable("the answer is lost")
        return taken[-1]

    monkeypatch.setattr(world.store, "acquire", lost)
    ends(world)
    assert world.standby().run().transactions == 3
    assert [lease.epoch for lease in taken] == [2, 3]


def test_a_standby_of_another_topology_is_refused_before_it_waits() -> None:
    world = Led()
    world.counts.name = "another"
    with pytest.raises(TopologyChanged):
        world.standby().run()


@pytest.mark.parametrize("wish", [DesiredState.DRAINING, DesiredState.KILLED])
def test_nobody_takes_over_from_a_leader_that_was_reported_to_end(wish: DesiredState) -> None:
    world = Led()
    with in_background(world.standby()) as run:
        world.store.desire("words", wish, wait_ms=60_000)
        world.store.wait_for_looks()
        world.store.release(world.lease, is_done=True)
        assert run.result(WAIT_S).transactions == 0
    assert not world.is_leased


@pytest.mark.parametrize("leave", [ends, is_given_back])
def test_a_drain_that_its_leader_has_not_brought_to_its_end_is_taken_up(leave: Callable[[Led], None]) -> None:
    """It died, or it was interrupted and gave its lease back: what was recorded still has to be replayed."""
    world = Led()
    with in_background(world.standby()) as run:
        world.store.desire("words", DesiredState.DRAINING)
        world.store.wait_for_looks()
        leave(world)
        assert run.result(WAIT_S).transactions == 0
    assert world.store.status()[0].epoch == 2
    assert world.store.desired("words").state is DesiredState.ACTIVE


def test_after_a_drain_that_was_cancelled_a_standby_takes_over_as_ever() -> None:
    world = Led()
    with in_background(world.standby()) as run:
        for wish in (DesiredState.DRAINING, DesiredState.ACTIVE):
            world.store.desire("words", wish)
            world.store.wait_for_looks()
        is_given_back(world)
        assert run.result(WAIT_S).transactions == 3


# --- renewals -------------------------------------------------------------------------------------------------------


def test_a_lease_counts_from_before_it_was_renewed_however_long_that_took() -> None:
    """The store may have written it at once, and answered late."""
    world, clock = World(), ManualClock()
    store = world.store = HookedStore(clock)
    leadership = Leadership(world.topology(), store, replace(DRAINED, lease_ms=LEASE_MS), clock)
    leadership.take()
    renewals, renew = list[int](), store.renew

    def renews_slowly(lease: Lease, *, lease_ms: int) -> None:
        renew(lease, lease_ms=lease_ms)
        renewals.append(clock.monotonic_ms())
        clock.advance(LEASE_MS * 8 // 10 if len(renewals) == 1 else 0)

    store.renew = renews_slowly  # type: ignore[method-assign]
    began_ms = clock.monotonic_ms()
    leadership.renew()
    leadership.renew_if_due()
    assert [at_ms - began_ms for at_ms in renewals] == [0, LEASE_MS * 8 // 10]
    leadership.renew_if_due()
    assert len(renewals) == 2
    assert store.status()[0].is_leased


def test_a_renewal_finds_that_the_store_is_another_one() -> None:
    """As after a restore, with the same epoch and owner: a leader that has nothing to commit would not see it."""
    world = World()
    leadership = Leadership(world.topology(), world.store, DRAINED, ManualClock())
    leadership.take()
    leadership.fence_tables()
    leadership.record_start()
    leadership.renew()
    world.store._topologies["words"].store_id = "another"
    with pytest.raises(StoreWentBack, match=r"is another one than at the start of this run: its id was .* is another"):
        leadership.renew()


def test_the_quicker_of_two_standbys_leads_and_the_other_goes_on_waiting() -> None:
    world = Led()
    world.topology()
    config = replace(CONFIG, lease_ms=LEASE_MS)  # the one that leads renews it, which a busy machine delays
    with in_background(world.standby(config)) as one, in_background(world.standby(config)) as other:
        world.store.wait_for_looks(4)
        ends(world)
        assert {one.result(WAIT_S).transactions, other.result(WAIT_S).transactions} == {0, 3}


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_shows_that_it_waits_and_from_where_on_it_leads(command: Command) -> None:
    done = command(*RUN, "--standby", "{m}:topology")
    assert done.code == 0
    waits, leads, *_, summary = done.out.splitlines()
    assert waits == "standing by for topology words: leads as soon as nobody else does"
    assert leads == "leading topology words from transaction 1 on"
    assert summary == "2 transactions committed, the last is 2; 0 attempts failed"


def test_ctrl_c_ends_the_waiting(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command(*RUN, "{m}:topology")
    store = SqlCoordinatorStore()
    [status] = store.status()
    store.acquire("words", status.fingerprint, owner="leader", lease_ms=60_000)
    store.close()
    listen = running.stop_on_signals

    def interrupted(driver: TopologyDriver) -> None:
        listen(driver)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(running, "stop_on_signals", interrupted)
    done = command(*RUN, "--standby", "{m}:topology")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == ["0 transactions committed, the last is 2; 0 attempts failed"]


# --- a lease whose end was written by a clock that was ahead ----------------------------------------------------------

HOUR_MS = 3_600_000


class Ahead(World):
    """A topology whose leader took its lease while the store's clock was an hour ahead."""

    def __init__(self, settings: Mapping[str, int]) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = Looked(ManualClock())
        fingerprint = self.topology().fingerprint()
        self.lease = self.store.acquire(
            "words", fingerprint, owner="leader", lease_ms=HOUR_MS + LEASE_MS, about=RunAbout(settings=settings)
        )
        self.store.record_start(self.lease, fingerprint)
        self.waited_ms = 0

    def waits(self, disturb: Callable[[Ahead], object] = lambda _: None, *, at_ms: int = 0) -> Standby:
        """A standby that waits, at most ten leases of its own clock, and is disturbed once."""
        standby = Standby(self.store, self.topology(), CONFIG, self.clock, owner="standby", accepts=False)

        def rest(duration_ms: int) -> bool:
            self.clock.advance(duration_ms)
            self.waited_ms += duration_ms
            self.store.is_down = False
            if self.waited_ms == at_ms:
                disturb(self)
            return self.waited_ms >= 10 * LEASE_MS

        standby.await_turn(rest)
        return standby


STORED = {"lease_ms": LEASE_MS}


def test_a_standby_takes_a_lease_that_nobody_renews_by_its_own_clock() -> None:
    world = Ahead(STORED)
    standby = world.waits()
    assert world.waited_ms == 2 * LEASE_MS
    assert standby.stalled == StalledLease(world.lease.epoch, world.store.status("words")[0].leased_until_ms or 0)
    with pytest.raises(TopologyInUse, match=r"only 1000 ms long, so the clock .* was ahead.* after 2000 ms of its own"):
        world.driver(config=CONFIG).run()
    leadership = Leadership(world.topology(), world.store, CONFIG, world.clock, owner="standby")
    leadership.take(standby.stalled)
    assert leadership.lease.epoch == world.lease.epoch + 1
    with pytest.raises(Fenced):
        world.store.renew(world.lease, lease_ms=LEASE_MS)


@pytest.mark.parametrize(
    "disturb",
    [
        lambda world: world.store.renew(world.lease, lease_ms=HOUR_MS),
        lambda world: setattr(world.store, "is_down", True),
        lambda world: world.clock.advance(LEASE_MS + 1),
    ],
    ids=["it is renewed", "the store does not answer", "the standby stood still itself"],
)
def test_it_waits_once_more_once_the_lease_may_be_renewed(
    disturb: Callable[[Ahead], object],
) -> None:
    world = Ahead(STORED)
    world.waits(disturb, at_ms=2 * LEASE_MS - 1)
    assert 4 * LEASE_MS - 1 <= world.waited_ms <= 4 * LEASE_MS


def test_without_a_stored_length_only_its_end_counts() -> None:
    """As something other than a run has taken it."""
    world = Ahead({})
    assert world.waits().stalled is None
    assert world.waited_ms == 10 * LEASE_MS
    with pytest.raises(TopologyInUse) as refused:
        world.driver(config=CONFIG).run()
    assert "ahead" not in str(refused.value)
