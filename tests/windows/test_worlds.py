"""Worlds of windows equal plain Python, whatever happens in them; and they find what is known to be wrong.

Storm row R16: a replayed batch is counted once, and a crash loses no window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from state import DeltaMapState, SqlMapState
from state.delta.segments.log_layout import LogLayout
from tests.windows.bolt_world import BoltWorld
from tests.windows.cascade_world import CascadeWorld
from tests.windows.count_world import CountWorld
from tests.windows.seeds import HAPPENINGS, MANY, SEEDS, situations
from tests.windows.world import Flaky, FlakyState, NotingRunner, Parts, World, run_seeds, since_1970
from transactional.core.machine.listing import record_listed
from transactional.core.machine.window_assignment import InnerWindowsByName, with_outer_watermarks
from transactional.core.ports import StateKind
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.facts import BatchFacts, Listed, compute_facts
from transactional.runtime.engine import runner
from transactional.topology import windowing
from transactional.topology.streams.windows.counting import CountAggregator
from transactional.topology.streams.windows.sessions import SessionUpdate
from transactional.topology.streams.windows.windowing import WindowedUpdate
from transactional.topology.windowing import _first_open_start as first_of
from transactional.topology.windows.windows import CountWindow

# The worlds of each kind are what `make check` and `make test` need; what is planted shows that they would find it.
pytestmark = pytest.mark.sampled(3, tests=True)

WRONG_SEEDS = 15
KINDS = pytest.mark.parametrize("kind", SEEDS)


@pytest.mark.sampled(1)
@KINDS
def test_a_world_of_each_kind(kind: type[World]) -> None:
    """Storm rows C12, C13, C14: whatever crashes, without ids of messages and without what is only in memory."""
    assert run_seeds(SEEDS[kind][0], 1, None, kind)["transactions"] > 1


@pytest.mark.long("test_a_world_of_each_kind")
@KINDS
def test_worlds_that_meet_everything(kind: type[World]) -> None:
    reached = Counter[str]()
    for seed in SEEDS[kind]:
        reached += run_seeds(seed, 1, None, kind)
    assert [name for name in HAPPENINGS[kind] if not reached[name]] == []


@pytest.mark.sampled(1)
@KINDS
def test_the_seeds_draw_whatever_may_be_drawn(kind: type[World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "start", lambda _: None)
    drawn, of_many = (
        set[Any]().union(*(situations(kind(seed)) for seed in seeds)) for seeds in (SEEDS[kind], range(MANY))
    )
    assert drawn == of_many


class TooEarly(FlakyState):
    """Removes rows by the horizon of this transaction, not by that of the one before it."""

    def clean_up(self, attempt: Any) -> None:
        """A replay would need them."""
        horizon = self.declared.horizon_of_batch(attempt) if self.declared.expiry is not None else None
        if horizon is not None:
            rows = self.stored.rows
            self.stored.rows = {key: row for key, row in rows.items() if since_1970(key[-1]) > horizon}


class NowLate(NotingRunner):
    """Judges what is late by what is known when a batch is processed, which may be more than when it was planned."""

    def _process(self, attempt: Any, batch: Any) -> Any:
        known = self.world.process.coordinator._committed_batch
        times = self.topology.event_times_of(known.event_times)
        seen = [(of, known.event_times[partition]) for partition, of in times.items()]
        facts = compute_facts(batch.facts, batch.facts.time_ms, seen)
        return super()._process(attempt, with_late(batch, facts.watermark_us))


def with_late(batch: Any, watermark_us: int | None) -> Any:
    return replace(batch, facts=replace(batch.facts, watermark_us=watermark_us))


def forgetting(before: BatchFacts | None, now_ms: int, known: Any = (), listed: Any = ()) -> BatchFacts:
    """Without the highest of the thresholds before."""
    found = compute_facts(None, max(now_ms, before.time_ms if before else 0), known, listed)
    if before is None:
        return found
    return BatchFacts(found.time_ms, found.watermark_us, before.time_ms, before.watermark_us)


def is_found(parts: Parts | None = None, world: Any = None, *, known: int = 0) -> bool:
    """Whether one of some worlds shows it. A seed that is known to is tried first; if it does not any more, that takes
    longer, and nothing else."""
    for seed in (known, *(each for each in range(WRONG_SEEDS) if each != known)):
        try:
            run_seeds(seed, 1, parts, world)
        except AssertionError:
            return True
    return False


def test_rows_that_the_new_horizon_removes_are_missed() -> None:
    assert is_found(Parts(state=lambda world, name, kind: TooEarly(table=world.tables[name], kind=kind)), known=14)


def test_lateness_that_is_judged_while_processing_is_found() -> None:
    assert is_found(Parts(runner=NowLate), known=27)


def test_a_threshold_that_goes_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "compute_facts", forgetting)
    assert is_found(known=34)


def awaits(**wrong: bool) -> Callable[..., dict[PartitionId, Listed]]:
    """Waits for what it should not, or the other way round, by what there is of a partition."""

    def listed(*given: Any) -> dict[PartitionId, Listed]:
        return {
            at: each._replace(is_awaited=wrong.get(each.listing.name, each.is_awaited))
            for at, each in record_listed(*given).items()
        }

    return listed


def by_the_last_one(after: BatchMetadata, *given: Any) -> dict[PartitionId, Listed]:
    """The time of an empty partition begins anew with each transaction."""
    return record_listed(replace(after, listed={}), *given)


@pytest.mark.parametrize(
    ("wrong", "known"),
    [
        (awaits(UNREAD=False), 34),
        (awaits(AWAY=False), 17),
        (awaits(EMPTY=False), 34),
        (awaits(EMPTY=True), 18),
        (by_the_last_one, 18),
    ],
)
def test_partitions_that_are_waited_for_too_long_or_too_short_are_found(
    wrong: Callable[..., Any], known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "record_listed", wrong)
    assert is_found(known=known)


def test_sessions_that_have_become_parts_of_others_and_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = SessionUpdate.merge_rows

    def keeping(self: SessionUpdate, rows: Any, part: Any) -> Any:
        found = merged(self, rows, part)
        return replace(found, removed=found.removed.slice(0, 0))

    monkeypatch.setattr(SessionUpdate, "merge_rows", keeping)
    assert is_found(known=1)


def test_sessions_that_are_read_by_the_previous_horizon_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have closed in this transaction: what comes now is of another session."""
    overlapping_range = SessionUpdate.overlapping_range

    def too_many(self: SessionUpdate, part: Any, facts: Any) -> Any:
        return overlapping_range(self, part, facts and replace(facts, watermark_us=facts.previous_watermark_us))

    monkeypatch.setattr(SessionUpdate, "overlapping_range", too_many)
    assert is_found(known=30)


