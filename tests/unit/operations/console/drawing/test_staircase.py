"""The timeline: where bars stand, how long gaps are drawn, what is said of an attempt."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operations.console.stores import START_MS, Past
from transactional.core.store import AttemptTimes
from transactional.core.store.rules import COMMITTED, FAILED, GIVEN_UP, OPEN
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.operations.console.drawing.labels import CHARACTER
from transactional.operations.console.drawing.staircase import Axis, Bar, bars_of, draw_staircase, find_gaps


def attempts_of(past: Past) -> list[AttemptTimes]:
    found: list[AttemptTimes] = past.store.times("words", limit=99)
    return found


def drawn(past: Past) -> str:
    return draw_staircase(
        attempts_of(past), past.store.runs("words", limit=9), past.clock.wall_ms(), lambda txid: f"/{txid}"
    )


def test_a_committed_attempt_has_four_bars_that_follow_each_other() -> None:
    [each] = attempts_of(Past().begin().committed())
    bars = bars_of(each, START_MS + 9_999)
    assert [(bar.kind, bar.start_ms - START_MS, bar.end_ms - START_MS) for bar in bars] == [
        ("planning", 0, 5),
        ("processing", 5, 125),
        ("waiting", 125, 155),
        ("committing", 155, 205),
    ]


def test_what_still_runs_lasts_until_now_and_what_failed_until_then() -> None:
    past = Past().begin()
    past.fail(past.issue())
    past.issue(1)
    running, failed = attempts_of(past)
    assert bars_of(failed, 0)[-1] == Bar("failed", START_MS + 5, START_MS + 95)
    assert bars_of(running, START_MS + 1_000)[-1] == Bar("processing", START_MS + 100, START_MS + 1_000)


def test_what_was_given_up_lasts_until_it_is_tried_again() -> None:
    past = Past().begin()
    first = past.issue()
    past.issue(2)
    past.fail(first)
    given_up = attempts_of(past)[0]
    assert given_up.phase == "given up"
    assert bars_of(given_up, START_MS + 9_999, START_MS + 500)[-1] == Bar("given-up", START_MS + 10, START_MS + 500)


def test_each_transaction_is_a_link_with_its_story() -> None:
    picture = drawn(Past().begin().committed(2).retried())
    assert re.findall(r'<a href="/(\d)"', picture) == ["1", "2", "3"]
    assert "attempt 3:4 failed: planning 5 ms, failed 90 ms; attempt 3:5 committed, 200 records" in picture
    assert picture.count('class="cross"') == 1
    bar = re.search(r'class="failed" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', picture)
    cross = re.search(r'class="cross" d="M([\d.]+) ', picture)
    assert bar is not None
    assert cross is not None
    assert float(bar[1]) < float(cross[1]) < float(cross[1]) + 8 < float(bar[1]) + float(bar[2]), "it is white"


def test_only_the_last_transactions_are_drawn() -> None:
    assert re.findall(r'<a href="/(\d+)"', drawn(Past().begin().committed(60))) == [str(txid) for txid in range(36, 61)]


def test_a_line_leads_from_the_commit_that_was_waited_for() -> None:
    past = Past().begin()
    first, second = past.issue(), past.issue()
    past.commit(first)
    assert 'class="after"' not in drawn(past)
    batch = past.batch(second)
    at_ms = past.clock.wall_ms()
    past.store.record_commit(past.held, second, batch, processed_at_ms=at_ms - 40, started_at_ms=at_ms, at_ms=at_ms + 9)
    assert drawn(past).count('class="after"') == 1


def test_a_takeover_is_marked_and_the_time_without_anybody_takes_little_room() -> None:
    picture = drawn(Past().begin().committed(5).taken_over().committed(5))
    assert "run 2 began at" in picture
    assert "nothing was in flight for 1 min 10 s" in picture


def test_gaps_are_those_longer_than_half_of_what_was_busy() -> None:
    assert find_gaps([(0, 100), (50, 200), (1_000, 1_100)]) == [(200, 1_000)]
    assert find_gaps([(0, 100), (140, 200)]) == []


def test_an_axis_shortens_its_gaps_and_keeps_the_order() -> None:
    axis = Axis(0, 10_000, [(1_000, 9_000)])
    places = [axis.x_of(at_ms) for at_ms in (0, 500, 1_000, 5_000, 9_000, 9_500, 10_000)]
    assert places == sorted(places)
    assert places[4] - places[2] < places[2] - places[0]
    assert abs((places[1] - places[0]) - (places[5] - places[4])) < 0.01


def test_one_that_stands_still_does_not_squeeze_the_others() -> None:
    past = Past().begin().committed(10)
    past.issue()
    past.clock.advance(1_000_000)
    picture = drawn(past)
    widths = [float(width) for width in re.findall(r'class="committing"[^>]* width="([\d.]+)"', picture)]
    assert min(widths) > 15
    assert "16 min 40 s …" in picture


TEXT = re.compile(r'<text x="([\d.-]+)" y="([\d.-]+)" class="(\w+)"(?: text-anchor="(\w+)")?>([^<]*)</text>')


def boxes_of(picture: str) -> list[tuple[float, float, float, str]]:
    """Left and right end, baseline and words of every text."""
    found = []
    for x, y, _, anchor, words in TEXT.findall(picture):
        width = CHARACTER * len(words)
        left = float(x) - {"end": width, "middle": width / 2}.get(anchor, 0.0)
        found.append((left, left + width, float(y), words))
    assert len(found) == picture.count("<text ")
    return found


def assert_readable(picture: str) -> None:
    """No text lies upon another one, and none leaves the picture."""
    boxes = boxes_of(picture)
    for number, (left, right, y, words) in enumerate(boxes):
        assert left >= -0.1
        assert right <= 1_120.1, words
        for other_left, other_right, other_y, other in boxes[:number]:
            assert abs(y - other_y) > 10 or right < other_left or other_right < left, f"{words} upon {other}"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(61_000, 200_000), st.booleans()), min_size=1, max_size=12))
def test_runs_within_a_short_time_have_labels_that_can_be_read(lives: list[tuple[int, int, bool]]) -> None:
    past = Past(name="-with-a-name-of-forty-characters-at-least").begin()
    for commits, pause_ms, is_retried in lives:
        past.committed(commits)
        if is_retried:
            past.retried()
        past.clock.advance(pause_ms)
        past.begin()
    past.committed(2)
    assert_readable(drawn(past))


def test_many_runs_in_a_row_are_marked_and_some_are_named() -> None:
    past = Past().begin().committed()
    for _ in range(9):
        past.end().begin()
    picture = drawn(past.committed())
    assert picture.count('line class="takeover"') == 9
    assert 1 <= picture.count('class="takeover">run') < 9
    assert_readable(picture)


@given(st.data())
def test_clocks_that_are_set_back_or_by_decades_cost_neither_room_nor_sense(data: st.DataObject) -> None:
    """A machine may begin in 1970, and be told the time while a transaction is in flight."""
    moments = st.one_of(st.integers(START_MS - 5_000, START_MS + 5_000), st.integers(0, 2**53))
    later = st.one_of(st.none(), moments)
    attempts = [
        AttemptTimes(
            TransactionAttempt(TxId(data.draw(st.integers(1, 3))), AttemptId(number + 1)),
            data.draw(st.sampled_from([COMMITTED, FAILED, GIVEN_UP, *OPEN])),
            10,
            data.draw(moments),
            data.draw(moments),
            data.draw(later),
            data.draw(later),
            data.draw(later),
            data.draw(later),
            None,
        )
        for number in range(data.draw(st.integers(1, 5)))
    ]
    picture = draw_staircase(attempts, [], data.draw(moments), lambda txid: f"/{txid}")
    assert len(picture) < 20_000
    assert all(0 <= float(x) <= 1_120 for x in re.findall(r' x[12]?="(.+?)"', picture))
    assert not re.search(r"-\d+(\.\d+)? (ms|s|min|h|d)\b", picture)
