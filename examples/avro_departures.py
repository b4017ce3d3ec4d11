"""Departures in Avro, as a producer with Confluent's serializer writes them, counted per carrier into Delta.

`python -m examples.avro_departures` starts a broker and a schema registry of its own, unless `--bootstrap` and
`--registry` name yours; it registers the schema `delays-value`, produces 1,000 records, and counts until the topic is
drained. A consumer of yours would have read them with an AvroDeserializer: the ids are in front.
"""

import argparse
import json
import urllib.request
from contextlib import ExitStack

from spouts import AvroTranslator, OpaqueKafkaSpout
from spouts.kafka_admin import create_topic, produce
from spouts.local_broker import LocalBroker
from spouts.local_registry import LocalRegistry
from state import DeltaMapState
from transactional import Topology, TransactionalTopologyBuilder, run_topology

TOPIC, PARTITIONS, RECORDS = "delays", 4, 1_000
SCHEMA = {
    "type": "record",
    "name": "Departure",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}


def build(bootstrap: str, registry: str, directory: str = "data/departures") -> Topology:
    """Each record is read by the schema that it was written with, into the fields that are wanted here."""
    departures = AvroTranslator(registry, "carrier string, delay long")
    spout = OpaqueKafkaSpout(bootstrap, [TOPIC], translator=departures, batch_records_max=200)
    builder = TransactionalTopologyBuilder("avro-departures", "departures", spout)
    delays = DeltaMapState(f"{directory}/per-carrier", key="carrier string").sum("delay", name="delay")
    builder.set_committer_bolt("delays", delays).fields_grouping("departures", "carrier")
    return builder.build(config={"stop_when_drained": True})


def register(registry: str) -> int:
    """The schema's id, as a serializer requests it before its first record."""
    request = urllib.request.Request(
        f"{registry}/subjects/{TOPIC}-value/versions",
        data=json.dumps({"schema": json.dumps(SCHEMA)}).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request) as answer:
        return int(json.load(answer)["id"])


def departure(schema_id: int, carrier: str, delay: int) -> bytes:
    """Return a departure as a serializer encodes it: a zero byte, the id, a string, the second type of a union, an
    int."""
    text = carrier.encode()
    return b"\0" + schema_id.to_bytes(4, "big") + bytes([2 * len(text)]) + text + bytes([2, 2 * delay])


def main(bootstrap: str, registry: str, directory: str) -> None:
    """Produce, count, and print the table."""
    create_topic(bootstrap, TOPIC, PARTITIONS)
    schema_id = register(registry)
    records = [departure(schema_id, ("AA", "BA", "UA")[number % 3], number % 60) for number in range(RECORDS)]
    produce(bootstrap, TOPIC, [(number % PARTITIONS, None, record) for number, record in enumerate(records)])
    run_topology(build(bootstrap, registry, directory), store=f"sqlite:///{directory}/store.db", master="none")
    for row in DeltaMapState(f"{directory}/per-carrier", key="carrier string").read().sort_by("carrier").to_pylist():
        print(f"{row['carrier']}: {row['delay']} minutes late in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="a Kafka broker's address; without it a local broker is started")
    parser.add_argument("--registry", help="a schema registry's URL; without it a local one is started")
    parser.add_argument("--directory", default="data/departures", help="where the table and the progress are stored")
    options = parser.parse_args()
    with ExitStack() as started:
        bootstrap = options.bootstrap or started.enter_context(LocalBroker()).bootstrap
        registry = options.registry or started.enter_context(LocalRegistry()).url
        main(bootstrap, registry, options.directory)
