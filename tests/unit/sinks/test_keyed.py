"""Sinks whose target recognizes records by their keys: what is sent again, and under which keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from sinks import KeyedSink
from sinks.keyed import NUMBER
from spouts import MemoryTransactionalSpout
from tests.unit.runtime.publishing.word_sink import run
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder
from transactional.core.ports import PublishedRecords, SinkOwner
from transactional.core.store import Lease
from transactional.core.store.outbox import Publication
from transactional.errors import ConfigError, Fenced, RecordRefused, SinkUnavailable
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.runtime.engine.rewinding import plan_rewind, rewind
from transactional.runtime.publishing.mending import set_aside
from transactional.testing import MemoryCoordinatorStore

WORDS = ["cat", "dog", "owl", "cat", "emu"]


class Target:
    """A web service in memory, which takes each key once."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.requests: list[str] = []
        self.refused = ""
        self.requests_max = 1_000
        self.fence_id = 0

    def post(self, key: str, word: str) -> None:
        """Take a word unless its key is known."""
        if len(self.requests) == self.requests_max:
            raise SinkUnavailable("the service is away")
        if word == self.refused:
            raise RecordRefused(f"{word!r} is refused")
        self.requests.append(key)
        self.words.setdefault(key, word)


TARGET = Target()


class PostingSink(KeyedSink):
    """Posts the field `word`."""

    kind = "posting sink"

    def identity(self) -> Mapping[str, Any]:
        return {"kind": self.kind}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"word": batch["word"]})

    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        for key, word in zip(keys, records["word"].to_pylist(), strict=True):
            TARGET.post(key, word)


class FencedSink(PostingSink):
    """Posts with the fence id of its leader, of which the service remembers the highest."""

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        super().open(owner, has_published=has_published)
        TARGET.fence_id = max(TARGET.fence_id, self.fence_id)

    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        if self.fence_id < TARGET.fence_id:
            raise SinkUnavailable("the service knows another leader", is_fenced=True)
        super().deliver(keys, records)


class DyingStore(MemoryCoordinatorStore):
    """A store whose user dies before it notes a publication."""

    dies = False

    def settle_sink(self, lease: Lease, sink: str, published: Publication) -> None:
        if self.dies:
            raise Fenced("the process has died")
        super().settle_sink(lease, sink, published)


@pytest.fixture(autouse=True)
def target() -> Target:
    TARGET.__init__()  # type: ignore[misc]
    return TARGET


def build(sink: KeyedSink | None = None) -> Topology:
    rows = [[(word,) for word in WORDS]]
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(rows, "word string", take=2))
    builder.set_sink("alerts", sink or PostingSink()).shuffle_grouping("rows")
    return builder.build()


def test_records_whose_publication_was_not_noted_are_sent_again_with_the_same_keys(target: Target) -> None:
    store = DyingStore()
    store.dies = True
    with pytest.raises(Fenced):
        run(build(), store)
    assert target.requests
    store.dies = False
    run(build(), store)
    assert len(target.requests) > len(WORDS)
    assert list(target.words.values()) == WORDS
    assert store.sinks("words")["alerts"].waiting == 0


def test_a_publication_that_breaks_off_is_repeated_with_the_same_keys(target: Target) -> None:
    target.requests_max = 1
    with pytest.raises(Exception, match="the service is away"):
        run(build(), store := MemoryCoordinatorStore(), outage_timeout_ms=1)
    target.requests_max = 1_000
    plan = plan_rewind(build(), store, TxId(0))
    assert plan.is_sent_again
    assert "may have some of them, as it has no position" in plan.sinks[0]
    run(build(), store)
    assert list(target.words.values()) == WORDS
    assert target.requests[0] == target.requests[1]


def test_records_that_are_computed_again_have_other_keys(target: Target) -> None:
    store = MemoryCoordinatorStore()
    run(build(), store)
    with pytest.raises(ConfigError, match="--accept-sent"):
        rewind(build(), store, TxId(1), owner="operator")
    rewind(build(), store, TxId(1), owner="operator", accepts_sent=True)
    run(build(), store)
    assert list(target.words.values()) == [*WORDS, *WORDS[2:]]
    assert len(set(target.requests)) == len(target.requests)


def test_a_leader_that_was_suspended_during_a_rewind_is_kept_out_by_its_fence_id(target: Target) -> None:
    store, rows = MemoryCoordinatorStore(), pa.table({"word": ["emu"], NUMBER: [0]})
    run(build(FencedSink()), store)
    suspended = FencedSink()
    suspended.open(SinkOwner("words", "alerts", "store", AttemptId(target.fence_id)), has_published=False)
    late = PublishedRecords(Publication("run", TransactionAttempt(TxId(3), AttemptId(4))), rows)
    suspended.publish([late])
    rewind(build(FencedSink()), store, TxId(1), owner="operator", accepts_sent=True)
    with pytest.raises(SinkUnavailable, match="another leader") as refused:
        suspended.publish([late])
    assert refused.value.is_fenced


def test_a_store_that_was_set_back_sends_under_other_keys(target: Target) -> None:
    """Both stores count the same attempts; their runs are others."""
    run(build(), MemoryCoordinatorStore())
    run(build(), MemoryCoordinatorStore())
    assert len({key.split("/", 1)[1] for key in target.words}) == 2 * len(WORDS)


def test_records_beside_one_that_is_set_aside_keep_their_keys(target: Target) -> None:
    store = MemoryCoordinatorStore()
    target.refused = "dog"
    with pytest.raises(RecordRefused, match="sink 'alerts' can't publish transaction 1 to its posting sink: 'dog' is"):
        run(build(), store)
    assert set_aside(build(), store, "alerts", TxId(1), 0, TopologyConfig(), owner="operator") == 1
    target.refused = ""
    run(build(), store)
    assert list(target.words.values()) == WORDS
    assert [key.rsplit("/", 1)[1] for key in target.words] == ["0", "1", "0", "1", "0"]
