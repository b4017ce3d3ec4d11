"""Rewinds of the simulated topology: the real `rewind`, whose process may die between any two writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinks.kafka.sink import KafkaSink
from spouts import MemoryTransactionalSpout
from transactional import Topology, TransactionalTopologyBuilder
from transactional.model.attempt import TxId
from transactional.runtime.engine.rewinding import rewind


def rewind_simulated(topology_id: str, sinks: Mapping[str, KafkaSink], store: Any, txid: TxId, owner: str) -> None:
    """Take the simulated topology back to a transaction, or finish a rewind that was begun at another one."""
    rewind(build_topology(topology_id, sinks), store, txid, owner=owner, accepts_sent=True)


def build_topology(topology_id: str, sinks: Mapping[str, KafkaSink]) -> Topology:
    """The topology that a rewind is given: its sinks are all that matters."""
    spout = MemoryTransactionalSpout([[]], "value binary, target string", take=1)
    builder = TransactionalTopologyBuilder(topology_id, "rows", spout)
    for name, sink in sinks.items():
        builder.set_sink(name, sink).shuffle_grouping("rows")
    return builder.build()
