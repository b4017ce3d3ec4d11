"""Record translators: JSON by a schema, a function per record, another one per topic, and what they tell (row K9)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.decoding.json_records import JsonTranslator, _Parser
from spouts.kafka.records import record_schema
from spouts.kafka.spout import OpaqueKafkaSpout
from spouts.kafka.subscription import TopicPattern
from spouts.kafka.translators import ByTopicTranslator, KafkaRecord, SimpleTranslator, Translator
from transactional.errors import BoltFailed, ConfigError, FailedException, SchemaMismatch
from transactional.model.arrow import arrow_schema
from transactional.model.schema import Schema

TIME = datetime(2026, 1, 2, 3, 4, 5, 6_000, UTC)


def records(translator: Translator, values: Sequence[bytes | None], topic: str = "flights") -> pa.RecordBatch:
    """Records of partition 2 from offset 100 on, with the fields that the translator asks for."""
    rows = [
        {
            "topic": topic,
            "partition": 2,
            "offset": 100 + number,
            "key": b"k%d" % number,
            "value": value,
            "timestamp": TIME,
            "headers": [{"key": "trace", "value": b"1"}],
            "source_id": "Ab3",
        }
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(record_schema(translator.fields)))


def translated(translator: Translator, *values: bytes | None, topic: str = "flights") -> list[Any]:
    """The tuples; those of one field without their parentheses."""
    batch = translator.translate(records(translator, values, topic))
    assert batch.schema == arrow_schema(translator.output)
    rows = [tuple(row.values()) for row in batch.to_pylist()]
    return [row[0] for row in rows] if len(translator.output) == 1 else rows


# --- JSON ---------------------------------------------------------------------------------------------------------


def test_json_objects_become_columns() -> None:
    flights = JsonTranslator("carrier string, dep_delay long")
    values = (
        b'{"carrier":"AA","dep_delay":5,"more":{"x":[1]}}',
        b' {"dep_delay" :\n -1}\n',
        b'{"carrier":null}',
        b"{}",
    )
    assert translated(flights, *values) == [("AA", 5), (None, -1), (None, None), (None, None)]
    assert translated(flights) == []


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("boolean", "true", True),
        ("byte", "-128", -128),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "1", 1.0),
        ("double", "1.5e3", 1500.0),
        ("string", r'"\u00e9\n"', "é\n"),
        ("binary", '"ab"', b"ab"),
        ("decimal(10,2)", "1.25", Decimal("1.25")),
        ("decimal(10,2)", '"1.25"', Decimal("1.25")),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("timestamp", '"2024-01-01T02:00:00.000001+02:00"', datetime(2024, 1, 1, 0, 0, 0, 1, UTC)),
        ("timestamp", '"2024-01-01 00:00:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        ("array<int>", "[1, null]", [1, None]),
        ("struct<a:string,d:date>", '{"d":"2024-01-01","z":1}', {"a": None, "d": date(2024, 1, 1)}),
        ("array<struct<d:date>>", '[{"d":"2024-01-01"}]', [{"d": date(2024, 1, 1)}]),
    ],
)
def test_every_type_has_its_json(type_: str, text: str, expected: object) -> None:
    assert translated(JsonTranslator(f"a {type_}"), b'{"a":%s}' % text.encode(), b'{"a":null}') == [expected, None]


@pytest.mark.parametrize(
    ("value", "type_", "reason"),
    [
        (b'{"a":"1"}', "long", "changed from number to string"),
        (b'{"a":1.5}', "long", r"couldn't parse:1\.5"),
        (b'{"a":300}', "byte", "couldn't parse:300"),
        (b'{"a":1}', "string", "changed from string to number"),
        (b'{"a":1.255}', "decimal(10,2)", "requires scale 3"),
        (b'{"a":1000}', "decimal(5,2)", "does not fit in precision"),
        (b'{"a":[{"x":1000}]}', "array<struct<x:decimal(5,2)>>", "does not fit in precision"),
        (b'{"a":"2024-1-1"}', "date", "Failed to parse string"),
        (b'{"a":1', "long", "does not start and end like an object"),
        (b'{"a":{"b":1}', "struct<b:long>", "Missing a comma"),
        (b'{"a":1}{"a":2}', "long", "more than one JSON object"),
        (b'{"a":1,"a":2}', "long", "specified twice"),
        (b"[1]", "long", "does not start and end like an object"),
        (b"", "long", "does not start and end like an object"),
        (b"null", "long", "does not start and end like an object"),
        (None, "long", "the record has no value; it is NULL"),
        (b'{"a":"\xff"}', "string", "Invalid UTF8"),
        (b'{"a":\0 1}', "long", "a zero byte"),
        (b'{"a":"x\ny"}', "string", "Invalid encoding"),
    ],
)
def test_bad_json_is_reported_with_its_place_or_null_or_skipped(value: bytes | None, type_: str, reason: str) -> None:
    good = b"{}"
    told = rf"offset 101 of partition 2 of topic 'flights' is not a JSON object of 'a {type_.split('(')[0]}.*{reason}"
    with pytest.raises(SchemaMismatch, match=f"(?s){told}.*on_error"):
        translated(JsonTranslator(f"a {type_}"), good, value, good, value)
    fields = {"record_fields": "offset"}
    nulls = JsonTranslator(f"a {type_}", on_error="null", **fields)
    assert translated(nulls, good, value, value, good) == [(100, None), (101, None), (102, None), (103, None)]
    skipping = JsonTranslator(f"a {type_}", on_error="skip", **fields)
    assert translated(skipping, good, value, value, good) == [(100, None), (103, None)]
    assert translated(skipping, value, value) == []
    assert translated(nulls, value) == [(100, None)]


def test_a_long_bad_value_is_shown_in_part() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        translated(JsonTranslator("a long"), b"x" * 10_000)
    assert len(str(caught.value)) < 500


def test_fields_of_the_record_come_first() -> None:
    flights = JsonTranslator("a long", record_fields=["key", "timestamp", "topic", "headers"])
    assert str(flights.output) == (
        "key binary, timestamp timestamp, topic string, headers array<struct<key:string,value:binary>>, a long"
    )
    assert translated(flights, b'{"a":1}') == [(b"k0", TIME, "flights", [{"key": "trace", "value": b"1"}], 1)]


LINES = st.one_of(
    st.sampled_from(
        [b'{"a":1}{"a":2}', b'{"a":{', b"", b"{}", b"{}{}", b'{"a":"}', b'{"b":[{}', b"}", b"{", b'{"a":1}\0']
    ),
    st.binary(max_size=8),
    st.builds(lambda value: json.dumps({"a": value}).encode(), st.integers(-5, 5) | st.text(max_size=3) | st.none()),
    st.none(),
)


@given(values=st.lists(LINES, max_size=20))
def test_a_record_is_good_or_bad_by_itself(values: list[bytes | None]) -> None:
    """So that a replay in other portions gives the same tuples."""
    for on_error in ("null", "skip"):
        chosen = JsonTranslator("a long", on_error=on_error)
        one_by_one = [row for value in values for row in translated(chosen, value)]
        assert translated(chosen, *values) == one_by_one


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JsonTranslator(""), "needs a schema"),
        (lambda: JsonTranslator("a map<string,long>"), "can't read field 'a map"),
        (lambda: JsonTranslator("a lang"), "unknown type 'lang'"),
        (lambda: JsonTranslator("a long", on_error="skipp"), "not 'skipp' — did you mean 'skip'"),  # type: ignore[arg-type]
        (lambda: JsonTranslator("a long", record_fields=["kee"]), "no field 'kee' — did you mean 'key'"),
        (lambda: JsonTranslator("a long", record_fields=["value"]), "no field 'value'"),
        (lambda: JsonTranslator("key long", record_fields=["key"]), "key is declared more than once"),
        (lambda: SimpleTranslator(lambda record: None, ""), "needs the fields of its tuples"),
        (lambda: SimpleTranslator("f", "a long"), "takes a function of a KafkaRecord, got 'f'"),  # type: ignore[arg-type]
    ],
)
def test_a_translator_that_can_not_be_right_is_reported(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# --- a function per record ----------------------------------------------------------------------------------------


def line(record: KafkaRecord) -> tuple[str, int] | None:
    """The value as text and the offset; no tuple for a tombstone."""
    return None if record.value is None else (record.value.decode(), record.offset)


def test_a_function_makes_a_tuple_or_none_of_a_record() -> None:
    lines = SimpleTranslator(line, "line string, offset long")
    assert translated(lines, b"a", None, b"b") == [("a", 100), ("b", 102)]
    assert translated(lines, None) == []


def test_a_function_gets_all_of_a_record() -> None:
    seen: list[KafkaRecord] = []
    translated(SimpleTranslator(seen.append, "a long"), b"x")
    assert seen == [KafkaRecord("flights", 2, 100, b"k0", b"x", TIME, (("trace", b"1"),), "Ab3")]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("text", r"returned 'text' for offset 101 of partition 2 of topic 'flights'; .*a value for each of 'a long'"),
        ((1, 2), r"returned \(1, 2\) for offset 101 of partition 2"),
        (("x",), "'translator' declares field 'a' as long.*'x'.*; for offset 101 of partition 2 of topic 'flights'"),
    ],
)
def test_what_a_function_may_not_return_is_reported_with_its_place(returned: Any, message: str) -> None:
    wrong = SimpleTranslator(lambda record: (1,) if record.value == b"fine" else returned, "a long")
    with pytest.raises(SchemaMismatch, match=message):
        translated(wrong, b"fine", b"not")


def test_what_a_function_raises_is_reported_with_its_place() -> None:
    wrong = SimpleTranslator(lambda record: (int(record.value or 0),), "a long")
    told = r"(?s)raised ValueError: .*'x' \(.*\), for offset 101 of partition 2 of topic 'flights'\nTraceback"
    with pytest.raises(BoltFailed, match=told):
        translated(wrong, b"1", b"x")


def test_a_function_may_fail_the_batch() -> None:
    def refuse(record: KafkaRecord) -> None:
        raise FailedException("not now")

    with pytest.raises(FailedException, match="not now"):
        translated(SimpleTranslator(refuse, "a long"), b"1")


# --- by topic -----------------------------------------------------------------------------------------------------


def new_and_old(default: Translator | None = None) -> ByTopicTranslator:
    old = SimpleTranslator(lambda record: (int(record.value or 0),), "a long")
    return ByTopicTranslator(default).for_topic("new", JsonTranslator("a long")).for_topic("old", old)


def test_each_topic_has_its_translator() -> None:
    assert translated(new_and_old(), b'{"a":7}', topic="new") == [7]
    assert translated(new_and_old(), b"8", topic="old") == [8]


def test_an_unknown_topic_needs_a_default() -> None:
    with pytest.raises(ConfigError, match=r"topic 'other' has no translator: .*for: new, old"):
        translated(new_and_old(), b"8", topic="other")
    default = JsonTranslator("a long", on_error="skip")
    assert translated(new_and_old(default), b'{"a":7}', b"8", topic="other") == [7]


def test_the_same_topic_twice_and_other_fields_are_refused() -> None:
    """Storm's two errors of ByTopic (row K9)."""
    with pytest.raises(ConfigError, match="topic 'old' already has a translator"):
        new_and_old().for_topic("old", JsonTranslator("a long"))
    with pytest.raises(ConfigError, match="'more' has the fields 'a int', the others 'a long'"):
        new_and_old().for_topic("more", JsonTranslator("a int"))
    with pytest.raises(ConfigError, match="'more' has the fields 'b long', the others 'a long'"):
        ByTopicTranslator(JsonTranslator("a long")).for_topic("more", JsonTranslator("b long"))
    with pytest.raises(ConfigError, match="topic 'more' needs a translator"):
        new_and_old().for_topic("more", line)  # type: ignore[arg-type]


