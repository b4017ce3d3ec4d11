"""Spouts: where the tuples of a transactional topology come from."""

from __future__ import annotations

from spouts.base import PartitionedSpout
from spouts.contracts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TransactionalSpout,
)
from spouts.kafka import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_json import JsonTranslator
from spouts.kafka_start import GroupOffsets
from spouts.kafka_subscription import TopicPartitions, TopicPattern
from spouts.kafka_translators import ByTopicTranslator, KafkaRecord, SimpleTranslator
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Limits, PartitionLog

__all__ = [
    "ByTopicTranslator",
    "GroupOffsets",
    "JsonTranslator",
    "KafkaRecord",
    "Limits",
    "MemoryTransactionalSpout",
    "OpaqueKafkaSpout",
    "OpaqueMemoryTransactionalSpout",
    "OpaquePartitionedTransactionalSpout",
    "PartitionLog",
    "PartitionedSpout",
    "PartitionedTransactionalSpout",
    "SimpleTranslator",
    "TopicPartitions",
    "TopicPattern",
    "TransactionalKafkaSpout",
    "TransactionalSpout",
]
