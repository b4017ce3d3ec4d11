"""What the Kafka spouts read of a real cluster, and where they begin: patterns, partitions, every kind of start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from spouts.decoding.json_records import JsonTranslator
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka.start import GroupOffsets
from spouts.kafka.subscription import TopicPartitions, TopicPattern
from spouts.kafka.translators import ByTopicTranslator, SimpleTranslator
from spouts.kafka_admin import add_partitions, create_topic, delete_records, delete_topic
from tests.integration.kafka_topics import (
    BOTH,
    Opened,
    all_values,
    awaited,
    new_topic,
    planned,
    put,
    put_at,
    ranges,
    rows,
    transactional_producer,
    values,
)
from transactional.errors import ConfigError, SchemaMismatch
from transactional.model.batch import EMPTY_BATCH, Digest

pytestmark = pytest.mark.kafka


def made(bootstrap: str, name: str, *of_values: str, **config: str) -> str:
    """A topic of one partition with these values."""
    create_topic(bootstrap, name, config={key.replace("_", "."): value for key, value in config.items()})
    put(bootstrap, name, of_values)
    return name


# --- topics by pattern --------------------------------------------------------------------------------------------


@BOTH
def test_topics_that_match_are_read_and_those_that_come_join(
    bootstrap: str, opened: Opened, kind: type[KafkaSpout]
) -> None:
    """Storm row K8: the whole name has to match."""
    prefix = f"match-{kind.__name__}"
    made(bootstrap, f"{prefix}.b", "b")
    made(bootstrap, f"{prefix}.a", "a")
    made(bootstrap, f"{prefix}.a.not", "no")
    made(bootstrap, f"not.{prefix}.a", "no")
    spout = opened(kind, TopicPattern(rf"{prefix}\.[a-z]", refresh_ms=0))
    first = planned(spout)
    assert (spout.topics, values(spout, first)) == ((f"{prefix}.a", f"{prefix}.b"), ["a", "b"])
    identity = dict(spout.identity())
    made(bootstrap, f"{prefix}.c", "c")
    second = planned(spout, first)
    assert values(spout, second) == ["c"]
    assert spout.identity() == identity, "a restart is not refused because a topic has come"
    delete_topic(bootstrap, f"{prefix}.b")
    put(bootstrap, f"{prefix}.a", ["a2"])
    third = planned(spout, second)
    assert (values(spout, third), ranges(third)) == (["a2"], ["[1, 2)", "[1, 1)", "[1, 1)"])
    assert spout.topics == (f"{prefix}.a", f"{prefix}.c")


@BOTH
def test_no_topic_has_to_match_at_first(
    bootstrap: str, opened: Opened, kind: type[KafkaSpout], caplog: pytest.LogCaptureFixture
) -> None:
    name = f"later-{kind.__name__}"
    spout = opened(kind, TopicPattern(name, refresh_ms=0), start="latest")
    assert spout.plan(EMPTY_BATCH, replay=False) is None
    assert any(f"matches pattern {name} yet" in record.getMessage() for record in caplog.records)
    made(bootstrap, name, "a")
    assert values(spout, planned(spout)) == ["a"], "also under latest: it came while the spout was there"


def test_topics_are_looked_up_again_only_now_and_then(bootstrap: str, opened: Opened) -> None:
    spout = opened(OpaqueKafkaSpout, TopicPattern("seldom-.", refresh_ms=3_600_000))
    made(bootstrap, "seldom-a", "a")
    assert spout.plan(EMPTY_BATCH, replay=False) is None
    spout.open()
    assert values(spout, planned(spout)) == ["a"]


def test_internal_topics_never_match(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a"])
    mirrored = opened(OpaqueKafkaSpout, [topic], group_id="makes-the-topic-of-groups")
    mirrored.committed(planned(mirrored))
    mirrored.close()
    assert opened(OpaqueKafkaSpout, TopicPattern("__consumer_offsets")).topics == ()


def test_a_compacted_topic_that_comes_to_match_is_left_out_of_a_transactional_spout(
    bootstrap: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    pattern = TopicPattern("compact-.", refresh_ms=0)
    spout = opened(TransactionalKafkaSpout, pattern)
    create_topic(bootstrap, "compact-a", config={"cleanup.policy": "compact"})
    made(bootstrap, "compact-b", "b")
    assert values(spout, planned(spout)) == ["b"]
    assert [text for text in caplog.messages if "'compact-a' has cleanup.policy=compact" in text]
    with pytest.raises(ConfigError, match=r"'compact-a' has cleanup\.policy=compact"):
        opened(TransactionalKafkaSpout, pattern)


# --- fixed partitions ---------------------------------------------------------------------------------------------


@BOTH
def test_only_the_partitions_that_were_requested_are_read(
    bootstrap: str, opened: Opened, kind: type[KafkaSpout]
) -> None:
    topic = new_topic(bootstrap, 3)
    for partition in range(3):
        put(bootstrap, topic, [f"{partition}"], partition)
    spout = opened(kind, TopicPartitions({topic: [0, 2]}), fields=["partition", "value"])
    first = planned(spout)
    assert rows(spout, first) == [{"partition": 0, "value": "0"}, {"partition": 2, "value": "2"}]
    add_partitions(bootstrap, topic, 4)
    put(bootstrap, topic, ["no"], 3)
    assert spout.plan(first, replay=False) is None
    assert spout.identity()["topics"] == f"{topic}[0],{topic}[2]"


def test_a_partition_that_is_not_there_is_reported(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap, 2)
    with pytest.raises(ConfigError, match=f"'{topic}' at .* has 2 partitions, numbered from 0, and no partition 2"):
        opened(OpaqueKafkaSpout, TopicPartitions({topic: [0, 2]}))
    with pytest.raises(ConfigError, match="no topic 'nowhere'"):
        opened(OpaqueKafkaSpout, TopicPartitions({"nowhere": [0]}))


# --- where to begin -----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("start", [2_000, datetime(1970, 1, 1, 0, 0, 1, 1, UTC)])
def test_a_start_at_a_time(bootstrap: str, opened: Opened, kind: type[KafkaSpout], start: Any) -> None:
    topic = new_topic(bootstrap, 3)
    put_at(bootstrap, topic, [("a", 1_000), ("b", 2_000), ("c", 1_500), ("d", 3_000)], 0)
    put_at(bootstrap, topic, [("x", 1_000)], 1)
    spout = opened(kind, [topic], start=start)
    first = planned(spout)
    assert values(spout, first) == ["b", "c", "d"], "from the first record of that time or later"
    assert ranges(first) == ["[1, 4)", "[1, 1)", "[0, 0)"], "K7d: where none is that late, at the end"
    put_at(bootstrap, topic, [("y", 1_000)], 1)
    assert all_values(spout, first) == [["y"]]
    assert values(spout, planned(spout, replay=True)) == ["b", "c", "d", "y"], "a replay begins at the same place"


@BOTH
@pytest.mark.parametrize("end", [3_000, {"topic": {0: 3, 1: 1}}])
def test_a_backfill_ends_where_it_is_to_end(bootstrap: str, opened: Opened, kind: type[KafkaSpout], end: Any) -> None:
    topic = new_topic(bootstrap, 2)
    put_at(bootstrap, topic, [("a", 1_000), ("b", 2_000), ("c", 2_500), ("d", 3_000), ("e", 2_000)], 0)
    put_at(bootstrap, topic, [("x", 2_000)], 1)
    bounds = {topic: end["topic"]} if isinstance(end, dict) else end
    spout = opened(kind, [topic], start=2_000, end=bounds)
    first = planned(spout)
    assert values(spout, first) == ["b", "c", "x"], "up to the first record of that time or later"
    assert (spout.plan(first, replay=False), spout.lag(first)) == (None, 0)
    put_at(bootstrap, topic, [("y", 3_000)], 1)
    assert spout.plan(first, replay=False) is None
    on = opened(kind, [topic])
    assert sorted(values(on, planned(on, first))) == ["d", "e", "y"], "the next run may go on"


def test_a_start_at_a_time_that_an_open_transaction_holds(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    put_at(bootstrap, topic, [("old", 1_000)])
    with transactional_producer(bootstrap) as producer:
        producer.begin_transaction()
        for value, time_ms in (("older", 1_500), ("new", 2_500)):
            producer.produce(topic, value, partition=0, timestamp=time_ms)
        producer.flush(30)
        spout = opened(OpaqueKafkaSpout, [topic], start=2_000)
        assert spout.plan(EMPTY_BATCH, replay=False) is None
        producer.commit_transaction(30)
    assert values(spout, awaited(spout)) == ["new"]


@BOTH
def test_a_start_at_the_groups_offsets(bootstrap: str, opened: Opened, kind: type[KafkaSpout]) -> None:
    """Another topology, or a plain consumer, has got that far; the mirror's offsets are Kafka's own."""
    topic = new_topic(bootstrap, 2)
    put(bootstrap, topic, ["a", "b", "c"], 0)
    group = f"group-{topic}"
    before = opened(kind, TopicPartitions({topic: [0]}), group_id=group, batch_records_max=2)
    before.committed(planned(before))
    before.close()
    put(bootstrap, topic, ["x"], 1)
    own = opened(kind, [topic], start="group", group_id=group)
    assert values(own, planned(own)) == ["c", "x"]
    latest = opened(kind, [topic], start=GroupOffsets("latest", group))
    assert (ranges(planned(latest)), values(latest, planned(latest))) == (["[2, 3)", "[1, 1)"], ["c"])
    at_time = opened(kind, [topic], start=GroupOffsets(4_102_444_800_000), group_id=group)
    assert ranges(planned(at_time)) == ["[2, 3)", "[1, 1)"]
    unknown = opened(kind, [topic], start=GroupOffsets(group_id="nobody"))
    assert values(unknown, planned(unknown)) == ["a", "b", "c", "x"]


def test_a_groups_offset_that_retention_has_passed_is_reported(
    bootstrap: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b", "c"])
    group = f"group-{topic}"
    before = opened(OpaqueKafkaSpout, [topic], group_id=group, batch_records_max=1)
    before.committed(planned(before))
    before.close()
    delete_records(bootstrap, topic, {0: 2})
    spout = opened(TransactionalKafkaSpout, [topic], start="group", group_id=group)
    assert values(spout, planned(spout)) == ["c"]
    told = f"group '{group}' is at offset 1 of partition 0 of topic '{topic}', but the offsets available are [2, 3)"
    assert [text for text in caplog.messages if text.startswith(told)]


@BOTH
def test_a_start_at_given_offsets(bootstrap: str, opened: Opened, kind: type[KafkaSpout]) -> None:
    topic = new_topic(bootstrap, 2)
    put(bootstrap, topic, ["a", "b", "c"], 0)
    put(bootstrap, topic, ["x"], 1)
    spout = opened(kind, [topic], start={topic: {0: 2}})
    assert values(spout, planned(spout)) == ["c", "x"]
    with pytest.raises(ConfigError, match=rf"gives offset 4 for partition 0 of topic '{topic}'.* are \[0, 3\)"):
        opened(kind, [topic], start={topic: {0: 4}}).plan(EMPTY_BATCH, replay=False)


@pytest.mark.parametrize("start", ["earliest", "latest", 2_000, "group"])
def test_the_position_wins_over_every_start(bootstrap: str, opened: Opened, start: Any) -> None:
    """Storm row K4: also after a restart, also with another start than before."""
    topic = new_topic(bootstrap)
    put_at(bootstrap, topic, [(text, 1_000 * number) for number, text in enumerate("abcd", start=1)])
    first = planned(opened(OpaqueKafkaSpout, [topic], start={topic: {0: 0}}, batch_records_max=1))
    restarted = opened(OpaqueKafkaSpout, [topic], start=start, group_id=f"group-{topic}")
    assert values(restarted, planned(restarted, first)) == ["b", "c", "d"]


# --- limits and translators ---------------------------------------------------------------------------------------


def test_batches_by_bytes_follow_what_records_take(bootstrap: str, opened: Opened) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["x" * 1_000] * 400)
    spout = opened(OpaqueKafkaSpout, [topic], fields="value", batch_bytes_max=100_000)
    first = planned(spout)
    taken = sum(batch.nbytes for p, offsets in first.non_empty() for batch in spout.reader().read(p, offsets))
    assert len(values(spout, first)) < 100, "a careful guess"
    [(partition, offsets)] = first.non_empty()
    after = first.with_digests({partition: Digest(len(offsets), 0, taken)})
    assert 90 <= len(values(spout, planned(spout, after))) <= 100


@BOTH
def test_translators_make_the_tuples(bootstrap: str, opened: Opened, kind: type[KafkaSpout]) -> None:
    new, old = new_topic(bootstrap), new_topic(bootstrap)
    put(bootstrap, new, ['{"carrier": "AA", "delay": 5}', "?", '{"carrier": "BA"}'])
    put(bootstrap, old, ["CA 7", "", "DA 8"])
    both = (
        ByTopicTranslator()
        .for_topic(new, JsonTranslator("carrier string, delay long", on_error="skip"))
        .for_topic(old, SimpleTranslator(from_line, "carrier string, delay long"))
    )
    spout = opened(kind, [new, old], translator=both)
    batch = planned(spout)
    expected = [("AA", 5), ("BA", None), ("CA", 7), ("DA", 8)]
    assert [tuple(row.values()) for row in rows(spout, batch)] == expected
    assert [tuple(row.values()) for row in rows(spout, batch)] == expected
    strict = opened(kind, [new], translator=JsonTranslator("carrier string"))
    with pytest.raises(SchemaMismatch, match=f"at offset 1 of partition 0 of topic '{new}' is not a JSON object"):
        rows(strict, planned(strict))


def from_line(record: Any) -> tuple[str, int] | None:
    """`CA 7`; no tuple of an empty line."""
    carrier, _, delay = record.value.decode().partition(" ")
    return (carrier, int(delay)) if carrier else None
