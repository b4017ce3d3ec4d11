"""A topology over Delta tables is taken back: to any transaction, whoever dies, starts, reads or deletes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from state.delta.log import log as delta_log
from state.delta.upkeep import segment_upkeep as delta_segments
from state.delta.upkeep import table_upkeep as delta_upkeep
from tests.rewinding import (
    KEPT_FOR_NO_TIME,
    LAYOUTS,
    Died,
    Kept,
    Steps,
    World,
    contents,
    dies_at,
    end_lease,
    expected,
    run,
    stepping,
)
from transactional.errors import BeyondKept, ConfigError, Fenced, RewindUnfinished, TopologyChanged, TopologyInUse
from transactional.model.attempt import TxId
from transactional.model.names import owner_of
from transactional.runtime.engine.rewinding import plan_rewind
from verifier import Finding, Kind

# What is left out of `make check` is caught there, too, where it is no matter of whole topologies:
# tests/unit/state/delta/test_rewinding.py, tests/contract/test_rewinds_sql.py.
pytestmark = pytest.mark.sampled(18, tests=True)
LENGTH = 8
TARGET = 5


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Folders in which a run has ended, one for each layout."""
    return Kept(tmp_path_factory.mktemp("rewinds"), LENGTH)


@pytest.fixture
def world(kept: Kept, request: pytest.FixtureRequest) -> Iterator[World]:
    world = kept.world(getattr(request, "param", "merge"))
    with closing(world.store):
        yield world


every_layout = pytest.mark.parametrize("world", LAYOUTS, indirect=True)


@every_layout
def test_back_and_on_and_back_further(world: World) -> None:
    """And then it is as if it had never gone further."""
    for txid in (LENGTH, 6, 3):
        world.back_to(txid)
        assert contents(world.topology()) == expected(txid, LENGTH)
    assert world.findings() == []
    world.run()
    assert contents(world.topology()) == expected(LENGTH, LENGTH)
    # What was before the transaction that it went back to is still known.
    world.back_to(2)
    assert contents(world.topology()) == expected(2, LENGTH)
    assert world.findings() == []


@every_layout
def test_to_the_beginning(world: World) -> None:
    world.back_to(0)
    assert contents(world.topology()) == expected(0, LENGTH)
    world.run()
    assert contents(world.topology()) == expected(LENGTH, LENGTH)
    assert world.findings() == []


# --- whoever comes between -------------------------------------------------------------------------------------------


def test_nobody_starts_between_two_steps(world: World) -> None:
    """While the lease holds, and when its time is over once the intent is noted."""
    refusals: list[type[Exception]] = []

    def start(_moment: int) -> None:
        begun = world.rewinding_to() is not None
        if begun:
            end_lease(world.folder)
        elif not world.store.status("rewound")[0].is_leased:
            return
        with pytest.raises(RewindUnfinished if begun else TopologyInUse) as refused:
            world.run(owner="another")
        refusals.append(type(refused.value))

    with stepping(world.store, Steps(start)):
        world.back_to(TARGET)
    assert set(refusals) == {RewindUnfinished, TopologyInUse}
    assert contents(world.topology()) == expected(TARGET, LENGTH)
    assert world.findings() == []


def test_one_that_takes_over_before_anything_has_gone_back_goes_on_undisturbed(world: World) -> None:
    begins = ["acquire", *["record_fence", "write_entry"] * 4, "renew"].index("renew")

    def take_over(moment: int) -> None:
        if moment == 2 * begins:
            end_lease(world.folder)
            world.run(owner="another")

    with stepping(world.store, Steps(take_over)), pytest.raises(Fenced):
        world.back_to(TARGET)
    assert world.rewinding_to() is None
    assert contents(world.topology()) == expected(LENGTH, LENGTH)
    assert world.findings() == []


