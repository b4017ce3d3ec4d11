"""An examination has a Kafka spout apart, and a run survives a client that is closed under it; without a broker."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spouts.kafka import spout as module
from spouts.kafka.clients.cluster import Topic
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka.topics import TopicWatch
from transactional.errors import SourceUnavailable
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, OffsetRange, PartitionId

BOTH = pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueKafkaSpout])


class Pool:
    """The process's consumers."""

    def __init__(self) -> None:
        self.closed: list[Any] = []

    def close(self, connection: Any) -> None:
        self.closed.append(connection)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """No broker: one topic without partitions, which is always there."""
    pool = Pool()
    topics = {"flights": Topic("flights#1", "1", {})}
    monkeypatch.setattr(module, "consumer_pool", lambda: pool)
    monkeypatch.setattr(KafkaSpout, "_query_cluster_id", lambda self, admin, errors: "a cluster")
    monkeypatch.setattr(TopicWatch, "open", lambda self, admin: topics)
    monkeypatch.setattr(TopicWatch, "list_existing", lambda self, admin: topics)
    return pool


@BOTH
def test_an_examination_closes_nothing_of_the_run(kind: type[KafkaSpout], pool: Pool) -> None:
    spout = kind("localhost:1", ["flights"], group_id="shown")
    spout.open()
    client, mirror = spout._offsets, spout._mirror
    pool.closed.clear()
    apart = spout.copy_unopened()
    with pytest.raises(SourceUnavailable, match="is not open"):
        apart.identity()
    apart.open()
    assert apart.identity() == spout.identity()
    assert apart._offsets is not client
    apart.close()
    assert (spout._offsets, spout._mirror) == (client, mirror)
    assert pool.closed == [], "idle consumers are those of the run"
    assert spout.logs(EMPTY_BATCH) == {}
    spout.close()
    assert pool.closed == [spout.connection]


@BOTH
def test_what_was_decided_about_a_start_is_the_runs_own(kind: type[KafkaSpout], pool: Pool) -> None:
    spout = kind("localhost:1", ["flights"], start="latest")
    spout.open()
    spout._starts._pinned_starts[PartitionId("flights#1", 0)] = None
    apart = spout.copy_unopened()
    apart.open()
    assert apart._starts._pinned_starts == {}
    assert spout._starts._pinned_starts == {PartitionId("flights#1", 0): None}
    spout.close()
    assert spout.logs(EMPTY_BATCH) == {}
    assert spout._starts._pinned_starts == {PartitionId("flights#1", 0): None}, (
        "it connects again, and begins nowhere else"
    )


@BOTH
def test_a_client_that_was_closed_under_a_run_is_an_outage(
    kind: type[KafkaSpout], pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    spout = kind("localhost:1", ["flights"])
    spout.open()
    spout.close()
    batch = BatchMetadata({PartitionId("flights#1", 0): OffsetRange(0, 1)})  # type: ignore[arg-type]
    with pytest.raises(SourceUnavailable, match="was closed while it was in use") as raised:
        spout.check_read(batch)
    assert raised.value.is_outage
    with caplog.at_level(logging.WARNING):
        assert spout.plan(EMPTY_BATCH, replay=False) is None
    assert "was closed while it was in use: it connects again" in caplog.text
    assert spout.identity()["cluster"] == "a cluster"
