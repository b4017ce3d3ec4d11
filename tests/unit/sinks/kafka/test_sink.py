"""The Kafka sink without a cluster: the form of records, markers, and what is refused when a topology is built."""

from __future__ import annotations

import json
import math
import pickle
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from sinks import JsonValue, KafkaSink
from sinks.kafka import control
from sinks.kafka.control import ControlTopic, control_topic, decode_marker, encode_marker
from sinks.kafka.topics import TopicLimits
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import TransactionalTopologyBuilder
from transactional.core.ports import SinkOwner, SinkPosition
from transactional.core.store.outbox import Publication
from transactional.core.store.rules import check_fingerprint
from transactional.errors import ConfigError, CorruptRecord, SchemaMismatch, TopologyChanged
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
        "is_last": [None, True],
    }
)
FIELDS = "word string, number long, at timestamp, price decimal(5,2), raw binary"
ROWS = [[("cat", 1, datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), b"x")]]


def sink(**options: Any) -> KafkaSink:
    return KafkaSink("host:9092", "topic", **options)


LIMITS = TopicLimits("topic", 3, 2_000, is_compacted=False)
COMPACTED = replace(LIMITS, is_compacted=True)
"""Limits of a topic that takes 1,000 bytes in a record."""


def limited(limits: TopicLimits, **options: Any) -> KafkaSink:
    """A sink as tasks get it: its topic has been described, and it has been pickled."""
    prepared = sink(**options)
    prepared._limits = [limits]
    unpickled: KafkaSink = pickle.loads(pickle.dumps(prepared))
    return unpickled


def rows_of(records: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in records.to_pylist()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"value": "raw"}, [(None, b"\0\xff"), (None, None)]),
        ({"key": "word", "value": "word"}, [(b"cat", b"cat"), (None, None)]),
        ({"value": JsonValue("word", "price")}, [(None, b'{"word":"cat","price":1.50}'), (None, b"{}")]),
        (
            {"value": "raw", "headers": {"w": "word", "r": "raw"}, "partition": "number"},
            [(None, b"\0\xff", b"cat", b"\0\xff", 1), (None, None, None, None, 2)],
        ),
        ({"value": JsonValue("number"), "tombstone": "is_last"}, [(None, b'{"number":1}'), (None, None)]),
    ],
)
def test_tuples_become_records(options: dict[str, Any], expected: list[Any]) -> None:
    assert rows_of(limited(LIMITS, **options).encode(BATCH)) == expected


@pytest.mark.parametrize("options", [{"tombstone": "is_last"}, {"key": "word", "partition": "number"}])
def test_no_type_is_inferred_in_an_encoded_batch(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever Arrow infers the type of a constant, it looks for dateutil in all of Python's path."""
    names, prepared = list[str](), limited(LIMITS, **options)

    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            names.append(name)

    prepared.encode(BATCH)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    prepared.checksum(prepared.encode(BATCH))
    assert not names


def test_a_tombstone_takes_no_value_from_its_neighbors() -> None:
    batch = pa.record_batch({"word": ["cat", "dog", "owl"], "is_gone": [True, False, None]})
    records = limited(LIMITS, key="word", value="word", tombstone="is_gone").encode(batch)
    assert rows_of(records) == [(b"cat", None), (b"dog", b"dog"), (b"owl", b"owl")]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (pa.scalar(-2, pa.int16()), "fffe"),
        (pa.scalar(-2, pa.int32()), "fffffffe"),
        (pa.scalar(2**40, pa.int64()), "0000010000000000"),
        (pa.scalar(-0.5, pa.float32()), "bf000000"),
        (pa.scalar(-0.5, pa.float64()), "bfe0000000000000"),
    ],
)
def test_a_number_is_a_key_as_from_the_serializers_of_java(number: pa.Scalar, expected: str) -> None:
    batch = pa.record_batch({"number": pa.array([number.as_py(), None], number.type), "word": ["a", "b"]})
    records = limited(LIMITS, key="number", value="word").encode(batch)
    assert rows_of(records) == [(bytes.fromhex(expected), b"a"), (None, b"b")]


