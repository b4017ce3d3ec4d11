"""Which events of a run are worth a line, and what it says."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.drivers import World
from tests.unit.operations.telemetry.runs import lease, run_before, tried
from tests.unit.runtime.engine.history.test_troubles import failing
from transactional.core.machine.protocol import DrainRequested, RecordCommit, RecordFailure, StopRequested, Tick
from transactional.core.machine.report import CommitReport
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.progress import Phase
from transactional.errors import BatchLost, Fenced, SourceUnavailable
from transactional.model.attempt import TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.operations.telemetry.run_log import LOGGER, RunLog
from transactional.runtime.engine.history.observing import (
    Committed,
    Ended,
    Leading,
    LeaseRenewed,
    Maintained,
    Notice,
    Recovered,
    StandingBy,
    StoreWritten,
)
from transactional.runtime.engine.history.timeline import Flight, Moment

FLIGHT = Flight(tried(1, 1), Moment(0, 0), 0, "committed", Moment(9, 9))


@pytest.fixture(autouse=True)
def _all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Event, level and message."""
    return [(vars(each)["_event"], each.levelname, each.getMessage()) for each in caplog.records if each.name == LOGGER]


def of(caplog: pytest.LogCaptureFixture, notice: Notice) -> list[tuple[str, str, str]]:
    RunLog("words").notice(0, notice)
    return lines(caplog)


def test_a_run_that_fails_recovers_and_ends_has_a_line_for_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    topology = world.topology()
    monkeypatch.setattr(
        topology.spout, "plan", failing(1, SourceUnavailable("no broker answers\nmore"), topology.spout.plan)
    )
    summary = world.run(topology, observers=[RunLog(topology.id)])
    events = lines(caplog)
    assert [event[:2] for event in events] == [
        ("started", "INFO"),
        ("attempt_failed", "WARNING"),
        ("recovered", "WARNING"),
        ("ended", "INFO"),
    ]
    assert events[1][2].endswith("failed in planning: TX301 no broker answers")
    assert events[3][2].endswith(f"(drained); the last transaction committed is {summary.committed_txid}")
    assert {vars(each)["topology"] for each in caplog.records} == {topology.id}


def test_an_error_that_ends_a_run_is_its_last_line_with_its_code(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    topology = world.topology()
    monkeypatch.setattr(topology.spout, "plan", failing(1, BatchLost("the topic is gone"), topology.spout.plan))
    with pytest.raises(BatchLost):
        world.run(topology, observers=[RunLog(topology.id)])
    event, level, text = lines(caplog)[-1]
    assert (event, level) == ("ended", "ERROR")
    assert "(failed) with TX406: the topic is gone; the last transaction committed is 0" in text


def test_a_run_that_can_not_begin_has_an_end_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    topology = world.topology()
    world.store.acquire(topology.id, topology.fingerprint(), owner="another", lease_ms=60_000)
    with pytest.raises(Exception, match="another"):
        world.run(topology, observers=[RunLog(topology.id)])
    assert [(event, level) for event, level, _ in lines(caplog)] == [("ended", "ERROR")]
    assert "TX402" in lines(caplog)[0][2]


@pytest.mark.parametrize("end", [None, RunEnd(EndedHow.LOST)])
def test_a_takeover_names_the_process_that_was_lost(caplog: pytest.LogCaptureFixture, end: RunEnd | None) -> None:
    [started, taken] = of(caplog, Leading(lease(committed=7), run_before(end)))
    assert started[2] == "topology 'words': is run by host:7:ab from transaction 8 on"
    assert taken[:2] == ("taken_over", "WARNING")
    assert "took over from host:6:cd" in taken[2]


@pytest.mark.parametrize("before", [None, run_before(RunEnd(EndedHow.STOPPED))])
def test_a_start_after_an_orderly_end_is_no_takeover(caplog: pytest.LogCaptureFixture, before: Any) -> None:
    assert [event for event, _, _ in of(caplog, Leading(lease(), before))] == ["started"]


def test_a_compaction_longer_than_a_second_is_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    of(caplog, Maintained("count", 1_000))
    assert of(caplog, Maintained("count", 1_001)) == [
        ("long_maintenance", "WARNING", "topology 'words': maintenance of the table of committer 'count' took 1001 ms")
    ]


@pytest.mark.parametrize("notice", [LeaseRenewed(9), StoreWritten("commit", 9.0), Committed(FLIGHT, EMPTY_BATCH, {})])
def test_what_happens_all_the_time_is_worth_none(caplog: pytest.LogCaptureFixture, notice: Notice) -> None:
    assert of(caplog, notice) == []


def test_requests_of_operators_and_waiting_are_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog("words")
    for event in (DrainRequested(), Tick(1), StopRequested()):
        log(0, event, ())
    log.notice(0, StandingBy())
    assert [event for event, _, _ in lines(caplog)] == ["draining", "stopping", "standing_by"]


def test_what_is_set_aside_is_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    RunLog("words")(0, Tick(1), [RecordCommit(tried(3, 7), EMPTY_BATCH, CommitReport(letters={"parse": 1}))])
    assert lines(caplog) == [("set_aside", "WARNING", "topology 'words': attempt 3:7: 1 tuple set aside, of 'parse'")]
    assert vars(caplog.records[0])["letters"] == {"parse": 1}
    RunLog("words")(0, Tick(1), [RecordCommit(tried(4, 8), EMPTY_BATCH)])
    assert len(lines(caplog)) == 1


def test_a_line_has_its_facts_in_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog("words")
    log(0, Tick(1), [RecordFailure(tried(3, 7), Phase.COMMITTING, "TX304 in between\nTraceback", 50)])
    log.notice(0, Recovered(TxId(3), 2, 100, "it is committed"))
    log.notice(0, Ended(RunEnd(EndedHow.FAILED, "TX401", "replaced\nmore"), TxId(3), Fenced("replaced")))
    wanted: list[dict[str, Any]] = [
        {"txid": 3, "attempt": 7, "phase": "committing", "error": "TX304 in between", "retry_in_ms": 50},
        {"txid": 3, "failures": 2, "after_ms": 100},
        {"how": "failed", "code": "TX401", "reason": "replaced", "committed_txid": 3},
    ]
    for record, fields in zip(caplog.records, wanted, strict=True):
        assert {name: vars(record)[name] for name in fields} == fields