def test_windows_whose_parts_go_to_several_tasks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What overlapping windows have in common has a time of its own, by which they may not be split."""
    by_pane = property(lambda update: (*update.key, update.window.start))
    monkeypatch.setattr(WindowedUpdate, "split_by", by_pane)
    assert is_found(known=5)


def by_the_source(facts: BatchFacts, before: BatchFacts | None, windows: InnerWindowsByName) -> BatchFacts:
    """All windows by the times of the source."""
    return facts


def one_transaction_early(facts: BatchFacts, before: BatchFacts | None, windows: InnerWindowsByName) -> BatchFacts:
    """What the windows above close in the same transaction is still to come."""
    found = with_outer_watermarks(facts, before, windows)
    return replace(
        found,
        outer_watermarks={
            name: (
                with_outer_watermarks(facts, facts, windows).outer_watermarks[name][0],
                found.outer_watermarks[name][1],
            )
            for name in windows
        },
    )


def at_the_end(facts: BatchFacts, before: BatchFacts | None, windows: InnerWindowsByName) -> BatchFacts:
    """As if rows had the time at which their window ends."""
    later = {
        name: tuple(replace(each, first_time=partial(each.first_time.func, by_end=True)) for each in above)  # type: ignore[attr-defined]
        for name, above in windows.items()
    }
    return with_outer_watermarks(facts, before, later)


@pytest.mark.parametrize("wrong", [by_the_source, one_transaction_early, at_the_end])
def test_windows_of_windows_that_close_too_early_are_found(
    wrong: Callable[..., BatchFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "with_outer_watermarks", wrong)
    assert is_found(world=CascadeWorld, known=8)


class FlakyRows(Flaky, SqlMapState):
    """In a database."""


class FlakyFiles(Flaky, DeltaMapState):
    """In Delta."""


def in_database(folder: Path, name: str, kind: StateKind) -> Any:
    return FlakyRows(f"sqlite:///{folder}/windows.db", name, kind=kind)


def in_delta(folder: Path, name: str, kind: StateKind) -> Any:
    return FlakyFiles(folder / name, kind=kind)


def in_log(folder: Path, name: str, kind: StateKind) -> Any:
    return FlakyFiles(folder / name, kind=kind, layout=LogLayout(compact_after=3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("make", "seed"), [(in_database, 0), (in_delta, 1), (in_log, 9)])
def test_windows_in_tables_are_the_same(seed: int, make: Callable[..., Any], tmp_path: Path) -> None:
    reached = run_seeds(seed, 1, Parts(state=lambda _, name, kind: make(tmp_path, name, kind)))
    assert reached["windows closed"] > 1


@pytest.mark.long("test_windows_in_tables_are_the_same")
@pytest.mark.parametrize("make", [in_database, in_delta, in_log])
def test_tuples_of_windows_in_tables_are_the_same(make: Callable[..., Any], tmp_path: Path) -> None:
    parts = Parts(state=lambda _, name, kind: make(tmp_path, name, kind))
    assert run_seeds(3, 1, parts, BoltWorld)["transactions"] > 1


def test_a_bolt_whose_tuples_are_judged_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples that came when a window had closed are none of it."""
    monkeypatch.setattr(windowing, "_first_open_start", lambda of, us, watermark: first_of(of, us, None))
    assert is_found(world=BoltWorld, known=14)


