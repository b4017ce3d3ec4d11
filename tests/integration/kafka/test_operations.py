"""What an operator does to a topology over a real broker: savepoints, rewinds, an examination beside a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from spouts.kafka.spout import KafkaSpout
from state import DeltaMapState
from tests.integration.kafka_topics import BOTH, TIMEOUT_MS, new_topic, put
from transactional import TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.model.attempt import TxId
from transactional.operations.cli import rewind as commands
from transactional.operations.console.beside import console_beside
from transactional.operations.doctor.checked_tables import checked_sources, checked_tables
from transactional.operations.doctor.examine import examine
from transactional.operations.loading import open_for_reading, open_store
from transactional.operations.web.server import Address
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.rewinding import rewind
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology
from verifier import verify

pytestmark = pytest.mark.kafka

WAIT_S = 60


class Shop:
    """A topology that counts the values of a topic, two in a transaction."""

    def __init__(self, kind: type[KafkaSpout], bootstrap: str, folder: Path) -> None:
        self.kind, self.bootstrap, self.folder = kind, bootstrap, folder
        self.topic, self.store = new_topic(bootstrap), f"sqlite:///{folder}/store.db"

    def put(self, *values: str) -> None:
        put(self.bootstrap, self.topic, values)

    def topology(self) -> Topology:
        options = {"value_type": "string", "fields": ("value",), "timeout_ms": TIMEOUT_MS, "batch_records_max": 2}
        spout = self.kind(self.bootstrap, [self.topic], **options)  # type: ignore[arg-type]
        builder = TransactionalTopologyBuilder("shop", "lines", spout)
        counts = DeltaMapState(self.folder / "counts", key="value").count()
        builder.set_committer_bolt("counts", counts).fields_grouping("lines", "value")
        return builder.build()

    def run(self) -> None:
        run_topology(self.topology(), store=self.store, master="none", config={"stop_when_drained": True})

    def counts(self) -> dict[str, int]:
        return {
            row["value"]: row["count"] for row in DeltaMapState(self.folder / "counts", key="value").read().to_pylist()
        }

    @contextmanager
    def running(self, topology: Topology) -> Iterator[TopologyDriver]:
        """A run in a thread, which has to end without an error."""
        ended: list[BaseException] = []
        config = TopologyConfig(idle_pause_ms=20, retry_pause_ms=20, tick_ms=20)
        with closing(open_store(self.store)) as store:
            driver = TopologyDriver(topology, store, LocalExecutor(topology), config)

            def run() -> None:
                try:
                    driver.run()
                except BaseException as error:
                    ended.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield driver
                assert thread.is_alive(), ended
            finally:
                driver.stop()
                thread.join(WAIT_S)
            assert ended == []

    def await_counts(self, expected: dict[str, int]) -> None:
        def are_there() -> bool:
            first = self.folder / "counts" / "_delta_log" / f"{0:020}.json"
            return first.exists() and self.counts() == expected

        awaited(are_there)


def awaited(is_there: Callable[[], bool]) -> None:
    """Ask until the run has done it."""
    deadline = time.monotonic() + WAIT_S
    while not is_there():
        assert time.monotonic() < deadline


@BOTH
def test_a_savepoint_is_noted_and_gone_back_to(
    kind: type[KafkaSpout],
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(kind, bootstrap, tmp_path)
    monkeypatch.setattr(commands, "load_topology", lambda target: shop.topology())
    shop.put("cat", "dog", "cat", "owl")
    shop.run()
    with closing(open_store(shop.store)) as store:
        assert store.note_savepoint("shop", "before", TxId(1))
    commands.rewind("shop", None, "before", store=shop.store, yes=False, journal=None)
    assert "read again from offset 2; it had been read up to 4" in capsys.readouterr().out
    commands.rewind("shop", None, "before", store=shop.store, yes=True, journal=None)
    assert "the next run begins with transaction 2" in capsys.readouterr().out
    assert shop.counts() == {"cat": 1, "dog": 1}
    shop.run()
    assert shop.counts() == {"cat": 2, "dog": 1, "owl": 1}


@BOTH
def test_the_consoles_examination_does_not_end_the_run_beside_it(
    kind: type[KafkaSpout], bootstrap: str, tmp_path: Path
) -> None:
    shop, lines = Shop(kind, bootstrap, tmp_path), list[str]()
    shop.put("cat", "dog")
    topology = shop.topology()
    with shop.running(topology):
        shop.await_counts({"cat": 1, "dog": 1})
        reader = open_for_reading(shop.store)
        with console_beside(reader, Address(port=0), topology, lines.append, store_url=shop.store):
            url = lines[0].rpartition(" ")[2]
            page = build_opener(HTTPCookieProcessor(CookieJar()))
            page.open(url).read()
            base = url.partition("/?")[0]
            for number in range(1, 4):
                examined = page.open(f"{base}/t/shop/doctor?examine=1").read().decode()
                assert "Nothing is wrong" in examined, examined
                shop.put("owl")
                shop.await_counts({"cat": 1, "dog": 1, "owl": number})


@BOTH
def test_a_run_survives_a_client_that_is_closed_under_it(
    kind: type[KafkaSpout], bootstrap: str, tmp_path: Path
) -> None:
    shop = Shop(kind, bootstrap, tmp_path)
    shop.put("cat", "dog")
    topology = shop.topology()
    with shop.running(topology):
        shop.await_counts({"cat": 1, "dog": 1})
        for number in range(1, 4):
            topology.spout.close()
            shop.put("owl")
            shop.await_counts({"cat": 1, "dog": 1, "owl": number})
    with closing(open_for_reading(shop.store)) as store:
        assert [each for each in examine(shop.topology(), store, shop.store) if not each.is_harmless] == []


# --- several streams --------------------------------------------------------------------------------------------------


class Shops:
    """A topology that counts the values of two topics, each a stream."""

    def __init__(self, kind: type[KafkaSpout], bootstrap: str, folder: Path) -> None:
        self.kind, self.bootstrap, self.folder = kind, bootstrap, folder
        self.topics = {name: new_topic(bootstrap) for name in ("web", "app")}
        self.store = f"sqlite:///{folder}/store.db"

    def topology(self, *order: str) -> Topology:
        topology, streams = TridentTopology("shops"), {}
        for name in order:
            options: Any = {"value_type": "string", "fields": ("value",), "timeout_ms": TIMEOUT_MS}
            spout = self.kind(self.bootstrap, [self.topics[name]], batch_records_max=2, **options)
            streams[name] = topology.new_stream(name, spout)
        counted = streams["web"].merge(streams["app"]).group_by("value")
        counted.persistent_aggregate(DeltaMapState(self.folder / "counts"), Count(), name="counts")
        return topology.build(strict=True)

    def run(self, *order: str) -> None:
        run_topology(self.topology(*order), store=self.store, master="none", config={"stop_when_drained": True})

    def counts(self) -> dict[str, int]:
        rows = DeltaMapState(self.folder / "counts", key="value").read().to_pylist()
        return {row["value"]: row["count"] for row in rows}

    def nothing_is_wrong(self, topology: Topology) -> None:
        sources = [replace(source, reads_records=True) for source in checked_sources(topology)]
        report = verify(self.store, "shops", checked_tables(topology)[0], sources)
        assert report.findings == ()
        assert report.checked["records of the source"]
        with closing(open_for_reading(self.store)) as store:
            assert [each for each in examine(topology, store, self.store) if not each.is_harmless] == []


@BOTH
def test_two_streams_change_places_and_are_taken_back_and_verified(
    kind: type[KafkaSpout], bootstrap: str, tmp_path: Path
) -> None:
    shops = Shops(kind, bootstrap, tmp_path)
    put(bootstrap, shops.topics["web"], ["w1", "w2", "w3", "w4", "w5"])
    put(bootstrap, shops.topics["app"], ["a1"])
    shops.run("web", "app")
    put(bootstrap, shops.topics["app"], ["a2", "a3"])
    shops.run("app", "web")
    every = dict.fromkeys(("w1", "w2", "w3", "w4", "w5", "a1", "a2", "a3"), 1)
    assert shops.counts() == every
    topology = shops.topology("app", "web")
    shops.nothing_is_wrong(topology)
    with closing(open_store(shops.store)) as store:
        rewind(topology, store, TxId(1), owner="test")
    assert shops.counts() == dict.fromkeys(("w1", "w2", "a1"), 1)
    shops.run("web", "app")
    assert shops.counts() == every
    shops.nothing_is_wrong(topology)
