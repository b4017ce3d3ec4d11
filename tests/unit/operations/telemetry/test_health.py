"""When a run is alive, and when it is ready."""

from __future__ import annotations

from tests.unit.drivers import World
from tests.unit.operations.telemetry.runs import lease
from transactional.core.machine.protocol import Tick
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.progress import Progress
from transactional.model.config import TopologyConfig
from transactional.operations.telemetry.health import Health
from transactional.runtime.engine.history.observing import Ended, Leading, StandingBy


def test_it_is_ready_while_it_leads_or_stands_by() -> None:
    health = Health(lambda: 0.0)
    told = [(health.live(), health.ready())]
    for notice in (StandingBy(), Leading(lease(), None), Ended(RunEnd(EndedHow.STOPPED), None)):
        health.notice(0, notice)
        told.append((health.live(), health.ready()))
    assert [live for (live, _), _ in told] == [True] * 4
    assert [ready for _, (ready, _) in told] == [False, True, True, False]


def test_a_driver_that_stands_still_for_longer_than_its_lease_is_not_alive() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    health.begin(0, Progress(), TopologyConfig(lease_ms=10_000, tick_ms=20))
    health.notice(0, Leading(lease(), None))
    now[0] = 10.0
    assert health.live() == (True, "leading")
    now[0] = 10.1
    assert health.live() == (False, "the driver has stood still for 10 s, more than the 10 s of its lease")
    assert not health.ready()[0]
    health(0, Tick(1), ())
    assert health.live()[0]
    assert health.ready()[0]


def test_a_run_ends_neither_ready_nor_dead() -> None:
    health = Health()
    World().run(observers=[health])
    assert (health.live(), health.ready()) == ((True, "ended"), (False, "ended"))