def test_readers_see_each_table_as_it_was_or_as_it_is(world: World) -> None:
    before, after, seen = expected(LENGTH, LENGTH), expected(TARGET, LENGTH), set[str]()

    def read(_moment: int) -> None:
        for name, rows in contents(world.topology()).items():
            assert rows in (before[name], after[name])
            seen.add(f"{name} {rows == after[name]}")

    with stepping(world.store, Steps(read)):
        world.back_to(TARGET)
    assert {f"in-all {is_after}" for is_after in (False, True)} <= seen


@pytest.mark.parametrize("step", ["acquire", "begin_rewind", "record_fence", "restore", "finish_rewind"])
def test_one_that_died_is_finished_by_running_it_again(world: World, step: str) -> None:
    """At its last step of that name; all of them in `make proof`."""
    steps = Steps()
    with stepping(world.store, steps):
        world.back_to(TARGET)
    last = max(n for n, name in enumerate(steps.names) if name == step)
    for moment in (2 * last, 2 * last + 1):
        world.restart()
        with stepping(world.store, Steps(dies_at(moment))), pytest.raises(Died):
            world.back_to(TARGET)
        world.finish(TARGET)


# --- what is beyond what is kept ------------------------------------------------------------------------------------


def test_files_that_a_vacuum_has_deleted_are_told_before_anything_is_touched(world: World) -> None:
    table = DeltaTable(world.folder / "in-all")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    before = world.versions()
    with pytest.raises(BeyondKept, match=rf"in-all .*can't go back to transaction {TARGET}: .*it can go back to is 8"):
        world.back_to(TARGET)
    assert (world.versions(), world.rewinding_to()) == (before, None)
    world.back_to(LENGTH)
    assert contents(world.topology()) == expected(LENGTH, LENGTH)


def test_a_vacuum_before_the_intent_is_seen(world: World) -> None:
    def vacuum(moment: int) -> None:
        if moment == 1:  # the lease is taken
            DeltaTable(world.folder / "in-all").vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    with stepping(world.store, Steps(vacuum)), pytest.raises(BeyondKept):
        world.back_to(TARGET)
    assert world.rewinding_to() is None
    world.run()
    assert contents(world.topology()) == expected(LENGTH, LENGTH)


def test_a_log_that_was_cleaned_says_how_far_it_goes_back(world: World) -> None:
    log = world.folder / "in-all" / "_delta_log"
    newest = DeltaTable(world.folder / "in-all")
    newest.create_checkpoint()
    for entry in sorted(log.glob("*.json"))[:-1]:
        entry.unlink()
    for entry in sorted(log.glob("*.checkpoint.parquet"))[:-1]:
        entry.unlink()
    with pytest.raises(BeyondKept, match=r"its log no longer goes back that far; the oldest .* is 8"):
        world.back_to(TARGET)


def test_a_batch_that_the_store_has_forgotten(world: World) -> None:
    lease = world.store.acquire("rewound", world.topology().fingerprint(), owner="another", lease_ms=60_000)
    world.store.forget_before(lease, at_ms=2**62)
    world.store.release(lease)
    with pytest.raises(BeyondKept, match=f"no longer knows the batch of transaction {TARGET}"):
        world.back_to(TARGET)


# --- savepoints ------------------------------------------------------------------------------------------------------


