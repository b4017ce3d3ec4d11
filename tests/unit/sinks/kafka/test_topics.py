"""A Kafka sink with several topics: a field names that of each record, which has to respect the limits of this one."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from sinks import AvroValue, JsonValue, KafkaSink
from sinks.kafka import connection as kafka_connection
from sinks.kafka import sender as kafka_sender
from sinks.kafka import sink as kafka_sink
from sinks.kafka.connection import SinkConnection
from sinks.kafka.control import ControlTopic
from sinks.kafka.publisher import split_records
from sinks.kafka.topics import TopicLimits, size_settings
from spouts import MemoryTransactionalSpout
from transactional import TransactionalTopologyBuilder
from transactional.core.ports import SinkOwner
from transactional.core.store.rules import check_fingerprint, fingerprint_json
from transactional.errors import ConfigError, SchemaMismatch, TopologyChanged
from transactional.model.schema import Schema
from transactional.operations.doctor.sinks import checked_topics, examine_sinks
from transactional.runtime.publishing.payloads import encode_payload
from transactional.topology.topology import Topology

SMALL = TopicLimits("small", 3, 2_000)
LARGE = TopicLimits("large", 1, 5_000, is_compacted=True)
"""Limits of a topic that takes 4,000 bytes in a record, all of which need keys."""
FIELDS = "word string, target string, shard int"


def sink(*topics: str, **options: Any) -> KafkaSink:
    named: dict[str, Any] = {"key": "word", "value": "word", "topic_field": "target"}
    return KafkaSink("host:9092", topics=topics or ["small", "large"], **named | options)


def encode(rows: list[tuple[Any, ...]], **options: Any) -> list[dict[str, Any]]:
    """Encode rows as tasks do: the topics have been described, and the sink has been pickled."""
    prepared = sink(**options)
    prepared._limits = [SMALL, LARGE]
    columns = zip(("word", "target", "shard"), (pa.string(), pa.string(), pa.int32()), strict=True)
    arrays = {name: pa.array([row[n] for row in rows], type_) for n, (name, type_) in enumerate(columns)}
    rows_encoded: list[dict[str, Any]] = (
        pickle.loads(pickle.dumps(prepared)).encode(pa.record_batch(arrays)).to_pylist()
    )
    return rows_encoded


def build(declared: KafkaSink, fields: str = FIELDS) -> Topology:
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout([[]], fields, take=1))
    builder.set_sink("alerts", declared).shuffle_grouping("rows")
    return builder.build()


def test_each_record_goes_to_the_topic_that_it_names() -> None:
    rows = [("cat", "large", 0), (None, "small", 2), ("x" * 1_500, "large", None), ("y" * 500, "small", 1)]
    encoded = encode(rows, partition="shard")
    assert [(record["topic"], record["partition"]) for record in encoded] == [(row[1], row[2]) for row in rows]
    assert [record["value"] for record in encoded] == [row[0] and row[0].encode() for row in rows]
    assert sink().encode(pa.record_batch({"word": ["cat"], "target": ["large"]}))["topic"].to_pylist() == ["large"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("x" * 600, "large", 0), ("x" * 600, "small", 0)], "row 1 makes .* than the 1000 that topic 'small' takes"),
        ([("x" * 600, "small", 0)], "row 0 makes .* than the 1000 that topic 'small' takes"),
        ([("x" * 2_001, "large", 0)], "row 0 makes .* than the 4000 that topic 'large' takes"),
        ([(None, "small", 0), (None, "large", 0)], "NULL in row 1, and topic 'large' is compacted"),
        ([("a", "small", 2), ("a", "large", 2)], "is 2 in row 1, and topic 'large' has the partitions 0 to 0"),
        ([("a", "large", 0), ("a", "small", 3)], "is 3 in row 1, and topic 'small' has the partitions 0 to 2"),
        ([("a", "large", 0), ("a", "other", 0)], "'target', the topic, is 'other' in row 1, .* 'small', 'large'"),
        ([("a", "Small", 0)], "is 'Small' in row 0"),
        ([("a", None, 0)], "'target', the topic, is NULL in row 0"),
    ],
)
def test_what_its_topic_would_refuse_is_a_bad_tuple(rows: list[tuple[Any, ...]], message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        encode(rows, partition="shard")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "KafkaSink takes a topic, or topics=['a', 'b'], a list, with topic_field="),
        ({"topic": "a", "topics": ["a"], "topic_field": "target"}, "KafkaSink takes a topic, or"),
        ({"topic": "a", "topic_field": "target"}, "KafkaSink takes a topic, or"),
        ({"topics": ["a"]}, "KafkaSink takes a topic, or"),
        ({"topic_field": "target"}, "KafkaSink takes a topic, or"),
        ({"topics": "ab", "topic_field": "target"}, "a list, with topic_field="),
        ({"topics": ["a", 1], "topic_field": "target"}, "a list, with topic_field="),
        ({"topics": ["a", "b", "a"], "topic_field": "target"}, "topics= has 'a' twice"),
        ({"topics": ["a", ""], "topic_field": "target"}, "a topic is empty"),
        ({"topic": ""}, "a topic is empty"),
        ({"topic": ["a", "b"]}, "KafkaSink takes a topic, or"),
        ({"topic": str.lower}, "KafkaSink takes a topic, or"),
    ],
)
def test_topics_that_are_not_declared_well_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        KafkaSink("host:9092", **arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("word string, shard int", "uses field 'target', which the stream does not have"),
        ("word string, target int", "field 'target' is int, and topic_field= takes a string field"),
    ],
)
def test_a_stream_without_the_field_is_refused_by_build(fields: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(sink(), fields)


def test_one_topic_has_the_records_and_the_identity_that_it_had() -> None:
    """Stored outbox rows, checksums and fingerprints of earlier versions stay valid, byte for byte."""
    names = {
        "word": ["cat", None],
        "number": pa.array([1, 2], pa.int64()),
        "kind": ["a", "b"],
        "is_gone": [False, True],
    }
    options: dict[str, Any] = {"headers": {"kind": "kind"}, "partition": "number", "tombstone": "is_gone"}
    one = KafkaSink("host:9092", "topic", key="word", value=JsonValue("number"), **options)
    one._cluster_id, one._limits = "cluster", [TopicLimits("topic", 3, 2_000)]
    encoded = one.encode(pa.record_batch(names))
    binary, partitions = pa.binary(), pa.array([1, 2], pa.int32())
    columns = {"key": [b"cat", None], "value": [b'{"number":1}', None], "header kind": [b"a", b"b"]}
    stored = pa.table({**{name: pa.array(parts, binary) for name, parts in columns.items()}, "partition": partitions})
    assert encode_payload(encoded, 2).payload == encode_payload(stored, 2).payload
    assert one.checksum(encoded) == 1258361236
    assert fingerprint_json(one.identity()) == (
        '{"cluster": "cluster", "headers": {"kind": "field kind"}, "key": "field word", "kind": "kafka sink", '
        '"partition": "field number", "tombstone": "field is_gone", "topic": "topic", "value": "json(number)"}'
    )
    assert (one.target_name, repr(one)) == ("topic 'topic'", "KafkaSink('host:9092', 'topic')")


def test_the_identity_is_that_of_the_topics_in_any_order() -> None:
    several = sink("b", "a", "c")
    assert several.target_name == "topic 'b', 'a' or 'c'"
    assert repr(several) == "KafkaSink('host:9092', topics=['b', 'a', 'c'], topic_field='target')"
    assert several.record_fields(Schema.parse(FIELDS)).names == ("word", "target")
    identity = fingerprint_json(several.identity())
    assert identity == fingerprint_json(sink("a", "c", "b").identity())
    assert json.loads(identity)["topic"] == "field target"


def fingerprint(declared: KafkaSink) -> dict[str, Any]:
    return {"sinks": build(declared, f"{FIELDS}, place string").fingerprint()["sinks"]}


ONE = KafkaSink("host:9092", "a", key="word", value="word")


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (sink("a", "b"), sink("b", "a"), None),
        (sink("a", "b"), sink("a", "b", "c"), None),
        (sink("a", "b"), sink("a"), 'topics.b: stored "listed", given nothing'),
        (sink("a", "b"), sink("a", "c"), 'topics.b: stored "listed", given nothing'),
        (sink("a"), sink("a", topic_field="place"), 'topic: stored "field target", given "field place"'),
        (ONE, sink("a", "b"), 'topic: stored "a", given "field target"'),
        (sink("a", "b"), ONE, 'topic: stored "field target", given "a"'),
    ],
)
def test_a_sink_may_gain_topics_and_lose_none(before: KafkaSink, after: KafkaSink, change: str | None) -> None:
    refused = nullcontext() if change is None else pytest.raises(TopologyChanged, match=f"sinks.alerts.{change}")
    with refused:
        check_fingerprint("words", fingerprint(before), fingerprint(after))


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> dict[str, TopicLimits]:
    """The limits of the topics of a cluster, by their names."""
    limits = {"small": SMALL, "large": LARGE}

    def read_limits(admin: object, connection: object, topic: str) -> TopicLimits:
        if topic not in limits:
            raise ConfigError(f"topic {topic!r} does not exist")
        return limits[topic]

    monkeypatch.setattr(kafka_sink, "AdminClient", lambda _settings: None)
    monkeypatch.setattr(kafka_sink, "cluster_id", lambda *_arguments: "cluster")
    monkeypatch.setattr(kafka_sink, "read_limits", read_limits)
    monkeypatch.setattr(ControlTopic, "check", lambda *_arguments: False)
    return limits


def test_limits_of_each_topic_have_to_stay(described: dict[str, TopicLimits]) -> None:
    prepared, owner = sink(), SinkOwner("words", "alerts", "store")
    prepared.prepare()
    described["small"] = replace(SMALL, request_bytes_max=3_000)
    assert prepared.look(owner) is None
    for changed in (replace(LARGE, partitions=2), replace(LARGE, request_bytes_max=4_999)):
        described["large"] = changed
        with pytest.raises(ConfigError, match="topic 'large' has other settings than when this process has started"):
            prepared.look(owner)
    del described["large"]
    with pytest.raises(ConfigError, match="topic 'large' does not exist"):
        prepared.look(owner)
    with pytest.raises(ConfigError, match="topic 'large' does not exist"):
        sink().prepare()


def test_a_compacted_topic_needs_keys(described: dict[str, TopicLimits]) -> None:
    with pytest.raises(ConfigError, match="topic 'large' is compacted, which refuses records without keys"):
        sink(key=None).prepare()
    with pytest.raises(ConfigError, match="topic 'large' is compacted, which refuses records without keys"):
        sink(key=None).look(SinkOwner("words", "alerts", "store"))
    keyless = KafkaSink("host:9092", "small", value="word")
    keyless.prepare()
    described["small"] = replace(SMALL, is_compacted=True)
    with pytest.raises(ConfigError, match="topic 'small' is compacted, which refuses records without keys"):
        keyless.look(SinkOwner("words", "alerts", "store"))


class NumberingRegistry:
    """A registry that gives each subject an id of its own."""

    def __init__(self) -> None:
        self.subjects = list[str]()

    def register(self, subject: str, schema: str) -> int:
        self.subjects.append(subject)
        return len(self.subjects)


def test_a_schema_is_registered_for_each_topic_and_has_one_id(described: dict[str, TopicLimits]) -> None:
    schema, registry = '{"type": "record", "name": "Word", "fields": []}', NumberingRegistry()
    with pytest.raises(ConfigError, match=r"'Word' under several ids, \{'small-value': 1, 'large-value': 2\}"):
        sink(value=AvroValue(schema, registry)).prepare()
    sink(value=AvroValue(schema, registry, subject="words")).prepare()
    assert registry.subjects == ["small-value", "large-value", "words"]


@pytest.mark.parametrize(
    ("limits", "options", "expected"),
    [
        ([SMALL], {}, {"message.max.bytes": 2_000}),
        ([SMALL, replace(SMALL, topic="other")], {}, {"message.max.bytes": 2_000}),
        ([SMALL, LARGE], {}, {"message.max.bytes": 5_000, "batch.size": 2_000}),
        ([SMALL, LARGE], {"batch.size": "1500"}, {"message.max.bytes": 5_000, "batch.size": 1_500}),
    ],
)
def test_batches_fit_into_the_smallest_topic(
    limits: list[TopicLimits], options: dict[str, Any], expected: dict[str, int]
) -> None:
    assert size_settings(SinkConnection("host:9092", tuple(options.items())), limits) == expected


class RefusingProducer:
    """A producer whose cluster refuses the records of one topic."""

    sent: list[tuple[Any, ...]]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.reports = list[Callable[[], None]]()

    def produce(self, topic: str, *record: Any, headers: object) -> None:
        *content, on_delivery = record
        self.sent.append((topic, *content))
        error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if topic == "large" else None
        self.reports.append(lambda: on_delivery(error, None))

    def poll(self, timeout: float) -> None:
        """Report nothing before the flush."""

    def flush(self, timeout: float) -> int:
        for report in self.reports:
            report()
        return 0


def test_records_are_sent_at_least_once_to_their_topics(
    described: dict[str, TopicLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_connection, "Producer", RefusingProducer)
    monkeypatch.setattr(RefusingProducer, "sent", [], raising=False)
    prepared = sink()
    prepared.prepare()
    batch = pa.record_batch({"word": ["a", "b", "c"], "target": ["small", "large", "small"]})
    refused = prepared.send(prepared.encode(batch))
    prepared.close()
    assert RefusingProducer.sent == [
        *(("small", b"a", b"a", -1), ("large", b"b", b"b", -1), ("small", b"c", b"c", -1)),
    ]
    assert refused.keys() == {1}
    assert not kafka_sender._SENDERS


def test_topics_of_records_are_split_off_as_columns() -> None:
    records = pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"], "topic": ["x", "y"]})
    assert [record[:3] for record in split_records(records, "none")] == [("x", b"a", b"1"), ("y", b"b", b"2")]


def test_every_topic_is_examined_and_verified(
    described: dict[str, TopicLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    described |= {topic: TopicLimits(topic) for topic in "ab"}
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout([[]], FIELDS, take=1))
    builder.set_sink("several", sink("a", "b")).shuffle_grouping("rows")
    builder.set_sink("one", KafkaSink("host:9092", "b", key="word")).shuffle_grouping("rows")
    topology = builder.build()
    topics, notes = checked_topics(topology)
    assert {checked.topic: checked.sinks for checked in topics} == {
        "a": {"several": True},
        "b": {"several": True, "one": False},
    }
    assert notes == []
    monkeypatch.setattr(kafka_sink, "find_risks", lambda _admin, _connection, topic: [f"{topic} is at risk"])
    monkeypatch.setattr(KafkaSink, "prepare", lambda _sink: None)
    risks = [diagnosis.what for diagnosis in examine_sinks(topology, None)]
    assert risks == ["a is at risk; b is at risk; transactional-control-words is at risk"]
