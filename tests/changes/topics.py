"""Sinks of changed programs: `KafkaSink` over topics in memory, which outlive the runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sinks import JsonValue, KafkaSink
from sinks.kafka.record_encoding import KEY, VALUE
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.errors import RecordRefused

Record = tuple[str, str]
"""A key and a value, as text."""


@dataclass(frozen=True)
class Publishing:
    """A declared sink. Without `fields` the values are all fields of the stream."""

    name: str = "alerts"
    topic: str = "alerts"
    key: str = "word"
    fields: tuple[str, ...] = ("id", "n", "m")

    def record(self, row: Mapping[str, Any], every: Iterable[str]) -> Record:
        """The record of a row in plain Python; `every` are the fields of the stream."""
        values = {name: row[name] for name in self.fields or every}
        texts = {name: _time(value) if isinstance(value, datetime) else value for name, value in values.items()}
        return str(row[self.key]), json.dumps(texts, separators=(",", ":"))


def _time(value: datetime) -> str:
    precision = "microseconds" if value.microsecond % 1_000 else "milliseconds"
    return value.isoformat(timespec=precision).replace("+00:00", "Z")


@dataclass
class Topics:
    """Published records by topic, each with its txid, and the position of each sink."""

    records: dict[str, list[tuple[int, Record]]] = field(default_factory=dict)
    positions: dict[str, SinkPosition] = field(default_factory=dict)
    are_full: bool = False
    """True if nothing more can be published."""

    def sink(self, publishing: Publishing) -> Sink:
        """The sink of a program."""
        return TopicSink(self, publishing)

    def contents(self) -> dict[str, list[Record]]:
        """The records of each topic, sorted. Raises `AssertionError` if transactions are out of order."""
        for topic, records in self.records.items():
            txids = [txid for txid, _ in records]
            assert txids == sorted(txids), f"{topic}: {txids}"
        return {topic: sorted(record for _, record in records) for topic, records in self.records.items()}


class TopicSink(KafkaSink):
    """Encodes as a `KafkaSink`, and publishes into memory."""

    def __init__(self, topics: Topics, publishing: Publishing) -> None:
        value = JsonValue(*publishing.fields)
        super().__init__("memory:9092", publishing.topic, key=publishing.key, value=value)
        self.topics, self.name = topics, publishing.name

    def prepare(self) -> None:
        self._cluster_id = "memory"

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        return self.topics.positions.get(self.name)

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self.owner = owner

    def position(self) -> SinkPosition | None:
        return self.topics.positions.get(self.name)

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        if self.topics.are_full:
            raise RecordRefused("the topic is full")
        for published in group:
            rows = zip(*(published.records.column(name).to_pylist() for name in (KEY, VALUE)), strict=True)
            records = [(published.publication.attempt.txid, (key.decode(), value.decode())) for key, value in rows]
            self.topics.records.setdefault(self.topic, []).extend(records)
        self.topics.positions[self.name] = SinkPosition(self.owner.store_id, group[-1].publication)
