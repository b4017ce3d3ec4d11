"""The doctor's page: what the store shows at a glance, examinations on request, repairs by a button that is allowed."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.drivers import DRAINED, World
from tests.unit.operations.console.browsing import browser
from tests.unit.operations.console.stores import Past
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.store import DesiredState
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.rules import state_of
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.core.store.troubles import retry_at_stop
from transactional.model.attempt import TxId
from transactional.operations.cli.output.statuses import describe_troubles
from transactional.operations.console.export import render_page_file
from transactional.operations.console.findings import find_notices
from transactional.operations.launch.running import run_topology


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def seen(past: Past) -> list[str]:
    [status] = past.store.status(past.topology_id)
    return [each.text for each in find_notices(past.store, status, past.clock.wall_ms())]


def test_a_topology_that_is_well_has_nothing_to_show() -> None:
    past = Past().begin().committed(3)
    assert seen(past) == []
    assert "Nothing is wrong at first sight." in text_of(browser(past).get("/t/words/doctor").text)


@pytest.mark.parametrize("how", [EndedHow.DRAINED, EndedHow.STOPPED, EndedHow.KILLED])
def test_so_has_one_whose_run_has_ended_well(how: EndedHow) -> None:
    past = Past().begin().committed(3)
    past.end(RunEnd(how))
    assert seen(past) == []


def test_what_a_person_should_know_is_there_at_a_glance() -> None:
    past = Past().begin().committed(1)
    past.fail(past.issue())
    assert any("transaction 2 fails, at last with" in each for each in seen(past))
    past.clock.advance(600_000)
    assert any("has no recorded end" in each for each in seen(past))
    past.begin("another")
    past.issue(past.txid)
    past.clock.advance(50_000)
    assert not any("in flight" in each for each in seen(past))
    past.end(RunEnd(EndedHow.FAILED, "TX406", "retries exhausted\nTraceback"))
    past.store.desire("words", DesiredState.INACTIVE)
    told = seen(past)
    assert any(each.endswith("ended with TX406: retries exhausted") for each in told)
    assert "It is inactive: nothing new is issued." in told


@pytest.mark.parametrize("how", [EndedHow.DRAINED, EndedHow.STOPPED, EndedHow.KILLED])
def test_a_retry_of_a_run_that_somebody_has_ended_is_no_alarm(how: EndedHow) -> None:
    past = Past().begin(settings={"attempts_max": 2}).committed(1)
    past.fail(past.issue())
    alarm = text_of(browser(past).get("/t/words/").text)
    assert "Failing since" in alarm
    past.end(RunEnd(how))
    words = f"ransaction 2 was being retried (attempt 1 of 2) when the run was {how.value}"
    [status] = past.store.status("words")
    assert describe_troubles([status], {"words": retry_at_stop(past.store, status)}) == [
        f"words: t{words}: processing: ValueError: no"
    ]
    [notice] = find_notices(past.store, status, past.clock.wall_ms())
    assert (notice.text, notice.is_bad) == (f"T{words}, at last with: processing: ValueError: no", False)
    for path in ("", "t/words/", "t/words/attempts", "t/words/doctor"):
        page = browser(past).get(f"/{path}").text
        assert words in text_of(page)
        assert "ailing" not in text_of(page), path
        assert 'class="trouble"' not in page, path
    assert words in text_of(render_page_file(past.store, status, past.clock.wall_ms()))


@pytest.mark.parametrize("end", [None, RunEnd(EndedHow.FAILED, "TX406", "retries exhausted")])
def test_a_run_that_has_ended_by_itself_while_it_was_failing_is_one(end: RunEnd | None) -> None:
    past = Past().begin(settings={"attempts_max": 2}).committed(1)
    past.fail(past.issue())
    if end is None:
        past.clock.advance(600_000)
    else:
        past.end(end)
    page = browser(past).get("/t/words/").text
    assert "It was failing since" in text_of(page)
    assert 'class="trouble"' in page
    [status] = past.store.status("words")
    assert describe_troubles([status], {"words": retry_at_stop(past.store, status)})[0].startswith(
        "words has been failing"
    )


@pytest.mark.parametrize(("attempts", "words"), [(1, "attempt 1 of 2"), (2, "attempt 2 of 2"), (3, "attempt 3")])
def test_a_retry_counts_the_attempts_of_its_run_up_to_the_limit_of_that(attempts: int, words: str) -> None:
    past = Past().begin().committed(1)
    past.fail(past.issue())
    past.clock.advance(70_000)
    past.begin("another", settings={"attempts_max": 2})
    for _ in range(attempts):
        past.fail(past.issue(past.txid))
    past.end(RunEnd(EndedHow.STOPPED))
    assert f"({words})" in str(retry_at_stop(past.store, past.store.status("words")[0]))


def test_a_rewind_is_shown_while_it_is_not_finished_and_as_an_event_afterwards() -> None:
    past = Past().begin().committed(5)
    past.store.begin_rewind(past.held, TxId(3))
    assert seen(past) == ["A rewind to transaction 3 was begun and is not finished."]
    assert state_of(past.store.status("words")[0]) == "rewinding"
    past.store.finish_rewind(past.held, TxId(3))
    past.end(RunEnd(EndedHow.REWOUND, reason="from transaction 5 back to 3"))
    assert seen(past) == []
    assert state_of(past.store.status("words")[0]) == "rewound"
    assert "from transaction 5 back to 3" in text_of(browser(past).get("/t/words/runs").text)
    assert text_of(browser(past).get("/t/words/attempts").text).count("rewound") >= 2


def test_an_attempt_that_stands_still_is_named() -> None:
    past = Past().begin().committed(1)
    past.issue()
    past.clock.advance(30_000)
    assert seen(past) == []
    past.store.renew(past.held, lease_ms=900_000)
    past.clock.advance(400_000)
    assert any("its attempt 3 has been in flight for 7 min" in each for each in seen(past))


def made_store(tmp_path: Path) -> tuple[World, str]:
    world, url = World(), f"sqlite:///{tmp_path}/store.db"
    run_topology(world.topology(), store=url, config=DRAINED, master="none")
    return world, url


def test_an_examination_is_made_when_it_is_requested(tmp_path: Path) -> None:
    world, url = made_store(tmp_path)
    with closing(SqlCoordinatorStore(url)) as store:
        past = Past(store=store)
        alone = browser(past, store_url=url)
        assert "Only the store's rows were examined" in text_of(alone.get("/t/words/doctor?examine=1").text)
        known = browser(past, store_url=url, topologies={"words": world.topology()})
        assert "Not examined" not in text_of(known.get("/t/words/doctor").text)
        text = text_of(known.get("/t/words/doctor?examine=1").text)
        assert "Nothing is wrong." in text or "Not examined" in text


def test_rows_that_contradict_each_other_are_found_from_the_store_alone(tmp_path: Path) -> None:
    _, url = made_store(tmp_path)
    with closing(SqlCoordinatorStore(url)) as store:
        with store._database.writing() as connection:
            connection.exec_driver_sql("UPDATE transactional_topologies SET committed_txid = 9")
        text = text_of(browser(Past(store=store), store_url=url).get("/t/words/doctor?examine=1").text)
    assert Problem.STORE_BROKEN in text


@pytest.mark.parametrize("acts", [True, False])
def test_repairs_are_made_by_a_button_that_is_allowed(monkeypatch: pytest.MonkeyPatch, *, acts: bool) -> None:
    past, world = Past().begin().committed(1), World()
    broken = Diagnosis(Problem.TABLE_TORN, "count", "a torn commit", "restore version 3", "count", can_repair=True)
    left, repaired = [broken], []

    def carry_out(topology: object, store: object, findings: list[Diagnosis]) -> list[str]:
        repaired.append((topology, store, list(findings)))
        left.clear()
        return ["done"]

    monkeypatch.setattr("transactional.operations.console.findings.examine", lambda *_: list(left))
    monkeypatch.setattr("transactional.operations.console.app.examine", lambda *_: list(left))
    monkeypatch.setattr("transactional.operations.console.app.repair", carry_out)
    topology = world.topology()
    client = browser(past, acts=acts, topologies={"words": topology})
    page = client.get("/t/words/doctor?examine=1").text
    assert "It can be repaired: restore version 3" in text_of(page)
    assert ("Repair what can be repaired" in page) == acts
    key = next(iter(re.findall(r'name="key" value="([^"]+)"', page)), "none")
    same_site = {"sec-fetch-site": "same-origin"}
    assert client.post("/t/words/repairs", data={"key": "wrong"}, headers=same_site).status_code == 403
    answer = client.post("/t/words/repairs", data={"key": key}, headers=same_site)
    assert answer.status_code == (200 if acts else 403)
    assert repaired == ([(topology, past.store, [broken])] if acts else [])
    assert ("Nothing is wrong." in text_of(answer.text)) == acts


def test_a_topology_without_its_code_is_not_repaired_here() -> None:
    client = browser(Past().begin().committed(1), acts=True)
    key = re.findall(r'name="key" value="([^"]+)"', client.get("/t/words/doctor").text)[0]
    answer = client.post("/t/words/repairs", data={"key": key}, headers={"sec-fetch-site": "same-origin"})
    assert (answer.status_code, "--app MODULE:TOPOLOGY" in answer.text) == (409, True)


def test_a_table_that_is_not_maintained_is_shown_on_every_page_that_changes() -> None:
    past = Past().begin().committed(2)
    reason = "writing a checkpoint has failed 3 times in a row: Unexpected EOF"
    past.commit(past.issue(), {"upkeep": {"count": reason}})
    shown = f"The table of count is not maintained, and others may not be able to open it {reason}"
    assert seen(past) == [shown.replace(" it ", " it: ")]
    assert shown in text_of(browser(past).get("/t/words/").text)
    assert f"not maintained: {reason}" in text_of(browser(past).get("/t/words/states").text)
    past.committed(1)
    assert seen(past) == []
    assert "not maintained" not in browser(past).get("/t/words/").text
