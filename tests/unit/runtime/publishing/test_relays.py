"""Whole runs with a sink in memory: the threads that publish, how runs end, and what is refused at a start."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sinks import JsonValue
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from tests.unit.runtime.publishing.word_sink import PUBLISHED, TARGETS, Target, WordSink, build, run
from transactional import TransactionalTopologyBuilder
from transactional.core.ports import PublishedRecords, SinkOwner
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.store import Lease
from transactional.core.store.outbox import OutboxRow, Publication
from transactional.errors import (
    ConfigError,
    CorruptRecord,
    Fenced,
    OperatingError,
    RecordRefused,
    SinkUnavailable,
    StoreMismatch,
    StoreUnavailable,
)
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.operations.cli.output.statuses import describe_sinks
from transactional.runtime.publishing import relay, relays
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.runtime.publishing.payloads import decode_payload, encode_payload
from transactional.runtime.publishing.settling import settle_sinks
from transactional.testing import MemoryCoordinatorStore
from transactional.trident import Avg, Count, TridentTopology

BAD = [[("cat",), ("bad",), ("owl",)]]


@pytest.fixture
def target() -> Target:
    TARGETS["words"] = TARGETS["other"] = Target()
    return TARGETS["words"]


@pytest.fixture
def waiting(target: Target) -> tuple[MemoryCoordinatorStore, MemoryMapState]:
    """A store and a table of a run that has ended with transactions that are not published."""
    store, counts = MemoryCoordinatorStore(), MemoryMapState("word string")
    target.errors = [RecordRefused("no")]
    with pytest.raises(RecordRefused, match="no"):
        run(build(counts=counts), store)
    target.errors = []
    assert store.sinks("words")["alerts"].waiting
    return store, counts


def test_a_drained_run_has_published_everything(target: Target) -> None:
    store = MemoryCoordinatorStore()
    run(build(), store)
    assert sorted(target.published) == PUBLISHED
    assert store.sinks("words")["alerts"].waiting == 0


def test_sinks_are_closed_at_the_same_time(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    both_close = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(WordSink, "close", lambda sink: both_close.wait())
    sinks = {"alerts": WordSink("words"), "copies": WordSink("other")}
    relays.Relays(sinks, MemoryCoordinatorStore(), TopologyConfig(), PayloadFolder(None)).close(0)
    assert not both_close.broken


def test_commits_wait_for_a_sink_that_is_behind(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store never has more than is allowed, which the target sees each time that it fails."""
    monkeypatch.setattr(relays, "RETRY_S", 0.01)
    monkeypatch.setattr("transactional.runtime.engine.driver.LOOK_EVERY_MS", 5)
    store, waiting = MemoryCoordinatorStore(), list[int]()

    class Away(SinkUnavailable):
        def __init__(self) -> None:
            super().__init__("away")

        def __str__(self) -> str:
            waiting.append(store.sinks("words")["alerts"].waiting)
            return "away"

    target.errors = [Away() for _ in range(30)]
    run(build(), store, sink_pending_max=1, max_spout_pending=3)
    assert (sorted(target.published), max(waiting)) == (PUBLISHED, 1)
    [line] = [record.message for record in caplog.records if "is committed before sink" in record.message]
    assert re.search(r"before sink 'alerts' has published more: 1 transactions wait, of \d+ bytes", line)


def test_a_bad_tuple_is_a_dead_letter_and_is_not_published(target: Target) -> None:
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(BAD, "word string", take=2))
    builder.set_sink("alerts", WordSink("words")).shuffle_grouping("rows")
    letters = MemoryMapState(LETTER_KEY, LETTER_VALUES)
    builder.set_dead_letters(letters)
    run(builder.build(), MemoryCoordinatorStore(), attempts_max=1)
    assert sorted(target.published) == [(1, ["cat"]), (2, ["owl"])]
    [letter] = letters.read().to_pylist()
    assert (letter["component"], letter["tuple"]) == ("alerts", '{"word": "bad"}')


