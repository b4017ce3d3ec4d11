"""One life after another over the same store and tables: a run that crashes, and runs that go on from what is there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from state import DeltaMapState
from tests.proof.effects import Crash, Effects, NumberedStore, Point, numbered_delta
from tests.proof.shapes import NOON, OTHER_TAKE, SHAPES, TAKE, Contents, Setting, Word, build, rows_of
from transactional import Topology, TopologyConfig, TopologyDriver
from transactional.core.store import AttemptRecord
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import one_by_one
from transactional.runtime.engine.runner import Fatal
from transactional.runtime.executors.local import LocalExecutor

LEASE_MS = 3_600_000
"""Nothing in a run is a matter of time; the next process is the same owner, so it need not wait."""
PACE_MS, BEHIND_MS = 500, 3_000


class PacedClock(SystemClock):
    """Time goes on as rows are read, so that one run is as another; the clock of every second process is behind."""

    def __init__(self, spout: Any, behind_ms: int) -> None:
        self.read, self.behind_ms, plan = 0, behind_ms, spout.plan

        def planned(after: BatchMetadata, *, replay: bool) -> Any:
            self.read = sum(after.positions().values())
            return plan(after, replay=replay)

        spout.plan = planned

    def wall_ms(self) -> int:
        """So many milliseconds for each row before the batch that is planned."""
        return round(NOON.timestamp() * 1_000) + self.read * PACE_MS - self.behind_ms


def live(
    setting: Setting, folder: Path, crash_at: Point | None = None, *, take: int = TAKE, behind_ms: int = 0
) -> Effects:
    """One process: it runs until the source is drained, or crashes. What it did."""
    effects = Effects(crash_at)
    topology = build(setting, folder, effects, take=take)
    config = TopologyConfig(
        max_spout_pending=setting.pending,
        stop_when_drained=True,
        attempts_max=2 if topology.dead_letters is not None else None,
        lease_ms=LEASE_MS,
        retry_pause_ms=1,
        idle_pause_ms=1,
        tick_ms=1,
        commit_steps="jobs" if setting.layout == "staged" else "driver",
    )
    with (
        closing(NumberedStore(store_url(folder), effects)) as store,
        numbered_delta(effects, folder, merges=setting.pending % 2 == 1, apart=setting.layout == "staged"),
    ):
        clock = PacedClock(topology.spout, behind_ms) if setting.shape == "expiring" else None
        driver = TopologyDriver(topology, store, LocalExecutor(topology), config, owner="proof", clock=clock)
        # Effects are numbered in the same order in each run.
        driver.leadership._side_by_side = one_by_one
        # A crash in another thread than the driver's would leave the driver waiting for its answer.
        effects.on_crash = lambda: driver._events.put(Fatal(Crash()))
        try:
            driver.run()
        except Crash:
            assert effects.is_dead
    return effects


def crash_and_go_on(setting: Setting, folder: Path, *points: Point) -> list[Effects]:
    """Crash at the points, life after life; then live to the end. Readers never see anything wrong."""
    lives = []
    for number, point in enumerate([*points, None]):
        # A replay of an opaque spout holds other rows than the attempt that died.
        take = OTHER_TAKE if setting.is_opaque and number % 2 else TAKE
        lives.append(live(setting, folder, point, take=take, behind_ms=BEHIND_MS * (number % 2)))
        check_as_committed(setting, folder)
    if not lives[-1].is_dead:
        check_at_the_end(setting, folder)
    return lives


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def committed_attempts(folder: Path) -> list[AttemptRecord]:
    """What the store says is committed, in order."""
    with closing(SqlCoordinatorStore(store_url(folder))) as store:
        records = store.attempts("proof", limit=1_000)[::-1]
    return [record for record in records if record.phase == "committed"]


def check_as_committed(setting: Setting, folder: Path) -> None:
    """Whoever reads no further than what is committed sees a plain count of the committed ranges, after a crash too."""
    committed = committed_attempts(folder)
    assert [record.attempt.txid for record in committed] == list(range(1, len(committed) + 1))
    for one, next_one in pairwise(committed):
        assert all(next_one.batch.ranges[p].start == until for p, until in one.batch.positions().items())
    topology = build(setting, folder, Effects(), take=TAKE)
    check_tables(setting, folder, topology, committed)
    reached = by_index(committed[-1].batch.positions()) if committed else {}
    ahead = {p: until for p, until in positions_of(folder).items() if until > reached.get(p, 0)}
    assert not ahead, f"the mirror is ahead of the store: {ahead}"


def check_tables(setting: Setting, folder: Path, topology: Topology, committed: Sequence[AttemptRecord]) -> None:
    shape, found = SHAPES[setting.shape], dict[str, dict[Any, Any]]()
    for name, state in states_of(topology).items():
        if (folder / name / "_delta_log").exists():
            read = state.read(committed[-1].attempt.txid if committed else 0)  # type: ignore[arg-type]
            found[name] = contents(name, read.to_pylist())
        else:
            assert not committed, f"table {name} is not there"
    expected = expected_of(setting, committed)
    for name, together in shape.met(found).items():
        assert together == dict(expected[name]), f"table {name} as committed"


def check_at_the_end(setting: Setting, folder: Path) -> None:
    """Everything is committed, and plainly there."""
    committed = committed_attempts(folder)
    all_rows = Counter(word for words in rows_of(setting) for word in words)
    assert Counter(rows_in(setting, committed)) == all_rows, "the committed ranges are not all rows, each once"
    ends = {index: len(words) for index, words in enumerate(rows_of(setting))}
    assert positions_of(folder) == ends
    shape, states = SHAPES[setting.shape], states_of(build(setting, folder, Effects(), take=TAKE))
    found = {name: contents(name, state.read().to_pylist()) for name, state in states.items()}
    assert found.get("closed") != {}, "no window has closed"
    expected = expected_of(setting, committed)
    for name, together in shape.met(found).items():
        assert together == dict(expected[name]), f"table {name} at the end"


def expected_of(setting: Setting, committed: Sequence[AttemptRecord]) -> Contents:
    """What a plain count says of the committed ranges, and of the times that are recorded with them."""
    shape = SHAPES[setting.shape]
    if shape.by_times is None:
        return shape.expected(rows_in(setting, committed))
    times = [each.batch.facts.time_ms for each in committed if each.batch.facts is not None]
    times_of = [datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms) for time_ms in times]
    return shape.by_times(list(zip(times_of, (rows_in(setting, [each]) for each in committed), strict=True)))


def rows_in(setting: Setting, committed: Sequence[AttemptRecord]) -> list[Word]:
    """The rows of the committed ranges."""
    rows = rows_of(setting)
    return [
        word
        for record in committed
        for partition, offsets in record.batch.ranges.items()
        for word in rows[partition.index][offsets.start : offsets.until]
    ]


def states_of(topology: Topology) -> dict[str, DeltaMapState]:
    """The states of a topology by the names of their tables."""
    states = [component.state for component in topology.committers]
    return {state.location.name.rsplit("/", 1)[-1]: state for state in states if isinstance(state, DeltaMapState)}


def contents(table: str, rows: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    """The rows of a table as a plain count has them."""
    if table == "letters":
        return dict(Counter(json.loads(row["tuple"])["word"] for row in rows))
    keyed = [tuple(row.values()) for row in rows]
    found = {key[0] if len(key) == 1 else tuple(key): value for *key, value in keyed}
    # A bucket that all words have left stays behind with none.
    return {key: value for key, value in found.items() if value or table != "per-bucket"}


def positions_of(folder: Path) -> dict[int, int]:
    """What the mirror holds."""
    file = folder / "mirror.json"
    return {int(p): until for p, until in json.loads(file.read_text()).items()} if file.exists() else {}


def by_index(positions: Mapping[Any, int]) -> dict[int, int]:
    return {partition.index: until for partition, until in positions.items()}
