"""Which way of writing is chosen, by what the last writes have cost."""

from __future__ import annotations

from state.delta.merging.ways import TRY_AFTER, TRY_EVERY, Way, Ways


def written(ways: Ways, costs: dict[Way, float], writes: int, stored: int = 1_000, coming: int = 0) -> list[Way]:
    """The ways of so many writes, which cost so much per row."""
    found = []
    for _ in range(writes):
        way = ways.choose(stored, coming).way
        ways.learn(way, stored, coming, costs[way] * (stored + 2 * coming))
        found.append(way)
    return found


def test_both_are_tried_and_the_cheaper_one_stays() -> None:
    for cheaper, dearer in ((Way.FILES, Way.MERGE), (Way.MERGE, Way.FILES)):
        ways = Ways()
        found = written(ways, {cheaper: 1.0, dearer: 2.0}, TRY_AFTER + 20)
        assert found[: TRY_AFTER + 1] == [Way.FILES] * TRY_AFTER + [Way.MERGE]
        assert set(found[TRY_AFTER + 1 :]) == {cheaper}
        assert str(ways.chosen) == f"{cheaper.value}: about 1000 ms, 2000 ms by {dearer.value}"


def test_the_other_one_is_tried_again_and_much_more_rarely_where_it_is_much_dearer() -> None:
    for factor, tried in ((2.0, 3), (10.0, 1)):
        found = written(Ways(), {Way.FILES: 1.0, Way.MERGE: factor}, TRY_AFTER + 1 + 2 * TRY_EVERY + 10)
        assert found.count(Way.MERGE) == tried


def test_a_table_that_changes_changes_its_way() -> None:
    ways = Ways()
    assert written(ways, {Way.FILES: 1.0, Way.MERGE: 2.0}, 50)[-1] is Way.FILES
    assert written(ways, {Way.FILES: 4.0, Way.MERGE: 2.0}, 50)[-1] is Way.MERGE


def test_one_write_that_was_delayed_changes_nothing() -> None:
    ways = Ways()
    written(ways, {Way.FILES: 1.0, Way.MERGE: 2.0}, TRY_AFTER + 10)
    ways.learn(Way.FILES, 1_000, 0, 1e6)
    assert ways.choose(1_000, 0).way is Way.FILES


def test_where_there_is_no_choice_it_is_said_why() -> None:
    ways = Ways()
    assert str(ways.only("it is far away")) == "delta-rs' MERGE: it is far away"
    assert ways.chosen is not None
    assert ways.chosen.way is Way.MERGE


def test_batches_that_are_a_thousand_times_as_large_are_judged_by_their_own_measurements() -> None:
    """What has a cost of its own says nothing per row."""
    ways, small = Ways(), {Way.FILES: 1.0, Way.MERGE: 0.1}
    assert written(ways, small, TRY_AFTER + 10, coming=900)[-1] is Way.MERGE
    assert written(ways, {Way.FILES: 0.01, Way.MERGE: 0.02}, TRY_AFTER + 10, coming=900_000)[-1] is Way.FILES
    assert written(ways, small, 3, coming=700) == [Way.MERGE] * 3
