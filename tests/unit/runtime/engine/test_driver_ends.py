"""How runs end that can't go on: fenced, out of retries, stuck, without store; what was committed stays right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.drivers import DRAINED, WAIT_S, Gate, HookedStore, Recorder, World, in_background, silent
from tests.unit.fakes import WORD_COUNTS, opaque_words, stored, words
from transactional.core.machine.protocol import Halt, RecordCommit, RecordFailure
from transactional.errors import (
    CommitStuck,
    ConfigError,
    FatalError,
    Fenced,
    RetriesExhausted,
    SourceUnavailable,
    StoreMismatch,
    StoreUnavailable,
    StoreWentBack,
    TopologyInUse,
)
from transactional.model.config import TopologyConfig
from transactional.model.errors import fatal_error
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock


class Killed(FatalError):
    """Ends the run at once, wherever it is raised."""


class Closing(LocalExecutor):
    """Notes that it was closed, and may fail to open."""

    error: Exception | None = None
    closed = 0

    def open(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed += 1


def refuse(row: Tuple) -> Tuple:
    raise ValueError(f"no {row['word']}")


def is_exact(world: World) -> bool:
    return stored(world.counts) == WORD_COUNTS and stored(world.total) == {(): sum(WORD_COUNTS.values())}


@pytest.mark.parametrize("failing", ["counts", "total"])
def test_a_fenced_commit_ends_the_run_and_gives_the_lease_back(failing: str) -> None:
    world, recorder = World(), Recorder()
    topology = world.topology()
    executor = Closing(topology)

    def fence(attempt: Any) -> None:
        if attempt.txid == 2:
            raise Fenced("another coordinator has taken over")

    world.states[failing].before = fence
    with pytest.raises(Fenced, match="another coordinator has taken over"):
        world.run(topology, executor=executor, observers=[recorder])
    assert [action.attempt.txid for action in recorder.of(RecordCommit)] == [1]
    assert [executor.closed, *(state.closed for state in world.states.values())] == [1, 1, 1]
    assert not world.is_leased
    assert world.run().first_txid == 2
    assert is_exact(world)


def test_a_coordinator_that_wakes_up_late_changes_nothing_any_more() -> None:
    """The first one stands still in its commit phase; a second one takes over and finishes; then the first goes on."""
    world, gate = World(), Gate()
    topology = world.topology()

    def stand_still_once(attempt: Any) -> None:
        if attempt.txid == 2 and not gate.opened.is_set():
            gate.pass_through()

    world.states["counts"].before = stand_still_once
    first = world.driver(topology, owner="a")
    with in_background(first) as running:
        gate.wait_until_entered()
        # The same owner may take its lease again; that is how this store lets a lease end.
        assert world.driver(owner="a").run().transactions == 2
        after = (stored(world.counts), stored(world.total), world.counts.version)
        gate.opened.set()
        with pytest.raises(Fenced):
            running.result(WAIT_S)
    assert (stored(world.counts), stored(world.total), world.counts.version) == after
    assert is_exact(world)
    assert world.store.status()[0].committed_txid == 3


def test_retries_can_be_limited() -> None:
    world, recorder = World(), Recorder()
    config = TopologyConfig(attempts_max=3, retry_pause_ms=1, tick_ms=1)
    with pytest.raises(RetriesExhausted) as caught:
        world.run(world.topology(words([[("cat",)]]), refuse), config, observers=[recorder])
    first = str(caught.value).splitlines()[0]
    assert first.startswith(
        "transaction 1 failed 3 times (attempts_max = 3); the last error: "
        "TX302 task 0 of 2: component 'bolt' raised ValueError: no cat"
    )
    assert len(recorder.of(RecordFailure)) == 3
    assert len(recorder.of(Halt)) == 1, "the last event is told to observers too"
    assert [record.phase for record in world.store.attempts("words", limit=9)] == ["failed"] * 3
    assert not world.is_leased


def test_every_halt_has_its_error() -> None:
    for error in (RetriesExhausted, CommitStuck):
        halted = fatal_error(error.code, "why")
        assert (type(halted), str(halted)) == (error, "why")


def test_a_commit_phase_that_is_stuck_ends_the_run_without_waiting_for_it() -> None:
    world, gate, clock = World(), Gate(), ManualClock()
    topology = world.topology()
    executor = Closing(topology)
    world.states["total"].before = lambda attempt: gate.pass_through()
    driver = world.driver(topology, clock=clock, executor=executor)
    with in_background(driver) as running:
        gate.wait_until_entered()
        clock.advance(DRAINED.commit_timeout_ms + 1)
        with pytest.raises(CommitStuck, match=r"^the commit phase of 1:\d+ has run for \d+ ms, over commit_timeout_ms"):
            running.result(WAIT_S)
    assert not gate.opened.is_set()
    assert executor.closed == 1
    assert not world.is_leased
    world.run()
    gate.opened.set()  # whatever the stuck thread still does, it is fenced
    driver.runner._commits.shutdown()
    assert is_exact(world)


# --- a store that does not answer ---------------------------------------------------------------------------------

SHORT_LEASE = TopologyConfig(lease_ms=50, tick_ms=5, stop_when_drained=True, idle_pause_ms=1)


@pytest.mark.parametrize("call", ["record_attempt", "record_commit"])
def test_a_store_that_does_not_answer_for_a_while_costs_nothing(call: str) -> None:
    world, clock = World(), ManualClock()
    driver = world.driver(config=SHORT_LEASE, clock=clock)
    world.store.before = silent(call, 3)
    assert driver.run() == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert is_exact(world)


@pytest.mark.parametrize("call", ["record_attempt", "record_commit"])
def test_a_write_that_is_made_again_is_made_once(call: str) -> None:
    """The store has done the write and its answer is lost: the same write again must change nothing."""
    world = World()
    made = getattr(world.store, call)
    lost: list[str] = []

    def make_and_lose_the_answer(*arguments: Any, **named: Any) -> None:
        made(*arguments, **named)
        if len(lost) < 2:
            lost.append(call)
            raise StoreUnavailable("the answer is lost")

    setattr(world.store, call, make_and_lose_the_answer)
    assert world.run() == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert is_exact(world)
    assert len(world.store.attempts("words", limit=9)) == 3


def test_a_store_that_does_not_answer_until_the_lease_ends_ends_the_run() -> None:
    world = World()
    world.store.before = silent("record_commit", 1_000_000)
    with pytest.raises(StoreUnavailable, match="record_commit"):
        world.run(config=SHORT_LEASE)
    world.store.before = lambda call: None
    assert world.run().first_txid == 1
    assert is_exact(world)


def test_a_write_is_not_made_again_when_the_lease_has_ended() -> None:
    world, clock = World(), ManualClock()
    calls: list[str] = []

    def take_long(call: str) -> None:
        if call == "record_attempt":
            calls.append(call)
            clock.advance(DRAINED.lease_ms // 2)
            raise StoreUnavailable("the store does not answer")

    world.store.before = take_long
    with pytest.raises(StoreUnavailable):
        world.run(clock=clock)
    assert len(calls) == 2


def test_a_renewal_counts_only_once_it_has_succeeded() -> None:
    """Else its driver would take the lease for longer than the store does, and go on writing."""
    world, clock = World(), ManualClock()
    calls: list[str] = []

    def be_away(call: str) -> None:
        if call == "record_commit":
            clock.advance(DRAINED.lease_ms // 3)
        if call == "renew" and clock.monotonic_ms():
            calls.append(call)
            clock.advance(DRAINED.lease_ms * 2 // 3 + 1)
            raise StoreUnavailable("the store does not answer")

    world.store.before = be_away
    with pytest.raises(StoreUnavailable):
        world.run(world.topology(words([[("cat",)]])), replace(DRAINED, stop_when_drained=False), clock=clock)
    assert calls == ["renew"], "by then the lease had ended"


def test_the_lease_is_renewed_although_the_store_was_away() -> None:
    world, recorder, clock = World(), Recorder(), ManualClock()
    driver = world.driver(world.topology(words([[]])), TopologyConfig(tick_ms=1), clock=clock, observers=[recorder])
    with in_background(driver) as running:
        recorder.wait_for_more(2)
        store_is_away = world.store.before = silent("renew", 2)
        clock.advance(5_000)
        recorder.wait_for_more(2)
        store_is_away("renew")  # it was asked at least twice, and has answered
        driver.stop()
        assert running.result(WAIT_S).transactions == 0


def test_a_lease_that_can_not_be_given_back_ends_by_itself() -> None:
    world = World()
    world.store.before = silent("release", 1)
    assert world.run().transactions == 3
    assert world.is_leased


# --- killed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spout", "call"),
    [
        *((words, call) for call in ("record_attempt", "record_processed", "record_commit", "counts", "total")),
        *((opaque_words, call) for call in ("record_attempt", "record_commit", "counts", "total")),
    ],
)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_anywhere_the_next_run_makes_it_whole(spout: Callable[..., Any], call: str, nth: int) -> None:
    """Storm row T44. An opaque spout has other rows for the replay."""
    world = World()
    topology = world.topology(spout())
    left = [nth]

    def kill(at: str) -> None:
        left[0] -= at == call
        if at == call and left[0] == 0:
            raise Killed(f"before {call}")

    world.store.before = kill
    for name, state in world.states.items():
        state.before = lambda attempt, name=name: kill(name)  # type: ignore[misc]
    with pytest.raises(Killed):
        world.run(topology)
    world.store.before = lambda called: None
    world.run(world.topology(spout(take=3 if spout is words else 2)))
    assert is_exact(world)
    committed = [each.batch for each in world.store.attempts("words", limit=99) if each.phase == "committed"]
    assert sum(batch.record_count or 0 for batch in committed) == sum(WORD_COUNTS.values())


# --- before anything runs -----------------------------------------------------------------------------------------


def test_a_second_coordinator_is_refused_and_leaves_the_first_alone() -> None:
    world, recorder, gate = World(), Recorder(), Gate()
    topology = world.topology()
    world.states["counts"].before = lambda attempt: gate.pass_through()
    with in_background(world.driver(topology, observers=[recorder])) as running:
        gate.wait_until_entered()
        executor = Closing(world.topology())
        with pytest.raises(TopologyInUse, match=r"^topology 'words' is coordinated by "):
            world.run(world.topology(), executor=executor)
        assert executor.closed == 0
        gate.opened.set()
        assert running.result(WAIT_S).transactions == 3
    assert is_exact(world)


@pytest.fixture
def opened_spout() -> Any:
    spout = words()
    spout.calls = []  # type: ignore[attr-defined]
    spout.open = lambda: spout.calls.append("open")  # type: ignore[attr-defined, method-assign]
    spout.close = lambda: spout.calls.append("close")  # type: ignore[attr-defined, method-assign]
    return spout


def test_what_can_not_start_gives_everything_back(opened_spout: Any) -> None:
    world = World()
    topology = world.topology(opened_spout)
    executor = Closing(topology)
    executor.error = ConfigError("Java 17 is needed")
    with pytest.raises(ConfigError, match="Java 17 is needed"):
        world.run(topology, executor=executor)
    assert opened_spout.calls == ["open", "close"]
    assert executor.closed == 1
    assert not world.is_leased


def test_a_spout_that_does_not_open_takes_no_lease(opened_spout: Any) -> None:
    world = World()

    def fail() -> None:
        raise SourceUnavailable("no broker answers")

    opened_spout.open = fail
    with pytest.raises(SourceUnavailable, match="no broker answers"):
        world.run(world.topology(opened_spout))
    assert world.store.status() == []


@pytest.mark.parametrize(
    ("call", "back"), [("record_attempt", 1), ("record_attempt", 2), ("record_commit", 2), ("record_commit", 3)]
)
def test_a_store_that_fails_over_to_a_copy_that_was_behind_ends_the_run(call: str, back: int) -> None:
    """It had confirmed more: the run says so, and the next one goes on where it was, or is refused by the tables."""
    world, copies = World(), list[dict[str, Any]]()

    def before(called: str) -> None:
        if called.startswith("record"):
            copies.append(copy.deepcopy(world.store._topologies))
        if called == call and len(copies) > back:
            world.store.before = HookedStore.before
            world.store._topologies = copies[-1 - back]

    world.store.before = before
    with pytest.raises(StoreWentBack, match=r"has lost writes that it had confirmed: it was at epoch 1, transaction"):
        world.run(config=replace(DRAINED, max_spout_pending=1))
    with suppress(StoreMismatch):
        world.run()
        assert is_exact(world)


def test_a_store_that_fails_over_to_a_copy_from_before_the_lease_ends_the_run() -> None:
    world = World()
    before_it = copy.deepcopy(world.store._topologies)

    def before(called: str) -> None:
        if called == "record_commit":
            world.store._topologies = before_it

    world.store.before = before
    with pytest.raises(StoreWentBack, match="and is at epoch 0, transaction 0, attempt 0"):
        world.run()


def test_a_table_that_has_gone_back_with_the_store_is_a_failover_too() -> None:
    """Who has both in one database, and finds the table first."""
    world, copies = World(), list[dict[str, Any]]()

    def before(attempt: Any) -> None:
        copies.append(copy.deepcopy(world.store._topologies))
        if attempt.txid == 3:
            world.store._topologies = copies[0]
            raise StoreMismatch("the table is at transaction 0, but transaction 3 arrived")

    topology = world.topology()
    world.states["counts"].before = before
    with pytest.raises(StoreWentBack, match=r"has lost writes that it had confirmed"):
        world.run(topology, replace(DRAINED, max_spout_pending=1))
