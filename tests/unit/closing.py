"""Asks the rule of transactions without records as planning does."""

from __future__ import annotations

from typing import Any

from transactional.core.machine.window_assignment import with_outer_watermarks
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.facts import BatchFacts, compute_facts
from transactional.topology.closing import ClosingRule, find_event_time_inner_windows
from transactional.topology.topology import Topology


def planned_facts(topology: Topology, after: BatchMetadata, ms: int, **options: Any) -> BatchFacts | None:
    """The facts of a transaction without records that is planned so long after a batch. None: none is."""
    assert after.facts is not None
    times = topology.event_times_of(after.event_times)
    known = [(of, after.event_times[partition]) for partition, of in times.items()]
    facts = compute_facts(after.facts, after.facts.time_ms + ms, known, after.listed.values())
    facts = with_outer_watermarks(facts, after.facts, find_event_time_inner_windows(topology.components))
    rule = ClosingRule(topology, TopologyConfig(**options))
    return rule.facts_without_records(after, facts, after.listed.values(), has_ended=True)


def is_planned(topology: Topology, after: BatchMetadata, ms: int, **options: Any) -> bool:
    """Whether one is."""
    return planned_facts(topology, after, ms, **options) is not None
