"""The topology of the journeys: sales by item and by the minute, over one of the sources and tables of some kinds.

`transactional run tests.journeys.sales:build`, in the folder of its tables. The variables SOURCE and STATES are names
of `tests.journeys.matrix`, WINDOWS is which there are, BOOTSTRAP, POSTGRES and REDIS are the servers. `swapped` is a
release that declares its streams in the other order, `mended` one that can read more prices, and garbled records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from state import DeltaMapState, RedisMapState, SqlMapState
from state.delta.segments.folding import LogLayout
from tests.journeys.sources import SOURCES
from transactional import Topology, Tuple
from transactional.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.trident import Count, Stream, Sum, TridentTopology, sliding, tumbling

TOPOLOGY = "sales"
TABLES = ("letters", "ids", "items", "open", "closed", "late", "panes", "slid")
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


def state(name: str, key: Any = None, values: str = "") -> Any:
    """The state of a table: the kinds of STATES take turns, and which comes first depends on the source."""
    kinds, source = os.environ["STATES"].split(","), os.environ["SOURCE"]
    kind = kinds[(TABLES.index(name) + list(SOURCES).index(source)) % len(kinds)]
    match kind:
        case "merge layout":
            return DeltaMapState(name, key, values, layout="merge")
        case "log layout":
            return DeltaMapState(name, key, values, layout=LogLayout(fold_after=3))
        case "SQLite":
            return SqlMapState("sqlite:///tables.db", name, key, values)
        case "PostgreSQL":
            return SqlMapState(os.environ["POSTGRES"], name, key, values)
        case "Redis":
            return RedisMapState(os.environ["REDIS"], name, key, values)
    raise AssertionError(kind)


def build(*, is_mended: bool = False, is_swapped: bool = False) -> Topology:
    topology = TridentTopology(TOPOLOGY, parallelism=2)
    source = SOURCES[os.environ["SOURCE"]]
    spouts = source.spouts(is_mended=is_mended)
    times: dict[str, Any] = {"event_time": "at", "max_delay": timedelta(minutes=MAX_DELAY_MINUTES)}
    if source.idle:  # windows wait for a silent partition as long as any journey takes
        times["idle_after"] = timedelta(hours=1)
    streams = {
        name: topology.new_stream(name, spouts[name], **times) for name in list(spouts)[:: -1 if is_swapped else 1]
    }
    first, *others = (streams[name] for name in spouts)
    read = first.merge(*others) if others else first
    sales = read.each(pricing(WORDS if is_mended else {}), "paid long")
    sales.group_by("id").persistent_aggregate(state("ids"), Count(), name="ids")
    items = sales.group_by("item").persistent_aggregate(state("items"), Count(), paid=Sum("paid"), name="items")
    windows = os.environ["WINDOWS"].split(",")
    if TUMBLING in windows:
        span = tumbling(timedelta(minutes=WINDOW_MINUTES))
        counts = sales.group_by("item").window(span).persistent_aggregate(state("open"), Count(), name="open")
        counts.closed().persist(state("closed", ("item", "window_start")), name="closed")
        counts.late().group_by("id").persistent_aggregate(state("late"), Count(), name="late")
    if SLIDING in windows:
        window = sales.group_by("item").window(
            sliding(timedelta(minutes=SLIDING_MINUTES), every=timedelta(seconds=EVERY_S))
        )
        slides = window.persistent_aggregate(state("panes"), Count(), name="panes")
        slides.closed().persist(state("slid", ("item", "window_start")), name="slid")
    topology.set_dead_letters(state("letters", LETTER_KEY, LETTER_VALUES))

    @topology.query("count_of", "item string")
    def count_of(questions: Stream) -> Stream:
        return questions.state_query(items, on="item")

    return topology.build(strict=True, config={"attempts_max": 2, "max_spout_pending": 3})


def swapped() -> Topology:
    return build(is_swapped=True)


def mended() -> Topology:
    return build(is_mended=True)
