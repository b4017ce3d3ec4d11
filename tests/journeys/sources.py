"""The sources of the journeys: how sales reach them, and the spouts that read them."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from spouts import (
    AvroTranslator,
    JsonTranslator,
    MemoryTransactionalSpout,
    OpaqueKafkaSpout,
    PartitionedTransactionalSpout,
    TransactionalKafkaSpout,
)
from spouts.decoding.translator import DecodingTranslator
from spouts.kafka.translators import LeftOut
from spouts.kafka_admin import create_topic
from spouts.local_registry import register
from tests.integration.kafka_topics import put
from tests.journeys.matrix import BOLTS, QUEUE
from tests.unit.spouts.avro.drawing import written
from transactional.core.ports import Spout, SpoutMaker
from transactional.reliable import QueueSpout

WEB, APP = "web", "app"
FIELDS = "id string, item string, at timestamp, price string"
BATCH_MAX = 5
"""Records of a partition in a batch, about."""
GARBLED = "?"
"""What stands before a garbled record, which a mended release can read."""
SCHEMA = {
    "type": "record",
    "name": "Sale",
    "fields": [
        *({"name": name, "type": "string"} for name in ("id", "item", "price")),
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
Place = tuple[str, int]
"""A stream, and a partition of it."""


class Source(ABC):
    """`places` are its partitions, of which `idle` never have a record."""

    places: Sequence[Place] = ((WEB, 0), (WEB, 1))
    idle: Sequence[Place] = ()
    sets_records_aside = False
    """Whether records that are none become letters."""
    is_counted = False
    """Whether `verify` can count its records."""
    knows_lag = True

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(stream for stream, _ in self.places))

    @abstractmethod
    def create(self) -> None:
        """Make it, empty, for the current folder."""

    @abstractmethod
    def send(self, place: Place, records: Sequence[str]) -> None:
        """Append to a partition."""

    @abstractmethod
    def spouts(self, *, is_mended: bool) -> Mapping[str, Spout | SpoutMaker]:
        """The spout of each stream."""


class Ungarbling(DecodingTranslator):
    """The translator of a mended release."""

    def translate_or_refuse(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, LeftOut]:
        place = records.schema.get_field_index("value")
        values = [value.removeprefix(GARBLED.encode()) for value in records.column(place).to_pylist()]
        return super().translate_or_refuse(
            records.set_column(place, records.schema.field(place), pa.array(values, records.schema.field(place).type))
        )


class UngarblingJson(Ungarbling, JsonTranslator):
    """Of JSON."""


class UngarblingAvro(Ungarbling, AvroTranslator):
    """Of Avro."""


@dataclass
class Kafka(Source):
    """A topic for each stream, whose names begin with the variable TOPICS."""

    spout: type[OpaqueKafkaSpout | TransactionalKafkaSpout]
    places: Sequence[Place] = Source.places
    idle: Sequence[Place] = ()
    sets_records_aside = True
    is_counted = True

    def create(self) -> None:
        for stream in self.streams:
            create_topic(os.environ["BOOTSTRAP"], topic_of(stream), sum(name == stream for name, _ in self.places))

    def send(self, place: Place, records: Sequence[str]) -> None:
        stream, partition = place
        put(os.environ["BOOTSTRAP"], topic_of(stream), [self.value(each) for each in records], partition)

    def value(self, record: str) -> bytes:
        """The value of the topic's record."""
        return record.encode()

    def translator(self, *, is_mended: bool) -> DecodingTranslator:
        return (UngarblingJson if is_mended else JsonTranslator)(FIELDS, on_error="dead_letter")

    def spouts(self, *, is_mended: bool) -> Mapping[str, Spout | SpoutMaker]:
        translator = self.translator(is_mended=is_mended)
        options: dict[str, Any] = {"translator": translator, "batch_records_max": 2 * BATCH_MAX, "timeout_ms": 5_000}
        return {each: self.spout(os.environ["BOOTSTRAP"], [topic_of(each)], **options) for each in self.streams}


class KafkaOfBothKinds(Kafka):
    """The second stream by a transactional spout."""

    def spouts(self, *, is_mended: bool) -> Mapping[str, Spout | SpoutMaker]:
        transactional = Kafka(TransactionalKafkaSpout, self.places)
        return {**super().spouts(is_mended=is_mended), APP: transactional.spouts(is_mended=is_mended)[APP]}


