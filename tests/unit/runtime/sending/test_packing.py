"""How many Spark tasks a batch gets, by how long those before it took."""

from __future__ import annotations

from itertools import pairwise

import pytest

from transactional.runtime.sending.packing import REMEMBERED, TASK_MS, Packing


def told(most: int, *measured: tuple[int, float]) -> Packing:
    packing = Packing(most)
    for records, elapsed_ms in measured:
        packing.learn(records, elapsed_ms)
    return packing


def test_begins_with_all() -> None:
    assert Packing(8).tasks(1) == 8


@pytest.mark.parametrize(
    ("elapsed_ms", "tasks"), [(0.1, 1), (TASK_MS, 1), (TASK_MS + 1, 2), (3 * TASK_MS, 3), (100 * TASK_MS, 8)]
)
def test_each_gets_work_for_a_while(elapsed_ms: float, tasks: int) -> None:
    assert told(8, (1_000, elapsed_ms)).tasks(1_000) == tasks


def test_slow_bolts_keep_their_tasks_however_few_tuples_there_are() -> None:
    assert told(8, (10, 8_000.0)).tasks(10) == 8


def test_a_batch_that_has_grown_is_expected_to_take_longer() -> None:
    packing = told(8, (1_000, 10.0))
    assert packing.tasks(1_000) == 1
    assert packing.tasks(10_000) == 5
    assert packing.tasks(1_000_000) == 8


def test_one_that_has_shrunk_is_not_expected_to_take_less() -> None:
    """What does not depend on the records would be forgotten."""
    assert told(8, (1_000_000, 8 * TASK_MS)).tasks(1) == 8


def test_one_batch_that_was_held_up_does_not_count() -> None:
    packing = told(8, *[(1_000, 5.0)] * (REMEMBERED - 1), (1_000, 5_000.0))
    assert packing.tasks(1_000) == 1


def test_changes_only_for_a_difference_that_is_worth_it() -> None:
    packing = told(2, (1_000, 10.0))
    counts = [packing.tasks(1_000)]
    for elapsed_ms in (30.0, 38.0, 45.0, 60.0, 38.0, 25.0, 22.0, 15.0):
        for _ in range(REMEMBERED):
            packing.learn(1_000, elapsed_ms)
        counts.append(packing.tasks(1_000))
    assert counts == [1, 1, 1, 2, 2, 2, 2, 2, 1]
    assert sum(before != after for before, after in pairwise(counts)) == 2


def test_an_empty_batch_shows_too() -> None:
    assert told(4, (0, 1.0)).tasks(0) == 1
