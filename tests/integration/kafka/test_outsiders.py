"""What others do to a topic that was read, and to the group that mirrors a topology: compaction, and resets."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from state.delta.state import DeltaMapState
from tests.integration.kafka_topics import BOTH, TIMEOUT_MS, group_offsets, new_topic, put, put_at
from transactional import FailedException, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.ports import Partials
from transactional.core.ports.examining import Problem
from transactional.errors import ConfigError, RetriesExhausted
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.operations.doctor.checked_tables import checked_sources, checked_tables
from transactional.operations.doctor.examine import examine
from transactional.operations.loading import open_for_reading, open_store
from transactional.runtime.engine.rewinding import rewind
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.evidence.findings import Kind, Report

pytestmark = pytest.mark.kafka

AT_ONCE = {"min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000", "min.compaction.lag.ms": "0"}
FIRST, LATER = dict.fromkeys("abcd", 1), dict.fromkeys("efg", 1)
"""The first four records are a transaction; the later ones have their keys, and are another."""


class InterruptedState(DeltaMapState):
    """A state before whose write something happens, once; the attempt fails then."""

    meanwhile: Callable[[], object] | None = None

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
            raise FailedException("interrupted before its write")
        super().merge(attempt, partials)


class Counted:
    """A topology that counts the values of a topic, four offsets in a transaction."""

    def __init__(self, folder: Path, bootstrap: str, kind: type[KafkaSpout], **options: Any) -> None:
        self.folder, self.bootstrap, self.kind, self.options = folder, bootstrap, kind, options
        self.url, self.topic = f"sqlite:///{folder}/store.db", new_topic(bootstrap, config=AT_ONCE)

    def topology(self, meanwhile: Callable[[], object] | None = None) -> Topology:
        options: Any = {"value_type": "string", "timeout_ms": TIMEOUT_MS, "batch_records_max": 4, **self.options}
        builder = TransactionalTopologyBuilder("counted", "lines", self.kind(self.bootstrap, [self.topic], **options))
        state = InterruptedState(self.folder / "counts", "value string", "count long")
        state.meanwhile = meanwhile
        builder.set_committer_bolt("counts", state.count()).fields_grouping("lines", "value")
        return builder.build()

    def run(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Read what is there; `meanwhile` happens when the first transaction is about to be written."""
        config = TopologyConfig(stop_when_drained=True, retry_pause_ms=10, attempts_max=3)
        run_topology(self.topology(meanwhile), store=self.url, master="none", config=config)

    def counts(self) -> dict[str, int]:
        rows = DeltaMapState(self.folder / "counts", "value string", "count long").read().to_pylist()
        return {row["value"]: row["count"] for row in rows}

    def report(self) -> Report:
        """What the checker says, after having read the topic again."""
        topology = self.topology()
        sources = [replace(source, reads_records=True) for source in checked_sources(topology)]
        return verify(self.url, topology.id, checked_tables(topology)[0], sources)

    def problems(self) -> list[tuple[Problem, str]]:
        with closing(open_for_reading(self.url)) as store:
            return [(each.problem, each.what) for each in examine(self.topology(), store)]

    def rewind(self) -> None:
        """Back to the beginning."""
        with closing(open_store(self.url)) as store:
            rewind(self.topology(), store, TxId(0), owner="test")

    def put_first(self) -> None:
        put_at(self.bootstrap, self.topic, [(value, 1_000) for value in FIRST], keys=["k1", "k2", "k1", "k2"])

    def compact(self) -> None:
        """Add later records, and wait until the broker has removed the first ones, all of which these replace."""
        # Records of a later time begin a new segment; only old segments are compacted.
        put_at(self.bootstrap, self.topic, [("e", 10_000), ("f", 20_000)], keys=["k1", "k2"])
        put_at(self.bootstrap, self.topic, [("g", 30_000)], keys=["k3"])
        entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        admin = admin_of(self.bootstrap)
        [done] = admin.incremental_alter_configs([resource]).values()
        done.result(30)
        deadline = time.monotonic() + 30
        while first_offset(self.bootstrap, self.topic) < len(FIRST):
            assert time.monotonic() < deadline, "the broker did not compact"


