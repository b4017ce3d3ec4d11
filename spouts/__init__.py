"""Spouts: where the tuples of a transactional topology come from."""

from __future__ import annotations

from spouts.base import PartitionedSpout
from spouts.contracts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TransactionalSpout,
)
from spouts.decoding.avro_records import AvroTranslator
from spouts.decoding.json_records import JsonTranslator
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka.start import GroupOffsets
from spouts.kafka.subscription import TopicPartitions, TopicPattern
from spouts.kafka.translators import ByTopicTranslator, KafkaRecord, SimpleTranslator
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Limits, PartitionLog
from spouts.registry.client import Registry

__all__ = [
    "AvroTranslator",
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
    "Registry",
    "SimpleTranslator",
    "TopicPartitions",
    "TopicPattern",
    "TransactionalKafkaSpout",
    "TransactionalSpout",
]
