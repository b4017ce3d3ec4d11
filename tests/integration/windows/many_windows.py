"""Windows of several kinds over the flights of a topic: two topologies, of streams by session and by count, and a bolt
that is called with windows; and a driver that ends between their tables and the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spouts import JsonTranslator, OpaqueKafkaSpout
from state import DeltaMapState
from transactional import (
    Topology,
    TopologyConfig,
    TopologyDriver,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    TupleWindow,
    WindowedBolt,
    tumbling,
)
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import FatalError
from transactional.model.aggregates import Count, Last, Sum
from transactional.model.batch import BatchMetadata
from transactional.operations.launch.running import make_executor
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


class Died(FatalError):
    """The driver has ended at once."""


class DyingStore(SqlCoordinatorStore):
    """A real store. Its driver ends when it is about to tell it of this transaction, whose tables are written."""

    dies_in = 0

    def record_commit(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, **times: Any) -> None:
        if attempt.txid == self.dies_in:
            raise Died(str(attempt))
        super().record_commit(lease, attempt, batch, **times)


def run(build: Callable[[], Topology], folder: Path, session: SparkSession, *, dies_in: int = 0) -> None:
    """Run a topology until the topic is drained, or until it dies."""
    topology = build()
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True)
    with closing(DyingStore(f"sqlite:///{folder}/store.db")) as store:
        store.dies_in = dies_in
        TopologyDriver(topology, store, make_executor(topology, session=session), config).run()
