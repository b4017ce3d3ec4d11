"""The journey over a queue: at least once, with no table to look at, and with what is refused of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from spouts.kafka_admin import create_topic
from tests.integration.sinks.publications import visible_records
from tests.journeys.matrix import COMMANDS, QUEUE, SENDING_SINK, STATES, Outcome, cell
from tests.journeys.sources import topic_of
from tests.journeys.steps import RUN, STORE, TOKEN, MatrixJourney, dying, samples_of_run
from tests.journeys.tickets import DONE, LOCKED, SENT, TOPOLOGY, Tickets
from tests.unit.command_line import Command
from transactional.operations.console.app import Console, application
from transactional.operations.loading import load_topology, open_for_reading
from transactional.operations.web.guard import Access

BUILD = "tests.journeys.tickets:build"


def done() -> Counter[str]:
    return Counter(DONE.read_text("utf-8").split()) if DONE.exists() else Counter()


@pytest.mark.parametrize("sink", ["", pytest.param(SENDING_SINK, marks=pytest.mark.kafka)])
def test_the_journey_over_a_queue(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, sink: str, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("SINK", sink)
    if sink:
        bootstrap = request.getfixturevalue("kafka_broker").bootstrap
        monkeypatch.setenv("BOOTSTRAP", bootstrap)
        monkeypatch.setenv("TOPICS", f"{tmp_path.name}-")
        create_topic(bootstrap, topic_of(SENT), 1)
    journey = MatrixJourney(QUEUE, tmp_path, command, BUILD, "none", states=(), id=TOPOLOGY)
    monkeypatch.setattr(Tickets, "waiting", waiting := [f"ticket-{number}" for number in range(4)])
    LOCKED.write_text("ticket-2", "utf-8")
    assert journey.covers("run")
    journey.does(*RUN)
    assert done() == Counter(f"ticket-{number}" for number in range(4))
    assert journey.covers("status, txns, describe")
    lines = command("txns", TOPOLOGY, "--json").out.splitlines()
    committed = [each["txid"] for each in map(json.loads, lines) if each["phase"] == "committed"]
    assert committed == list(range(journey.committed, 0, -1))
    journey.does("describe", "--json")
    for number, (name, options) in enumerate(
        {"restart after kill -9": (), "standby takes over": ("--standby",)}.items(), start=4
    ):
        assert journey.covers(name)
        waiting.append(f"ticket-{number}")
        with dying("record_commit"):
            journey.tries(*RUN)
        if not options:
            journey.is_refused("TX402", *RUN)
        journey.await_end_of_lease(in_ms=300 * len(options))
        assert ("standing by" in journey.does(*RUN, *options)) is bool(options)
        assert done()[f"ticket-{number}"] == 2, "at least once, and its job was done twice"
    journey.tries_cell("savepoint", "savepoint", "before")
    journey.tries_cell("rewind by a transaction", "rewind", "--to-txid", str(journey.committed - 1), "--yes")
    journey.tries_cell("rewind further", "rewind", "--to-txid", "0", "--yes")
    assert journey.covers("--log json")
    waiting.append("ticket-6")
    events = map(json.loads, journey.tries(*RUN, "--log", "json").err.splitlines())
    assert [each["committed_txid"] for each in events if each.get("event") == "ended"] == [journey.committed]
    assert journey.covers("metrics")
    waiting.append("ticket-7")
    assert samples_of_run(journey)[-1]["committed_txid"] == journey.committed
    journey.tries_cell("verify", "verify")
    journey.tries_cell("verify --count-records", "verify", "--count-records")
    assert ("its records name no transaction" in journey.does("verify", "--sinks")) is bool(sink)
    assert journey.covers("verify --sinks")
    journey.does("doctor")
    assert journey.covers("console")
    assert journey.covers("examine")
    with closing(open_for_reading(STORE)) as store:
        console = Console(store, Access(TOKEN), topologies={TOPOLOGY: load_topology(BUILD)}, store_url=STORE)
        with TestClient(application(console), base_url="http://127.0.0.1:8787") as client:
            client.get(f"/?token={TOKEN}")
            assert "Nothing is wrong." in client.get(f"/t/{TOPOLOGY}/doctor?examine=1").text
    assert journey.covers("reset")
    command("reset", TOPOLOGY, "--yes")
    waiting.append("ticket-8")
    journey.does(*RUN)
    assert done().keys() == {f"ticket-{number}" for number in range(9)}
    if sink:
        records = visible_records(os.environ["BOOTSTRAP"], topic_of(SENT), 1)
        assert Counter(seen.value["text"] for seen in records) == done()
    assert journey.covered == {each for each in COMMANDS if cell(each, QUEUE).outcome is not Outcome.NONE}


@pytest.mark.parametrize("state", STATES)
def test_a_queue_is_counted_in_no_state(
    state: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {
        "SOURCE": QUEUE,
        "STATES": state,
        "WINDOWS": "",
        "POSTGRES": "postgresql://nobody@localhost/none",
        "REDIS": "redis://localhost/0",
    }.items():
        monkeypatch.setenv(variable, value)
    journey = MatrixJourney(QUEUE, tmp_path, command, states=(state,))
    journey.is_refused(cell("run", QUEUE, (state,)).why, *RUN)
