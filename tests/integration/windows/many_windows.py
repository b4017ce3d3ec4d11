"""Windows of several kinds over the flights of a topic, on Spark: `python -m tests.integration.windows.many_windows`.

Two topologies, one after the other: of streams by session and by count, and a bolt that is called with windows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spouts import JsonTranslator, OpaqueKafkaSpout
from state import DeltaMapState
from transactional import (
    Topology,
    TopologyConfig,
    TransactionalTopologyBuilder,
    TupleWindow,
    WindowedBolt,
    run_topology,
    tumbling,
)
from transactional.aggregates import Count, Last, Sum
from transactional.commands.display import Display
from transactional.spark_session import spark_session
from transactional.trident import Collect, TridentTopology, count, session

PARTITIONS, BATCH = 3, 400
FIELDS = "carrier string, time_hour timestamp, flight string"
STREAMS, BOLT = "windows-of-streams", "windows-of-a-bolt"
GAP_HOURS, LENGTH, EVERY = 3, 20, 10


def spout(bootstrap: str, topic: str) -> OpaqueKafkaSpout:
    """The flights."""
    return OpaqueKafkaSpout(bootstrap, [topic], translator=JsonTranslator(FIELDS), batch_records_max=BATCH)


def of_streams(bootstrap: str, topic: str, folder: Path) -> Topology:
    """What belongs together of a carrier, its last twenty flights after each ten, and all flights by twenty."""
    made = TridentTopology(STREAMS, parallelism=PARTITIONS)
    flights = made.new_stream("flights", spout(bootstrap, topic), event_time="time_hour", max_delay="2 days")
    of_carrier = flights.group_by("carrier")
    together = of_carrier.window(session(f"{GAP_HOURS} hours", longest="30 days"))
    sessions = together.persistent_aggregate(DeltaMapState(folder / "sessions"), Count())
    sessions.closed().persist(DeltaMapState(folder / "sessions-closed", ("carrier", "window_start")))
    last = of_carrier.window(count(LENGTH, every=EVERY))
    some = last.persistent_aggregate(DeltaMapState(folder / "last"), Collect("flight", "time_hour"))
    some.closed().persist(DeltaMapState(folder / "last-closed", ("carrier", "window_end")))
    every = flights.window(count(LENGTH)).persistent_aggregate(DeltaMapState(folder / "twenty", ()), Count())
    every.closed().persist(DeltaMapState(folder / "twenty-closed", "window_start"))
    return made.build(strict=True)


class Flights(WindowedBolt):
    """How many there are."""

    output = "carrier string, window_start timestamp, count long"

    def execute(self, window: TupleWindow) -> None:
        """Count them."""
        self.collector.emit(*window.key, window.start, len(window.get()))


def of_a_bolt(bootstrap: str, topic: str, folder: Path) -> Topology:
    """The flights of a carrier by the hour, and how often each hour has closed."""
    builder = TransactionalTopologyBuilder(BOLT, "flights", spout(bootstrap, topic), PARTITIONS)
    builder.set_event_time("time_hour", max_delay="2 days")
    builder.set_windowed_bolt(
        "hours",
        Flights(),
        window=tumbling("1 hour"),
        key="carrier",
        time="time_hour",
        state=DeltaMapState(folder / "hours"),
    ).fields_grouping("flights", "carrier")
    closed = DeltaMapState(folder / "hours-closed").aggregate(count=Sum("count"), times=Count(), last=Last("count"))
    builder.set_committer_bolt("hours-closed", closed.group_by("carrier", "window_start")).fields_grouping(
        "hours", "carrier", "window_start"
    )
    return builder.build(strict=True)


def main(bootstrap: str, topic: str, folder: Path, session: SparkSession) -> None:
    """Run both until the topic is drained."""
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True)
    for build in (of_streams, of_a_bolt):
        topology = build(bootstrap, topic, folder)
        with Display(topology) as display:
            store = f"sqlite:///{folder}/store.db"
            run_topology(topology, store=store, config=config, session=session, observers=[display])
        sys.stdout.write(f"{topology.id} is done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), spark_session(master="local[2]"))