SECOND = pa.timestamp("us", "UTC")
JSON_VALUES: Mapping[str, tuple[Any, pa.DataType, str]] = {
    "text": ('é"\\\n\x01/😀', pa.string(), '"é\\"\\\\\\n\\u0001/😀"'),
    "long": (2**53 + 1, pa.int64(), "9007199254740993"),
    "boolean": (True, pa.bool_(), "true"),
    "float": (0.1, pa.float32(), "0.1"),
    "double": (1.0, pa.float64(), "1.0"),
    "large double": (1e100, pa.float64(), "1e+100"),
    "no number": (math.nan, pa.float64(), '"NaN"'),
    "infinity": (-math.inf, pa.float32(), '"-Infinity"'),
    "decimal": (Decimal("1.50"), pa.decimal128(5, 2), "1.50"),
    "small decimal": (Decimal("0.0000000001"), pa.decimal128(38, 10), "0.0000000001"),
    "date": (date(999, 1, 2), pa.date32(), '"0999-01-02"'),
    "time": (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), SECOND, '"2026-01-02T03:04:05.000Z"'),
    "milliseconds": (datetime(2026, 1, 2, 3, 4, 5, 120_000, UTC), SECOND, '"2026-01-02T03:04:05.120Z"'),
    "microseconds": (datetime(2026, 1, 2, 3, 4, 5, 123_456, UTC), SECOND, '"2026-01-02T03:04:05.123456Z"'),
    "binary": (b"\0\xff", pa.binary(), '"AP8="'),
    "array": ([1, None, 2], pa.list_(pa.int32()), "[1,null,2]"),
    "empty array": ([], pa.list_(pa.int32()), "[]"),
    "map": ([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int32()), '{"a":1,"b":null}'),
    "map of numbers": ([(1, "x")], pa.map_(pa.int32(), pa.string()), '{"1":"x"}'),
    "map of dates": ([(date(2026, 1, 2), "x")], pa.map_(pa.date32(), pa.string()), '{"2026-01-02":"x"}'),
    "struct": ({"x": 1, "y": None}, pa.struct({"x": pa.int32(), "y": pa.int32()}), '{"x":1}'),
    "structs": ([{"x": None}, None], pa.list_(pa.struct({"x": pa.int32()})), "[{},null]"),
}
"""Values with their JSON texts. `to_json` of Spark 4 gives the same, but for exponents and for what is finer than a
millisecond, which it cuts off; keys of maps that are dates are numbers there."""


@pytest.mark.parametrize("name", JSON_VALUES)
def test_json_is_that_of_spark(name: str) -> None:
    python_value, arrow_type, expected = JSON_VALUES[name]
    column = pa.array([None, python_value, None, python_value], arrow_type).slice(1)
    records = sink().encode(pa.record_batch({"it": column, "n": pa.array([1, 2, 3], pa.int8())}))
    values = [row["value"].decode() for row in records.to_pylist()]
    assert values == [f'{{"it":{expected},"n":1}}', '{"n":2}', f'{{"it":{expected},"n":3}}']
    json.loads(values[0])


def json_of(row: Mapping[str, Any]) -> str:
    """A row as Python writes it, value by value. Decimals have the digits of a float."""
    members = {name: value for name, value in row.items() if value is not None}
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False, default=text_of)


