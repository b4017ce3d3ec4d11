"""Spouts: where the tuples of a transactional topology come from."""

from __future__ import annotations

from spouts.base import PartitionedSpout
from spouts.kafka import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Limits, PartitionLog

__all__ = [
    "Limits",
    "MemoryTransactionalSpout",
    "OpaqueKafkaSpout",
    "OpaqueMemoryTransactionalSpout",
    "PartitionLog",
    "PartitionedSpout",
    "TransactionalKafkaSpout",
]
