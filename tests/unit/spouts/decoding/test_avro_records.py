"""`AvroTranslator`: schemas by id, keys, what a record lacks, and what can't be read."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import AvroTranslator, Registry
from spouts.decoding import avro_records
from spouts.decoding.translator import OnError
from spouts.kafka.records import record_schema
from spouts.registry import client
from tests.unit.spouts.avro.drawing import written
from tests.unit.spouts.registry.answering import Answer, Answering
from transactional.errors import ConfigError, SchemaMismatch
from transactional.model.arrow import arrow_schema

OLD = {
    "type": "record",
    "name": "Departure",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}
NEW = {**OLD, "fields": [{"name": "gate", "type": "string"}, *OLD["fields"]]}
OTHER = {**OLD, "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "string"}]}
USING = {**OLD, "fields": [{"name": "carrier", "type": "string"}, {"name": "plane", "type": "fleet.Plane"}]}
PLANE = {"type": "record", "name": "Plane", "namespace": "fleet", "fields": [{"name": "tail", "type": "string"}]}


def answer(schema: Any, **more: Any) -> Answer:
    return 200, {"schema": json.dumps(schema), **more}


ANSWERS: dict[str, Answer] = {
    "/schemas/ids/1": answer(OLD),
    "/schemas/ids/2": answer(NEW),
    "/schemas/ids/3": answer(OTHER),
    "/schemas/ids/4": answer("long"),
    "/schemas/ids/5": answer(USING, references=[{"name": "fleet.Plane", "subject": "plane", "version": 1}]),
    "/subjects/plane/versions/1": answer(PLANE, id=9),
    "/schemas/ids/6": (200, {"schemaType": "JSON", "schema": "{}"}),
    "/schemas/ids/7": answer({"type": "record", "fields": []}),
}


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    [payload] = written(schema, [value])
    return b"\0" + schema_id.to_bytes(4, "big") + payload


GOOD = framed(1, OLD, {"carrier": "AA", "delay": 5})


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_memories", {})
    monkeypatch.setattr(avro_records, "_reported", set())


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Answering(lambda path: ANSWERS.get(path, (404, {}))) as server:
        yield Registry(server.url, unknown_id_wait_ms=0)


def records(
    translator: AvroTranslator, *values: bytes | None, keys: list[bytes | None] | None = None
) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"topic": "t", "partition": 0, "offset": n, "value": value, "headers": [], "key": keys[n] if keys else None}
        for n, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(record_schema(translator.fields)))


def test_each_record_is_read_by_the_schema_that_it_was_written_with(registry: Registry) -> None:
    translator = AvroTranslator(registry, "carrier string, delay long, gate string")
    new = framed(2, NEW, {"gate": "B7", "carrier": "BA", "delay": None})
    found = translator.translate(records(translator, GOOD, new, GOOD))
    assert found.schema == arrow_schema(translator.output)
    assert [tuple(row.values()) for row in found.to_pylist()] == [("AA", 5, None), ("BA", None, "B7"), ("AA", 5, None)]


def test_a_reader_has_a_schema_of_its_own(registry: Registry, tmp_path: Path) -> None:
    """With other names for fields, and defaults for those that a writer lacks."""
    fields = [
        {"name": "airline", "type": "string", "aliases": ["carrier"]},
        {"name": "gate", "type": "string", "default": "?"},
    ]
    (tmp_path / "departure.avsc").write_text(json.dumps({**OLD, "fields": fields}))
    translator = AvroTranslator(registry, schema=tmp_path / "departure.avsc")
    assert str(translator.output) == "airline string, gate string"
    assert translator.translate(records(translator, GOOD)).to_pylist() == [{"airline": "AA", "gate": "?"}]
    pickled: AvroTranslator = pickle.loads(pickle.dumps(translator))
    assert pickled.translate(records(translator, GOOD)).to_pylist() == [{"airline": "AA", "gate": "?"}]


def test_a_field_of_the_same_name_comes_before_one_with_an_alias(caplog: pytest.LogCaptureFixture) -> None:
    """An alias that is left over is not read twice; what neither wants is reported."""
    fields = [
        {"name": "airline", "type": "string", "aliases": ["carrier", "gate"]},
        {"name": "carrier", "type": "string"},
    ]
    reader, writer = (json.dumps({**OLD, "fields": each}) for each in (fields, NEW["fields"]))
    translator = AvroTranslator(framing="none", schema=reader, writer=writer)
    [payload] = written(NEW, [{"gate": "B7", "carrier": "BA", "delay": None}])
    with caplog.at_level(logging.INFO):
        assert translator.translate(records(translator, payload)).to_pylist() == [{"airline": "B7", "carrier": "BA"}]
    [line] = [each.getMessage() for each in caplog.records]
    assert line.endswith("have fields that are not read: delay")


def test_texts_that_are_none_are_found_among_many() -> None:
    """Each is at fault by itself, wherever it stands."""
    translator = AvroTranslator(framing="none", fields="carrier string", writer=json.dumps(OLD), on_error="dead_letter")
    bad = {0, 1, 500, 998, 999}
    values = [b"\4\xff\xfe\0" if number in bad else GOOD[5:] for number in range(1_000)]
    found, refused = translator.translate_or_refuse(records(translator, *values))
    assert (found.num_rows, {position for position, _ in refused}) == (995, bad)
    assert "carrier: Invalid UTF8" in str(refused[0][1])


def test_a_piece_may_have_no_records(registry: Registry) -> None:
    for translator in (
        AvroTranslator(registry, "carrier string, delay long"),
        AvroTranslator(framing="none", fields="carrier string, delay long", writer=json.dumps(OLD)),
    ):
        found = translator.translate(records(translator))
        assert (found.num_rows, found.schema) == (0, arrow_schema(translator.output))


@pytest.mark.parametrize(
    "schema",
    [
        *("3", "null", '{"type": 3}', '{"type": "enum", "name": "E"}', '{"type": "record", "name": 3, "fields": []}'),
        *('{"type": "record", "name": "R", "fields": [3]}', '{"type": "fixed", "name": "F", "size": -1}'),
        '{"type": "array", "items": "Nowhere"}',
    ],
)
def test_a_writers_schema_may_be_none(schema: str) -> None:
    """It is a reason, and no error from the depths."""
    with pytest.raises(ConfigError, match="the writer schema of AvroTranslator can't be used: it is no Avro schema"):
        AvroTranslator(framing="none", fields="n long", writer=f" {schema}" if schema[0] == "{" else f"[{schema}]")


def test_keys_are_read_as_well(registry: Registry) -> None:
    """One that is no record is its one field; a record without a key has NULL."""
    translator = AvroTranslator(registry, "carrier string", key="number long")
    key = framed(4, "long", 7)
    found = translator.translate(records(translator, GOOD, GOOD, keys=[key, None])).to_pylist()
    assert found == [{"number": 7, "carrier": "AA"}, {"number": None, "carrier": "AA"}]
    with pytest.raises(
        SchemaMismatch, match=r"^the key at offset 0 .* with schema id 4, can't be read as Avro: .* it ends"
    ):
        translator.translate(records(translator, GOOD, keys=[key[:5]]))


def test_a_schema_refers_to_others(registry: Registry) -> None:
    translator = AvroTranslator(registry, "plane struct<tail:string>")
    value = b"\0\0\0\0\5" + written(OLD, [{"carrier": "AA", "delay": None}])[0][:-1] + b"\6N1A"
    assert translator.translate(records(translator, value)).to_pylist() == [{"plane": {"tail": "N1A"}}]


BAD: list[tuple[bytes | None, str]] = [
    (
        b"AA",
        " can't be read as Avro: it has no schema id, neither in a header nor in front; it is 'AA'",
    ),
    (b"\0\0\0\0\6{}", ", with schema id 6, can't be read as Avro: schema id 6 is one of JSON; it is"),
    (
        GOOD[:-1],
        ", with schema id 1, can't be read as Avro: delay: it ends before its schema does; it",
    ),
    (
        GOOD + b"x",
        ", with schema id 1, can't be read as Avro: it has more bytes than its schema; it is",
    ),
    (
        framed(3, OTHER, {"carrier": "AA", "delay": "5"}),
        ": delay: it is a string in the record's schema, which can't be read as long; it is",
    ),
    (b"\0\0\0\0\4\2", ", with schema id 4, can't be read as Avro: it is a long, and no record; it is"),
    (b"\0\0\0\0\7\2", ", with schema id 7, can't be read as Avro: it is no Avro schema (KeyError"),
    (None, " can't be read as Avro: the record has no value; it is NULL"),
]


@pytest.mark.parametrize(
    ("on_error", "expected"), [("skip", [5, 5]), ("dead_letter", [5, 5]), ("null", [5, *[None] * 8, 5])]
)
def test_what_can_not_be_read_is_at_fault_by_itself(on_error: OnError, expected: list[Any], registry: Registry) -> None:
    translator = AvroTranslator(registry, "carrier string, delay long", on_error=on_error)
    given = records(translator, GOOD, *(value for value, _ in BAD), GOOD)
    found, refused = translator.translate_or_refuse(given)
    assert found.column("delay").to_pylist() == expected
    if on_error == "dead_letter":
        assert [position for position, _ in refused] == list(range(1, 9))
        for (position, why), (_, expected_why) in zip(refused, BAD, strict=True):
            assert str(why).startswith(f"the value at offset {position} of partition 0 of topic 't'")
            assert expected_why in str(why)


def test_records_may_have_no_ids(tmp_path: Path) -> None:
    (tmp_path / "old.avsc").write_text(json.dumps(OLD))
    translator = AvroTranslator(fields="carrier string", framing="none", writer=tmp_path / "old.avsc", on_error="skip")
    assert translator.fields == ("topic", "partition", "offset", "value")
    found = translator.translate(records(translator, GOOD[5:], None, GOOD, GOOD[5:]))
    assert found.to_pylist() == [{"carrier": "AA"}] * 2


def test_what_nobody_reads_is_reported_once(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """A producer may have added it."""
    translator = AvroTranslator(registry, "carrier string, delay long")
    new = framed(2, NEW, {"gate": "B7", "carrier": "BA", "delay": None})
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            translator.translate(records(translator, GOOD, new))
    assert [each.getMessage() for each in caplog.records] == [
        "records of topic 't' of schema id 2 have fields that are not read: gate"
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "takes the URL of a registry"),
        ({"registry": "http://r", "framing": "none"}, "takes the URL of a registry"),
        ({"framing": "none", "fields": "n long"}, "takes a writer schema with framing='none'"),
        ({"registry": "http://r"}, "takes fields such as"),
        ({"registry": "http://r", "fields": "n long", "schema": "{}"}, "takes fields such as"),
        ({"registry": "http://r", "schema": '"long"'}, "the reader's Avro schema is no record"),
        ({"registry": "http://r", "schema": "nowhere.avsc"}, "is an Avro schema in JSON, or its path: .*nowhere.avsc"),
        ({"registry": "http://r", "schema": "{"}, "the reader's Avro schema can't be used: it is no Avro schema"),
        (
            {
                "framing": "none",
                "fields": "n long",
                "writer": '"long',
            },
            "the writer schema .* can't be used",
        ),
        ({"framing": "none", "fields": "n long", "writer": '"long"', "key": "k long"}, "reads no keys"),
        ({"registry": "http://r", "fields": "n long", "key": "n long"}, "declared more than once"),
        ({"registry": "http://r", "fields": "n long", "on_error": "drop"}, "on_error is"),
    ],
)
def test_a_translator_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        AvroTranslator(**options)


def test_a_schema_may_have_a_byte_order_mark_in_front(tmp_path: Path) -> None:
    schema = '\ufeff{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    (path := tmp_path / "r.avsc").write_text(schema, "utf-8")
    for given in (path, str(path), schema):
        assert str(AvroTranslator(schema=given, framing="none", writer=given).output) == "n long"


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        (["int", "string"], "a column can't hold a union of int, string"),
        ("null", "a column can't hold nothing but null"),
        ({"type": "record", "name": "E", "fields": []}, "a record without fields"),
        ({"type": "array", "items": "R"}, "contains itself"),
    ],
)
def test_a_readers_schema_has_to_fit_into_columns(type_: Any, why: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": type_}]}
    with pytest.raises(ConfigError, match=why):
        AvroTranslator("http://r", schema=json.dumps(schema))
