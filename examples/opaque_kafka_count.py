"""The flights that left New York in 2013, from Kafka, counted per carrier and per origin into Delta, exactly once.

`python -m examples.opaque_kafka_count [--bootstrap host:port]` starts its own broker if none is given, produces 336,776
departures into a topic with 4 partitions, and counts until it is drained. Kill it at any time, and start it again after
the three seconds of its lease: nothing is lost, nothing is counted twice.
"""

import argparse
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.json

from examples.flights import produce_flights
from spouts import OpaqueKafkaSpout
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.operations.cli.display import Display

PARTITIONS = 4


def parse_flight(batch: pa.RecordBatch) -> pa.Table:
    """JSON values → carrier and origin, a whole record batch at a time."""
    lines = b"\n".join(batch.column("value").to_pylist())
    return pyarrow.json.read_json(io.BytesIO(lines)).select(["carrier", "origin"])


def build(
    bootstrap: str = "localhost:9092", directory: str = "data/flights", topic: str = "flights", batch: int = 50_000
) -> Topology:
    """The topology: tables in the given directory, at most `batch` records in a transaction."""
    spout = OpaqueKafkaSpout(bootstrap, topics=[topic], fields=("value",), batch_records_max=batch)
    builder = TransactionalTopologyBuilder("flights", "departures", spout, parallelism=PARTITIONS)
    parse = builder.set_bolt("parse", parse_flight, PARTITIONS, output="carrier string, origin string")
    parse.shuffle_grouping("departures")
    for field in ("carrier", "origin"):
        counts = DeltaMapState(f"{directory}/per-{field}", key=f"{field} string").count()
        builder.set_committer_bolt(f"per-{field}", counts).fields_grouping("parse", field)
    return builder.build()


def main(bootstrap: str, options: argparse.Namespace) -> None:
    """Count until the topic is drained; print both tables."""
    produce_flights(bootstrap, options.topic, PARTITIONS)
    topology = build(bootstrap, options.directory, options.topic, options.batch)
    store = f"sqlite:///{options.directory}/store.db"
    config = TopologyConfig(max_spout_pending=3, stop_when_drained=True, lease_ms=3_000)
    with Display(topology) as display:
        run_topology(topology, store=store, config=config, master=options.master, observers=[display])
    for field in ("carrier", "origin"):
        table = DeltaMapState(f"{options.directory}/per-{field}", f"{field} string", "count long").read()
        counts = sorted(zip(table[field].to_pylist(), table["count"].to_pylist(), strict=True))
        print(f"per {field}: " + ", ".join(f"{value} {count}" for value, count in counts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="a Kafka broker's address; without it a local broker is started")
    parser.add_argument("--topic", default="flights", help="created and filled if it does not exist")
    parser.add_argument("--batch", type=int, default=50_000, help="maximum number of records per transaction")
    parser.add_argument("--directory", default="data/flights", help="where tables and progress are stored")
    parser.add_argument("--master", default="local[*]", help="the Spark master")
    options = parser.parse_args()
    Path(options.directory).mkdir(parents=True, exist_ok=True)
    if options.bootstrap:
        main(options.bootstrap, options)
    else:
        with LocalBroker(Path(options.directory) / "broker") as broker:
            main(broker.bootstrap, options)