def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def first_offset(bootstrap: str, topic: str) -> int:
    """The offset of the first record that is there."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "looks", "log_level": 0})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        [message] = consumer.consume(1, 30)
        return int(message.offset() or 0)


# --- compaction ---------------------------------------------------------------------------------------------------


def test_an_opaque_spout_counts_what_compaction_has_left_between_two_attempts(tmp_path: Path, bootstrap: str) -> None:
    counted = Counted(tmp_path, bootstrap, OpaqueKafkaSpout)
    counted.put_first()
    counted.run(counted.compact)
    assert counted.counts() == LATER
    assert (counted.report().findings, counted.problems()) == ((), [])


def test_an_opaque_spout_goes_back_over_what_was_compacted_since(tmp_path: Path, bootstrap: str) -> None:
    """What was counted stays counted, and `verify` says that it can't be counted again, and of how many records."""
    counted = Counted(tmp_path, bootstrap, OpaqueKafkaSpout)
    counted.put_first()
    counted.run()
    counted.compact()
    counted.run()
    assert counted.counts() == FIRST | LATER
    report = counted.report()
    assert report.findings == ()
    assert [note for note in report.notes if "4 records that were read are no longer there" in note], report.notes
    assert counted.problems() == []
    counted.rewind()
    counted.run()
    assert counted.counts() == LATER
    assert counted.report().findings == ()


def test_a_transactional_spout_does_not_take_what_compaction_has_left(tmp_path: Path, bootstrap: str) -> None:
    counted = Counted(tmp_path, bootstrap, TransactionalKafkaSpout)
    counted.put_first()
    with pytest.raises(RetriesExhausted, match=r"TX303 the replay of .* read 0 records .*, recorded were 4"):
        counted.run(counted.compact)
    with pytest.raises(ConfigError, match=r"has cleanup.policy=compact: compaction changes what a replay reads"):
        counted.run()


def test_a_transactional_spout_does_not_go_back_over_what_was_compacted_since(tmp_path: Path, bootstrap: str) -> None:
    """A topic that others compact: a rewind could not read again what it takes back."""
    counted = Counted(tmp_path, bootstrap, TransactionalKafkaSpout)
    counted.put_first()
    counted.run()
    counted.compact()
    assert [problem for problem, what in counted.problems() if "compaction changes what a replay reads" in what]
    with pytest.raises(ConfigError, match=r"has cleanup.policy=compact: compaction changes what a replay reads"):
        counted.rewind()
    assert counted.counts() == FIRST
    assert counted.report().counts == {Kind.WRONG_RECORDS: 1}


# --- the group that mirrors a topology ----------------------------------------------------------------------------


def deleted(bootstrap: str, group: str) -> None:
    admin = admin_of(bootstrap)
    [done] = admin.delete_consumer_groups([group]).values()
    done.result(30)


def reset(bootstrap: str, group: str) -> None:
    """All of its offsets are the first again."""
    admin = admin_of(bootstrap)
    [there] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    first = [TopicPartition(each.topic, each.partition, 0) for each in there.result(30).topic_partitions]
    [done] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, first)]).values()
    done.result(30)


@BOTH
@pytest.mark.parametrize("happens", [deleted, reset])
def test_a_group_that_somebody_resets_changes_nothing_and_is_written_again(
    tmp_path: Path, bootstrap: str, kind: type[KafkaSpout], happens: Callable[[str, str], None]
) -> None:
    counted = Counted(tmp_path, bootstrap, kind, start="group", group_id=f"group-{tmp_path.name}")
    group: str = counted.options["group_id"]
    put(bootstrap, counted.topic, list("abcd"))
    counted.run()
    put(bootstrap, counted.topic, list("abcd"))
    assert group_offsets(bootstrap, group) == {0: 4}
    counted.run(lambda: happens(bootstrap, group))
    assert group_offsets(bootstrap, group) == {0: 8}
    happens(bootstrap, group)
    put(bootstrap, counted.topic, ["a"])
    counted.run()
    assert group_offsets(bootstrap, group) == {0: 9}
    assert counted.counts() == {"a": 3, "b": 2, "c": 2, "d": 2}
    happens(bootstrap, group)
    counted.run()
    assert group_offsets(bootstrap, group) == {0: 9}, "also by a run that has nothing to do"
    assert (counted.report().findings, counted.problems()) == ((), [])