def text_of(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    is_whole = isinstance(value, datetime) and value.microsecond % 1_000 == 0
    return value.isoformat(*(("T", "milliseconds") if is_whole else ())).replace("+00:00", "Z")


def test_columns_have_the_texts_that_python_writes_one_by_one() -> None:
    ends = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC))
    batch = pa.record_batch(
        {
            "plain": ["a,", "", "é😀/", None],
            "escaped": ['"', "a", "\t\x7f", None],
            "long": pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
            "truth": [True, False, None, None],
            "price": pa.array([Decimal("-0.75"), Decimal("1.25"), Decimal("0.01"), None], pa.decimal128(38, 2)),
            "time": pa.array([*ends, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), None], SECOND),
            "zoneless": pa.array([0, 1, -62_135_596_800_000_000, None], pa.timestamp("us")),
            "date": [date(1, 1, 1), date(9999, 12, 31), date(2026, 1, 2), None],
        }
    )
    expected = [json_of(row) for row in batch.to_pylist()]
    for rows in (batch, batch.slice(1), batch.slice(3), batch.slice(4)):
        values = [row["value"].decode() for row in sink().encode(rows).to_pylist()]
        assert values == expected[len(expected) - rows.num_rows :]


@pytest.mark.parametrize(
    ("limits", "options", "batch", "message"),
    [
        (LIMITS, {}, {"x": pa.array([2**61], SECOND)}, "it has no form in JSON"),
        (LIMITS, {"value": "x"}, {"x": ["a" * 1000, "a" * 1001]}, r"row 1 .* 1001 bytes, more than the 1000 .*'topic'"),
        (
            LIMITS,
            {"key": "k", "value": "x", "headers": {"name": "h"}},
            {"k": ["a" * 40], "x": ["a" * 900], "h": ["a" * 47]},
            "row 0 makes a record of 1001 bytes",
        ),
        (
            COMPACTED,
            {"key": "k", "value": "x"},
            {"k": ["a", None], "x": ["a", "b"]},
            "field k, the key, is NULL",
        ),
        (COMPACTED, {"key": "k", "value": "x"}, {"k": ["a", None], "x": ["a", None]}, "'topic' is compacted"),
        (LIMITS, {"value": "x", "partition": "p"}, {"x": ["a"], "p": [3]}, "is 3 in row 0, and .* 0 to 2"),
        (LIMITS, {"value": "x", "partition": "p"}, {"x": ["a"], "p": [-1]}, "'p', the partition, is -1"),
    ],
)
def test_what_the_topic_would_refuse_is_a_bad_tuple(
    limits: TopicLimits, options: dict[str, Any], batch: dict[str, Any], message: str
) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        limited(limits, **options).encode(pa.record_batch(batch))


def test_a_topic_that_takes_less_than_tasks_know_is_refused() -> None:
    for limits in (replace(LIMITS, partitions=4), replace(LIMITS, request_bytes_max=1_999), COMPACTED):
        with pytest.raises(ConfigError, match="topic 'topic' has other settings than when this process has started"):
            limited(LIMITS)._check_limits([limits])
    limited(COMPACTED)._check_limits([replace(LIMITS, request_bytes_max=2_001)])


