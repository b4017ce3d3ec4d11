"""`JsonTranslator` over records with schema ids: what each choice of on_error makes of those that can't be read."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from spouts.decoding.json_records import JsonTranslator
from spouts.decoding.translator import OnError
from spouts.kafka.records import record_schema
from spouts.kafka.translators import ByTopicTranslator, Translator
from spouts.registry import client
from spouts.registry.client import Registry
from tests.unit.spouts.registry.answering import Answer, Answering
from transactional.errors import SchemaMismatch, SchemaUnknown
from transactional.model.arrow import arrow_schema

ANSWERS: dict[str, Answer] = {
    "/schemas/ids/1": (200, {"schemaType": "JSON", "schema": "{}"}),
    "/schemas/ids/2": (200, {"schema": '"string"'}),
}
FACT = "schema id 3 of values of topic 't'"
VALUES = [b'\0\0\0\0\1{"n":1}', b'\0\0\0\0\3{"n":2}', b'\0\0\0\0\2{"n":3}', b'{"n":4}', None, b'\0\0\0\0\1{"n":"5"}']
WHY = [
    ", with schema id 3, is not a JSON object of 'n long': the schema registry at URL does not know schema id 3; it is",
    ", with schema id 2, is not a JSON object of 'n long': schema id 2 is one of AVRO; it is",
    " is not a JSON object of 'n long': it has no schema id, neither in a header nor in front; it is",
    " is not a JSON object of 'n long': the record has no value; it is NULL",
    ", with schema id 1, is not a JSON object of 'n long': ",
]


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_memories", {})


def records(translator: Translator, values: list[bytes | None] = VALUES) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"topic": "t", "partition": 0, "offset": n, "value": value, "headers": []} for n, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(record_schema(translator.fields)))


def translator(url: str, on_error: OnError, **options: Any) -> JsonTranslator:
    registry = Registry(url, unknown_id_wait_ms=0)
    return JsonTranslator("n long", registry=registry, on_error=on_error, **options)


@pytest.mark.parametrize(
    ("on_error", "expected"), [("skip", [1]), ("dead_letter", [1]), ("null", [1, None, None, None, None, None])]
)
def test_bad_records_are_treated_alike_whatever_is_wrong_with_them(on_error: OnError, expected: list[int]) -> None:
    with Answering(lambda path: ANSWERS.get(path, (404, {}))) as server:
        made = translator(server.url, on_error)
        with pytest.raises(SchemaUnknown) as raised:
            made.translate(records(made))
        assert [each.fingerprint for each in raised.value.at_fault] == [FACT]
        with_facts = pickle.loads(pickle.dumps(made.with_facts([FACT])))
        found, refused = with_facts.translate_or_refuse(records(made))
        assert found.column("n").to_pylist() == expected
        assert [position for position, _ in refused] == ([] if on_error == "null" else [1, 2, 3, 4, 5])
        for (_, why), wanted in zip(refused, WHY, strict=bool(refused)):
            assert why is None if on_error == "skip" else wanted.replace("URL", server.url) in str(why)


def test_whoever_fails_on_bad_records_names_the_first_and_records_no_fact() -> None:
    with Answering(lambda path: ANSWERS.get(path, (404, {}))) as server:
        made = translator(server.url, "fail")
        with pytest.raises(SchemaMismatch, match="offset 1 of partition 0 of topic 't', with schema id 3, is not"):
            made.translate(records(made))
        assert made.translate(records(made, VALUES[:1])).column("n").to_pylist() == [1]


def test_no_records_ask_no_registry() -> None:
    made = translator("http://127.0.0.1:1", "fail")
    assert made.translate(records(made, [])).num_rows == 0


def test_a_translator_by_topic_passes_on_what_is_recorded() -> None:
    with Answering(lambda path: ANSWERS.get(path, (404, {}))) as server:
        for made in (
            ByTopicTranslator(translator(server.url, "skip")),
            ByTopicTranslator().for_topic("t", translator(server.url, "skip")),
        ):
            assert made.with_facts([FACT]).translate(records(made)).column("n").to_pylist() == [1]
            with pytest.raises(SchemaUnknown):
                made.translate(records(made))
