"""Wrong variants of relay, settling and Kafka sink: what the simulation has to find out. Each patches one thing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from sinks.kafka.control import ControlTopic, encode_marker
from sinks.kafka.publisher import KafkaPublisher
from sinks.kafka.sink import KafkaSink
from tests.unit.runtime.publishing.kafka_model import ANSWER_LOST, FakeProducer
from tests.unit.runtime.publishing.publishing_world import RATES, World
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.core.store import Lease
from transactional.core.store.outbox import OutboxRow, Publication
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import SinkUnavailable
from transactional.runtime.engine import rewinding
from transactional.runtime.publishing import settling
from transactional.runtime.publishing.payloads import decode_payload
from transactional.runtime.publishing.relay import Relay

Patch = Callable[[pytest.MonkeyPatch, World], None]
_numbers = itertools.count()


def marker_outside_the_transaction(patch: pytest.MonkeyPatch, world: World) -> None:
    def publish(self: KafkaPublisher, group: Sequence[PublishedRecords]) -> None:
        producer, marker = self._producer, encode_marker(self._owner, group[-1].publication)
        try:
            producer.begin_transaction()
            for published in group:
                self._produce_records(published)
            self._commit()
            producer.begin_transaction()
            self._produce(self._control, self._owner.sink.encode(), marker, None)
            self._commit()
        except Exception as error:
            raise SinkUnavailable("failed", is_fenced=True) from error

    patch.setattr(KafkaPublisher, "publish", publish)


def row_in_another_database_transaction(patch: pytest.MonkeyPatch, world: World) -> None:
    original = world.store.record_commit

    def record_commit(lease: Lease, attempt: Any, batch: Any, *, outbox: Mapping[str, Any], **times: Any) -> None:
        original(lease, attempt, batch, **times)
        world.point("between two database transactions")
        topology = world.store._topologies[lease.topology_id]
        topology.outbox += settling_rows(lease, attempt, outbox)

    patch.setattr(world.store, "record_commit", record_commit)


def settling_rows(lease: Lease, attempt: Any, outbox: Mapping[str, Any]) -> list[OutboxRow]:
    from transactional.core.store.sink_rules import new_rows

    return new_rows(lease, attempt, outbox)


def publication_before_the_commit(patch: pytest.MonkeyPatch, world: World) -> None:
    original = world.store.record_commit

    def record_commit(lease: Lease, attempt: Any, batch: Any, *, outbox: Mapping[str, Any], **times: Any) -> None:
        leader = world.leader
        for row in settling_rows(lease, attempt, outbox):
            assert leader is not None
            published = PublishedRecords(row.publication, decode_payload(row))
            try:
                leader.sinks[row.sink].publish([published])
            except SinkUnavailable:
                continue
        original(lease, attempt, batch, outbox=outbox, **times)

    patch.setattr(world.store, "record_commit", record_commit)


def no_fencing_at_a_take_over(patch: pytest.MonkeyPatch, world: World) -> None:
    original = FakeProducer.__init__

    def init(self: FakeProducer, settings: dict[str, Any]) -> None:
        original(self, {**settings, "transactional.id": f"{settings['transactional.id']}/{next(_numbers)}"})

    patch.setattr(FakeProducer, "__init__", init)


def init_before_the_look(patch: pytest.MonkeyPatch, world: World) -> None:
    original = KafkaSink.look

    def look(self: KafkaSink, owner: SinkOwner) -> SinkPosition | None:
        original(self, owner)
        self.open(owner, has_published=False)
        return original(self, owner)

    patch.setattr(KafkaSink, "look", look)


def positions_before_all_inits(patch: pytest.MonkeyPatch, world: World) -> None:
    """Sinks are opened and compared one by one, with what the store held before."""

    def settle(sinks: Mapping[str, Sink], store: Any, lease: Lease, store_id: str, *_: Any, **__: Any) -> None:
        progress = store.sinks(lease.topology_id)
        for name, sink in sinks.items():
            owner = SinkOwner(lease.topology_id, name, store_id)
            settlement = settling.Settlement(store, owner, progress.get(name))
            settlement.check(sink.look(owner), is_final=False)
            sink.open(owner, has_published=name in progress and progress[name].published is not None)
            if isinstance(newest := settlement.check(sink.position(), is_final=True), Publication):
                store.settle_sink(lease, name, newest)

    patch.setattr(settling, "_settle", settle)


def position_before_the_init(patch: pytest.MonkeyPatch, world: World) -> None:
    original = KafkaSink.open

    def open_after_reading(self: KafkaSink, owner: SinkOwner, *, has_published: bool) -> None:
        position = self.look(owner)
        original(self, owner, has_published=has_published)
        patch.setattr(self, "position", lambda: position)

    patch.setattr(KafkaSink, "open", open_after_reading)


def end_of_the_reading_consumer(patch: pytest.MonkeyPatch, world: World) -> None:
    original = ControlTopic._consumer
    patch.setattr(ControlTopic, "_consumer", lambda self, isolation: original(self, "read_committed"))


def rows_deleted_before_the_kafka_commit(patch: pytest.MonkeyPatch, world: World) -> None:
    original = Relay._publish

    def publish(self: Relay, rows: list[OutboxRow]) -> None:
        self._store.settle_sink(self.lease, self.sink_id, rows[-1].publication)
        original(self, rows)

    patch.setattr(Relay, "_publish", publish)


def order_of_arrival(patch: pytest.MonkeyPatch, world: World) -> None:
    original = Relay._publish
    patch.setattr(Relay, "_publish", lambda self, rows: original(self, [*rows[1:], *rows[:1]]))


def commit_without_an_answer_is_sent_again(patch: pytest.MonkeyPatch, world: World) -> None:
    def commit(self: KafkaPublisher) -> None:
        self._producer.commit_transaction(1)

    original = KafkaPublisher._fail

    def fail(self: KafkaPublisher, error: Any, group: Sequence[PublishedRecords]) -> None:
        if error.code() == ANSWER_LOST.code():
            raise SinkUnavailable("aborted")
        original(self, error, group)

    patch.setattr(KafkaPublisher, "_commit", commit)
    patch.setattr(KafkaPublisher, "_fail", fail)


def reopened_without_settling(patch: pytest.MonkeyPatch, world: World) -> None:
    def open_again(self: Relay) -> None:
        sink = self.sink
        assert isinstance(sink, KafkaSink)
        assert sink._owner is not None
        sink.open(sink._owner, has_published=True)
        self._must_reopen = False

    patch.setattr(Relay, "_open_again", open_again)


def have_many_rewinds(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(RATES, "a rewind", 0.12)


def rows_deleted_at_begin_rewind(patch: pytest.MonkeyPatch, world: World) -> None:
    have_many_rewinds(patch)
    original = world.store.begin_rewind

    def begin_rewind(lease: Lease, txid: TxId) -> AttemptId:
        fence_id = original(lease, txid)
        topology = world.store._topologies[lease.topology_id]
        topology.outbox = [row for row in topology.outbox if row.publication.attempt.txid <= txid]
        return fence_id

    patch.setattr(world.store, "begin_rewind", begin_rewind)


def rewind_without_a_boundary(patch: pytest.MonkeyPatch, world: World) -> None:
    have_many_rewinds(patch)
    original = world.store.finish_rewind

    def finish_rewind(lease: Lease, txid: TxId) -> None:
        topology = world.store._topologies[lease.topology_id]
        publications = dict(topology.sinks)
        original(lease, txid)
        topology.sinks = publications

    patch.setattr(world.store, "finish_rewind", finish_rewind)


def rewind_without_settling(patch: pytest.MonkeyPatch, world: World) -> None:
    have_many_rewinds(patch)
    patch.setattr(rewinding, "settle_before_rewind", lambda *_: None)


WRONG: Mapping[str, Patch] = {
    patch.__name__: patch
    for patch in (
        marker_outside_the_transaction,
        row_in_another_database_transaction,
        publication_before_the_commit,
        no_fencing_at_a_take_over,
        init_before_the_look,
        position_before_the_init,
        positions_before_all_inits,
        end_of_the_reading_consumer,
        rows_deleted_before_the_kafka_commit,
        order_of_arrival,
        commit_without_an_answer_is_sent_again,
        reopened_without_settling,
        rows_deleted_at_begin_rewind,
        rewind_without_a_boundary,
        rewind_without_settling,
    )
}
