"""The last attempts of a run as it reports them are those that its store has, whatever happens to them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.drivers import HookedState, World
from tests.unit.fakes import opaque_words, words
from tests.unit.operations.console.stores import START_MS, Past
from transactional.core.machine.protocol import Action, Event
from transactional.core.store import AttemptTimes, StoreReader
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.rules import FAILED
from transactional.errors import StoreUnavailable
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.operations.console.data.figures import RECENT
from transactional.operations.console.data.live import Live
from transactional.operations.console.data.recent import Recent, caught_up
from transactional.runtime.engine.history.observing import Ended, Leading

MANY = [[(f"word {number}",) for number in range(30)] for _ in range(2)]


class Compared:
    """An observer that compares, at every so many events, what `live` has with what the store has."""

    def __init__(self, live: Live, store: StoreReader, every: int) -> None:
        self.live, self.store, self.every = live, store, every
        self.events = self.compared = 0
        self.phases = set[str]()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        self.events += 1
        if self.events % self.every == 0:
            self.compare()

    def compare(self) -> None:
        stored = self.store.times("words", limit=RECENT)
        assert [as_stored(each) for each in self.live.recent.newest(self.store)] == stored
        self.compared += 1
        self.phases |= {each.phase for each in stored}


def as_stored(each: AttemptTimes) -> AttemptTimes:
    """Details are JSON in a store."""
    return replace(each, details=json.loads(json.dumps(each.details)))


def now_and_then() -> Any:
    """A bolt that fails at some tuples."""
    tuples = [0]

    def fail(row: Tuple) -> tuple[str]:
        tuples[0] += 1
        if tuples[0] % 17 == 12:
            raise ValueError("not now")
        return (row["word"],)

    return fail


@pytest.mark.parametrize("every", [1, 3, 20])
@pytest.mark.parametrize("spout", [words, opaque_words])
def test_attempts_are_those_of_the_store_at_every_moment(spout: Any, every: int) -> None:
    live, world = Live("words"), World()
    compared = Compared(live, world.store, every)
    world.run(world.topology(spout(MANY)), observers=[live, compared])
    compared.compare()
    assert compared.compared >= 2
    assert compared.phases >= {"committed"}
    assert live.recent.reads == 2, "when it began, and when it had ended"


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("spout", [words, opaque_words])
def test_attempts_that_fail_and_those_given_up_with_them_are_those_of_the_store(spout: Any, every: int) -> None:
    live, world = Live("words"), World()
    compared = Compared(live, world.store, every)
    world.run(world.topology(spout(MANY), bolt=now_and_then()), observers=[live, compared])
    assert FAILED in compared.phases


def test_attempts_that_fail_in_the_commit_phase_and_another_run_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, calls = World(), itertools.count()

    def fail(attempt: TransactionAttempt) -> None:
        if next(calls) % 5 == 3:
            raise ValueError("not now")

    monkeypatch.setattr(HookedState, "before", staticmethod(fail))
    for count in (10, 30):
        live = Live("words")
        compared = Compared(live, world.store, 2)
        world.run(world.topology(words([part[:count] for part in MANY])), observers=[live, compared])
        assert FAILED in compared.phases
    assert len(world.store.times("words", limit=RECENT)) > 10


def test_only_what_was_in_flight_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    past, recent, limits = Past().begin().committed(40), Recent("words"), list[int]()
    times = past.store.times

    def counted(topology_id: str, *, limit: int) -> Any:
        limits.append(limit)
        return times(topology_id, limit=limit)

    monkeypatch.setattr(past.store, "times", counted)
    recent.newest(past.store)
    past.retried()
    recent.doubt()
    assert list(recent.newest(past.store)) == times("words", limit=RECENT)
    assert limits == [RECENT, 8]


def test_a_store_that_was_away_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    past, recent = Past().begin().committed(3), Recent("words")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(past.store, "times", away)
        with pytest.raises(StoreUnavailable):
            recent.newest(past.store)
    assert len(recent.newest(past.store)) == 3


def test_no_more_is_kept_than_pages_show_when_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transactional.operations.console.data.recent._REPORTED_MAX", 10)
    live, world = Live("words"), World()
    many = [[(f"word {number}",) for number in range(30)]]
    world.run(world.topology(words(many, take=1)), observers=[live])
    assert len(live.recent._reported) == 10


def test_a_run_that_does_not_lead_leaves_the_attempts_to_the_store() -> None:
    past, live = Past().begin().committed(2), Live("words")
    found = [live.leads]
    for notice in (Leading(past.held, None), Ended(RunEnd(EndedHow.DRAINED), None)):
        live.notice(START_MS, notice)
        found.append(live.leads)
    assert found == [False, True, False]


def test_a_status_read_earlier_catches_up_with_what_was_committed_since() -> None:
    past = Past().begin().committed(2)
    past.fail(past.issue())
    [before] = past.store.status("words")
    past.commit(past.issue(past.txid), {"lag": 7})
    [after] = past.store.status("words")
    recent = past.store.times("words", limit=RECENT)
    assert before.trouble is not None
    assert caught_up(before, recent) == replace(after, attempt_id=before.attempt_id)
    assert caught_up(after, recent) is after
    assert caught_up(before, []) is before


def test_fewer_than_were_read_again_are_all_that_there_are() -> None:
    past, recent = Past().begin().committed(5), Recent("words")
    recent.newest(past.store)
    anew = Past().begin().committed(1)
    recent.doubt()
    assert list(recent.newest(anew.store)) == anew.store.times("words", limit=RECENT)
