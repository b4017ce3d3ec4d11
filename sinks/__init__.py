"""Sinks: where a transactional topology publishes what it can't take back, after the commit of each transaction."""

from typing import TYPE_CHECKING, Final

from transactional.model.plumbing.lazy import lazy_names

if TYPE_CHECKING:
    from sinks.delta.sink import DeltaSink
    from sinks.kafka.avro_value import AvroValue
    from sinks.kafka.json_value import JsonValue
    from sinks.kafka.sink import KafkaSink
    from sinks.keyed import KeyedSink
    from transactional.core.ports.sinks import Sink

__all__ = ["AvroValue", "DeltaSink", "JsonValue", "KafkaSink", "KeyedSink", "Sink"]

_HOMES: Final = {
    "sinks.delta.sink": "DeltaSink",
    "sinks.kafka.avro_value": "AvroValue",
    "sinks.kafka.json_value": "JsonValue",
    "sinks.kafka.sink": "KafkaSink",
    "sinks.keyed": "KeyedSink",
    "transactional.core.ports.sinks": "Sink",
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
