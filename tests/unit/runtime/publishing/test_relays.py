"""Whole runs with a sink in memory: the threads that publish, how runs end, and what is refused at a start."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TopologyConfig, TopologyDriver, TransactionalTopologyBuilder
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.store import Lease
from transactional.core.store.outbox import OutboxRow, Publication
from transactional.errors import (
    ConfigError,
    CorruptRecord,
    Fenced,
    OperatingError,
    RecordRefused,
    SchemaMismatch,
    SinkUnavailable,
    StoreMismatch,
)
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema
from transactional.operations.cli.output.statuses import describe_sinks
from transactional.runtime.engine.rewinding import plan_rewind
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.publishing import relay, relays
from transactional.runtime.publishing.payloads import decode_payload, encode_payload
from transactional.runtime.publishing.settling import settle_sinks
from transactional.testing import MemoryCoordinatorStore

ROWS = [[("cat",), ("dog",), ("owl",), ("cat",), ("emu",)]]
PUBLISHED = [(1, ["cat", "dog"]), (2, ["owl", "cat"]), (3, ["emu"])]
BAD = [[("cat",), ("bad",), ("owl",)]]


class Target:
    """What outlives the runs: published words by transaction, and the newest publication."""

    def __init__(self) -> None:
        self.published: list[tuple[int, list[str]]] = []
        self.position: SinkPosition | None = None
        self.errors: list[Exception] = []
        self.was_tried = threading.Event()


TARGETS: dict[str, Target] = {}


class WordSink(Sink):
    """Publishes the field `word`. A "bad" one can't be encoded."""

    kind = "word sink"

    def __init__(self, target: str) -> None:
        self.target = target

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        fields.require(["word"], of="the stream", used_by=used_by)

    def identity(self) -> Mapping[str, Any]:
        return {"target": self.target}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        if "bad" in batch.column("word").to_pylist():
            raise SchemaMismatch("a bad word")
        return pa.Table.from_batches([batch.select(["word"])])

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        return TARGETS[self.target].position

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self.owner = owner

    def position(self) -> SinkPosition | None:
        return TARGETS[self.target].position

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        target = TARGETS[self.target]
        target.was_tried.set()
        if target.errors:
            raise target.errors.pop(0)
        for each in group:
            target.published.append((each.publication.attempt.txid, each.records.column("word").to_pylist()))
        target.position = SinkPosition(self.owner.store_id, group[-1].publication)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def target() -> Target:
    TARGETS["words"] = TARGETS["other"] = Target()
    return TARGETS["words"]


def build(sink: str | None = "words", counts: MemoryMapState | None = None) -> Topology:
    """Each word to the sink, and to a table; bad ones to the dead letters."""
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(ROWS, "word string", take=2))
    if sink is not None:
        builder.set_sink("alerts", WordSink(sink)).shuffle_grouping("rows")
    state = MemoryMapState("word string") if counts is None else counts
    builder.set_committer_bolt("count", state.count()).shuffle_grouping("rows")
    return builder.build()


def run(topology: Topology, store: MemoryCoordinatorStore, *, accept_changes: bool = False, **options: Any) -> None:
    config = TopologyConfig(stop_when_drained=True, tick_ms=5, retry_pause_ms=1, **options)
    TopologyDriver(topology, store, LocalExecutor(topology), config, accept_changes=accept_changes).run()


@pytest.fixture
def waiting(target: Target) -> tuple[MemoryCoordinatorStore, MemoryMapState]:
    """A store and a table of a run that has ended with transactions that are not published."""
    store, counts = MemoryCoordinatorStore(), MemoryMapState("word string")
    target.errors = [RecordRefused("no")]
    with pytest.raises(RecordRefused, match="no"):
        run(build(counts=counts), store)
    assert store.sinks("words")["alerts"].waiting
    return store, counts


def test_a_drained_run_has_published_everything(target: Target) -> None:
    store = MemoryCoordinatorStore()
    run(build(), store)
    assert sorted(target.published) == PUBLISHED
    assert store.sinks("words")["alerts"].waiting == 0


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
    run(build(counts=counts), store)
    assert sorted(target.published) == PUBLISHED


@pytest.mark.parametrize(
    ("sink", "problem"), [(None, "is no longer part of the topology"), ("other", "was .*'words'.* and is .*'other'.*")]
)
def test_a_sink_with_waiting_transactions_stays_as_it_is(
    waiting: tuple[MemoryCoordinatorStore, MemoryMapState], sink: str | None, problem: str
) -> None:
    store, counts = waiting
    with pytest.raises(ConfigError, match=f"sink 'alerts' {problem}, and has . transaction.*unsent"):
        run(build(sink, counts), store, accept_changes=True)


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
    payload = encode_payload(pa.table({"word": ["cat"]})).payload
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
    one = relay.Relay("alerts", sink, store, lease, lambda: None, lambda: 0)
    while one.step():
        pass
    assert groups == [2, 2, 2, 1]
    assert [txid for txid, _ in target.published] == [1, 2, 3, 4, 5, 6, 7]


def test_a_payload_that_was_changed_is_refused_wherever_that_is() -> None:
    values = pa.array([bytes([n % 251]) * (n % 40) for n in range(500)])
    payload = encode_payload(pa.table({"key": values, "value": values})).payload
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


def test_a_topology_with_a_sink_is_not_taken_back(target: Target) -> None:
    store, topology = MemoryCoordinatorStore(), build()
    run(topology, store)
    with pytest.raises(ConfigError, match="a rewind is refused"):
        plan_rewind(topology, store, TxId(1))
