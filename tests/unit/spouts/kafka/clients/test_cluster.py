"""What a Kafka spout refuses before it meets a broker, what it never shows, and how its partitions are named."""

from __future__ import annotations

from typing import Any

import pytest

from spouts.kafka.clients.cluster import KafkaConnection, has_id, is_secret, source_of, topic_of
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from transactional.errors import ConfigError, SourceUnavailable


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap_servers": " "}, "bootstrap_servers is empty"),
        ({"bootstrap_servers": "b:9092, http://c:9092"}, "as host:port, not 'http://c:9092': leave out http://,"),
        ({"topics": []}, "name at least one topic"),
        ({"topics": ["fli ghts"]}, "'fli ghts' is not a valid Kafka topic name"),
        ({"topics": [7]}, "7 is not a valid Kafka topic name"),
        ({"fields": ["ofset"]}, "no field 'ofset' — did you mean 'offset'"),
        ({"fields": []}, "fields is empty"),
        ({"fields": ["key", "key"]}, "key is declared more than once"),
        ({"value_type": "text"}, "value_type is 'binary' or 'string', not 'text'"),
        ({"start": "earlyest"}, "did you mean 'earliest'"),
        ({"isolation": "committed"}, "isolation is 'read_committed'"),
        ({"batch_records_max": 0}, "batch_records_max takes a whole number"),
        ({"timeout_ms": 0}, "timeout_ms takes a whole number"),
        (
            {"options": {"auto.offset.reset": "latest"}},
            r"the option 'auto\.offset\.reset' can't be set in options=: use start=",
        ),
        ({"options": {"enable.auto.commit": True}}, "group_id= mirrors them"),
    ],
)
def test_what_can_not_be_right_is_reported_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpaqueKafkaSpout(**{"bootstrap_servers": "localhost:9092", "topics": ["flights"], **options})


def test_a_protocol_of_kafkas_may_stand_before_an_address() -> None:
    servers = "PLAINTEXT://a:9092,SASL_SSL://b:9093"
    assert OpaqueKafkaSpout(servers, ["flights"]).connection.bootstrap_servers == servers


def test_a_single_topic_and_a_single_field_need_no_list() -> None:
    spout = TransactionalKafkaSpout("localhost:9092", "flights", fields="value", value_type="string")
    assert (spout.topics, str(spout.output)) == (("flights",), "value string")


def test_the_default_fields_are_storms() -> None:
    """Storm row K1."""
    output = OpaqueKafkaSpout("localhost:9092", ["flights"]).output
    assert str(output) == "topic string, partition int, offset long, key binary, value binary"


@pytest.mark.parametrize(
    "option",
    ["sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"],
)
def test_secrets_are_not_shown(option: str) -> None:
    spout = OpaqueKafkaSpout("localhost:9092", ["flights"], options={option: "hunter2", "client.id": "me"})
    assert is_secret(option)
    shown = f"{spout!r} {spout.reader()!r} {spout.connection.redact('wrong: hunter2')}"
    assert "hunter2" not in shown
    assert "'client.id': 'me'" in shown


def test_users_options_win_over_ours_but_not_over_the_address() -> None:
    """Storm row K2."""
    connection = KafkaConnection("here:1", options=(("socket.timeout.ms", 7),))
    assert connection.client_settings({"log_level": 3}) == {
        "bootstrap.servers": "here:1",
        "log_level": 3,
        "socket.timeout.ms": 7,
    }


def test_a_source_is_a_topic_and_the_beginning_of_its_id() -> None:
    assert source_of("flights", "gDKxAGA4R_qYXdPCWTGkjA") == "flights#gDKxAGA4"
    assert source_of("flights", None) == topic_of("flights#gDKxAGA4") == topic_of("flights") == "flights"
    assert (has_id("flights#gDKxAGA4"), has_id("flights")) == (True, False)


def test_a_spout_that_is_not_open_says_so() -> None:
    spout = OpaqueKafkaSpout("localhost:9092", ["flights"])
    with pytest.raises(SourceUnavailable, match=r"OpaqueKafkaSpout\('localhost:9092', .*call open"):
        spout.identity()
    spout.close()
