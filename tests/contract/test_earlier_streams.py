"""Stores of streams whose first one an earlier release left out of partitions' names: read, checked, gone on with."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from state import DeltaMapState
from tests.fixtures.streams import topology as written
from tests.fixtures.streams.make import unpack
from tests.fixtures.streams.topology import Picky, build
from transactional import RunSummary, run_topology
from transactional.errors import TopologyChanged
from transactional.model.attempt import TxId
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.operations.doctor.examine import examine
from transactional.operations.loading import open_store
from transactional.runtime.engine.letter_spout import LetterSpout, all_letters
from transactional.runtime.engine.rewinding import plan_rewind, rewind
from transactional.topology.topology import Topology
from verifier import verify

pytestmark = pytest.mark.sampled(3)

STORE = "sqlite:///transactional.db"
ORDERS = [("one", ("web",)), ("two", ("web", "app")), ("two", ("app", "web"))]
"""Whatever is declared first today: it was `web`."""
COUNTED = {"one": {"home": 2, "help": 1}, "two": {"home": 2, "help": 1, "start": 1}}
ALL = {"one": {"home": 3, "help": 1, "late": 1}, "two": {"home": 3, "help": 1, "late": 1, "start": 2, "end": 1}}
BAD = {"one": {"bad": 1}, "two": {"bad": 2}}


@pytest.fixture(autouse=True)
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is a copy of what was left."""
    unpack(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Picky, "mended", False)


def run(topology: Topology, **options: Any) -> RunSummary:
    config = {"stop_when_drained": True, "attempts_max": 1, "retry_pause_ms": 1}
    return run_topology(topology, store=STORE, config=config, master="none", **options)


def counts(topology_id: str) -> dict[str, int]:
    rows = DeltaMapState(Path("tables") / topology_id, key="word").read().to_pylist()
    return {row["word"]: row["count"] for row in rows}


def positions(topology_id: str) -> dict[str, int]:
    with closing(open_store(STORE)) as store:
        [record] = [each for each in store.attempts(topology_id, limit=99) if each.phase == "committed"][:1]
    return {str(partition): offset for partition, offset in sorted(record.batch.positions().items())}


def nothing_is_wrong(topology: Topology) -> None:
    report = verify(STORE, topology.id, checked_tables(topology)[0])
    assert report.findings == ()
    with closing(open_store(STORE)) as store:
        assert [each for each in examine(topology, store, STORE) if not each.is_harmless] == []


@pytest.mark.parametrize(("topology_id", "order"), ORDERS)
def test_it_is_verified_and_gone_on_with(topology_id: str, order: tuple[str, ...]) -> None:
    assert counts(topology_id) == COUNTED[topology_id]
    nothing_is_wrong(build(topology_id, *order))
    topology = build(topology_id, *order, rows=6)
    run(topology)
    assert counts(topology_id) == ALL[topology_id]
    assert positions(topology_id) == {f"{name}/memory[0]": len(written.ROWS[name]) for name in sorted(order)}
    nothing_is_wrong(topology)
    assert run(topology).transactions == 0


@pytest.mark.parametrize(("topology_id", "order"), ORDERS)
def test_its_letters_are_replayed(topology_id: str, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picky, "mended", True)
    topology = build(topology_id, *order)
    assert len(all_letters(topology)) == BAD[topology_id]["bad"]
    run(replace(topology, spout=LetterSpout(topology, None)))
    assert counts(topology_id) == COUNTED[topology_id] | BAD[topology_id]
    assert all(row["tried_again_in"] for row in all_letters(topology))
    nothing_is_wrong(topology)


@pytest.mark.parametrize(("topology_id", "order"), ORDERS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_it_is_taken_back(topology_id: str, order: tuple[str, ...], *, goes_on: bool) -> None:
    """Also to a transaction of the release before, after today's has gone on and gives the first stream its name."""
    topology = build(topology_id, *order, rows=6)
    if goes_on:
        run(topology)
    with closing(open_store(STORE)) as store:
        assert any(
            "web/memory[0]: read again from offset 1" in each for each in plan_rewind(topology, store, TxId(1)).lines()
        )
        rewind(topology, store, TxId(1), owner="test")
    assert counts(topology_id) == dict.fromkeys(("home", "start")[: len(order)], 1)
    run(topology)
    assert counts(topology_id) == ALL[topology_id]
    nothing_is_wrong(topology)


@pytest.mark.parametrize("order", [("web", "app"), ("app", "web")])
def test_a_batch_in_flight_is_finished(order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picky, "mended", True)
    topology = build("flying", *order, rows=6, sets_aside=False)
    run(topology)
    assert counts("flying") == ALL["two"] | {"bad": 2}
    nothing_is_wrong(topology)


@pytest.mark.parametrize("name", ["web", "app"])
def test_a_batch_in_flight_with_a_stream_that_is_gone_is_refused_whatever_is_accepted(name: str) -> None:
    gone = {"web": "app", "app": "web"}[name]
    topology = build("flying", name, rows=6, sets_aside=False)
    with pytest.raises(
        TopologyChanged, match=f"transaction 2 .* has records of stream '{gone}', which the topology no"
    ):
        run(topology, accept_changes=True)
    assert counts("flying") == {"home": 1, "start": 1}
    Picky.mended = True
    run(build("flying", "web", "app", sets_aside=False))


@pytest.mark.parametrize("order", [("web", "app"), ("app", "web")])
def test_without_a_stored_run_it_is_asked_for(order: tuple[str, ...]) -> None:
    """The first one is the one that no recorded partition names, whatever is declared first today."""
    with closing(sqlite3.connect("transactional.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM transactional_runs")
    topology = build("two", *order, rows=6)
    with pytest.raises(TopologyChanged, match=r"no run is stored .* taken for those of 'web'.* --accept-changes"):
        run(topology)
    run(build("one", "web", rows=6))
    run(topology, accept_changes=True)
    assert (counts("one"), counts("two")) == (ALL["one"], ALL["two"])
    assert run(topology).transactions == 0, "from now on each names its stream"


def test_a_single_stream_of_another_name_is_another_one() -> None:
    topology = build("one", "app", rows=6)
    with pytest.raises(TopologyChanged, match=r"spout\.app\.kind: stored nothing, .*spout\.kind: stored "):
        run(topology)
    run(topology, accept_changes=True)
    assert counts("one") == COUNTED["one"] | {"start": 2, "end": 1}
    assert positions("one") == {"app/memory[0]": 4, "web/memory[0]": 4}
