"""Avro over a real broker and a real registry: a schema that moves, a registry that is away, letters to be mended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sinks import AvroValue, KafkaSink
from spouts import AvroTranslator, Registry
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout
from spouts.kafka_admin import produce
from spouts.local_registry import LocalRegistry
from spouts.registry import client
from state import DeadLetterTable, DeltaMapState
from tests.integration.kafka_topics import BOTH, new_topic
from tests.unit.poisoned import try_again
from tests.unit.spouts.avro.drawing import written
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.errors import ConfigError
from transactional.model.aggregates.columns import Aggregate, Count, Max, Sum
from transactional.runtime.engine.letter_spout import all_letters
from transactional.topology.topology import Topology

pytestmark = [pytest.mark.kafka, pytest.mark.registry]

READ = "carrier string, delay long"
CARRIER: dict[str, Any] = {"name": "carrier", "type": "string"}
GATE: dict[str, Any] = {"name": "gate", "type": ["null", "string"], "default": None}
WRITERS: Mapping[str, Sequence[dict[str, Any]]] = {
    "first": [CARRIER, {"name": "delay", "type": "int"}],
    "with one more": [CARRIER, {"name": "delay", "type": "int"}, GATE],
    "with one less": [CARRIER],
    "with a wider one": [{"name": "delay", "type": "long"}, CARRIER],
    "with another type": [CARRIER, {"name": "delay", "type": "string"}],
}
VALUES: Mapping[str, Mapping[str, Any]] = {
    "first": {"carrier": "AA", "delay": 5},
    "with one more": {"carrier": "AA", "delay": 1, "gate": "B7"},
    "with one less": {"carrier": "AA"},
    "with a wider one": {"carrier": "AA", "delay": 2**40},
    "with another type": {"carrier": "AA", "delay": "5"},
}


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_memories", {})


@dataclass
class Departures:
    """A topic of departures, and the topology that counts and sums them, in Delta tables."""

    bootstrap: str
    registry: LocalRegistry
    folder: Path
    kind: type[KafkaSpout] = OpaqueKafkaSpout

    def __post_init__(self) -> None:
        self.topic = new_topic(self.bootstrap, partitions=2)

    def write(self, *names: str) -> None:
        """A record for each, in the partitions by turns, with the schema of this name."""
        records = []
        for number, name in enumerate(names):
            schema = {"type": "record", "name": "Departure", "fields": WRITERS[name]}
            schema_id = self.registry.register(f"{self.topic}-value", json.dumps(schema))
            [payload] = written(schema, [VALUES[name]])
            records.append((number % 2, None, b"\0" + schema_id.to_bytes(4, "big") + payload))
        produce(self.bootstrap, self.topic, records, {"enable.idempotence": False})

    def topology(self, fields: str, **aggregates: Aggregate) -> Topology:
        translator = AvroTranslator(Registry(self.registry.url, timeout_ms=1_000), fields, on_error="dead_letter")
        spout = self.kind(self.bootstrap, [self.topic], translator=translator, batch_records_max=4)
        builder = TransactionalTopologyBuilder("departures", "departures", spout, parallelism=2)
        update = self.state().aggregate(count=Count(), **aggregates)
        builder.set_committer_bolt("count", update).fields_grouping("departures", "carrier")
        builder.set_dead_letters(DeadLetterTable(str(self.folder / "letters")))
        return builder.build()

    def run(
        self, fields: str, *, accept_changes: bool = False, processing: str = "spark", **aggregates: Aggregate
    ) -> int:
        """Run until all is read. Returns how many attempts failed."""
        topology, store = self.topology(fields, **aggregates), f"sqlite:///{self.folder}/store.db"
        config = {"stop_when_drained": True, "retry_pause_ms": 10, "attempts_max": 99, "processing": processing}
        done = run_topology(topology, store=store, master="none", config=config, accept_changes=accept_changes)
        return done.failures

    def state(self) -> DeltaMapState:
        return DeltaMapState(str(self.folder / "counts"), "carrier string")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.state().read().to_pylist()
        return rows

    def errors(self) -> list[str]:
        """Why records are letters."""
        return [row["error"] for row in all_letters(self.topology("carrier string")) if row["tried_again_in"] is None]


@pytest.fixture
def departures(bootstrap: str, registry: LocalRegistry, tmp_path: Path) -> Departures:
    return Departures(bootstrap, registry, tmp_path)


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    """One of this file, which a test kills."""
    with LocalRegistry() as registry:
        yield registry


def test_a_writers_schema_moves_while_the_topology_runs(departures: Departures) -> None:
    """What it adds is skipped, what it lacks is NULL, a wider number is read; another type is at fault by itself."""
    departures.write("first", "with one more", "with one less", "with a wider one", "with another type")
    assert departures.run("carrier string, delay long", delay=Sum("delay")) == 0
    assert departures.rows() == [{"carrier": "AA", "count": 4, "delay": 5 + 1 + 2**40}]
    [error] = departures.errors()
    assert "delay: it is a string in the record's schema, which can't be read as long; it is" in error


def test_a_sink_forwards_as_avro_what_our_spout_reads_unless_the_registry_refuses_it(departures: Departures) -> None:
    """The second topology reads what the first one has published."""
    departures.write("first", "with one more")
    source, target = departures.topic, new_topic(departures.bootstrap)
    registry = Registry(departures.registry.url, timeout_ms=1_000)
    key_schema = json.dumps({"type": "record", "name": "Key", "fields": [CARRIER]})

    def forward(default: str | None, subject: str | None = None) -> None:
        fields = [CARRIER, {"name": "delay", "type": ["null", "long"], "default": default}]
        schema = json.dumps({"type": "record", "name": "Departure", "fields": fields})
        spout = OpaqueKafkaSpout(departures.bootstrap, [source], translator=AvroTranslator(registry, READ))
        builder = TransactionalTopologyBuilder(f"forward-{target}", "departures", spout)
        key = AvroValue(key_schema, registry)
        sink = KafkaSink(departures.bootstrap, target, key=key, value=AvroValue(schema, registry, subject=subject))
        builder.set_sink("alerts", sink).shuffle_grouping("departures")
        store = f"sqlite:///{departures.folder}/forward.db"
        run_topology(builder.build(), store=store, master="none", config={"stop_when_drained": True})

    forward(None)
    AvroValue(key_schema, registry).prepare([source, target], "key")  # refused if subjects had ids of their own
    assert registry.register(f"{source}-key", key_schema) == registry.register(f"{target}-key", key_schema)
    with pytest.raises(ConfigError, match=r"the schema registry refuses what .* got"):
        forward("no number", subject=f"{target}-wrong")
    departures.topic = target
    assert departures.run(READ, delay=Sum("delay"), processing="auto") == 0
    assert departures.rows() == [{"carrier": "AA", "count": 2, "delay": 5 + 1}]


def test_a_reader_with_one_more_field_adds_a_column_at_its_next_start(departures: Departures) -> None:
    departures.write("first", "with one more")
    assert departures.run("carrier string, delay long") == 0
    departures.write("with one more", "first")
    fields = "carrier string, delay long, gate string"
    assert departures.run(fields, accept_changes=True, gate=Max("gate")) == 0
    assert departures.rows() == [{"carrier": "AA", "count": 4, "gate": "B7"}]


def test_a_reader_with_one_field_less_goes_on(departures: Departures) -> None:
    departures.write("with one more", "first")
    assert departures.run("carrier string, gate string") == 0
    departures.write("with one more", "first")
    assert departures.run("carrier string", accept_changes=True) == 0
    assert departures.rows() == [{"carrier": "AA", "count": 4}]


@BOTH
@pytest.mark.long("test_a_registry_that_is_away_is_an_outage")
def test_a_registry_that_is_killed_is_an_outage_in_workers_too(
    kind: type[KafkaSpout], bootstrap: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    departures = Departures(bootstrap, registry, tmp_path, kind)
    departures.write(*["first", "with one more"] * 20)
    registry.kill()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(departures.run, "carrier string, delay long", processing="workers", delay=Sum("delay"))
        registry.start()
        running.result(60)
    assert departures.rows() == [{"carrier": "AA", "count": 40, "delay": 20 * (5 + 1)}]


def test_letters_are_read_again_by_a_mended_translator(departures: Departures) -> None:
    """They keep the record's bytes, and with them its schema id."""
    departures.write("first", "with another type")
    assert departures.run("carrier string, delay long") == 0
    assert departures.rows() == [{"carrier": "AA", "count": 1}]
    assert try_again(departures.topology("carrier string"), departures.folder).failures == 0
    assert departures.rows() == [{"carrier": "AA", "count": 2}]
    assert departures.errors() == []
