"""Where batches are processed, by what those before them have taken."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from transactional.runtime.executors.auto.choice import (
    BATCHES_BETWEEN,
    FORGOTTEN_AFTER,
    JOB_MS,
    QUICKER_IN_A_ROW,
    RECORDS_MIN,
    WORKERS_MS,
    ExecutorChoice,
    ExecutorChooser,
)

WORKERS, SLOTS = 2, 16


@dataclass
class World:
    """What things cost: a record in workers and on Spark, in microseconds, with some noise."""

    of_workers: float
    of_spark: float
    noise: random.Random

    def elapsed_ms(self, choice: ExecutorChoice, records: int) -> float:
        fixed, each = (JOB_MS, self.of_spark) if choice.is_spark else (WORKERS_MS, self.of_workers)
        held_up = 10 if self.noise.random() < 0.01 else 1
        return (fixed + each * records / 1_000) * self.noise.uniform(0.9, 1.1) * held_up


def run(chooser: ExecutorChooser, world: World, sizes: list[int]) -> list[bool]:
    """Whether each batch was processed on Spark."""
    found = []
    for records in sizes:
        choice = chooser.choose(records)
        chooser.record_duration(choice, records, world.elapsed_ms(choice, records))
        found.append(choice.is_spark)
    return found


def changes(found: list[bool]) -> list[int]:
    """Before which batches it has changed."""
    return [at for at in range(1, len(found)) if found[at] != found[at - 1]]


def test_begins_with_workers_and_says_why() -> None:
    chooser = ExecutorChooser(SLOTS, WORKERS)
    assert str(chooser.choose(10)) == "in workers: nothing is measured yet"
    chooser.record_duration(chooser.choose(10_000), 10_000, WORKERS_MS + 100)
    assert str(chooser.choose(10_000)) == "in workers: about 104 ms in workers, 52 ms on Spark"
    chooser.choose(10_000)
    assert str(chooser.choose(10_000)) == "on Spark: about 104 ms in workers, 52 ms on Spark"


def test_small_batches_stay_in_workers_and_measure_nothing() -> None:
    chooser = ExecutorChooser(SLOTS, WORKERS)
    assert not any(run(chooser, World(5, 1, random.Random(1)), [RECORDS_MIN - 1] * 100))
    assert str(chooser.choose(1)) == "in workers: nothing is measured yet"


def test_one_large_batch_among_small_ones_changes_nothing() -> None:
    sizes = ([1_000] * 30 + [1_000_000]) * 5
    assert not any(run(ExecutorChooser(SLOTS, WORKERS), World(5, 1, random.Random(1)), sizes))


@pytest.mark.parametrize("seed", range(40))
def test_it_ends_where_it_is_quicker_and_seldom_changes(seed: int) -> None:
    """Large batches, then small ones, in worlds where Spark is quicker per record, or is not after all."""
    draw = random.Random(seed)
    of_workers = draw.uniform(1, 50)
    world = World(of_workers, of_workers * draw.choice([0.1, 0.25, 2.0]), draw)
    large = int(draw.uniform(3, 30) * 1_000 * JOB_MS / of_workers)
    chooser = ExecutorChooser(SLOTS, WORKERS)
    found = run(chooser, world, [large] * 200)
    is_better = JOB_MS + world.of_spark * large / 1_000 < WORKERS_MS + world.of_workers * large / 1_000
    if abs(world.of_spark / world.of_workers - 1) > 0.5 and large * of_workers / 1_000 > 5 * JOB_MS:
        assert found[-1] == is_better
    assert len(changes(found)) <= 2
    more = run(chooser, world, [RECORDS_MIN // 10] * 200)
    assert not more[-1]
    both = found + more
    gaps = [after - before for before, after in zip(changes(both), changes(both)[1:], strict=False)]
    assert all(gap > BATCHES_BETWEEN for gap in gaps)


@pytest.mark.parametrize("seed", range(20))
def test_sizes_that_go_up_and_down_do_not_make_it_go_to_and_fro(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice([1_000, 20_000, 200_000]) for _ in range(400)]
    found = run(ExecutorChooser(SLOTS, WORKERS), World(2, 0.25, draw), sizes)
    assert len(changes(found)) <= len(sizes) / BATCHES_BETWEEN


def test_an_executor_that_was_busy_is_tried_again() -> None:
    chooser = ExecutorChooser(SLOTS, WORKERS)
    run(chooser, World(2, 4, random.Random(3)), [100_000] * 100)
    found = run(chooser, World(2, 0.25, random.Random(3)), [100_000] * (FORGOTTEN_AFTER + QUICKER_IN_A_ROW))
    assert not any(found[:1_000])
    assert found[-1]


def test_after_some_large_batches_in_a_row_it_changes_at_once() -> None:
    chooser = ExecutorChooser(SLOTS, WORKERS)
    found = run(chooser, World(2, 0.25, random.Random(3)), [1_000] * 50 + [1_000_000] * 10)
    assert changes(found) == [50 + QUICKER_IN_A_ROW - 1]
