"""The local broker is a real Kafka: it keeps what it acknowledged, says why it can't start, and leaves no orphan."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from spouts import kafka_admin
from spouts.local_broker import LocalBroker
from spouts.local_broker_jvm import KAFKA_JARS
from tests.integration.kafka_topics import new_topic, put_at
from transactional.errors import ConfigError, OperatingError
from transactional.runtime.spark.jars import Jar, JarSet, find_java
from transactional.runtime.spark.session import DELTA_JARS

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[3]


def read(bootstrap: str, topic: str, partition: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        messages = consumer.consume(count, timeout=30)
        assert [message.error() for message in messages] == [None] * count
        return [(message.key(), message.value()) for message in messages]
    finally:
        consumer.close()


def test_records_come_back_in_their_order_from_the_partition_they_went_to(kafka_broker: LocalBroker) -> None:
    kafka_admin.create_topic(kafka_broker.bootstrap, "round-trip", partitions=2)
    records = [(number % 2, f"key-{number}", f"value-{number}") for number in range(1000)]

    assert kafka_admin.produce(kafka_broker.bootstrap, "round-trip", records) == 1000

    assert kafka_admin.watermarks(kafka_broker.bootstrap, "round-trip") == {0: (0, 500), 1: (0, 500)}
    odd = [(key.encode(), value.encode()) for partition, key, value in records if partition == 1]
    assert read(kafka_broker.bootstrap, "round-trip", 1, 500) == odd


def test_without_a_partition_equal_keys_go_to_one(kafka_broker: LocalBroker) -> None:
    kafka_admin.create_topic(kafka_broker.bootstrap, "by-key", partitions=3)
    kafka_admin.produce(kafka_broker.bootstrap, "by-key", [(None, "AA", str(number)) for number in range(300)])

    counts = [until for _, until in kafka_admin.watermarks(kafka_broker.bootstrap, "by-key").values()]
    assert sorted(counts) == [0, 0, 300]


def test_a_topic_grows_loses_its_head_and_goes(kafka_broker: LocalBroker) -> None:
    bootstrap = kafka_broker.bootstrap
    kafka_admin.create_topic(bootstrap, "changing", 1, {"retention.ms": "3600000"})
    kafka_admin.produce(bootstrap, "changing", [(0, None, b"x")] * 10)

    kafka_admin.add_partitions(bootstrap, "changing", 2)
    kafka_admin.delete_records(bootstrap, "changing", {0: 7})
    assert kafka_admin.watermarks(bootstrap, "changing") == {0: (7, 10), 1: (0, 0)}

    kafka_admin.delete_topic(bootstrap, "changing")
    with pytest.raises(OperatingError, match="could not delete topic 'changing'"):
        kafka_admin.delete_topic(bootstrap, "changing")


def test_what_the_cluster_refuses_is_an_error_that_names_it(kafka_broker: LocalBroker) -> None:
    bootstrap = kafka_broker.bootstrap
    kafka_admin.create_topic(bootstrap, "taken")
    with pytest.raises(OperatingError, match=r"could not create topic 'taken' at .*already exists"):
        kafka_admin.create_topic(bootstrap, "taken")
    with pytest.raises(OperatingError, match=r"topic 'taken' at .* were not acknowledged: .*UNKNOWN_PARTITION"):
        kafka_admin.produce(bootstrap, "taken", [(0, None, b"x"), (5, None, b"y")])


def test_records_for_a_topic_that_is_not_there_are_an_error(kafka_broker: LocalBroker) -> None:
    quickly = {"topic.metadata.propagation.max.ms": 100, "message.timeout.ms": 2000}
    with pytest.raises(OperatingError, match=r"1 of 1 records for topic 'nowhere' .*check that the topic"):
        kafka_admin.produce(kafka_broker.bootstrap, "nowhere", [(None, None, b"x")], quickly)


def test_the_same_directory_keeps_cluster_topics_and_records_over_kill_and_stop(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as first:
        cluster = kafka_admin.cluster_id(first.bootstrap)
        bootstrap = first.bootstrap
        kafka_admin.create_topic(bootstrap, "kept")
        kafka_admin.produce(bootstrap, "kept", [(0, "a", "1"), (0, "b", "2")])
        first.kill()
        first.start()
        assert first.bootstrap == bootstrap
        assert kafka_admin.watermarks(bootstrap, "kept") == {0: (0, 2)}

    with LocalBroker(tmp_path, overrides={"log.retention.hours": "-1"}) as second:
        assert kafka_admin.cluster_id(second.bootstrap) == cluster
        assert read(second.bootstrap, "kept", 0, 2) == [(b"a", b"1"), (b"b", b"2")]


def test_a_temporary_directory_goes_with_its_broker() -> None:
    broker = LocalBroker()
    with pytest.raises(ConfigError, match="no address yet"):
        _ = broker.bootstrap
    directory = broker.directory
    assert directory.is_dir()
    broker.close()
    assert not directory.exists()


def test_a_wrong_setting_is_shown_as_kafka_shows_it(tmp_path: Path) -> None:
    with pytest.raises(OperatingError) as caught:
        LocalBroker(tmp_path, overrides={"num.io.threads": "0"}).start()
    assert re.search(r"could not format a storage in .*Value must be at least 1", str(caught.value), re.DOTALL)


def test_no_second_broker_starts_in_a_directory_that_is_in_use(kafka_broker: LocalBroker) -> None:
    printed = kafka_broker.log.read_text().count("RaftManager")
    with pytest.raises(OperatingError, match=f"another Kafka broker is running in {kafka_broker.directory}"):
        LocalBroker(kafka_broker.directory).start()
    assert kafka_broker.log.read_text().count("RaftManager") == printed, "it has not even begun"
    kafka_admin.create_topic(kafka_broker.bootstrap, "and-the-first-goes-on")


def test_a_port_that_is_taken_is_reported_before_the_broker_starts(kafka_broker: LocalBroker, tmp_path: Path) -> None:
    port = int(kafka_broker.bootstrap.split(":")[1])
    second = LocalBroker(tmp_path, port=port)
    with pytest.raises(OperatingError, match=f"port {port} of 127.0.0.1 is taken, .* another port; without one"):
        second.start()
    assert not second.log.exists(), "no JVM was started"
    assert kafka_admin.cluster_id(kafka_broker.bootstrap) is not None


def setting(broker: LocalBroker, topic: str, name: str) -> str | None:
    """What holds for a topic."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    [answer] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    found: str | None = answer.result(30)[name].value
    return found


