"""Sinks of changed programs, whose targets outlive the runs: `KafkaSink` over topics in memory, and `DeltaSink`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from sinks import DeltaSink, JsonValue, KafkaSink
from sinks.kafka.publisher import split_records
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.errors import RecordRefused

Record = tuple[str, str]
"""A key and a value, as text."""


@dataclass(frozen=True)
class Publishing:
    """A declared sink. Without `fields` the values are all fields of the stream.

    If it `is_table`, the table has the name of the topic, and is partitioned by the key. Its folder has a suffix:
    `.moved` for that of the existing table, `.other` for that of another table.
    """

    name: str = "alerts"
    topic: str = "alerts"
    key: str = "word"
    fields: tuple[str, ...] = ("id", "n", "m")
    cluster: str = "memory"
    is_table: bool = False
    suffix: str = ""
    topics: tuple[str, ...] = ()
    """The topics that a field may name: a record is sent to the one that the field `topic` names."""

    def topic_of(self, row: Mapping[str, Any]) -> str:
        """The topic of a row in plain Python."""
        return str(row[self.topic]) if self.topics else self.topic

    def record(self, row: Mapping[str, Any], every: Iterable[str]) -> Record:
        """The record of a row in plain Python; `every` are the fields of the stream."""
        values = {name: row[name] for name in self.fields or every}
        return _table_row(values) if self.is_table else (str(row[self.key]), _json(values))


def _json(values: Mapping[str, Any]) -> str:
    texts = {name: _time(value) if isinstance(value, datetime) else value for name, value in values.items()}
    return json.dumps(texts, separators=(",", ":"))


def _table_row(row: Mapping[str, Any]) -> Record:
    """Return a row of a table without its NULLs, which columns of other releases have, and without its transaction."""
    return "", _json({name: row[name] for name in sorted(row) if name != "txid" and row[name] is not None})


def _time(value: datetime) -> str:
    precision = "microseconds" if value.microsecond % 1_000 else "milliseconds"
    return value.isoformat(timespec=precision).replace("+00:00", "Z")


@dataclass
class Topics:
    """Published records by topic and sink, each with its txid; the positions of sinks. Tables are in a folder."""

    folder: Path
    records: dict[tuple[str, str], list[tuple[int, Record]]] = field(default_factory=dict)
    positions: dict[tuple[str, str], SinkPosition] = field(default_factory=dict)
    """By the name of the sink, and its cluster."""
    are_full: bool = False
    """True if nothing more can be published."""

    def sink(self, publishing: Publishing) -> Sink:
        """The sink of a program. Another table for it exists before a run begins."""
        if publishing.suffix == ".other":
            other, schema = self.folder / f"{publishing.topic}.other", pa.schema([(publishing.key, pa.string())])
            DeltaTable.create(str(other), schema, mode="ignore", partition_by=[publishing.key])
        return TableSink(self, publishing) if publishing.is_table else TopicSink(self, publishing)

    def contents(self) -> dict[str, list[Record]]:
        """The records of each topic and table, sorted. Raises `AssertionError` if transactions are out of order."""
        contents = dict[str, list[Record]]()
        for (topic, sink), records in self.records.items():
            txids = [txid for txid, _ in records]
            assert txids == sorted(txids), f"{topic} of {sink}: {txids}"
            contents[topic] = sorted([*contents.get(topic, ()), *(record for _, record in records)])
        for path in self.folder.glob("*"):
            rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
            contents |= {path.stem: sorted(map(_table_row, rows))} if rows else {}
        return contents


class TopicSink(KafkaSink):
    """Encodes as a `KafkaSink`, and publishes into memory."""

    def __init__(self, topics: Topics, publishing: Publishing) -> None:
        value, target = JsonValue(*publishing.fields), dict[str, Any](topic=publishing.topic)
        if publishing.topics:
            target = {"topics": publishing.topics, "topic_field": publishing.topic}
        super().__init__("memory:9092", **target, key=publishing.key, value=value)
        self.world, self.name, self._cluster_id = topics, publishing.name, publishing.cluster

    def prepare(self) -> None:
        """Keep the declared cluster."""

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        return self.world.positions.get((self.name, self._cluster_id))

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self.owner = owner

    def fence_removed(self, owner: SinkOwner, identity: Mapping[str, Any]) -> bool:
        return True

    def position(self) -> SinkPosition | None:
        return self.world.positions.get((self.name, self._cluster_id))

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        if self.world.are_full:
            raise RecordRefused("the topic is full")
        for published in group:
            txid = published.publication.attempt.txid
            for topic, key, value, *_ in split_records(published.records, self.topics[0]):
                record = (key or b"").decode(), (value or b"").decode()
                self.world.records.setdefault((topic, self.name), []).append((txid, record))
        self.world.positions[self.name, self._cluster_id] = SinkPosition(self.owner.store_id, group[-1].publication)


class TableSink(DeltaSink):
    """Appends to a table, unless nothing more can be published."""

    def __init__(self, topics: Topics, publishing: Publishing) -> None:
        self.folder = topics.folder / f"{publishing.topic}{publishing.suffix}"
        super().__init__(self.folder, partition_by=[publishing.key])
        self.topics, self.suffix = topics, publishing.suffix

    def prepare(self) -> None:
        if self.suffix == ".moved" and not self.folder.exists():
            self.folder.with_suffix("").rename(self.folder)
        super().prepare()

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        if self.topics.are_full:
            raise RecordRefused("the table is full")
        super().publish(group)