def test_a_route_that_is_added_changes_no_other_translator() -> None:
    one = ByTopicTranslator().for_topic("one", JsonTranslator("a long"))
    one.for_topic("two", JsonTranslator("a long"))
    with pytest.raises(ConfigError, match="'two' has no translator"):
        one.check_topic("two")


# --- in a spout ---------------------------------------------------------------------------------------------------


def test_a_spouts_fields_are_its_translators() -> None:
    spout = OpaqueKafkaSpout("localhost:9092", ["new", "old"], translator=new_and_old())
    assert (str(spout.output), str(spout.reader().output)) == ("a long", "a long")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": ["new", "other"]}, "topic 'other' has no translator"),
        ({"fields": ["value"]}, "for a spout without a translator"),
        ({"value_type": "string"}, "for a spout without a translator"),
        ({"translator": line}, "translator is a JsonTranslator, SimpleTranslator or ByTopicTranslator"),
        ({"translator": ByTopicTranslator()}, "has no topic yet"),
    ],
)
def test_what_does_not_go_with_a_translator_is_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpaqueKafkaSpout(**{"bootstrap_servers": "a:1", "topics": ["new"], "translator": new_and_old(), **options})


def test_with_a_pattern_topics_are_checked_when_they_come() -> None:
    spout = OpaqueKafkaSpout("localhost:9092", TopicPattern("o.*"), translator=new_and_old())
    assert str(spout.output) == "a long"


