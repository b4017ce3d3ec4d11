"""Trident: topologies as operations on streams. Public names."""

from __future__ import annotations

from transactional.model.aggregates import Avg, Count, First, Last, Max, Min, Sum
from transactional.topology.windows import CountWindow, Session, Window, count, session, sliding, tumbling
from transactional.trident.aggregates.collecting import Collect, collected
from transactional.trident.aggregates.own import BatchAggregator, Combiner, Reducer
from transactional.trident.aggregates.reducing import MultiReducer
from transactional.trident.pipelines.expressions import field
from transactional.trident.static import StaticState
from transactional.trident.streams import GroupedStream, Stream, TridentState
from transactional.trident.topology import TridentTopology
from transactional.trident.windowed import WindowedState, WindowedStream
from transactional.trident.windowed_joins import JoinedWindows

__all__ = [
    "Avg",
    "BatchAggregator",
    "Collect",
    "Combiner",
    "Count",
    "CountWindow",
    "First",
    "GroupedStream",
    "JoinedWindows",
    "Last",
    "Max",
    "Min",
    "MultiReducer",
    "Reducer",
    "Session",
    "StaticState",
    "Stream",
    "Sum",
    "TridentState",
    "TridentTopology",
    "Window",
    "WindowedState",
    "WindowedStream",
    "collected",
    "count",
    "field",
    "session",
    "sliding",
    "tumbling",
]