def builder() -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(ROWS, FIELDS, take=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value": "none"}, "sink 'alerts' behind 'rows' uses field 'none', which the stream does not have"),
        ({"value": "number"}, "field 'number' is long, and a value is string or binary"),
        ({"headers": {"h": "number"}}, "field 'number' is long, and a header is string or binary"),
        ({"tombstone": "word"}, "field 'word' is string, and tombstone= takes a boolean field"),
        ({"partition": "word"}, "field 'word' is string, and a partition is a whole number"),
        (
            {"key": "at", "value": "raw"},
            "field 'at' is timestamp, and a key is string, binary, short, int, long, float or double",
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
    form = {"key": "field word", "value": "field raw", "fields": "word string, raw binary"}
    identity = {"kind": "kafka sink", "cluster": "", "topic": "topic", **form}
    assert topology.fingerprint()["sinks"] == {"alerts": identity}


def fingerprint(fields: str = "word string, number long", **options: Any) -> dict[str, Any]:
    spout = MemoryTransactionalSpout([[]], fields, take=1)
    declared = TransactionalTopologyBuilder("words", "rows", spout)
    prepared = sink(**options)
    prepared._cluster_id = "cluster"
    declared.set_sink("alerts", prepared).shuffle_grouping("rows")
    return {"sinks": declared.build().fingerprint()["sinks"]}


@pytest.mark.parametrize(
    ("given", "change"),
    [
        (fingerprint("number long, word string"), None),
        (
            fingerprint("word string, count long"),
            'alerts.fields: stored "word string, number long", given "word string, c',
        ),
        (
            fingerprint("word string, number int"),
            'alerts.fields: stored "word string, number long", given "word string, n',
        ),
        (fingerprint(headers={"w": "word"}), 'alerts.headers.w: stored nothing, given "field word"'),
        (fingerprint(partition="number"), 'alerts.partition: stored nothing, given "field number"'),
        (fingerprint(key="number"), 'alerts.key: stored "", given "field number"'),
    ],
)
def test_fields_of_records_stay_by_name_and_type(given: dict[str, Any], change: str | None) -> None:
    with nullcontext() if change is None else pytest.raises(TopologyChanged, match=re.escape(f"sinks.{change}")):
        check_fingerprint("words", fingerprint(), given)


def test_inputs_with_other_records_are_refused() -> None:
    declared = builder()
    declared.set_bolt("texts", lambda row: (str(row["number"]),), output="number string").shuffle_grouping("rows")
    declared.set_sink("alerts", sink(value=JsonValue("number"))).shuffle_grouping("rows").shuffle_grouping("texts")
    message = r"different records: \(number long\) of 'rows' and \(number string\) of 'texts'"
    with pytest.raises(ConfigError, match=message):
        declared.build()


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


def test_options_of_the_sink_can_not_be_set() -> None:
    with pytest.raises(ConfigError, match="a KafkaSink sets the header 'txid' itself"):
        sink(headers={"txid": "word"})
    for name in ("transactional.id", "delivery.timeout.ms"):
        with pytest.raises(ConfigError, match=f"'{name}' can't be set in options="):
            sink(options={name: "1000"})


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


def test_topologies_have_control_topics_of_their_own() -> None:
    assert control_topic("large-orders") == "transactional-control-large-orders"
    assert control_topic("flüge/v-1") == "transactional-control-fl_C3_BCge_2Fv-1"
    ids = ["a.b", "a_b", "a_5Fb", "a_2Eb", "a b", *("x" * 300 + end for end in "ab"), "ü" * 227, "x" * 227, "x" * 228]
    names = [control_topic(topology_id) for topology_id in ids]
    assert len({name.replace(".", "_") for name in names}) == len(ids), "Kafka's metrics have _ for a dot"
    assert all(re.fullmatch(r"[\w-]{1,249}", name, re.ASCII) for name in names)
    assert control_topic("x" * 227) == f"transactional-control-{'x' * 227}"


@pytest.mark.parametrize(
    ("partitions", "settings", "problem"),
    [
        (3, {}, "has 3 partitions; it needs 1 partition, cleanup.policy 'compact', segment.ms '600000'"),
        (1, {"cleanup.policy": "delete"}, "has cleanup.policy 'delete'; it needs"),
        (1, {"segment.ms": "1", "cleanup.policy": "compact,delete"}, "'compact,delete' and segment.ms '1'; it needs"),
    ],
)
def test_a_control_topic_with_other_settings_is_refused(
    monkeypatch: pytest.MonkeyPatch, partitions: int, settings: dict[str, str], problem: str
) -> None:
    right = {"cleanup.policy": "compact", "segment.ms": "600000"}
    monkeypatch.setattr(control, "partition_count", lambda *_arguments: partitions)
    monkeypatch.setattr(control, "topic_settings", lambda *_arguments: right | settings)
    topic = ControlTopic(sink().connection, SinkOwner("words", "alerts", "store"))
    with pytest.raises(ConfigError, match=re.escape(problem)):
        topic.check(AdminClient({}))
