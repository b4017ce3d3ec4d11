"""The topology of the journey: sales of a web shop and of an app, two topics, by item and by five minutes.

`transactional run tests.journeys.sales:build`, in the folder of its tables. The variable BOOTSTRAP is the broker.
`swapped` is a release that declares the app first, `mended` one that can read more prices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta

from spouts import JsonTranslator, OpaqueKafkaSpout
from state import DeadLetterTable, DeltaMapState
from transactional import Topology, Tuple
from transactional.trident import Count, Stream, Sum, TridentTopology, tumbling

TOPOLOGY = "sales"
WEB, APP = "web", "app"
TOPICS = (WEB, APP)
WINDOW_MINUTES = 5
MAX_DELAY_MINUTES = 1
FIELDS = "id string, item string, at timestamp, price string"
WORDS = {"three": 3}


def pricing(words: Mapping[str, int]) -> Callable[[Tuple], int]:
    """The bolt that fails: a price is a number, or one of the words that a release knows."""

    def price(sale: Tuple) -> int:
        return words.get(sale.price) or int(sale.price)

    return price


def stream_of(topology: TridentTopology, topic: str) -> Stream:
    spout = OpaqueKafkaSpout(
        os.environ["BOOTSTRAP"],
        [topic],
        translator=JsonTranslator(FIELDS),
        batch_records_max=5,
        timeout_ms=5_000,
    )
    return topology.new_stream(topic, spout, event_time="at", max_delay=timedelta(minutes=MAX_DELAY_MINUTES))


def build(*, is_mended: bool = False, topics: tuple[str, ...] = TOPICS) -> Topology:
    topology = TridentTopology(TOPOLOGY, parallelism=2)
    streams = {topic: stream_of(topology, topic) for topic in topics}
    read = streams[WEB].merge(streams[APP])
    sales = read.each(pricing(WORDS if is_mended else {}), "paid long")
    sales.group_by("id").persistent_aggregate(DeltaMapState("ids"), Count(), name="ids")
    sales.group_by("item").persistent_aggregate(DeltaMapState("items"), Count(), paid=Sum("paid"), name="items")
    windows = sales.group_by("item").window(tumbling(timedelta(minutes=WINDOW_MINUTES)))
    counts = windows.persistent_aggregate(DeltaMapState("open"), Count(), name="open")
    counts.closed().persist(DeltaMapState("closed", ("item", "window_start")), name="closed")
    counts.late().group_by("id").persistent_aggregate(DeltaMapState("late"), Count(), name="late")
    topology.set_dead_letters(DeadLetterTable("letters"))
    return topology.build(strict=True, config={"attempts_max": 2, "max_spout_pending": 3})


def swapped() -> Topology:
    return build(topics=TOPICS[::-1])


def mended() -> Topology:
    return build(is_mended=True)
