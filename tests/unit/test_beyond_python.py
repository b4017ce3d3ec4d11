"""Times that Arrow holds and Python does not, such as a Kafka timestamp in microseconds: an error of one tuple only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from spouts.kafka.reader import _make_column
from spouts.kafka.records import record_schema
from spouts.kafka.translators import KafkaRecord, SimpleTranslator
from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import stored
from transactional import TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES, values_from_json
from transactional.errors import SchemaMismatch
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import TxId
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.tasks.failing.faults import fingerprint, letter_text

FAR_US = 1_700_000_000_000_000 * 1_000
"""A time in microseconds that was taken for one in milliseconds: in some 50,000 years."""
FIELDS = Schema.parse("n long, at timestamp")


def batch(*times: int | None) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(len(times)), pa.int64()), pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))],
        schema=arrow_schema(FIELDS),
    )


def test_a_tuple_is_read_apart_from_the_value_that_python_does_not_hold() -> None:
    first, far, last = tuples(batch(0, FAR_US, None), "spout", "default")
    assert (first["at"].year, last["at"], far["n"], far[0], len(far), far.fields) == (1970, None, 1, 1, 2, FIELDS.names)
    asks: list[Any] = [lambda: far["at"], lambda: far[1], lambda: far.values, lambda: list(far), far.as_dict]
    for ask in asks:
        with pytest.raises(SchemaMismatch, match=rf"field 'at' of a tuple of 'spout' is {FAR_US} \(timestamp"):
            ask()
    with pytest.raises(KeyError, match="the tuple has no field 'to'"):
        far["to"]
    assert [fingerprint(row) for row in tuples(batch(0, FAR_US), "spout", "default")] == [
        fingerprint(first),
        fingerprint(far),
    ]


def test_a_letter_of_it_can_be_tried_again() -> None:
    [far] = tuples(batch(FAR_US), "spout", "default")
    values = values_from_json(letter_text(far))
    again = batch_from_rows([tuple(values[name] for name in FIELDS.names)], arrow_schema(FIELDS), component="spout")
    assert again == batch(FAR_US)


@pytest.mark.parametrize("asks", ["asks", ""])
def test_a_bolt_fails_on_it_if_it_requests_it(asks: str, tmp_path: Path) -> None:
    def year(row: Tuple) -> tuple[int, int]:
        return (row["n"], row["at"].year if asks else 0)

    spout = OpaqueMemoryTransactionalSpout([[(n, FAR_US if n == 3 else 0) for n in range(5)]], str(FIELDS), take=5)
    letters = MemoryMapState(LETTER_KEY, LETTER_VALUES)
    table = MemoryTable()
    totals = MemoryMapState("n long", table=table)
    builder = TransactionalTopologyBuilder("times", "spout", spout)
    builder.set_bolt("year", year, output="n long, year long").shuffle_grouping("spout")
    builder.set_committer_bolt("count", totals.count()).fields_grouping("year", "n")
    builder.set_dead_letters(letters)
    config = TopologyConfig(attempts_max=1, retry_pause_ms=1, stop_when_drained=True)
    run_topology(builder.build(), store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")
    assert sorted(stored(table)) == [0, 1, 2, *([] if asks else [3]), 4]
    told = [json.loads(row.value[3]) for row in letters.stored.rows.values()]
    assert told == ([{"n": 3, "at": {"$number": str(FAR_US)}}] if asks else [])
    assert letters.read(TxId(1)).num_rows == len(told)


def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def row_by_row(row: Tuple) -> tuple[int, int]:
    return (row["n"], FAR_US if row["n"] == 3 else 0)


@pytest.mark.parametrize("bolt", [whole, row_by_row])
def test_a_state_that_would_refuse_it_names_the_tuple(tmp_path: Path, bolt: Any) -> None:
    """Aggregates are Arrow's, so nobody asks for the value until it is written."""
    spout = OpaqueMemoryTransactionalSpout([[(n, FAR_US if n == 3 else 0) for n in range(5)]], str(FIELDS), take=5)
    letters, table = MemoryMapState(LETTER_KEY, LETTER_VALUES), MemoryTable()
    builder = TransactionalTopologyBuilder("times", "spout", spout)
    builder.set_bolt("same", bolt, output=str(FIELDS)).shuffle_grouping("spout")
    latest = MemoryMapState("n long", table=table).max("at")
    builder.set_committer_bolt("latest", latest).fields_grouping("same", "n")
    builder.set_dead_letters(letters)
    config = TopologyConfig(attempts_max=1, retry_pause_ms=1, stop_when_drained=True)
    run_topology(builder.build(), store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")
    assert sorted(stored(table)) == [0, 1, 2, 4]
    [(component, *_, error, _)] = [row.value for row in letters.stored.rows.values()]
    assert component == "same"
    assert "state 'memory' can't store the value in column 'max_at' of the row with n=3: a time outside" in error


def test_the_reader_takes_every_number_for_a_time_that_is_one() -> None:
    messages = [
        Message(topic="t", partition=0, offset=n, key=b"", value=b"", timestamp=(1, time_ms))
        for n, time_ms in enumerate([5, FAR_US // 1000, 2**62, -1])
    ]
    [field] = arrow_schema(record_schema(["timestamp"]))
    assert _make_column(field, messages, []).cast(pa.int64()).to_pylist() == [5_000, FAR_US, None, -1_000]


def test_a_translator_fails_on_it_if_it_requests_it() -> None:
    def record(at: int) -> dict[str, Any]:
        return {"topic": "t", "partition": 0, "offset": 7, "key": None, "value": b"x", "timestamp": at, "headers": []}

    schema = arrow_schema(record_schema(SimpleTranslator(lambda _: None, "a long").fields))
    records = pa.RecordBatch.from_pylist([record(0), record(FAR_US)], schema=schema)

    def offset(record: KafkaRecord) -> tuple[int]:
        return (record.offset,)

    def year(record: KafkaRecord) -> tuple[int]:
        assert record.timestamp is not None
        return (record.timestamp.year,)

    assert SimpleTranslator(offset, "a long").translate(records).to_pydict() == {"a": [7, 7]}
    with pytest.raises(SchemaMismatch, match=rf"record at offset 7 of partition 0 of topic 't' is {FAR_US} micro"):
        SimpleTranslator(year, "a long").translate(records)
