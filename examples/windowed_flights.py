"""Departures per carrier and hour, by the time at which they were due, from Kafka; those that come too late are kept.

`python -m examples.windowed_flights [--bootstrap host:port]` counts flights on Spark until the topic is drained. It
starts its own broker if none is given.
"""

import argparse
from pathlib import Path

from examples.flights import produce_flights
from spouts import JsonTranslator, OpaqueKafkaSpout
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from transactional import Topology, TopologyConfig, run_topology
from transactional.operations.cli.display import Display
from transactional.trident import Count, TridentTopology, tumbling

PARTITIONS = 3
FIELDS = "carrier string, time_hour timestamp"


def build(bootstrap: str, topic: str, directory: str, *, max_delay: str = "3 hours", batch: int = 5_000) -> Topology:
    """Open windows, those that have closed, and late flights are in a Delta table each."""
    spout = OpaqueKafkaSpout(bootstrap, [topic], translator=JsonTranslator(FIELDS), batch_records_max=batch)
    topology = TridentTopology("windowed-flights", parallelism=PARTITIONS)
    flights = topology.new_stream("flights", spout, event_time="time_hour", max_delay=max_delay)
    open_windows = DeltaMapState(f"{directory}/open")
    hours = flights.group_by("carrier").window(tumbling("1 hour"))
    departures = hours.persistent_aggregate(open_windows, Count())
    departures.closed().persist(DeltaMapState(f"{directory}/departures", ("carrier", "window_start")))
    late = DeltaMapState(f"{directory}/late", ("carrier", "time_hour"))
    departures.late().group_by("carrier", "time_hour").persistent_aggregate(late, Count())
    return topology.build(strict=True)


def main(bootstrap: str, options: argparse.Namespace) -> None:
    """Count until the topic is drained; print how many hours of a carrier have closed, and what came too late."""
    produce_flights(bootstrap, options.topic, PARTITIONS, options.flights)
    topology = build(bootstrap, options.topic, options.directory, max_delay=options.max_delay, batch=options.batch)
    config = TopologyConfig(max_spout_pending=3, stop_when_drained=True)
    with Display(topology) as display:
        store = f"sqlite:///{options.directory}/store.db"
        run_topology(topology, store=store, config=config, master=options.master, observers=[display])
    values = "window_end timestamp, count long"
    closed = DeltaMapState(f"{options.directory}/departures", "carrier string, window_start timestamp", values).read()
    late = DeltaMapState(f"{options.directory}/late", "carrier string, time_hour timestamp", "count long").read()
    counted, missed = (sum(table["count"].to_pylist()) for table in (closed, late))
    print(f"{counted} departures in {closed.num_rows} windows that have closed, {missed} came too late")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="a Kafka broker's address; without it a local broker is started")
    parser.add_argument("--topic", default="flights", help="created and filled if it does not exist")
    parser.add_argument(
        "--flights", type=int, default=None, help="how many flights of the year; all, if it is left out"
    )
    parser.add_argument("--directory", default="data/windowed-flights", help="where tables and progress are stored")
    parser.add_argument("--master", default="local[*]", help="the Spark master")
    parser.add_argument("--max-delay", default="3 hours", help="how much later than others a flight may come")
    parser.add_argument("--batch", type=int, default=5_000, help="how many flights a transaction has at most")
    options = parser.parse_args()
    Path(options.directory).mkdir(parents=True, exist_ok=True)
    if options.bootstrap:
        main(options.bootstrap, options)
    else:
        with LocalBroker(Path(options.directory) / "broker") as broker:
            main(broker.bootstrap, options)
