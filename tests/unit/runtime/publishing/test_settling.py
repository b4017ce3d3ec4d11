"""Who takes the lease settles first: each row of the design's table, and rewinds, resets and replays with sinks."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spouts import MemoryTransactionalSpout
from tests.unit.runtime.publishing.word_sink import PUBLISHED, ROWS, TARGETS, Target, WordSink, run
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder
from transactional.core.store import Lease
from transactional.core.store.outbox import Publication
from transactional.errors import (
    ConfigError,
    Fenced,
    RecordRefused,
    RewindUnfinished,
    StoreMismatch,
    TopologyChanged,
    TopologyInUse,
)
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.runtime.engine.rewinding import RewindPlan, plan_rewind, rewind
from transactional.runtime.publishing.mending import accept_position, drop_sink, set_aside
from transactional.testing import MemoryCoordinatorStore

AGAIN = [(2, ["owl", "cat"]), (3, ["emu"])]


@pytest.fixture
def target() -> Target:
    TARGETS["words"] = Target()
    return TARGETS["words"]


@pytest.fixture
def store() -> MemoryCoordinatorStore:
    return MemoryCoordinatorStore()


def build(rows: list[list[tuple[str]]] = ROWS, sink: str = "words") -> Topology:
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(rows, "word string", take=2))
    builder.set_sink("alerts", WordSink(sink)).shuffle_grouping("rows")
    return builder.build()


def go_back(store: MemoryCoordinatorStore, txid: int, *, accepts_sent: bool = True) -> RewindPlan:
    return rewind(build(), store, TxId(txid), owner="rewinder", accepts_sent=accepts_sent)


def newest(target: Target) -> Publication:
    assert target.position is not None
    return target.position.publication


def set_position(target: Target, txid: int, attempt_id: int, run: str | None = None) -> None:
    """Let the target end with another publication."""
    assert target.position is not None
    publication = Publication(
        newest(target).run if run is None else run, TransactionAttempt(TxId(txid), AttemptId(attempt_id))
    )
    target.position = replace(target.position, publication=publication)


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_target_without_a_position_and_a_store_without_one_go_on(
    store: MemoryCoordinatorStore, target: Target
) -> None:
    run(build(), store)
    assert target.published == PUBLISHED


def test_a_target_that_has_lost_its_position_is_refused(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    target.position = None
    with pytest.raises(StoreMismatch, match="has nothing of it, and the store has transaction 3 published"):
        run(build(), store)


def test_the_target_of_another_store_is_refused(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    assert target.position is not None
    target.position = replace(target.position, store_id="other")
    with pytest.raises(StoreMismatch, match="belongs to the store with the id other"):
        run(build(), store)


@pytest.mark.parametrize("run_name", ["stranger#1", "stranger#9", "no run"])
def test_an_unknown_run_is_refused_before_anything_is_fenced(
    store: MemoryCoordinatorStore, target: Target, run_name: str
) -> None:
    run(build(), store)
    set_position(target, 3, 4, run_name)
    target.opened = 0
    with pytest.raises(StoreMismatch, match=rf"of run '{run_name}', which this store does not know"):
        run(build(), store)
    assert target.opened == 0


def die_after_publication(store: MemoryCoordinatorStore) -> None:
    """A run that dies between the publication and the store."""

    class Dying(MemoryCoordinatorStore):
        def settle_sink(self, lease: Lease, sink: str, published: Publication) -> None:
            raise Fenced("the process has died")

    dying = Dying()
    with pytest.raises(Fenced):
        run(build(), dying)
    store._topologies = dying._topologies


def test_what_was_published_and_not_settled_is_settled(store: MemoryCoordinatorStore, target: Target) -> None:
    die_after_publication(store)
    assert target.published
    run(build(), store)
    assert target.published == PUBLISHED


def test_a_target_that_is_behind_is_refused_and_names_the_transactions(
    store: MemoryCoordinatorStore, target: Target
) -> None:
    run(build(), store)
    set_position(target, 1, 2)
    with pytest.raises(StoreMismatch, match="the target has lost records of transactions 2 to 3"):
        run(build(), store)


def test_a_target_that_is_ahead_of_the_store_is_refused(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    set_position(target, 9, 12)
    with pytest.raises(StoreMismatch, match="transaction 9 of attempt 12 which this store, at transaction 3, has not"):
        run(build(), store)


# --- rewinds ----------------------------------------------------------------------------------------------------------


def test_a_rewind_names_what_is_sent_and_sends_again_what_is_computed_again(
    store: MemoryCoordinatorStore, target: Target
) -> None:
    run(build(), store)
    plan = plan_rewind(build(), store, TxId(1))
    line = "alerts: 3 records of transactions 2 to 3 are in its word sink; what is computed again is sent again"
    assert plan.sinks == (f"{line} (header attempt)",)
    with pytest.raises(ConfigError, match="--accept-sent"):
        go_back(store, 1, accepts_sent=False)
    assert store.status("words")[0].committed_txid == 3
    assert go_back(store, 1).sinks == plan.sinks
    assert target.position is not None
    run(build(), store)
    assert target.published == [*PUBLISHED, *AGAIN]
    assert newest(target).attempt.attempt_id > 5


def test_a_marker_of_a_rewound_attempt_counts_for_nothing(store: MemoryCoordinatorStore, target: Target) -> None:
    """The first run after the rewind publishes nothing, so the marker of before stays the newest one."""
    run(build(), store)
    go_back(store, 2)
    run(build([ROWS[0][:4]]), store)
    assert newest(target).attempt.txid == 3
    run(build(), store)
    assert target.published == [*PUBLISHED, (3, ["emu"])]


@pytest.mark.parametrize("txid", [1, 2])
def test_a_stale_look_at_a_rewound_attempt_is_not_ahead(
    store: MemoryCoordinatorStore, target: Target, txid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open Kafka transaction of somebody else hides newer markers until it has timed out."""
    run(build(), store)
    stale = target.position
    go_back(store, txid)
    run(build([ROWS[0][: 2 * txid + 2]]), store)
    monkeypatch.setattr(WordSink, "look", lambda *_: stale)
    run(build(), store)
    assert [published[0] for published in target.published] == [1, 2, 3, *range(txid + 1, 4)]


