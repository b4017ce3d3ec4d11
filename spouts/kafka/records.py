"""The fields of a Kafka record, and the schemas of tuples that consist of some of them."""

from __future__ import annotations

from collections.abc import Iterable

from transactional.model.errors import ConfigError
from transactional.model.schema import Field, Schema, did_you_mean

FIELD_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "key": "binary",
    "value": "binary",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
    "source_id": "string",
}
"""The types of a record's fields. The spout's `fields` choose some of them for its tuples. `source_id` is the beginning
of the topic's id, which changes when a topic is deleted and created again; it is empty if the cluster has no ids."""

DEFAULT_FIELDS = ("topic", "partition", "offset", "key", "value")
"""The fields of a tuple unless `fields` chooses others; the same as in Storm."""


def output_schema(fields: Iterable[str], *, key_type: str, value_type: str) -> Schema:
    """Return the schema of the chosen fields. Raises `ConfigError` for a field that a record does not have."""
    types = {
        **FIELD_TYPES,
        "key": _check_text_or_bytes("key", key_type),
        "value": _check_text_or_bytes("value", value_type),
    }
    chosen = (fields,) if isinstance(fields, str) else tuple(fields)
    if not chosen:
        raise ConfigError(f"fields is empty; choose from {', '.join(types)}")
    for name in chosen:
        if name not in types:
            suggestion = did_you_mean(name, types)
            raise ConfigError(f"a Kafka record has no field {name!r}{suggestion}; it has {', '.join(types)}")
    return Schema(tuple(Field(name, types[name]) for name in chosen))


def record_schema(fields: Iterable[str]) -> Schema:
    """Return the schema of a record's fields as Kafka has them: key and value are bytes."""
    return Schema(tuple(Field(name, FIELD_TYPES[name]) for name in fields))


def _check_text_or_bytes(name: str, type_: str) -> str:
    if type_ not in ("binary", "string"):
        raise ConfigError(f"{name}_type is 'binary' or 'string', not {type_!r}")
    return type_
