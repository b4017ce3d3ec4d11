"""The Kafka spouts at a broker with passwords and certificates: they get in, and nothing secret ever gets out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from tests.integration.kafka.guarded_broker import PASSWORD, STORE_PASSWORD, GuardedBroker, guarded_broker
from tests.integration.kafka_topics import new_topic, planned, put, values
from transactional.errors import ConfigError, SourceUnavailable, TransactionalError

pytestmark = pytest.mark.kafka

WRONG = "hunter2-wrong"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    guarded = guarded_broker(tmp_path_factory.mktemp("keys"))
    with guarded.broker:
        yield guarded


def address(guarded: GuardedBroker, protocol: str) -> tuple[str, dict[str, str]]:
    return (guarded.sasl, guarded.sasl_options) if protocol == "sasl" else (guarded.tls, guarded.tls_options)


@pytest.mark.parametrize("protocol", ["sasl", "tls"])
def test_a_spout_gets_in_with_its_options(guarded: GuardedBroker, protocol: str) -> None:
    topic = new_topic(guarded.broker.bootstrap)
    put(guarded.broker.bootstrap, topic, ["a", "b"])
    where, options = address(guarded, protocol)
    spout = TransactionalKafkaSpout(where, [topic], value_type="string", options=options, group_id="g")
    with closing(spout):
        spout.open()
        batch = planned(spout)
        assert values(spout, batch) == ["a", "b"]
        spout.committed(batch)
    assert secrets_in(f"{spout!r} {spout.reader()!r} {spout.connection!r}") == []


def secrets_in(text: str) -> list[str]:
    """The secrets of these tests that stand in a text."""
    return [secret for secret in (PASSWORD, STORE_PASSWORD, WRONG) if secret in text]


def told(error: BaseException | None) -> str:
    """An error with everything that its traceback would show."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("protocol", "change", "kind", "message"),
    [
        ("sasl", {"sasl.password": WRONG}, SourceUnavailable, "Authentication failed"),
        ("sasl", {"sasl.mechanism": "TELEPATHY"}, ConfigError, "TELEPATHY"),
        ("sasl", {"security.protocol": "PLAINTEXT"}, SourceUnavailable, "no Kafka broker"),
        ("tls", {"ssl.keystore.password": WRONG}, ConfigError, "keystore"),
        ("tls", {"ssl.ca.location": "/nowhere.pem"}, ConfigError, "nowhere"),
        ("tls", {"ssl.ca.location": "client.pem"}, SourceUnavailable, "certificate"),
    ],
)
def test_who_does_not_get_in_is_reported_without_secrets(
    guarded: GuardedBroker,
    protocol: str,
    change: Mapping[str, str],
    kind: type[TransactionalError],
    message: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    where, options = address(guarded, protocol)
    change = {n: str(guarded.folder / v) if v == "client.pem" else v for n, v in change.items()}
    options = {**options, **change}
    spout = OpaqueKafkaSpout(where, ["flights"], options=options, timeout_ms=1_500)
    with closing(spout), pytest.raises(kind, match=message) as caught:
        spout.open()
    printed = capfd.readouterr()
    assert secrets_in("\n".join([told(caught.value), caplog.text, printed.out, printed.err, repr(spout)])) == []


def test_a_reader_that_does_not_get_in_is_reported_without_secrets(guarded: GuardedBroker) -> None:
    topic = new_topic(guarded.broker.bootstrap)
    put(guarded.broker.bootstrap, topic, ["a"])
    options: dict[str, Any] = {"timeout_ms": 1_000, "options": guarded.sasl_options}
    spout = OpaqueKafkaSpout(guarded.sasl, [topic], **options)
    with closing(spout):
        spout.open()
        [(partition, offsets)] = planned(spout).non_empty()
    wrong = OpaqueKafkaSpout(
        guarded.sasl, [topic], **{**options, "options": {**guarded.sasl_options, "sasl.password": WRONG}}
    )
    reader: KafkaPartitionReader = wrong.reader()
    with pytest.raises(SourceUnavailable, match="Authentication failed") as caught:
        list(reader.read(partition, offsets))
    assert secrets_in(f"{told(caught.value)} {reader!r}") == []
