"""Whole runs over a real broker, whose topics change between two attempts: every record that is there is counted once.

The bolts run in this process, so that a test can reach into the middle of an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka.subscription import TopicPattern
from spouts.kafka_admin import add_partitions, create_topic, delete_topic, watermarks
from spouts.local_broker import LocalBroker
from spouts.planning import Limits
from state.memory import MemoryMapState
from tests.integration.kafka_topics import (
    BOTH,
    TIMEOUT_MS,
    in_transaction,
    new_topic,
    planned,
    put,
    put_at,
    span,
    transactional_producer,
    values,
)
from transactional import FailedException, RunSummary, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.errors import BatchLost

pytestmark = pytest.mark.kafka


INTERRUPTIONS: dict[str, Callable[[], None]] = {}
"""What happens, once, when a value is parsed; the attempt fails then."""


@pytest.fixture
def bootstrap(kafka_broker: LocalBroker) -> Iterator[str]:
    yield kafka_broker.bootstrap
    assert INTERRUPTIONS == {}, "these were never reached"


def parse(tuple: Tuple) -> Any:
    """The value, unless something comes between."""
    happens = INTERRUPTIONS.pop(tuple["value"], None)
    if happens is not None:
        happens()
        raise FailedException(f"interrupted at {tuple['value']!r}")
    return (tuple["value"],)


def run(spout: KafkaSpout, folder: Path, *, parallelism: int = 1) -> tuple[RunSummary, dict[str, int]]:
    """Run until everything is read; what it did, and how often each value was counted."""
    counts = MemoryMapState("value string")
    builder = TransactionalTopologyBuilder("runs", "records", spout, parallelism=parallelism)
    builder.set_bolt("parse", parse, output="value string").shuffle_grouping("records")
    builder.set_committer_bolt("count", counts.count()).fields_grouping("parse", "value")
    config = TopologyConfig(stop_when_drained=True, retry_pause_ms=10, attempts_max=9)
    store = f"sqlite:///{folder}/store.db"
    summary = run_topology(builder.build(), store=store, config=config, master="none")
    return summary, {row["value"]: row["count"] for row in counts.read().to_pylist()}


def spout_over(kind: type[KafkaSpout], bootstrap: str, topics: Any, **options: Any) -> KafkaSpout:
    return kind(bootstrap, topics, **{"value_type": "string", "timeout_ms": TIMEOUT_MS, **options})


def awaited(what: str, seen: Callable[[], bool]) -> None:
    """Ask until the broker has done what it does by itself."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if seen():
            return
    raise AssertionError(f"the broker did not: {what}")


# --- what the log holds -------------------------------------------------------------------------------------------


@BOTH
def test_aborted_and_control_records_are_never_counted(bootstrap: str, tmp_path: Path, kind: type[KafkaSpout]) -> None:
    topic = new_topic(bootstrap)
    with transactional_producer(bootstrap) as producer:
        for number in range(4):
            in_transaction(producer, topic, [f"a{number}", f"b{number}"], outcome="commit")
            in_transaction(producer, topic, ["no"] * (number + 1), outcome="abort")
    wanted = {f"{letter}{number}": 1 for letter in "ab" for number in range(4)}
    INTERRUPTIONS.update({"b0": lambda: None, "a2": lambda: None})
    summary, counted = run(spout_over(kind, bootstrap, [topic], batch_records_max=3), tmp_path)
    assert (counted, summary.failures) == (wanted, 2)
    assert summary.transactions == 9, "26 offsets, 3 in a batch, whatever is in them"


def test_a_compacted_range_is_read_to_its_end(bootstrap: str) -> None:
    """Compaction removes records out of the batch, the last ones too, between two attempts."""
    always = {"min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000", "min.compaction.lag.ms": "0"}
    topic = new_topic(bootstrap, config={"cleanup.policy": "compact", **always})
    keyed = [("k1", "a"), ("k2", "b"), ("k1", "c"), ("k2", "d")]
    with closing(spout_over(OpaqueKafkaSpout, bootstrap, [topic])) as spout:
        spout.open()
        put_at(bootstrap, topic, [(value, 1_000) for _, value in keyed], keys=[key for key, _ in keyed])
        batch = planned(spout)
        assert values(spout, batch) == ["a", "b", "c", "d"]
        # Records of a later time begin a new segment; only old segments are compacted.
        put_at(bootstrap, topic, [("e", 10_000), ("f", 20_000)], keys=["k1", "k2"])
        put_at(bootstrap, topic, [("g", 30_000)], keys=["k3"])
        awaited("compact", lambda: values(spout, batch) == [])
        assert values(spout, planned(spout, batch)) == ["e", "f", "g"]
        assert spout.lost_offsets == 0, "nothing that was not read is missing"


@BOTH
def test_a_range_that_several_tasks_read_is_counted_once(
    bootstrap: str, tmp_path: Path, kind: type[KafkaSpout]
) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, [str(number) for number in range(95)])
    INTERRUPTIONS["77"] = lambda: None
    spout = spout_over(kind, bootstrap, [topic], batch_records_max=50, split_records=10)
    summary, counted = run(spout, tmp_path, parallelism=3)
    assert counted == {str(number): 1 for number in range(95)}
    assert (summary.transactions, summary.failures) == (2, 1)


# --- what is lost between two attempts ----------------------------------------------------------------------------