class KafkaAvro(Kafka):
    """Records in Avro, by a schema of the registry that the variable REGISTRY names."""

    def value(self, record: str) -> bytes:
        garbled = record.startswith(GARBLED)
        values = json.loads(record.removeprefix(GARBLED))
        [payload] = written(SCHEMA, [values | {"at": datetime.fromisoformat(values["at"])}])
        schema_id = register(os.environ["REGISTRY"], "journeys-value", json.dumps(SCHEMA))
        return GARBLED.encode() * garbled + b"\0" + schema_id.to_bytes(4, "big") + payload

    def translator(self, *, is_mended: bool) -> DecodingTranslator:
        return (UngarblingAvro if is_mended else AvroTranslator)(os.environ["REGISTRY"], FIELDS, on_error="dead_letter")


def topic_of(stream: str) -> str:
    return os.environ.get("TOPICS", "") + stream


class Memory(Source):
    """Rows of this process, by the folder that they are for."""

    def __init__(self) -> None:
        self.rows = dict[str, dict[int, list[tuple[Any, ...]]]]()

    def create(self) -> None:
        self.rows[os.getcwd()] = {partition: [] for _, partition in self.places}

    def send(self, place: Place, records: Sequence[str]) -> None:
        self.rows[os.getcwd()][place[1]].extend(map(row_of, records))

    def spouts(self, *, is_mended: bool) -> Mapping[str, Spout | SpoutMaker]:
        del is_mended
        return {WEB: MemoryTransactionalSpout(self.rows[os.getcwd()], FIELDS, take=BATCH_MAX)}


def row_of(record: str) -> tuple[Any, ...]:
    """The values of the fields."""
    values = json.loads(record)
    return values["id"], values["item"], datetime.fromisoformat(values["at"]), values["price"]


class FolderSpout(PartitionedTransactionalSpout[list[int]]):
    """The lines of the files of a folder, by their numbers: from one on, and up to one."""

    output = FIELDS

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def identity(self) -> Mapping[str, str]:
        return {"folder": str(self.folder)}

    def partitions(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def next_batch(self, partition: str, previous: list[int] | None) -> list[int] | None:
        start, there = previous[1] if previous else 0, len(self._lines(partition))
        return [start, min(there, start + BATCH_MAX)] if there > start else None

    def emit_partition_batch(self, partition: str, metadata: list[int]) -> Iterator[tuple[Any, ...]]:
        return map(row_of, self._lines(partition)[slice(*metadata)])

    def _lines(self, partition: str) -> list[str]:
        return (self.folder / partition).read_text("utf-8").splitlines()


class Folder(Source):
    """A file for each partition, by a spout that derives from a contract."""

    knows_lag = False

    def create(self) -> None:
        Path("source").mkdir()
        for _, partition in self.places:
            (Path("source") / f"{partition}.txt").touch()

    def send(self, place: Place, records: Sequence[str]) -> None:
        with (Path("source") / f"{place[1]}.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{record}\n" for record in records)

    def spouts(self, *, is_mended: bool) -> Mapping[str, Spout | SpoutMaker]:
        del is_mended
        return {WEB: FolderSpout(Path("source").absolute())}


class Queue(Source):
    """Messages that are handed out once, which no state can count; see `tests.journeys.tickets`."""

    def create(self) -> None:
        """Nothing."""

    def send(self, place: Place, records: Sequence[str]) -> None:
        raise AssertionError(f"{records} can't be counted")

    def spouts(self, *, is_mended: bool) -> Mapping[str, Spout | SpoutMaker]:
        del is_mended
        return {WEB: Nothing()}


class Nothing(QueueSpout):
    output = FIELDS

    def next_tuple(self) -> None:
        """There is none."""


TWO = ((WEB, 0), (WEB, 1), (APP, 0), (APP, 1))
SOURCES: Mapping[str, Source] = {
    "Kafka, opaque": Kafka(OpaqueKafkaSpout),
    "Kafka, transactional": Kafka(TransactionalKafkaSpout),
    "Kafka, Avro": KafkaAvro(OpaqueKafkaSpout),
    "two streams": Kafka(OpaqueKafkaSpout, TWO),
    "two streams, one idle": Kafka(OpaqueKafkaSpout, ((WEB, 0), (WEB, 1), (APP, 0)), idle=((APP, 0),)),
    "memory": Memory(),
    "contract": Folder(),
    BOLTS: KafkaOfBothKinds(OpaqueKafkaSpout, TWO),
    QUEUE: Queue(),
}
