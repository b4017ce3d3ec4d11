"""The topology of the journeys: sales by item and by the minute, over one of the sources and tables of some kinds.

`transactional run tests.journeys.sales:build`, in the folder of its tables. The variables SOURCE, STATES and SINK are
names of `tests.journeys.matrix`, WINDOWS is which there are, BOOTSTRAP, POSTGRES and REDIS are the servers. `swapped`
is a release that declares its streams in the other order, `mended` one that can read more prices, and garbled records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from sinks import DeltaSink, JsonValue, KafkaSink
from state import DeltaMapState, RedisMapState, SqlMapState
from state.delta.segments.log_layout import LogLayout
from tests.journeys.matrix import BOLTS, DELTA_SINK
from tests.journeys.sources import APP, FIELDS, SOURCES, WEB, topic_of
from transactional import BasicBolt, JoinBolt, OutputCollector, Topology, TransactionalTopologyBuilder, Tuple
from transactional.core.ports import Sink, Spout, SpoutMaker
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.trident import Count, Stream, Sum, TridentTopology, sliding, tumbling

TOPOLOGY = "sales"
TABLES = ("letters", "ids", "items", "open", "closed", "late", "panes", "slid", "meeting", "pairs")
SOLD, CLOSINGS = "sold", "closings"
"""The names of the sinks, and of their topics."""
TUMBLING, SLIDING = "tumbling", "sliding"
WINDOW_MINUTES = 5
SLIDING_MINUTES, EVERY_S = 10, 30
MAX_DELAY_MINUTES = 1
WORDS = {"three": 3}


def pricing(words: Mapping[str, int]) -> Callable[[Tuple], int]:
    """The bolt that fails: a price is a number, or one of the words that a release knows."""

    def price(sale: Tuple) -> int:
        return words.get(sale.price) or int(sale.price)

    return price


def is_of(name: str, sale: Tuple) -> bool:
    return bool(sale.id.startswith(name))


def state(name: str, key: Any = None, values: str = "") -> Any:
    """The state of a table: the kinds of STATES take turns, and which comes first depends on the source."""
    kinds, source = os.environ["STATES"].split(","), os.environ["SOURCE"]
    kind = kinds[(TABLES.index(name) + list(SOURCES).index(source)) % len(kinds)]
    match kind:
        case "merge layout":
            return DeltaMapState(name, key, values, layout="merge")
        case "log layout":
            return DeltaMapState(name, key, values, layout=LogLayout(compact_after=3))
        case "SQLite":
            return SqlMapState("sqlite:///tables.db", name, key, values)
        case "PostgreSQL":
            return SqlMapState(os.environ["POSTGRES"], name, key, values)
        case "Redis":
            return RedisMapState(os.environ["REDIS"], name, key, values)
    raise AssertionError(kind)


def sold(name: str, key: str, *values: str) -> Sink:
    """The sink for a topic of the journey, or for a table."""
    if os.environ["SINK"] == DELTA_SINK:
        return DeltaSink(f"{name}-appended", partition_by=[key])
    return KafkaSink(os.environ["BOOTSTRAP"], topic_of(name), key=key, value=JsonValue(*values))


class Pricing(BasicBolt):
    """The same as a bolt of two spouts, which passes the sales of each on apart, too."""

    output = f"{FIELDS}, paid long"
    streams = {WEB: FIELDS, APP: "id string, item string, at timestamp"}  # noqa: RUF012

    def __init__(self, words: Mapping[str, int]) -> None:
        self.price = pricing(words)

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(*tuple, self.price(tuple))
        collector.emit(*tuple[: len(tuple) - (tuple.source == APP)], stream=tuple.source)


class ItemJoin(JoinBolt):
    """Sales of both streams that are of one item, and too late for their window."""

    streams = {"late": "id string"}  # noqa: RUF012


SPAN = tumbling(timedelta(minutes=WINDOW_MINUTES))
CONFIG = {"attempts_max": 2, "max_spout_pending": 3}


def build(*, is_mended: bool = False, is_swapped: bool = False) -> Topology:
    source = SOURCES[os.environ["SOURCE"]]
    made = source.spouts(is_mended=is_mended)
    spouts = {name: made[name] for name in list(made)[:: -1 if is_swapped else 1]}
    words = WORDS if is_mended else {}
    times: dict[str, Any] = {"max_delay": timedelta(minutes=MAX_DELAY_MINUTES)}
    if source.idle:  # windows wait for a silent partition as long as any journey takes
        times["idle_after"] = timedelta(hours=1)
    if os.environ["SOURCE"] == BOLTS:
        return of_bolts(spouts, words, times)
    return of_streams(spouts, words, times, joins=len(spouts) > 1 and not source.idle)


def of_bolts(spouts: Mapping[str, Spout | SpoutMaker], words: Mapping[str, int], times: Mapping[str, Any]) -> Topology:
    first, *others = spouts
    builder = TransactionalTopologyBuilder(TOPOLOGY, first, spouts[first], 2)
    for name in others:
        builder.set_spout(name, spouts[name])
    sales = builder.set_bolt("sales", Pricing(words), 2)
    for name in spouts:
        builder.set_event_time("at", stream=name, **times)
        sales.shuffle_grouping(name)
    builder.set_committer_bolt("ids", state("ids").count().group_by("id")).fields_grouping("sales", "id")
    items = state("items").aggregate(count=Count(), paid=Sum("paid")).group_by("item")
    builder.set_committer_bolt("items", items).fields_grouping("sales", "item")
    joins = ItemJoin(WEB, "item", by="stream").join(APP, "item", WEB).select("web:id as id, app:id as other")
    meeting = builder.set_windowed_bolt(
        "meeting", joins, window=SPAN, key="item", time="at", late="late", state=state("meeting")
    )
    for name in (WEB, APP):
        meeting.fields_grouping("sales", "item", stream=name)
    builder.set_committer_bolt("pairs", state("pairs").count().group_by("id")).fields_grouping("meeting", "id")
    late = state("late").count().group_by("id")
    builder.set_committer_bolt("late", late).fields_grouping("meeting", "id", stream="late")
    if os.environ.get("SINK"):
        builder.set_sink(SOLD, sold(SOLD, "id", "id", "paid"), 2).fields_grouping("sales", "id")
    builder.set_dead_letters(state("letters", LETTER_KEY, LETTER_VALUES))
    return builder.build(strict=True, config=CONFIG)


def of_streams(
    spouts: Mapping[str, Spout | SpoutMaker], words: Mapping[str, int], times: Mapping[str, Any], *, joins: bool
) -> Topology:
    topology = TridentTopology(TOPOLOGY, parallelism=2)
    streams = {name: topology.new_stream(name, spout, event_time="at", **times) for name, spout in spouts.items()}
    first, *others = (streams[name] for name in sorted(streams, reverse=True))
    read = first.merge(*others) if others else first
    sales = read.each(pricing(words), "paid long")
    if os.environ.get("SINK"):
        sales.partition_by("id").sink_to(sold(SOLD, "id", "id", "paid"), name=SOLD)
    sales.group_by("id").persistent_aggregate(state("ids"), Count(), name="ids")
    items = sales.group_by("item").persistent_aggregate(state("items"), Count(), paid=Sum("paid"), name="items")
    windows = os.environ["WINDOWS"].split(",")
    if TUMBLING in windows:
        counts = sales.group_by("item").window(SPAN).persistent_aggregate(state("open"), Count(), name="open")
        counts.closed().persist(state("closed", ("item", "window_start")), name="closed")
        if os.environ.get("SINK"):
            counts.closed().sink_to(sold(CLOSINGS, "item", "item", "window_start", "count"), name=CLOSINGS)
        counts.late().group_by("id").persistent_aggregate(state("late"), Count(), name="late")
    if SLIDING in windows:
        window = sales.group_by("item").window(
            sliding(timedelta(minutes=SLIDING_MINUTES), every=timedelta(seconds=EVERY_S))
        )
        slides = window.persistent_aggregate(state("panes"), Count(), name="panes")
        slides.closed().persist(state("slid", ("item", "window_start")), name="slid")
    if joins:
        sides = [sales.filter(partial(is_of, name)).project("item", "id", "at").named(name) for name in (WEB, APP)]
        pairs = topology.join(
            *((side, "item") for side in sides),
            output=["item", "id", "at", "other", "other_at"],
            window=SPAN,
            on=["at", "at"],
            state=state("meeting"),
            name="meeting",
        )
        pairs.closed().group_by("id").persistent_aggregate(state("pairs"), Count(), name="pairs")
    topology.set_dead_letters(state("letters", LETTER_KEY, LETTER_VALUES))

    @topology.query("count_of", "item string")
    def count_of(questions: Stream) -> Stream:
        return questions.state_query(items, on="item")

    return topology.build(strict=True, config=CONFIG)


def swapped() -> Topology:
    return build(is_swapped=True)


def mended() -> Topology:
    return build(is_mended=True)
