"""Topologies on spouts of one's own, run to their end in this process: with failures, restarts and broken promises."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.drivers import DRAINED, World
from tests.unit.fakes import stored
from tests.unit.own_spouts import OpaqueWordLists, Span, WordLists, Words, span
from transactional.core.ports import StateKind
from transactional.errors import BatchLost, FailedException, RetriesExhausted
from transactional.model.attempt import TransactionAttempt
from transactional.operations.loading import open_store

COUNTS = {"cat": 2, "dog": 1, "chicken": 1}


def words() -> Words:
    return {"a": ["cat", "dog", "chicken"], "b": ["cat"]}


class FailsInCommit:
    """Fails the commit phase of one transaction once, so that it is replayed; `then` runs before the replay."""

    def __init__(self, txid: int, then: Any = lambda: None) -> None:
        self.txid, self.then, self.left = txid, then, 1

    def __call__(self, attempt: TransactionAttempt) -> None:
        if attempt.txid == self.txid and self.left:
            self.left = 0
            self.then()
            raise FailedException("once more")


def run(world: World, spout: Any, before: Any = lambda attempt: None, **given: Any) -> Any:
    topology = world.topology(spout)
    world.states["counts"].before = before
    return world.run(topology, **given)


@pytest.mark.parametrize("take", [1, 2, 3])
def test_a_replay_counts_once(take: int) -> None:
    world, lists = World(StateKind.TRANSACTIONAL), WordLists(words(), take=take)
    summary = run(world, lists, FailsInCommit(1))
    assert stored(world.counts) == COUNTS
    assert summary.failures >= 1
    assert lists.told[0] == {"a": span(0, take), "b": span(0, 1)}
    assert len(lists.told) == summary.transactions


def test_it_is_reported_in_the_order_of_txids_and_what_it_raises_then_does_no_harm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Storm row T9."""

    class Refuses(WordLists):
        def committed(self, metadata: Any) -> None:
            super().committed(metadata)
            raise OSError("the source does not want to know")

    world, lists = World(), Refuses(words(), take=1)
    with caplog.at_level(logging.ERROR):
        summary = run(world, lists)
    assert stored(world.counts) == COUNTS
    assert [told["a"] for told in lists.told] == [span(0, 1), span(1, 2), span(2, 3)]
    assert (summary.transactions, summary.failures) == (3, 0)
    assert "the source does not want to know" in caplog.text


class Impure(WordLists):
    """Breaks its promise: every call emits something else."""

    calls = 0

    def emit_partition_batch(self, partition: str, metadata: Span) -> Iterator[tuple[str]]:
        type(self).calls += 1
        yield (f"word {self.calls}",)


def test_a_replay_with_other_tuples_than_were_recorded_is_refused() -> None:
    """Storm row T10."""
    world = World()
    with pytest.raises(RetriesExhausted):
        run(world, Impure({"a": ["cat"]}), FailsInCommit(1), config=replace(DRAINED, attempts_max=2))
    errors = [record.error or "" for record in world.store.attempts("words", limit=10)]
    assert any("TX303" in error for error in errors)


def test_what_can_never_be_replayed_ends_the_run() -> None:
    class Losing(WordLists):
        def check_replay(self, partition: str, metadata: Span) -> None:
            if len(self.words[partition]) < metadata["until"]:
                raise BatchLost(f"partition {partition!r} was cut off before {metadata['until']}")

    world, lists = World(), Losing(words(), take=3)
    with pytest.raises(BatchLost, match="partition 'a' was cut off before 3"):
        run(world, lists, FailsInCommit(1, lists.words["a"].clear))


def test_an_opaque_replay_counts_what_is_there_then_and_nothing_twice_or_never() -> None:
    """Storm row T11: a partition is away and another one has come when the first batch is replayed."""
    lists = OpaqueWordLists(words())
    away = lists.words["a"]

    def change() -> None:
        del lists.words["a"]
        lists.words["c"] = ["emu"]

    world = World()
    run(world, lists, FailsInCommit(1, change))
    assert stored(world.counts) == {"cat": 1, "emu": 1}
    lists.words["a"] = away
    run(world, lists)
    assert stored(world.counts) == {**COUNTS, "emu": 1}


@pytest.mark.parametrize("kind", [WordLists, OpaqueWordLists])
def test_a_run_until_drained_waits_for_a_source_that_is_not_ready(kind: type[WordLists | OpaqueWordLists]) -> None:
    """Storm row T43: not before each batch, and not at the end."""
    questions = itertools.cycle([False, True, False])

    class Hesitant(kind):  # type: ignore[valid-type, misc]
        def is_ready(self) -> bool:
            return next(questions)

    world = World()
    run(world, Hesitant(words(), take=1))
    assert stored(world.counts) == COUNTS


def test_a_restart_goes_on_from_the_metadata_in_the_database(tmp_path: Path) -> None:
    """Storm rows T20 and T58."""
    world, source = World(), words()
    for _ in range(2):
        store = open_store(f"sqlite:///{tmp_path}/store.db")
        run(world, WordLists(source), store=store)
        store.close()
        source["a"].append("emu")
    assert stored(world.counts) == COUNTS | {"emu": 1}
