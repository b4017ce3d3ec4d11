"""The Kafka spouts' planning against a real broker: what is planned, refused, mirrored, and told when things break."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer

from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import add_partitions, create_topic, delete_records, delete_topic
from tests.integration.kafka_topics import (
    BOTH,
    TIMEOUT_MS,
    Opened,
    awaited,
    group_offsets,
    in_transaction,
    new_topic,
    planned,
    put,
    ranges,
    rows,
    span,
    transactional_producer,
    values,
)
from transactional.errors import BatchLost, ConfigError, ReplayMismatch, SourceUnavailable
from transactional.model.batch import EMPTY_BATCH, BatchMetadata

pytestmark = pytest.mark.kafka

NOWHERE = "127.0.0.1:1"


# --- ranges -------------------------------------------------------------------------------------------------------


@BOTH
def test_two_growing_partitions_are_read_in_exact_ranges(
    bootstrap: str, opened: Opened, kind: type[KafkaSpout]
) -> None:
    topic = new_topic(bootstrap, 2)
    spout = opened(kind, topic)
    put(bootstrap, topic, ["a", "b", "c"], 0)
    first = planned(spout)
    assert (ranges(first), values(spout, first)) == (["[0, 3)", "[0, 0)"], ["a", "b", "c"])
    put(bootstrap, topic, ["x", "y"], 1)
    put(bootstrap, topic, ["d"], 0)
    second = planned(spout, first)
    assert (ranges(second), values(spout, second)) == (["[3, 4)", "[0, 2)"], ["d", "x", "y"])
    assert spout.plan(second, replay=False) is None


@BOTH
def test_several_topics_are_one_source(bootstrap: str, opened: Opened, kind: type[KafkaSpout]) -> None:
    one, other = sorted([new_topic(bootstrap), new_topic(bootstrap)])
    put(bootstrap, one, ["a"])
    put(bootstrap, other, ["b"])
    spout = opened(kind, [other, one], fields=("topic", "value"))
    assert rows(spout, planned(spout)) == [{"topic": one, "value": "a"}, {"topic": other, "value": "b"}]


@BOTH
def test_a_partition_that_is_added_joins_from_its_beginning(
    bootstrap: str, opened: Opened, kind: type[KafkaSpout]
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a"])
    spout = opened(kind, topic)
    first = planned(spout)
    add_partitions(bootstrap, topic, 2)
    put(bootstrap, topic, ["x"], 1)
    assert ranges(planned(spout, first)) == ["[1, 1)", "[0, 1)"]


def test_a_batch_ends_at_the_last_stable_offset(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    spout = opened(TransactionalKafkaSpout, topic)
    dirty = opened(OpaqueKafkaSpout, topic, isolation="read_uncommitted")
    with transactional_producer(bootstrap) as producer:
        in_transaction(producer, topic, ["a", "b"], outcome="commit")
        in_transaction(producer, topic, ["c"], outcome="open")
        first = planned(spout)
        assert (ranges(first), values(spout, first)) == (["[0, 3)"], ["a", "b"]), "two records and a control record"
        assert values(dirty, planned(dirty)) == ["a", "b", "c"]
        assert spout.plan(first, replay=False) is None
        producer.commit_transaction(30)
        assert values(spout, awaited(spout, first)) == ["c"]


# --- where to begin -----------------------------------------------------------------------------------------------


@BOTH
def test_latest_is_the_end_when_the_topology_first_runs(bootstrap: str, opened: Opened, kind: type[KafkaSpout]) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["old"])
    spout = opened(kind, topic, start="latest")
    first = planned(spout)
    assert ranges(first) == ["[1, 1)"]
    put(bootstrap, topic, ["new"])
    assert values(spout, planned(spout, first)) == ["new"]
    assert values(spout, planned(spout)) == ["new"], "a replay of the first batch starts at the same place"
    restarted = opened(kind, topic, start="latest")
    assert values(restarted, planned(restarted, first)) == ["new"]
    add_partitions(bootstrap, topic, 2)
    put(bootstrap, topic, ["x"], 1)
    assert values(restarted, planned(restarted, first)) == ["new", "x"]


# --- what is lost -------------------------------------------------------------------------------------------------


def test_retention_that_is_quicker_stops_a_transactional_spout(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b", "c", "d"])
    spout = opened(TransactionalKafkaSpout, topic, batch_records_max=1)
    first = planned(spout)
    spout.check_replay(first)
    delete_records(bootstrap, topic, {0: 3})
    with pytest.raises(BatchLost, match=rf"{topic}.*\[1, 3\).*the available offsets are \[3, 4\).*opaque"):
        spout.plan(first, replay=False)
    with pytest.raises(BatchLost, match=r"\[0, 1\).*the available offsets are \[3, 4\)"):
        spout.check_replay(first)
    assert spout.lag(first) == 1, "of the four, one was read and two are lost"


def test_retention_that_is_quicker_makes_a_gap_for_an_opaque_spout(
    bootstrap: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b", "c", "d"])
    spout = opened(OpaqueKafkaSpout, topic, batch_records_max=1)
    first = planned(spout)
    delete_records(bootstrap, topic, {0: 3})
    assert spout.plan(first, replay=True) == spout.plan(first, replay=False)
    second = planned(spout, first)
    assert (ranges(second), values(spout, second), spout.lost_offsets) == (["[3, 4)"], ["d"], 2)
    spout.check_replay(first)
    assert [record.getMessage() for record in caplog.records if "lost" in record.getMessage()] == [
        f"{next(iter(second.ranges))} has lost [1, 3); 2 offsets were never read and are skipped"
    ]


def recreate(bootstrap: str, topic: str) -> None:
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic)


def test_an_opaque_spout_goes_on_with_a_topic_that_is_created_anew(
    bootstrap: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b"])
    spout = opened(OpaqueKafkaSpout, topic)
    first = planned(spout)
    delete_topic(bootstrap, topic)
    assert spout.plan(first, replay=False) is None
    create_topic(bootstrap, topic)
    put(bootstrap, topic, ["x", "y", "z"])  # more than the old one had: the offsets alone don't tell
    second = planned(spout, first)
    assert values(spout, second) == ["x", "y", "z"]
    assert sorted(ranges(second)) == ["[0, 3)", "[2, 2)"], "the old position stays what it was"
    assert spout.plan(second, replay=False) is None
    restarted = opened(OpaqueKafkaSpout, topic)
    assert (restarted.plan(second, replay=False), restarted.identity()) == (None, spout.identity())
    assert values(restarted, planned(restarted, first, replay=True)) == ["x", "y", "z"]
    assert any("was recreated" in record.getMessage() for record in caplog.records)


def test_records_of_a_topic_that_is_created_anew_have_another_source_id(bootstrap: str, opened: Opened) -> None:
    """Its offsets are the same: `topic`, `partition` and `offset` alone are no key."""
    topic, batch = new_topic(bootstrap), EMPTY_BATCH
    found: list[tuple[Any, ...]] = []
    for value in ("a", "x"):
        put(bootstrap, topic, [value])
        spout = opened(OpaqueKafkaSpout, topic, fields=("topic", "partition", "offset", "source_id"))
        batch = planned(spout, batch)
        found += [tuple(row.values()) for row in rows(spout, batch)]
        recreate(bootstrap, topic)
    assert {row[:3] for row in found} == {(topic, 0, 0)}
    assert len({row[3] for row in found}) == 2
    assert all(row[3] for row in found)


def test_a_transactional_spout_stops_when_a_topic_is_created_anew(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b"])
    spout = opened(TransactionalKafkaSpout, topic)
    first = planned(spout)
    identity = dict(spout.identity())
    recreate(bootstrap, topic)
    put(bootstrap, topic, ["x", "y"])
    told = rf"topic '{topic}' was recreated.*there is now \[0, 2\).*Opaque"
    with pytest.raises(BatchLost, match=told):
        spout.plan(first, replay=False)
    with pytest.raises(BatchLost, match=told):
        spout.check_replay(first)
    assert opened(TransactionalKafkaSpout, topic).identity() != identity


@BOTH
def test_a_range_of_a_topic_that_is_gone_is_not_read_from_its_successor(
    bootstrap: str, opened: Opened, kind: type[KafkaSpout]
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b"])
    spout = opened(kind, topic)
    first = planned(spout)
    recreate(bootstrap, topic)
    put(bootstrap, topic, ["x", "y"])
    with pytest.raises(ReplayMismatch, match=f"partition 0 of topic '{topic}'.*was recreated"):
        spout.check_read(first)
    delete_topic(bootstrap, topic)
    with pytest.raises(ReplayMismatch, match=f"partition 0 of topic '{topic}'.*is gone"):
        spout.check_read(first)


def test_a_position_beyond_the_end_is_reported_and_not_guessed(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a"])
    spout = opened(OpaqueKafkaSpout, topic)
    [(partition, _)] = planned(spout).ranges.items()
    with pytest.raises(SourceUnavailable, match=r"offset 7 is expected, but the available offsets are \[0, 1\)"):
        spout.plan(BatchMetadata({partition: span(5, 7)}), replay=False)


# --- opening ------------------------------------------------------------------------------------------------------


@BOTH
def test_an_address_where_nobody_answers_is_reported_in_time(
    kind: type[KafkaSpout], capfd: pytest.CaptureFixture[str]
) -> None:
    spout = kind(NOWHERE, ["flights"], timeout_ms=1_000)
    started = time.monotonic()
    with pytest.raises(SourceUnavailable, match=f"no Kafka broker at {NOWHERE} answers within 1000 ms: .*refused"):
        spout.open()
    assert time.monotonic() - started < 5
    with closing(spout), pytest.raises(SourceUnavailable, match="answers within 1000 ms"):
        spout.plan(EMPTY_BATCH, replay=False)
    assert spout.lag(EMPTY_BATCH) is None
    assert capfd.readouterr() == ("", "")


@BOTH
def test_a_missing_topic_is_reported_with_its_neighbours(bootstrap: str, kind: type[KafkaSpout]) -> None:
    create_topic(bootstrap, f"flights-{kind.__name__}")
    with pytest.raises(ConfigError, match=rf"no topic 'flight-{kind.__name__}' at .*mean 'flights-{kind.__name__}'"):
        kind(bootstrap, [f"flight-{kind.__name__}"], timeout_ms=TIMEOUT_MS).open()


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_for_opaque_spouts_only(bootstrap: str, opened: Opened, policy: str) -> None:
    topic = new_topic(bootstrap, config={"cleanup.policy": policy})
    with pytest.raises(ConfigError, match=f"'{topic}' has cleanup.policy=.*use OpaqueKafkaSpout"):
        opened(TransactionalKafkaSpout, topic)
    assert planned(opened(OpaqueKafkaSpout, topic), replay=True).is_empty


def test_a_wrong_option_is_reported_without_secrets(bootstrap: str) -> None:
    options = {"sasl.password": "hunter2", "sasl.mechanism": "TELEPATHY", "security.protocol": "sasl_plaintext"}
    spout = OpaqueKafkaSpout(bootstrap, ["flights"], options=options)
    with pytest.raises(ConfigError, match=r"options=.*TELEPATHY") as caught:
        spout.open()
    assert "hunter2" not in f"{caught.value} {spout!r} {spout.reader()!r}"


# --- the consumer group -------------------------------------------------------------------------------------------


def test_committed_positions_are_mirrored_to_the_group(bootstrap: str, opened: Opened) -> None:
    """Storm row K7f."""
    topic = new_topic(bootstrap, 2)
    put(bootstrap, topic, ["a", "b", "c"], 0)
    put(bootstrap, topic, ["x"], 1)
    spout = opened(OpaqueKafkaSpout, topic, group_id=f"group-{topic}", batch_records_max=2)
    after = EMPTY_BATCH
    for _ in range(2):
        after = planned(spout, after)
        spout.committed(after)
    spout.close()
    assert group_offsets(bootstrap, f"group-{topic}") == {0: 3, 1: 1}


def test_a_mirror_that_is_refused_is_only_logged(
    bootstrap: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a"])
    group = {"group.id": f"group-{topic}", "auto.offset.reset": "earliest", "log_level": 0}
    member = Consumer({"bootstrap.servers": bootstrap, **group})
    with closing(member):
        member.subscribe([topic])
        assert member.consume(1, 30), "a group with members keeps its own offsets"
        spout = opened(OpaqueKafkaSpout, topic, group_id=group["group.id"])
        spout.committed(planned(spout))
        spout.close()
    assert [
        each.getMessage() for each in caplog.records if f"consumer group '{group['group.id']}'" in each.getMessage()
    ]
