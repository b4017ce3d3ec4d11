"""Trident: topologies as operations on streams. Public names."""

from __future__ import annotations

from transactional.model.aggregates import Avg, Count, First, Last, Max, Min, Sum
from transactional.topology.streams.aggregates.collecting import Collect, collected
from transactional.topology.streams.aggregates.own import BatchAggregator, Combiner, Reducer
from transactional.topology.streams.aggregates.reducing import MultiReducer
from transactional.topology.streams.pipelines.expressions import field
from transactional.topology.streams.static import StaticState
from transactional.topology.streams.streams import GroupedStream, Stream, TridentState
from transactional.topology.streams.topology import TridentTopology
from transactional.topology.streams.windowed import WindowedState, WindowedStream
from transactional.topology.streams.windowed_joins import JoinedWindows
from transactional.topology.windows.windows import CountWindow, Session, Window, count, session, sliding, tumbling

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
