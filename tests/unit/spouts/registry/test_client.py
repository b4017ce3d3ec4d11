"""The client of a schema registry: what it remembers, when it gives up, and what it never shows."""

from __future__ import annotations

import pickle
import socket
from typing import Any

import pyarrow as pa
import pytest

from spouts.registry import client
from spouts.registry.client import Registry, registry_of
from spouts.registry.framing import Unframed
from spouts.registry.schemas import RegisteredSchema, SchemaId
from tests.unit.spouts.registry.answering import Answer, Answering
from transactional.errors import ConfigError, SchemaUnknown, SourceUnavailable
from transactional.model.letters import Exclusion

NOT_FOUND: Answer = 404, {"error_code": 40403, "message": "Schema not found"}
OBJECT = '{"type": "object"}'
JSON: Answer = 200, {"schemaType": "JSON", "schema": OBJECT}
SECRETS = ("hunter2", "c29tZWJvZHk6aHVudGVyMg==")


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test knows what another has asked."""
    monkeypatch.setattr(client, "_memories", {})
    monkeypatch.setattr(client, "_RETRY_S", 0.001)


def framed(*counts: int, of: int | None = None) -> Unframed:
    """Records with ids from 1 on, so many of each, `of` so many in all."""
    starts = [sum(counts[:number]) for number in range(len(counts))]
    positions: dict[SchemaId, pa.Array] = {
        number + 1: pa.array(range(start, start + counts[number]), pa.int64()) for number, start in enumerate(starts)
    }
    return Unframed(pa.nulls(of or sum(counts), pa.binary()), positions, (), "values of topic 't'")


def quick(url: str, **options: Any) -> Registry:
    return Registry(url, **{"timeout_ms": 2_000, "unknown_id_wait_ms": 0, **options})


def test_a_schema_is_asked_for_once_by_all_clients_of_a_registry() -> None:
    with Answering(lambda _: JSON) as server:
        for registry in (quick(server.url), quick(server.url), pickle.loads(pickle.dumps(quick(server.url)))):
            assert registry.schema(7) == RegisteredSchema(7, "JSON", OBJECT)
    assert [path for path, _ in server.asked] == ["/schemas/ids/7"]


def test_what_a_schema_refers_to_stands_before_it_and_each_once() -> None:
    def named(name: str) -> dict[str, Any]:
        return {"name": name, "subject": f"{name}/x", "version": 2}

    answers: dict[str, Answer] = {
        "/schemas/ids/1": (200, {"schema": "1", "references": [named("a"), named("b")]}),
        "/subjects/a%2Fx/versions/2": (200, {"id": 11, "schema": "A", "references": [named("b")]}),
        "/subjects/b%2Fx/versions/2": (200, {"id": 12, "schema": "B"}),
    }
    with Answering(answers.__getitem__) as server:
        found = quick(server.url).schema(1)
    assert found is not None
    assert [(each.name, each.id, each.text) for each in found.references] == [("b", 12, "B"), ("a", 11, "A")]
    assert (found.kind, found.text) == ("AVRO", "1")


def test_a_schema_whose_reference_is_unknown_is_unknown() -> None:
    reference = {"name": "a", "subject": "a", "version": 1}
    with Answering(
        lambda path: NOT_FOUND if "subjects" in path else (200, {"schema": "", "references": [reference]})
    ) as s:
        assert quick(s.url).schema(1) is None


def test_an_unknown_id_is_asked_for_until_the_wait_is_over() -> None:
    answers = iter([NOT_FOUND, NOT_FOUND, JSON])
    with Answering(lambda _: next(answers)) as server:
        [found] = quick(server.url, unknown_id_wait_ms=60_000).schemas(framed(1)).values()
    assert found is not None


def test_an_unknown_id_becomes_a_fact_by_which_every_attempt_goes() -> None:
    given = [NOT_FOUND, JSON]
    with Answering(lambda _: given[0]) as server:
        registry = quick(server.url)
        with pytest.raises(SchemaUnknown, match="does not know schema id 1, which values of topic 't' have") as raised:
            registry.schemas(framed(1))
        [fact] = [each.fingerprint for each in raised.value.at_fault]
        assert raised.value.at_fault == (Exclusion("", fact, registry.unknown_text(1)),)
        given.pop(0)
        assert registry.schemas(framed(1), [fact]) == {1: None}, "also when the registry knows it by now"
        assert registry.schemas(framed(1))[1] is not None, "a no is not remembered"


def test_who_fails_on_unknown_ids_records_none() -> None:
    with Answering(lambda _: NOT_FOUND) as server:
        assert quick(server.url).schemas(framed(50), records=False) == {1: None}


@pytest.mark.parametrize(("unknown", "of", "is_much"), [(10, 10, False), (11, 1_100, False), (11, 1_099, True)])
def test_too_many_unknown_ids_are_of_another_registry(unknown: int, of: int, is_much: bool) -> None:  # noqa: FBT001
    with Answering(lambda _: NOT_FOUND) as server, pytest.raises(SchemaUnknown) as raised:
        quick(server.url).schemas(framed(unknown, of=of))
    assert (not raised.value.at_fault) == is_much
    assert (f"{unknown} of {of} values of topic 't' have ids" in str(raised.value)) == is_much


@pytest.mark.parametrize(
    "answer",
    [
        *((503, {}), (500, {}), (429, {}), (200, b"<html>"), (200, [1]), (200, {"schema": 1})),
        *((200, b"[" * 200_000), (200, {"schema": "", "schemaType": 5})),
        *((200, {"schema": "", "references": given}) for given in (7, [7], [{"name": "a"}])),
    ],
)
def test_what_is_no_answer_is_an_outage(answer: Answer) -> None:
    with (
        Answering(lambda _: answer) as server,
        pytest.raises(
            SourceUnavailable, match=rf"{server.url}.* (as no schema registry does|Check that it is running)"
        ),
    ):
        quick(server.url, timeout_ms=60).schema(1)


def test_addresses_are_asked_in_turn_until_one_answers() -> None:
    answers = iter([(503, {}), (503, {}), JSON])
    with Answering(lambda _: next(answers)) as one, Answering(lambda _: next(answers)) as two:
        registry = Registry([one.url, two.url], timeout_ms=60_000)
        assert registry.schema(1) is not None
    assert (len(one.asked), len(two.asked)) == (2, 1)


def test_an_address_that_never_answers_leaves_time_for_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Answering(lambda _: JSON) as server:
        registry = Registry([f"http://127.0.0.1:{silent.getsockname()[1]}", server.url], timeout_ms=1_000)
        assert registry.schema(1) is not None


def test_credentials_are_sent_and_never_shown() -> None:
    with Answering(lambda _: (401, {})) as server:
        login = server.url.replace("://", "://somebody:hunter2@")
        for registry in (quick(login), quick(server.url, auth=("somebody", "hunter2"))):
            with pytest.raises(ConfigError, match="refuses the credentials") as raised:
                registry.schema(1)
            assert not any(secret in f"{raised.value!r}{registry!r}{registry.connection!r}" for secret in SECRETS)
    assert {header for _, header in server.asked} == {f"Basic {SECRETS[1]}"}
    with Answering(lambda _: JSON) as server:
        registry = pickle.loads(pickle.dumps(quick(server.url, token="hunter2")))
        assert "hunter2" not in repr(registry)
        assert registry.schema(1)
    assert server.asked == [("/schemas/ids/1", "Bearer hunter2")]


def test_a_login_in_a_url_may_be_quoted() -> None:
    with Answering(lambda _: JSON) as server:
        assert quick(server.url.replace("://", "://some%62ody:%68unter2@")).schema(1)
    assert server.asked == [("/schemas/ids/1", f"Basic {SECRETS[1]}")]


def test_credentials_do_not_follow_a_redirection() -> None:
    with Answering(lambda _: JSON) as other, Answering(lambda path: (302, other.url + path)) as server:
        assert quick(server.url, auth=("somebody", "hunter2")).schema(1)
    assert (server.asked[0][1], other.asked[0][1]) == (f"Basic {SECRETS[1]}", None)


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("registry:8081", {}, "is not the URL of a schema registry"),
        ("ftp://registry", {}, "is not the URL"),
        ("http://somebody:hunter2@registry?token=hunter2", {}, "'http://registry' is not the URL"),
        ("http://a:hunter2@[::1", {}, "can't be read; one is 'https://registry:8081'"),
        ("http://r", {"auth": "a:hunter2"}, "auth is a pair of texts"),
        ([], {}, "needs a URL"),
        ("http://r", {"auth": ("a", "hunter2"), "token": "hunter2"}, "not both"),
        ("http://a:b@r", {"auth": ("a", "hunter2")}, "two logins"),
        ("http://r", {"token": "hunter2\n"}, "has a line break"),
        ("http://r", {"timeout_ms": 0}, "timeout_ms is at least 1"),
        ("http://r", {"ca": "/no/such/file"}, "'/no/such/file' can't be read"),
    ],
)
def test_what_is_no_registry_is_refused(url: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as raised:
        Registry(url, **options)
    assert "hunter2" not in str(raised.value)


def test_a_url_is_a_registry() -> None:
    registry = Registry("http://r/")
    assert registry_of(registry) is registry
    assert repr(registry_of("http://r/")) == repr(registry) == "Registry('http://r')"