def run_that_keeps_nothing(folder: Path, layout: str, monkeypatch: pytest.MonkeyPatch, *, savepoint: bool) -> World:
    """Four transactions, and many more with as much maintenance as there can be."""
    world = World(folder, layout, 30, folder, properties=KEPT_FOR_NO_TIME)
    run(world.topology(transactions=4), world.store)
    if savepoint:
        assert world.store.note_savepoint("rewound", "before", TxId(4))
    monkeypatch.setattr(delta_upkeep, "VACUUM_INTERVAL", 2)
    monkeypatch.setattr(delta_segments, "SWEEP_INTERVAL_S", -1)
    monkeypatch.setattr(delta_log, "LOG_KEPT_S", -1)
    world.run()
    return world


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_savepoint_takes_is_kept(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = run_that_keeps_nothing(tmp_path, layout, monkeypatch, savepoint=True)
    with closing(world.store):
        world.back_to(4)
        assert contents(world.topology()) == expected(4, 30)
        assert world.findings() == []
        world.run()
        assert contents(world.topology()) == expected(30, 30)


def test_without_it_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = run_that_keeps_nothing(tmp_path, "merge", monkeypatch, savepoint=False)
    with closing(world.store), pytest.raises(BeyondKept):
        world.back_to(4)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_not_while_it_runs(world: World) -> None:
    before = world.versions()
    world.store.acquire("rewound", world.topology().fingerprint(), owner="another", lease_ms=60_000)
    with pytest.raises(TopologyInUse):
        world.back_to(TARGET)
    assert world.versions() == before


def test_a_coordinator_that_stood_still_meanwhile_writes_nothing_any_more(world: World) -> None:
    lease = world.store.acquire("rewound", world.topology().fingerprint(), owner="zombie", lease_ms=60_000)
    zombie = world.topology()
    states = {each.id: each.state for each in zombie.committers}
    for name, state in states.items():
        assert state is not None
        state.open(owner_of("rewound", name), lambda _: TxId(LENGTH))
        state.version()
    end_lease(world.folder)
    world.back_to(TARGET)
    for state in states.values():
        assert state is not None
        with pytest.raises(Fenced):
            state.fence(lease.fence_id)
    assert contents(world.topology()) == expected(TARGET, LENGTH)


@pytest.mark.parametrize("txid", [-1, LENGTH + 1])
def test_not_to_what_is_not_committed(world: World, txid: int) -> None:
    with pytest.raises(ConfigError, match=rf"the committed ones are 0 \(the beginning\) to {LENGTH}"):
        world.back_to(txid)


@pytest.mark.parametrize("txid", [0, TARGET - 1, TARGET + 1, LENGTH])
def test_one_that_was_begun_may_end_at_another_transaction(world: World, txid: int) -> None:
    """Some tables have gone back already, and go on again; to where they came from, as if there had been none."""
    with stepping(world.store, steps := Steps(dies_at(2 * 21))), pytest.raises(Died):
        world.back_to(TARGET)
    assert 0 < steps.names.count("restore") < len(world.topology().committers)
    assert world.rewinding_to() == TARGET
    world.finish(txid)
    world.run()
    assert world.contents() == world.expected(LENGTH)
    assert world.findings() == []


def test_not_with_another_topology(world: World) -> None:
    with pytest.raises(TopologyChanged, match=r"committer 'dead-letters' .* or none: it would not go back with"):
        plan_rewind(world.topology(letters=False), world.store, TxId(TARGET))


def test_a_dry_run_changes_nothing(world: World) -> None:
    before = world.versions()
    lines = list(plan_rewind(world.topology(), world.store, TxId(TARGET)).lines())
    assert lines[0] == f"topology 'rewound': from transaction {LENGTH} back to {TARGET}"
    assert any(line.startswith("  in-all: Delta table ") for line in lines)
    assert f"  memory[0]: read again from offset {TARGET}; it had been read up to {LENGTH}" in lines
    assert (world.versions(), world.rewinding_to()) == (before, None)


# --- the checker ----------------------------------------------------------------------------------------------------


def test_the_checker_finds_a_table_that_went_elsewhere(world: World) -> None:
    """A rewind that restores another transaction's rows than it says."""
    world.back_to(TARGET, restores={"in-all": TARGET - 1})
    assert Kind.OUT_OF_ORDER in [each.kind for each in world.findings() if isinstance(each, Finding)]


def test_and_one_that_has_not_gone_back(world: World) -> None:
    world.back_to(TARGET, restores={"in-all": None})
    assert world.findings() != []