def test_a_rewind_to_what_is_not_published_sends_nothing_again(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    plan = go_back(store, 3, accepts_sent=False)
    assert (plan.sinks, plan.is_sent_again) == ((), False)
    run(build(), store)
    assert target.published == PUBLISHED


class DyingInRewind(MemoryCoordinatorStore):
    """A store whose user dies before, or after, the write that finishes a rewind."""

    dies = "before"

    def finish_rewind(self, lease: Lease, txid: TxId) -> None:
        if self.dies == "after":
            super().finish_rewind(lease, txid)
        if self.dies != "never":
            raise Fenced("the process has died")
        super().finish_rewind(lease, txid)


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("second", [0, 1])
def test_a_rewind_that_was_interrupted_is_finished(target: Target, dies: str, second: int) -> None:
    store = DyingInRewind()
    run(build(), store)
    store.dies = dies
    with pytest.raises(Fenced):
        go_back(store, 1)
    store.dies = "never"
    if dies == "before":
        assert store.outbox("words", "alerts", last=TxId(9), limit=9) == []
        with pytest.raises(RewindUnfinished):
            run(build(), store)
    go_back(store, second)
    run(build(), store)
    assert target.published == [*PUBLISHED, *PUBLISHED[second:]]


def test_a_rewind_settles_first(store: MemoryCoordinatorStore, target: Target) -> None:
    """A run has died between the publication and the store."""
    die_after_publication(store)
    sent = list(target.published)
    with pytest.raises(ConfigError, match="--accept-sent"):
        go_back(store, 0, accepts_sent=False)
    go_back(store, 0)
    run(build(), store)
    assert target.published == [*sent, *PUBLISHED]


def test_two_rewinds_in_a_row(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    go_back(store, 2)
    with pytest.raises(ConfigError, match="--accept-sent"):
        go_back(store, 1, accepts_sent=False)
    go_back(store, 1)
    run(build(), store)
    go_back(store, 2)
    run(build(), store)
    assert target.published == [*PUBLISHED, *AGAIN, (3, ["emu"])]


def test_a_rewind_needs_the_sinks_as_they_were(store: MemoryCoordinatorStore, target: Target) -> None:
    TARGETS["other"] = Target()
    run(build(), store)
    with pytest.raises(TopologyChanged, match="sink 'alerts' of topology 'words' has the target"):
        rewind(build(sink="other"), store, TxId(1), owner="rewinder", accepts_sent=True)


def test_a_rewind_accepts_a_target_that_is_ahead(store: MemoryCoordinatorStore, target: Target) -> None:
    """The store is a backup from the middle of the run."""
    run(build(), store)
    set_position(target, 9, 12)
    with pytest.raises(ConfigError, match="--accept-sent"):
        go_back(store, 2, accepts_sent=False)
    [line] = plan_rewind(build(), store, TxId(2)).sinks
    go_back(store, 2)
    assert "ends with transaction 9, which the store has not committed" in line
    run(build(), store)
    assert target.published == [*PUBLISHED, (3, ["emu"])]


def test_a_savepoint_may_be_noted_while_the_topology_runs(store: MemoryCoordinatorStore, target: Target) -> None:
    """The target is not looked at: its position may be newer than what the store has settled."""
    run(build(), store)
    [status] = store.status("words")
    store.acquire("words", status.fingerprint, owner="leader", lease_ms=1_000)
    set_position(target, 9, 12)
    assert plan_rewind(build(), store, TxId(3)).target == 3


# --- resets -----------------------------------------------------------------------------------------------------------


def test_after_a_reset_everything_is_sent_again(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    assert store.reset("words")
    run(build(), store)
    assert target.published == [*PUBLISHED, *PUBLISHED]


# --- what operators mend ----------------------------------------------------------------------------------------------


def refused_after_commit(store: MemoryCoordinatorStore, target: Target) -> None:
    """A run whose target refuses what is committed."""
    target.errors = [RecordRefused("no")]
    with pytest.raises(RecordRefused):
        run(build(), store)
    target.errors = []


def accept(store: MemoryCoordinatorStore, txid: int) -> str:
    return accept_position(build(), store, "alerts", TxId(txid), owner="operator")


@pytest.mark.parametrize("stranger", ["", "stranger#7"])
def test_the_position_of_a_target_that_is_ahead_is_accepted(
    store: MemoryCoordinatorStore, target: Target, stranger: str
) -> None:
    run(build([ROWS[0][:4]]), store)
    set_position(target, 9, 12, stranger or None)
    assert "ends with transaction 9 of attempt 12" in accept(store, 2)
    run(build(), store)
    assert target.published == PUBLISHED


def test_the_position_of_a_target_that_has_lost_its_end_is_accepted(
    store: MemoryCoordinatorStore, target: Target
) -> None:
    run(build(), store)
    set_position(target, 1, 2)
    with pytest.raises(ConfigError, match="can continue after transactions 3 to 3, not after 1"):
        accept(store, 1)
    accept(store, 3)
    go_back(store, 1)
    run(build(), store)
    assert target.published == [*PUBLISHED, *AGAIN]


def test_the_target_of_another_store_is_not_accepted(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    assert target.position is not None
    target.position = replace(target.position, store_id="other")
    target.opened = 0
    with pytest.raises(StoreMismatch, match="can't be accepted"):
        accept(store, 3)
    assert target.opened == 0


def test_accepting_needs_the_lease(store: MemoryCoordinatorStore, target: Target) -> None:
    run(build(), store)
    store.acquire("words", store.status("words")[0].fingerprint, owner="leader", lease_ms=1_000)
    target.opened = 0
    with pytest.raises(TopologyInUse):
        accept(store, 3)
    assert target.opened == 0


def test_a_sink_is_dropped_with_what_waits(store: MemoryCoordinatorStore, target: Target) -> None:
    refused_after_commit(store, target)
    waiting = store.sinks("words")["alerts"].waiting
    assert drop_sink(store, "words", "alerts", owner="operator").waiting == waiting > 0
    assert store.sinks("words") == {}
    with pytest.raises(ConfigError, match="the store has no sink 'alerts'"):
        drop_sink(store, "words", "alerts", owner="operator")


def test_files_of_many_records_are_set_aside_as_a_whole(
    store: MemoryCoordinatorStore, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WordSink, "stage", lambda *_: pa.table({"word": ["a file"]}))
    refused_after_commit(store, target)
    with pytest.raises(ConfigError, match="has its 2 records in 1 files: a single one can't be set aside"):
        set_aside(build(), store, "alerts", TxId(1), 0, TopologyConfig(), owner="operator")
    assert set_aside(build(), store, "alerts", TxId(1), None, TopologyConfig(), owner="operator") == 2


@pytest.mark.parametrize(("record", "published"), [(None, []), (0, ["dog"]), (1, ["cat"])])
def test_records_that_a_target_refuses_are_set_aside(
    store: MemoryCoordinatorStore, target: Target, record: int | None, published: list[str]
) -> None:
    refused_after_commit(store, target)
    with pytest.raises(ConfigError, match="no waiting records of transaction 9"):
        set_aside(build(), store, "alerts", TxId(9), None, TopologyConfig(), owner="operator")
    with pytest.raises(ConfigError, match="has the records 0 to 1, and no record 2"):
        set_aside(build(), store, "alerts", TxId(1), 2, TopologyConfig(), owner="operator")
    count = set_aside(build(), store, "alerts", TxId(1), record, TopologyConfig(), owner="operator")
    assert count == 2 - len(published)
    run(build(), store)
    assert target.published == [*([(1, published)] if published else []), *AGAIN]
    assert [letter.count for letter in store.sink_letters("words")] == [count]
