"""A record of Kafka as fields: which there are, and the schema of those that are chosen."""

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
"""The fields of a record. A tuple of a Kafka spout has those that are chosen. `source_id` is the beginning of the
topic's id, another one when a topic is deleted and created again; empty if the cluster has no ids."""

DEFAULT_FIELDS = ("topic", "partition", "offset", "key", "value")
"""Storm's choice."""


def output_schema(fields: Iterable[str], *, key_type: str, value_type: str) -> Schema:
    """The schema of the chosen fields of a record. Raises `ConfigError` for one that a record does not have."""
    types = {**FIELD_TYPES, "key": _text_or_bytes("key", key_type), "value": _text_or_bytes("value", value_type)}
    chosen = (fields,) if isinstance(fields, str) else tuple(fields)
    if not chosen:
        raise ConfigError(f"fields is empty; choose from {', '.join(types)}")
    for name in chosen:
        if name not in types:
            near = did_you_mean(name, types)
            raise ConfigError(f"a Kafka record has no field {name!r}{near}; it has {', '.join(types)}")
    return Schema(tuple(Field(name, types[name]) for name in chosen))


def record_schema(fields: Iterable[str]) -> Schema:
    """The schema of fields of a record as they are: key and value are bytes."""
    return Schema(tuple(Field(name, FIELD_TYPES[name]) for name in fields))


def _text_or_bytes(name: str, type_: str) -> str:
    if type_ not in ("binary", "string"):
        raise ConfigError(f"{name}_type is 'binary' or 'string', not {type_!r}")
    return type_
