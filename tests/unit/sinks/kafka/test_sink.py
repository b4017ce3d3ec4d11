"""The Kafka sink without a cluster: the form of records, markers, and what is refused when a topology is built."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sinks import JsonValue, KafkaSink
from sinks.kafka import sink as kafka_sink
from sinks.kafka.control import ControlTopic, control_topic, decode_marker, encode_marker
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import TransactionalTopologyBuilder
from transactional.core.ports import SinkOwner, SinkPosition
from transactional.core.store.outbox import Publication
from transactional.errors import ConfigError, CorruptRecord, SchemaMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.topology.topology import WorkPhase
from transactional.trident import TridentTopology

BATCH = pa.record_batch(
    {
        "word": ["cat", None],
        "number": pa.array([1, 2], pa.int64()),
        "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "price": [Decimal("1.50"), None],
        "raw": [b"\0\xff", None],
    }
)
FIELDS = "word string, number long, at timestamp, price decimal(5,2), raw binary"
ROWS = [[("cat", 1, datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), b"x")]]


def sink(**options: Any) -> KafkaSink:
    return KafkaSink("host:9092", "topic", **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"value": "raw"}, [(None, b"\0\xff"), (None, None)]),
        ({"key": "word", "value": "word"}, [(b"cat", b"cat"), (None, None)]),
        ({"key": "number", "value": "raw"}, [(b"1", b"\0\xff"), (b"2", None)]),
        (
            {"value": JsonValue("word", "at", "price")},
            [
                (None, b'{"word":"cat","at":"2026-01-02T00:00:00Z","price":"1.50"}'),
                (None, b'{"word":null,"at":null,"price":null}'),
            ],
        ),
    ],
)
def test_tuples_become_records(options: dict[str, Any], expected: list[Any]) -> None:
    records = pickle.loads(pickle.dumps(sink(**options))).encode(BATCH)
    assert [(row["key"], row["value"]) for row in records.to_pylist()] == expected


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({}, pa.record_batch({"x": [float("nan")]}), "no form in JSON: Out of range float"),
        ({"value": "x", "record_bytes_max": 3}, pa.record_batch({"x": ["abc", "abcd"]}), "row 1 .* 4 bytes, more than"),
    ],
)
def test_what_can_not_be_sent_is_a_bad_tuple(options: dict[str, Any], batch: pa.RecordBatch, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        sink(**options).encode(batch)


def builder() -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(ROWS, FIELDS, take=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"sink 'alerts' behind 'rows': field 'raw' is binary.*JsonValue\('field', …\)"),
        ({"value": "none"}, "sink 'alerts' behind 'rows' uses field 'none', which the stream does not have"),
        ({"value": "number"}, "field 'number' is long, and a value is string or binary"),
        (
            {"key": "at", "value": "raw"},
            "field 'at' is timestamp, and a key is string, binary, byte, short, int or long",
        ),
    ],
)
def test_a_stream_that_does_not_fit_is_refused_by_build(options: dict[str, Any], message: str) -> None:
    declared = builder()
    declared.set_sink("alerts", sink(**options)).shuffle_grouping("rows")
    with pytest.raises(ConfigError, match=message):
        declared.build()


def test_a_sink_is_a_component_of_the_commit_phase() -> None:
    declared = builder()
    declared.set_sink("alerts", sink(key="word", value="raw"), 2).fields_grouping("rows", "word")
    topology = declared.build()
    assert topology.phases()["alerts"] is WorkPhase.COMMIT
    assert topology.begins_early() == {"alerts"}
    identity = {"kind": "kafka sink", "topic": "topic", "key": "field word", "value": "field raw"}
    assert topology.fingerprint()["sinks"] == {"alerts": identity}


@pytest.mark.parametrize("wrong", [KafkaSink, MemoryMapState("word string")])
def test_what_is_no_sink_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="sink 'alerts' is "):
        builder().set_sink("alerts", wrong)
    stream = TridentTopology("words").new_stream("rows", MemoryTransactionalSpout(ROWS, FIELDS, take=1))
    with pytest.raises(ConfigError, match="sink_to takes a sink such as KafkaSink"):
        stream.sink_to(wrong, name="alerts")


def test_names_are_unique_and_queries_publish_nothing() -> None:
    topology = TridentTopology("words")
    stream = topology.new_stream("rows", MemoryTransactionalSpout(ROWS, FIELDS, take=1))
    stream.sink_to(sink(value="raw"), name="alerts")
    with pytest.raises(ConfigError, match="'alerts' is the name of a state, of another sink, or of a stream"):
        stream.sink_to(sink(value="raw"), name="alerts")
    with pytest.raises(ConfigError, match="query 'of' only reads"):
        topology.query("of", "word string")(lambda questions: questions.sink_to(sink(value="word"), name="other"))
    assert [component.id for component in topology.build().components] == ["alerts"]


@pytest.mark.parametrize(("bytes_max", "is_enough"), [(909_999, False), (910_000, True)])
def test_a_topic_takes_the_largest_request_of_its_sink(
    monkeypatch: pytest.MonkeyPatch, bytes_max: int, *, is_enough: bool
) -> None:
    settings = {"cleanup.policy": "delete", "max.message.bytes": str(bytes_max)}
    monkeypatch.setattr(kafka_sink, "AdminClient", lambda _settings: None)
    monkeypatch.setattr(kafka_sink, "partition_count", lambda *_arguments: 1)
    monkeypatch.setattr(kafka_sink, "topic_settings", lambda *_arguments: settings)
    monkeypatch.setattr(ControlTopic, "check", lambda *_arguments: False)
    refusal = pytest.raises(ConfigError, match=f"takes {bytes_max} bytes at once .* record_bytes_max \\(900000\\)")
    with nullcontext() if is_enough else refusal:
        assert sink(value="raw").look(SinkOwner("words", "alerts", "store")) is None


def test_options_of_the_sink_can_not_be_set() -> None:
    with pytest.raises(ConfigError, match=r"'transactional\.id' can't be set in options="):
        sink(options={"transactional.id": "mine"})


def test_secrets_are_hidden() -> None:
    connection = sink(options={"sasl.password": "hidden"}).connection
    assert "hidden" not in repr(connection) + str(connection.unavailable("it says hidden", "hidden"))


def test_a_marker_comes_back_as_it_was_written() -> None:
    publication = Publication("host:1#3", TransactionAttempt(TxId(7), AttemptId(9)))
    marker = encode_marker(SinkOwner("words", "alerts", "abc"), publication)
    assert decode_marker(marker, "topic") == SinkPosition("abc", publication)


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"[1]", b'{"store": "a", "run": "b", "txid": "x", "attempt": 1}']
)
def test_a_record_that_is_no_marker_is_reported(content: bytes | None) -> None:
    with pytest.raises(CorruptRecord, match="'topic' has a record that is no marker"):
        decode_marker(content, "topic")


def test_any_topology_id_makes_a_topic_name() -> None:
    assert control_topic("flüge.v-1") == "transactional-control-fl_C3_BCge.v-1"