def test_an_outage_is_waited_for(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "RETRY_S", 0.01)
    target.errors = [SinkUnavailable("away"), SinkUnavailable("fenced", is_fenced=True), SinkUnavailable("away")]
    run(build(), MemoryCoordinatorStore())
    assert (sorted(target.published), target.errors) == (PUBLISHED, [])


def test_what_is_published_is_not_sent_again_while_the_store_does_not_respond(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is missing may be one that was lost, or a store without room."""
    monkeypatch.setattr(relays, "RETRY_S", 0.01)
    store, settled = MemoryCoordinatorStore(), list[int]()
    settle_sink = store.settle_sink

    def settle_unheard(lease: Lease, sink: str, published: Publication) -> None:
        settled.append(published.attempt.txid)
        if len(settled) % 3 == 2:
            settle_sink(lease, sink, published)
        if len(settled) % 3:
            raise StoreUnavailable("the disk is full")
        settle_sink(lease, sink, published)

    monkeypatch.setattr(store, "settle_sink", settle_unheard)
    run(build(), store)
    assert sorted(target.published) == PUBLISHED
    assert len(settled) == 3 * len(set(settled))
    assert store.sinks("words")["alerts"].waiting == 0


def test_an_outage_ends_the_run_after_its_time(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "RETRY_S", 0.01)
    target.errors = [SinkUnavailable("away")] * 1_000
    with pytest.raises(OperatingError, match="sink 'alerts' has been failing for too long: away"):
        run(build(), MemoryCoordinatorStore(), outage_timeout_ms=20)


def test_what_was_not_published_waits_for_the_next_run(
    waiting: tuple[MemoryCoordinatorStore, MemoryMapState], target: Target
) -> None:
    store, counts = waiting
    [line] = describe_sinks({"words": store.sinks("words")})
    assert re.fullmatch(r"words: sink alerts: \d transactions? unsent \(\d records, the first of transaction 1\)", line)
    [status] = store.status("words")
    for limit, lines in ((store.sinks("words")["alerts"].waiting, 2), (99, 1)):
        settings = {"sink_pending_max": limit}
        assert status.run is not None
        limited = replace(status, run=replace(status.run, about=replace(status.run.about, settings=settings)))
        described = describe_sinks({"words": store.sinks("words")}, [limited])
        assert len(described) == lines
    run(build(counts=counts), store)
    assert sorted(target.published) == PUBLISHED


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (None, "is no longer part of the topology"),
        ("other", r'has changed \(sinks.alerts.target: stored "words", given "other"\)'),
    ],
)
def test_a_sink_with_waiting_transactions_stays_as_it_is(
    waiting: tuple[MemoryCoordinatorStore, MemoryMapState], sink: str | None, problem: str
) -> None:
    store, counts = waiting
    with pytest.raises(ConfigError, match=f"sink 'alerts' {problem}, and has . transaction.*unsent"):
        run(build(sink, counts), store, accept_changes=True)


class JsonSink(WordSink):
    """Publishes the fields of a tuple as JSON."""

    def __init__(self, target: str, *names: str) -> None:
        super().__init__(target)
        self.form = JsonValue(*names)

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        self.form.check_input(fields, used_by=used_by)

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"word": self.form.encode(batch).cast(pa.string())})


@pytest.mark.parametrize(
    ("names", "old", "record"),
    [
        ((), False, '{"word":"cat","n":2,"mean":2.5}'),
        ((), True, '{"word":"cat","n":2,"mean":2.5}'),
        (("sum_n", "word"), False, '{"sum_n":5,"word":"cat"}'),
    ],
)
def test_columns_that_nobody_has_named_are_published_only_by_name(
    target: Target, names: tuple[str, ...], record: str, *, old: bool
) -> None:
    topology = TridentTopology("words")
    rows = topology.new_stream("rows", MemoryTransactionalSpout([[("cat", 2), ("cat", 3)]], "word string, n long", 9))
    means = rows.group_by("word").persistent_aggregate(MemoryMapState(), n=Count(), mean=Avg("n"))
    means.new_values(old=old).filter(lambda row: row.n > 0).sink_to(JsonSink("words", *names), name="alerts")
    run(topology.build(), MemoryCoordinatorStore())
    assert target.published == [(1, [record])]


def test_a_removed_sink_that_nobody_can_fence_is_named(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    store, counts = MemoryCoordinatorStore(), MemoryMapState("word string")
    run(build(counts=counts), store)
    run(build(None, counts), store, accept_changes=True)
    assert "sink 'alerts' has left the topology, and no other sink reaches its target" in caplog.text
    caplog.clear()
    run(build(None, counts), store)
    assert "has left the topology" not in caplog.text


def test_a_process_that_no_longer_leads_fences_nobody(target: Target) -> None:
    store, sink = MemoryCoordinatorStore(), WordSink("words")
    lease = store.acquire("words", {}, owner="earlier", lease_ms=1_000)
    store.release(lease)
    store.acquire("words", {}, owner="later", lease_ms=1_000)
    with pytest.raises(Fenced):
        settle_sinks({"alerts": sink}, store, lease, "store", lambda: store.renew(lease, lease_ms=1_000))
    assert not hasattr(sink, "owner"), "it was opened"


def test_large_transactions_are_published_in_groups_of_limited_size(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty-four of the largest would be a quarter of a gigabyte in one Kafka transaction."""
    attempts = [TransactionAttempt(TxId(n), AttemptId(n)) for n in range(1, 8)]
    payload = encode_payload(pa.table({"word": ["cat"]}), 1).payload
    waiting = [OutboxRow("alerts", Publication("run", attempt), 1, payload) for attempt in attempts]
    monkeypatch.setattr(relay, "GROUP_BYTES_MAX", 2 * len(payload) + 1)
    groups = list[int]()

    class Waiting(MemoryCoordinatorStore):
        def outbox(self, *_: Any, limit: int, **__: Any) -> list[OutboxRow]:
            return waiting[:limit]

        def settle_sink(self, _: Lease, __: str, published: Publication) -> None:
            until = waiting.index(next(row for row in waiting if row.publication == published)) + 1
            groups.append(until)
            del waiting[:until]

    store = Waiting()
    lease = store.acquire("words", {}, owner="leader", lease_ms=1_000)
    sink = WordSink("words")
    sink.open(SinkOwner("words", "alerts", "store"), has_published=False)
    one = relay.Relay("alerts", sink, store, lease, lambda: None, lambda: 0, PayloadFolder(None))
    one.confirm(TxId(7))
    while one.step():
        pass
    assert groups == [2, 2, 2, 1]
    assert [txid for txid, _ in target.published] == [1, 2, 3, 4, 5, 6, 7]


def test_only_what_the_store_has_confirmed_to_the_leader_is_published(target: Target) -> None:
    """The row of a successor's transaction is in the store, too."""
    payload = encode_payload(pa.table({"word": ["cat"]}), 1).payload
    attempts = [TransactionAttempt(TxId(n), AttemptId(n)) for n in (1, 2)]
    rows = [OutboxRow("alerts", Publication("run", attempt), 1, payload) for attempt in attempts]

    class TwoRows(MemoryCoordinatorStore):
        def outbox(self, *_: Any, last: TxId, **__: Any) -> list[OutboxRow]:
            return [row for row in rows if row.publication.attempt.txid <= last]

        def settle_sink(self, _: Lease, __: str, published: Publication) -> None:
            rows[:] = [row for row in rows if row.publication.attempt.txid > published.attempt.txid]

    store, sink = TwoRows(), WordSink("words")
    lease = store.acquire("words", {}, owner="leader", lease_ms=1_000)
    sink.open(SinkOwner("words", "alerts", "store"), has_published=False)
    alerts = relay.Relay("alerts", sink, store, lease, lambda: None, lambda: 0, PayloadFolder(None))
    assert not alerts.step()
    for txid, published in ((1, [(1, ["cat"])]), (2, [(1, ["cat"]), (2, ["cat"])])):
        alerts.confirm(TxId(txid))
        assert alerts.step()
        assert not alerts.step()
        assert target.published == published


def test_the_transaction_that_is_refused_is_named_and_those_before_it_are_published(target: Target) -> None:
    payload = encode_payload(pa.table({"word": ["cat"]}), 1).payload
    attempts = [TransactionAttempt(TxId(number), AttemptId(number)) for number in (1, 2, 3)]
    waiting = [OutboxRow("alerts", Publication("run", attempt), 1, payload) for attempt in attempts]

    class Waiting(MemoryCoordinatorStore):
        def outbox(self, *_: Any, limit: int, **__: Any) -> list[OutboxRow]:
            return waiting[:limit]

        def settle_sink(self, _: Lease, __: str, published: Publication) -> None:
            assert waiting.pop(0).publication == published

    class Picky(WordSink):
        def publish(self, group: Sequence[PublishedRecords]) -> None:
            if any(published.publication.attempt.txid == 2 for published in group):
                raise RecordRefused("record 0 is too long")
            super().publish(group)

    store, sink = Waiting(), Picky("words")
    lease = store.acquire("words", {}, owner="leader", lease_ms=1_000)
    sink.open(SinkOwner("words", "alerts", "store"), has_published=False)
    alerts = relay.Relay("alerts", sink, store, lease, lambda: None, lambda: 0, PayloadFolder(None))
    alerts.confirm(TxId(3))
    assert alerts.step()
    message = "sink 'alerts' can't publish transaction 2 to its word sink: record 0 is too long"
    with pytest.raises(RecordRefused, match=f"^{message}$"):
        alerts.step()
    assert target.published == [(1, ["cat"])]


def test_a_sink_is_opened_again_three_times_in_ten_minutes_unless_it_was_slow(target: Target) -> None:
    store, now_ms, openings = MemoryCoordinatorStore(), [0], list[int]()
    target.errors = [RecordRefused("the rows stay")]
    with pytest.raises(RecordRefused):
        run(build(), store)
    target.errors = []
    lease = store.acquire("words", build().fingerprint(), owner="leader", lease_ms=1_000)
    sink = WordSink("words")
    sink.open(SinkOwner("words", "alerts", "store"), has_published=False)
    alerts = relay.Relay(
        *("alerts", sink, store, lease, lambda: openings.append(now_ms[0]), lambda: now_ms[0], PayloadFolder(None))
    )

    def fail(*, is_slow: bool) -> None:
        target.errors = [SinkUnavailable("fenced", is_fenced=True, has_timed_out=is_slow)]
        with pytest.raises(SinkUnavailable, match="fenced"):
            alerts.step()

    for is_slow in (True, True, False, True, False, False):
        fail(is_slow=is_slow)
    assert openings == [0] * 5
    fail(is_slow=False)
    with pytest.raises(
        OperatingError, match="'alerts' was fenced 3 times within 10 minutes, although this process leads"
    ):
        alerts.step()
    now_ms[0] = 600_000
    assert alerts.step()
    assert openings == [0] * 6 + [600_000]


def test_a_payload_that_was_changed_is_refused_wherever_that_is() -> None:
    values = pa.array([bytes([n % 251]) * (n % 40) for n in range(500)])
    payload = encode_payload(pa.table({"key": values, "value": values}), 500).payload
    flipped = (payload[:n] + bytes([payload[n] ^ 1]) + payload[n + 1 :] for n in range(0, len(payload), 7))
    for changed in (b"", payload[:-400], *flipped):
        row = OutboxRow("alerts", Publication("run", TransactionAttempt(TxId(7), AttemptId(9))), 500, changed)
        with pytest.raises(CorruptRecord, match=r"the payload of transaction 7 of sink 'alerts'.*is not readable"):
            decode_payload(row)


def test_a_target_that_is_behind_the_store_is_refused(target: Target) -> None:
    store, counts = MemoryCoordinatorStore(), MemoryMapState("word string")
    run(build(counts=counts), store)
    target.position = None
    with pytest.raises(StoreMismatch, match="has nothing of it, and the store has transaction 3 published"):
        run(build(counts=counts), store)