def test_translators_travel_to_executors() -> None:
    spout = OpaqueKafkaSpout("localhost:9092", ["new", "old"], translator=new_and_old())
    reader = pickle.loads(cloudpickle.dumps(spout.reader()))
    assert translated(reader.translator, b"8", topic="old") == [8]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "hostile", [b'{"n":"5"}', b'{"n":1,}', b"{}{}", b'{"a":"\0"}', b'{"a":"\xff"}', b"{}\n{}", None]
)
def test_many_records_are_judged_as_each_is_alone(hostile: bytes | None) -> None:
    """Beyond what is read at once, with the bad ones at the ends, beside each other and in between."""
    bad = [0, 499, 500, 501, 1200, 2000, 2001, 2499]
    values = [hostile if number in bad else b' {"n":%d} ' % (number % 97) for number in range(2500)]
    parser = _Parser(Schema.parse("n long, a string"))

    found, refused = parser.parse(pa.array(values, pa.binary()))
    alone = {value: parser.parse(pa.array([value], pa.binary())) for value in set(values)}

    assert refused == bad == [number for number, value in enumerate(values) if alone[value][1]]
    rows = {value: batch.to_pylist() for value, (batch, _) in alone.items()}
    assert found.to_pylist() == [row for value in values for row in rows[value]]


def test_records_that_are_all_good_are_read_at_once_as_each_is_alone() -> None:
    values = [b'{"n":%d,"a":"%d"}' % (number, number) for number in range(1500)]
    found, refused = _Parser(Schema.parse("n long, a string")).parse(pa.array([b"x", *values], pa.binary())[1:])
    assert refused == []
    assert found.to_pylist() == [{"n": number, "a": str(number)} for number in range(1500)]
