"""Records that a translator can make no tuple of: set aside without a failed attempt, and tried again."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from spouts import ByTopicTranslator, JsonTranslator, KafkaRecord, OpaqueKafkaSpout, Registry, SimpleTranslator
from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.reader import KafkaPartitionReader, _try_text
from spouts.kafka.records import FIELD_TYPES, record_schema
from spouts.kafka.translators import Translator
from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import stored
from tests.unit.poisoned import letters, try_again
from tests.unit.spouts.registry.answering import Answering
from transactional import RunSummary, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.ports import PartitionReader, RefusedRecord
from transactional.errors import ConfigError
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.schema import Schema
from transactional.runtime.engine.letter_spout import all_letters

NUMBER = "number long"
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


@dataclass(frozen=True)
class RecordReader(PartitionReader):
    """The Kafka spouts' reader, with records in memory."""

    records: Any
    kafka: KafkaPartitionReader

    @property
    def refuses_records(self) -> bool:
        return self.kafka.refuses_records

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        return (r for r in self.read_or_refuse(partition, offsets, metadata) if isinstance(r, pa.RecordBatch))

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        for batch in self.records.read(partition, offsets, metadata):
            rows = batch.to_pylist()
            texts = [{**row, "key": _try_text(row["key"]), "value": _try_text(row["value"])} for row in rows]
            yield from self.kafka._translate(batch, texts.__getitem__)

    def read_again(
        self, values: Mapping[str, Any], stream: str = "default"
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        return self.kafka.read_again(values)

    def with_facts(self, facts: Collection[str]) -> Self:
        return replace(self, kafka=self.kafka.with_facts(facts))


class RecordSpout(OpaqueMemoryTransactionalSpout):
    """Records of a topic, in memory."""

    def __init__(self, values: list[bytes | None], translator: Translator) -> None:
        rows = [
            ("flights", 0, n, None, value, WHEN, [{"key": "h", "value": b"\xff"}], "id")
            for n, value in enumerate(values)
        ]
        super().__init__([rows], record_schema(tuple(FIELD_TYPES)), 100)
        self.translator = translator

    @property
    def output(self) -> Schema:
        return self.translator.output if hasattr(self, "translator") else super().output

    @output.setter
    def output(self, schema: Schema) -> None:
        self._records = schema

    def reader(self) -> Any:
        memory = super().reader()
        records = type(memory)(memory.partitions, record_schema(tuple(FIELD_TYPES)))
        connection = KafkaConnection("localhost:1", "read_committed", 1, ())
        return RecordReader(records, KafkaPartitionReader(connection, self.output, self.translator))


def number(record: KafkaRecord) -> tuple[Any] | None:
    assert record.value is not None
    return (int(record.value),) if record.value != b"1" * 30 else ("no number",)


JSON = [b'{"number": 1}', b"no", b'{"number": 3}', None, b'{"number": "4"}', b"\xff\xfe"]
PLAIN = [b"1", b"no", b"3", None, b"1" * 30, b"\xff\xfe"]
KINDS = {
    "json": (JSON, JsonTranslator(NUMBER, on_error="dead_letter")),
    "function": (PLAIN, SimpleTranslator(number, NUMBER, on_error="dead_letter")),
    "by topic": (JSON, ByTopicTranslator().for_topic("flights", JsonTranslator(NUMBER, on_error="dead_letter"))),
}


class Numbers:
    def __init__(self, folder: Path, values: list[bytes | None], translator: Translator) -> None:
        self.folder, self.counts, self.letters = folder, MemoryTable("counts"), letters("letters")
        self.values = values
        self.made = self.topology(translator)

    def topology(self, translator: Translator) -> Any:
        made = TransactionalTopologyBuilder("numbers", "records", RecordSpout(self.values, translator))
        counts = MemoryMapState("number", table=self.counts).count()
        made.set_committer_bolt("counts", counts).shuffle_grouping("records")
        made.set_dead_letters(self.letters)
        return made.build()

    def run(self) -> RunSummary:
        config = TopologyConfig(attempts_max=1, stop_when_drained=True)
        return run_topology(self.made, store=f"sqlite:///{self.folder}/store.db", config=config, master="none")


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_are_no_tuples_are_set_aside_without_a_failed_attempt(kind: str, tmp_path: Path) -> None:
    values, translator = KINDS[kind]
    numbers = Numbers(tmp_path, values, translator)
    assert numbers.run().failures == 0
    assert stored(numbers.counts) == {1: 1, 3: 1}
    rows = all_letters(numbers.made)
    assert [(row["component"], row["source"], row["stream"]) for row in rows] == [("records", "records", "default")] * 4
    offsets = {json.loads(row["tuple"])["offset"]: row for row in rows}
    assert sorted(offsets) == [1, 3, 4, 5]
    assert all(f"offset {offset} of partition 0 of topic 'flights'" in row["error"] for offset, row in offsets.items())
    assert json.loads(offsets[1]["tuple"]) == {
        "topic": "flights",
        "partition": 0,
        "offset": 1,
        "key": None,
        "value": "no",
        "timestamp": {"$timestamp": "2026-01-02T03:04:05.678000+00:00"},
        "headers": [{"key": "h", "value": {"$binary": "/w=="}}],
        "source_id": "id",
    }
    assert json.loads(offsets[5]["tuple"])["value"] == {"$binary": "//4="}


def test_they_are_given_to_the_translator_of_today(tmp_path: Path) -> None:
    numbers = Numbers(tmp_path, *KINDS["json"])
    numbers.run()

    def learnt(record: KafkaRecord) -> tuple[int]:
        assert (record.timestamp, record.headers) == (WHEN, (("h", b"\xff"),))
        return ({b"no": 2, b'{"number": "4"}': 4, b"\xff\xfe": 5}[record.value or b""],)

    later = numbers.topology(SimpleTranslator(learnt, NUMBER))
    summary = try_again(later, tmp_path)
    assert (summary.transactions, summary.failures) == (1, 0), "a letter fails no attempt, whatever on_error is"
    assert stored(numbers.counts) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    again = [row for row in all_letters(later) if row["tried_again_in"] is None]
    assert [json.loads(row["tuple"])["offset"] for row in again] == [3]
    assert "KeyError" in again[0]["error"]


def test_the_attempt_after_one_that_finds_an_unknown_schema_id_goes_by_that(tmp_path: Path) -> None:
    """The registry knows it by then."""
    known = 200, {"schemaType": "JSON", "schema": "{}"}
    answers = iter([known, (404, {}), known])
    with Answering(lambda _: next(answers)) as server:
        registry = Registry(server.url, unknown_id_wait_ms=0)
        translator = JsonTranslator(NUMBER, registry=registry, on_error="dead_letter")
        values: list[bytes | None] = [b'\0\0\0\0\1{"number":1}', b'\0\0\0\0\2{"number":2}']
        numbers = Numbers(tmp_path, values, translator)
        assert numbers.run().failures == 1
        assert stored(numbers.counts) == {1: 1}
        [row] = all_letters(numbers.made)
        assert "does not know schema id 2" in row["error"]
        assert try_again(numbers.made, tmp_path).failures == 0
        assert stored(numbers.counts) == {1: 1, 2: 1}


def test_a_topology_that_sets_records_aside_needs_a_table_for_them() -> None:
    made = TransactionalTopologyBuilder("numbers", "records", RecordSpout(*KINDS["json"]))
    made.set_committer_bolt("counts", MemoryMapState("number").count()).shuffle_grouping("records")
    with pytest.raises(ConfigError, match=r"spout 'records' sets records aside .* 'numbers' has no table for them"):
        made.build()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kafka_spout_shows_that_it_sets_records_aside(kind: str) -> None:
    assert OpaqueKafkaSpout("localhost:1", "flights", translator=KINDS[kind][1]).reader().refuses_records
    assert not OpaqueKafkaSpout("localhost:1", "flights", translator=JsonTranslator(NUMBER)).reader().refuses_records


def test_on_error_is_one_of_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="on_error is 'fail' or 'dead_letter', not 'skip'"):
        SimpleTranslator(number, NUMBER, on_error="skip")  # type: ignore[arg-type]
