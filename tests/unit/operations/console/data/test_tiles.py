"""The figures at the top of a page: of the present run, and of now; what is not known is a dash and never a zero."""

from __future__ import annotations

import pytest

from tests.unit.operations.console.stores import Past
from transactional.model.drawing.formats import DASH
from transactional.operations.console.data.figures import committed_of
from transactional.operations.console.data.tiles import Tile, attempts_of_run, percentile, rate_of, tiles_of


def tiles(past: Past) -> dict[str, Tile]:
    [status] = past.store.status("words")
    return {each.label: each for each in tiles_of(status, past.store.times("words", limit=300), past.clock.wall_ms())}


def rate(past: Past) -> float | None:
    recent = committed_of(past.store.times("words", limit=300))
    found = rate_of(recent, past.clock.wall_ms())
    return None if found is None else found.per_second


def test_rates_are_of_the_time_between_commits_while_it_is_busy() -> None:
    assert rate(Past().begin().committed(5)) == pytest.approx(4 * 200 / 0.82)
    assert rate(Past().begin().committed(1)) is None
    assert rate(Past().begin()) is None


def test_a_rate_is_of_the_last_minute_and_falls_once_nothing_comes() -> None:
    past = Past().begin().committed(400)
    assert rate(past) == pytest.approx(200 / 0.205, rel=0.01)
    past.clock.advance(30_000)
    assert rate(past) == pytest.approx(200 / 0.205 / 2, rel=0.01)
    past.clock.advance(3_600_000)
    assert rate(past) == pytest.approx(3 * 200 / 3_630, rel=0.01)


def test_a_source_that_falls_silent_has_a_rate_that_falls() -> None:
    past = Past().begin().committed(5)
    assert tiles(past)["records per second"].value == "976"
    past.clock.advance(30_000)
    assert tiles(past)["records per second"].value == "26"


def test_large_transactions_that_are_rare_have_a_rate() -> None:
    past = Past().begin()
    for _ in range(5):
        past.clock.advance(300_000)
        past.committed(1)
    assert rate(past) == pytest.approx(200 / 300.2, rel=0.01)


def test_figures_are_those_of_the_present_run() -> None:
    """What the process before it did, and how often it failed, says nothing about now."""
    past = Past().begin().committed(40)
    for _ in range(3):
        past.fail(past.issue(41))
    past.commit(past.issue(41))
    past.taken_over()
    assert tiles(past)["records per second"].value == DASH
    assert tiles(past)["latency, median"].value == DASH
    past.clock.advance(1_000)
    past.committed(2)
    found = tiles(past)
    assert found["records per second"].value == "976"
    assert (found["failed attempts"].value, found["failed attempts"].note) == ("0", "of 2 in run 2")
    assert found["committed transactions"].value == "43"


def test_what_a_dead_run_had_in_flight_is_not_of_the_present_one() -> None:
    past = Past().begin().committed(3)
    past.fail(past.issue())
    past.issue(past.txid)
    past.taken_over().commit(past.issue(past.txid))
    [status] = past.store.status("words")
    own = attempts_of_run(past.store.times("words", limit=300), status.run)
    assert [(each.attempt.txid, each.phase) for each in own] == [(4, "committed")]


def test_a_run_that_has_ended_keeps_the_rate_that_it_had() -> None:
    past = Past().begin().committed(9)
    before = tiles(past)["records per second"].value
    past.end().clock.advance(3_600_000)
    assert tiles(past)["records per second"].value == before == "976"


def test_percentiles() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(100)), 0.95) == 95