@pytest.mark.long("test_windows_in_tables_are_the_same")
@pytest.mark.parametrize("make", [in_database, in_delta, in_log])
def test_windows_by_count_in_tables_are_the_same(make: Callable[..., Any], tmp_path: Path) -> None:
    parts = Parts(state=lambda _, name, kind: make(tmp_path, name, kind))
    assert run_seeds(4, 1, parts, CountWorld)["windows closed"] > 1


class ReadsItsOwn(FlakyState):
    """Reads what a dead attempt at the same transaction has written."""

    def rows_before(self, attempt: Any, keys: Any) -> Any:
        """As they are."""
        return self.rows_after(attempt, keys)


def test_tuples_that_a_replay_counts_behind_those_of_the_dead_attempt_are_found() -> None:
    parts = Parts(state=lambda world, name, kind: ReadsItsOwn(table=world.tables[name], kind=kind))
    assert is_found(parts, CountWorld)


def test_parts_that_are_used_again_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountWindow, "parts", property(lambda of: of.windows.length_us // of.windows.pane_us - 1 or 1))
    assert is_found(world=CountWorld, known=1)


def test_tuples_that_are_numbered_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    partial = CountAggregator.partial

    def backwards(self: CountAggregator, batches: Any) -> Any:
        rows = partial(self, batches)
        return rows.take(list(range(rows.num_rows))[::-1])

    monkeypatch.setattr(CountAggregator, "partial", backwards)
    assert is_found(world=CountWorld, known=20)
