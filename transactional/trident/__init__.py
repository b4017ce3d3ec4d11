"""Trident: topologies as operations on streams. Public names."""

from __future__ import annotations

from transactional.aggregates import Count, Max, Min, Sum
from transactional.trident.expressions import field
from transactional.trident.streams import GroupedStream, Stream, TridentState
from transactional.trident.topology import TridentTopology

__all__ = ["Count", "GroupedStream", "Max", "Min", "Stream", "Sum", "TridentState", "TridentTopology", "field"]
