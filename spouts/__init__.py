"""Spouts: where the tuples of a transactional topology come from."""

from typing import TYPE_CHECKING, Final

from transactional.model.plumbing.lazy import lazy_names

if TYPE_CHECKING:
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

_HOMES: Final = {
    "spouts.base": "PartitionedSpout",
    "spouts.contracts": "OpaquePartitionedTransactionalSpout PartitionedTransactionalSpout TransactionalSpout",
    "spouts.decoding.avro_records": "AvroTranslator",
    "spouts.decoding.json_records": "JsonTranslator",
    "spouts.kafka.spout": "OpaqueKafkaSpout TransactionalKafkaSpout",
    "spouts.kafka.start": "GroupOffsets",
    "spouts.kafka.subscription": "TopicPartitions TopicPattern",
    "spouts.kafka.translators": "ByTopicTranslator KafkaRecord SimpleTranslator",
    "spouts.memory": "MemoryTransactionalSpout OpaqueMemoryTransactionalSpout",
    "spouts.planning": "Limits PartitionLog",
    "spouts.registry.client": "Registry",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