def retention_strikes(bootstrap: str, topic: str, until: int) -> None:
    """Let the broker's own retention remove the old records."""
    entry = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    [done] = admin.incremental_alter_configs([resource]).values()
    done.result(30)
    awaited("remove the old records", lambda: watermarks(bootstrap, topic)[0][0] == until)


def old_and_new(bootstrap: str) -> str:
    """A topic whose first four records are too old for any retention, once there is one."""
    topic = new_topic(bootstrap)
    put_at(bootstrap, topic, [(value, 1_000) for value in "abcd"])

    def lose() -> None:
        retention_strikes(bootstrap, topic, 4)
        put(bootstrap, topic, ["e", "f"])

    INTERRUPTIONS["c"] = lose
    return topic


def test_an_opaque_run_goes_on_over_the_gap_and_shows_it(
    bootstrap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spout = spout_over(OpaqueKafkaSpout, bootstrap, [old_and_new(bootstrap)], batch_records_max=2)
    summary, counted = run(spout, tmp_path)
    assert counted == {"a": 1, "b": 1, "e": 1, "f": 1}
    assert (summary.transactions, summary.failures, spout.lost_offsets) == (2, 1, 2)
    assert [text for text in caplog.messages if "has lost [2, 4); 2 offsets were never read and are skipped" in text]


def test_a_transactional_run_stops(bootstrap: str, tmp_path: Path) -> None:
    topic = old_and_new(bootstrap)
    spout = spout_over(TransactionalKafkaSpout, bootstrap, [topic], batch_records_max=2)
    with pytest.raises(BatchLost, match=rf"partition 0 of '{topic}#.*\[2, 4\).*the available offsets are \[4, 6\)"):
        run(spout, tmp_path)


def created_anew(bootstrap: str) -> str:
    """A topic that is deleted and created again while its second record is in an attempt."""
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b"])

    def recreate() -> None:
        delete_topic(bootstrap, topic)
        create_topic(bootstrap, topic)
        put(bootstrap, topic, ["x", "y", "z"])

    INTERRUPTIONS["b"] = recreate
    return topic


def test_an_opaque_run_goes_on_with_a_topic_that_was_created_anew(bootstrap: str, tmp_path: Path) -> None:
    spout = spout_over(OpaqueKafkaSpout, bootstrap, [created_anew(bootstrap)], batch_records_max=1)
    assert run(spout, tmp_path)[1] == {"a": 1, "x": 1, "y": 1, "z": 1}, "b is lost with its topic"


def test_a_transactional_run_stops_when_its_topic_was_created_anew(bootstrap: str, tmp_path: Path) -> None:
    topic = created_anew(bootstrap)
    spout = spout_over(TransactionalKafkaSpout, bootstrap, [topic], batch_records_max=1)
    with pytest.raises(BatchLost, match=rf"topic '{topic}' was recreated.*OpaqueKafkaSpout"):
        run(spout, tmp_path)


# --- what comes between two attempts ------------------------------------------------------------------------------


@BOTH
def test_a_partition_that_is_added_between_two_attempts_is_counted(
    bootstrap: str, tmp_path: Path, kind: type[KafkaSpout]
) -> None:
    """Storm row T45: with the next new transaction, or with the opaque replay."""
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["a", "b"])

    def grow() -> None:
        add_partitions(bootstrap, topic, 2)
        put(bootstrap, topic, ["c", "d"], 1)

    INTERRUPTIONS["b"] = grow
    summary, counted = run(spout_over(kind, bootstrap, [topic]), tmp_path)
    assert counted == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert summary.transactions == (2 if kind is TransactionalKafkaSpout else 1)


@BOTH
def test_a_topic_that_comes_to_match_is_counted(bootstrap: str, tmp_path: Path, kind: type[KafkaSpout]) -> None:
    first = new_topic(bootstrap)
    put(bootstrap, first, ["a"])

    def come() -> None:
        put(bootstrap, later := new_topic(bootstrap), ["b"])
        assert pattern.can_have_topic(later)

    number = int(first.removeprefix("topic-"))
    pattern = TopicPattern(f"topic-({number:05}|{number + 1:05})", refresh_ms=0)
    INTERRUPTIONS["a"] = come
    assert run(spout_over(kind, bootstrap, pattern), tmp_path)[1] == {"a": 1, "b": 1}


# --- seed 004 -----------------------------------------------------------------------------------------------------


def test_the_story_of_seed_004_on_a_broker(bootstrap: str) -> None:
    """A: 1-50, B: 51-100; A fails, and B with it; A: 1-40, B: 41-90; both commit; C: 91-140. No tuple is skipped."""
    topic = new_topic(bootstrap)
    put(bootstrap, topic, [str(number) for number in range(1, 151)])
    with closing(spout_over(OpaqueKafkaSpout, bootstrap, [topic], batch_records_max=50)) as spout:
        spout.open()
        a = planned(spout)
        assert values(spout, a) == tuples(1, 50)
        assert values(spout, planned(spout, a)) == tuples(51, 100)
        spout.limits = Limits(40)
        a = planned(spout, replay=True)
        spout.limits = Limits(50)
        b = planned(spout, a, replay=True)
        c = planned(spout, b)
        assert [values(spout, batch) for batch in (a, b, c)] == [tuples(1, 40), tuples(41, 90), tuples(91, 140)]
        assert [*a.ranges.values(), *b.ranges.values(), *c.ranges.values()] == [
            span(0, 40),
            span(40, 90),
            span(90, 140),
        ]


def tuples(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]