def test_records_are_kept_whatever_their_times(kafka_broker: LocalBroker) -> None:
    """The broker's own retention runs twice a second, and by default forgets what is older than a week."""
    topic = new_topic(kafka_broker.bootstrap)
    put_at(kafka_broker.bootstrap, topic, [("1970", 0), ("2023", 1_700_000_000_000), ("3000", 32_503_680_000_000)])
    assert read(kafka_broker.bootstrap, topic, 0, 3) == [(None, b"1970"), (None, b"2023"), (None, b"3000")]
    assert setting(kafka_broker, topic, "retention.ms") == "-1"


@pytest.mark.long("test_records_are_kept_whatever_their_times")
def test_a_retention_in_hours_goes_before_ours(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, overrides={"log.retention.hours": "5"}) as broker:
        kafka_admin.create_topic(broker.bootstrap, "short")
        assert setting(broker, "short", "retention.ms") == str(5 * 3_600_000)


def test_java_that_is_missing_or_too_old_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is none at '/nowhere/java': install Java 17 or newer"):
        LocalBroker(tmp_path, java="/nowhere/java").start()

    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    with pytest.raises(ConfigError, match=r"Java 17 or newer is needed, but .*/java says .*11\.0\.2"):
        find_java(str(old))


def await_closed(host: str, port: int) -> None:
    """Return when nobody listens there any more; each connection made meanwhile waits for its end, not for a while."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=30) as connection:
                assert connection.recv(1) == b""
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue


def test_no_broker_is_left_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = """
        import sys
        from spouts.local_broker import LocalBroker
        print(LocalBroker(sys.argv[1]).start().bootstrap, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        host, port = parent.stdout.readline().split(":")
        parent.kill()
        await_closed(host, int(port))


def test_a_jar_that_is_not_the_locked_one_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jars = JarSet("some", tmp_path / "some.lock")
    downloaded, folder = tmp_path / "downloaded", jars.folder()
    downloaded.mkdir()
    folder.mkdir(parents=True)
    right = Jar("org", "right", "1", hashlib.sha256(b"jar").hexdigest())
    wrong = Jar("org", "wrong", "1", hashlib.sha256(b"another").hexdigest())
    for jar in (right, wrong):
        (downloaded / jar.file_name).write_bytes(b"jar")

    with pytest.raises(OperatingError, match=r"wrong-1\.jar was downloaded with SHA-256 .*, but some\.lock says"):
        jars.install([right, wrong], downloaded)
    assert [file.name for file in folder.iterdir()] == ["right-1.jar"]


@pytest.mark.parametrize(("jar_set", "least"), [(KAFKA_JARS, 40), (DELTA_JARS, 5)])
def test_a_lock_names_each_jar_once_with_a_full_hash(jar_set: JarSet, least: int) -> None:
    jars = jar_set.jars()
    assert len({jar.file_name for jar in jars}) == len(jars) >= least
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in jars)
