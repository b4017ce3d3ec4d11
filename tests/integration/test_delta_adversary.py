"""All ways of writing a Delta table, and what others may do to it between our look at it and our Delta commit.

Whatever changes no row is harmless: we judge again, and write what we would have written. Whatever changes rows stops
us before anything is built on it. The adversary strikes at the last moment; see `tests/contract/adversary.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from state.delta.doctor import put_back
from state.delta.merging.ways import Way as WayOfWriting
from state.delta.segments.folding import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from tests.contract.adversary import ALWAYS, HARMFUL, HARMLESS, Adversary, Others
from tests.contract.states import OWNER, Place, content, counts, write_by
from transactional.attempt import TxId
from transactional.errors import Fenced, OperatingError, StoreMismatch, TableConflict
from transactional.ports.examining import Diagnosis, Problem
from transactional.spark_session import spark_session

BEFORE = {"dog": 2, "cat": 1, "cow": 1}
AFTER = {"dog": 3, "cat": 1, "cow": 1, "bird": 5}
REPLAYED = {"dog": 3, "cat": 1, "bird": 5}
NEVER = LogLayout(fold_after=None)


@dataclass(frozen=True)
class Way:
    """A way to write: to a table of three transactions a fourth one, or something else; there the adversary strikes."""

    write: Callable[[DeltaMapState, Place], None]
    leaves: dict[str, int]
    engine: str = "delta-rs"
    layout: str | LogLayout = "merge"
    turns_to: LogLayout | None = None
    passes: int = 0
    """So many Delta commits come before the one that is meant."""
    next_txid: int = 5
    is_upkeep: bool = False
    """What is refused then is left for the next time."""
    is_small: bool = True
    by_delta_rs: bool = False
    by_files: bool = False


def fourth(state: DeltaMapState, place: Place) -> None:
    state.merge(place.attempt(4, 9), counts({"dog": 1, "bird": 5}))


def upkeep(state: DeltaMapState, place: Place) -> None:
    fourth(state, place)
    state.tidy(TxId(4), lambda: True)


def again(state: DeltaMapState, place: Place) -> None:
    """The third transaction once more, as another batch."""
    state.merge(place.attempt(3, 9), counts({"dog": 1, "bird": 5}))


def puts(state: DeltaMapState, place: Place) -> None:
    attempt = place.attempt(4, 9)
    found = state.get(attempt, [("dog",)])
    state.put(attempt, {("dog",): (found["dog",][0] + 1,), ("bird",): (5,)})


def nothing(state: DeltaMapState, place: Place) -> None:
    state.merge(place.attempt(4, 9), counts({}))


def fence(state: DeltaMapState, place: Place) -> None:
    place.fence(state, 3, 9)


def fold(state: DeltaMapState, place: Place) -> None:
    del place
    state.fold()


WAYS = {
    "an entry of our own": Way(fourth, AFTER),
    "an entry of our own, a put": Way(puts, AFTER),
    "an entry of our own, a replay": Way(again, REPLAYED, next_txid=4),
    "an overwrite": Way(fourth, AFTER, by_delta_rs=True),
    "a MERGE": Way(fourth, AFTER, is_small=False),
    "a MERGE, a replay": Way(again, REPLAYED, next_txid=4, is_small=False),
    "file by file": Way(fourth, AFTER, is_small=False, by_files=True),
    "file by file, a replay": Way(again, REPLAYED, next_txid=4, is_small=False, by_files=True),
    "a version without rows": Way(nothing, BEFORE),
    "a fence": Way(fence, BEFORE, next_txid=4),
    "a compaction": Way(upkeep, AFTER, is_small=False, is_upkeep=True, passes=1),
    "rows of a log": Way(fourth, AFTER, layout=NEVER),
    "rows of a log, a replay": Way(again, REPLAYED, next_txid=4, layout=NEVER),
    "a version without rows of a log": Way(nothing, BEFORE, layout=NEVER),
    "a fence of a log": Way(fence, BEFORE, next_txid=4, layout=NEVER),
    "a fold": Way(fold, BEFORE, next_txid=4, layout=NEVER),
    "a fold that is due": Way(upkeep, AFTER, layout=LogLayout(fold_after=3, fan_out=2), is_upkeep=True, passes=1),
    "a table that becomes a log: how its values meet": Way(fourth, AFTER, turns_to=NEVER),
    "a table that becomes a log: its base": Way(fourth, AFTER, turns_to=NEVER, passes=1),
    "a table that becomes a log: its first rows": Way(fourth, AFTER, turns_to=NEVER, passes=2),
}
BY_SPARK = {
    "rows by Spark": Way(fourth, AFTER, engine="spark"),
    "rows by Spark, a replay": Way(again, REPLAYED, next_txid=4, engine="spark"),
    "rows of a log by Spark": Way(fourth, AFTER, engine="spark", layout=NEVER),
    "rows of a log by Spark, a replay": Way(again, REPLAYED, next_txid=4, engine="spark", layout=NEVER),
}


@dataclass(frozen=True)
class Scene:
    """A table at its third transaction, and the state that is about to write."""

    way: Way
    place: Place
    state: DeltaMapState
    adversary: Adversary
    others: Others

    def writes(self) -> None:
        self.way.write(self.state, self.place)

    def strikes(self, strike: str, times: int = 1) -> None:
        self.adversary.lies_in_wait(getattr(self.others, strike), self.way.passes, times)

    def opened(self, layout: str | LogLayout = "auto") -> DeltaMapState:
        path, engine = self.others.path, self.way.engine
        state = DeltaMapState(path, "word string", "count long", engine=engine, layout=layout)
        state.open(OWNER, self.place.txids.__getitem__)
        return state

    def check(self, expected: dict[str, int]) -> None:
        """What readers see, and that no key has two rows in the table itself, unless it is a log."""
        assert content(self.state) == content(self.opened()) == expected
        table = DeltaTable(self.others.path)
        if not table.metadata().partition_columns:
            assert table.count() == len(expected)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Way], Path]:
    """The table at its third transaction; those that come about in one way are written once."""
    folder = tmp_path_factory.mktemp("tables")

    def table(way: Way) -> Path:
        path = folder / f"{way.engine}-{way.layout}-{way.by_delta_rs}-{way.is_small}"
        if not path.exists():
            place = Place(way.engine, folder)
            state = DeltaMapState(path, "word string", "count long", layout=way.layout)
            state.open(OWNER, place.txids.__getitem__)
            state.merge(place.attempt(1, 1), counts({"dog": 1}))
            state.merge(place.attempt(2, 2), counts({"dog": 1, "cat": 1}))
            state.merge(place.attempt(3, 3), counts({"cow": 1}))
            state.close()
        return path

    return table


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Callable[[Way], Path]
) -> Scene:
    way: Way = {**WAYS, **BY_SPARK}[request.param]
    if way.engine == "spark":
        spark_session(master="local[2]")
    if way.by_delta_rs:
        monkeypatch.setattr("state.delta.merged.replaceable_files", lambda _: None)
    if not way.is_small:
        write_by(monkeypatch, WayOfWriting.FILES if way.by_files else WayOfWriting.MERGE)
    place, others = Place(way.engine, tmp_path), Others(tmp_path / "table")
    for number in range(1, 4):
        place.attempt(number, number)
    copytree(tables(way), others.path)
    state = DeltaMapState(others.path, "word string", "count long", layout=way.layout)
    if way.is_upkeep:
        monkeypatch.setattr("state.delta.merged.COMPACTION_INTERVAL", 1)
        monkeypatch.setattr("state.delta.merged.FILES_MAX", 1)
    scene = Scene(way, place, state, Adversary(monkeypatch), others)
    return replace(scene, state=scene.opened(way.turns_to or way.layout))


def every_way(ways: dict[str, Way]) -> list[object]:
    return [*ways, *(pytest.param(name, marks=pytest.mark.spark) for name in BY_SPARK)]


@pytest.mark.sampled(14)
@pytest.mark.parametrize("strike", HARMLESS)
@pytest.mark.parametrize("scene", every_way(WAYS), indirect=True)
def test_what_changes_no_row_is_harmless(scene: Scene, strike: str) -> None:
    scene.strikes(strike)
    scene.writes()
    assert scene.adversary.struck == 1
    scene.check(scene.way.leaves)
    # And it goes on.
    scene.state.merge(scene.place.attempt(scene.way.next_txid, 20), counts({"dog": 1}))
    scene.check({**scene.way.leaves, "dog": scene.way.leaves["dog"] + 1})


@pytest.mark.sampled(5)
@pytest.mark.parametrize("strike", HARMFUL)
@pytest.mark.parametrize("scene", every_way(WAYS), indirect=True)
def test_what_changes_rows_stops_us_before_anything_is_built_on_it(scene: Scene, strike: str) -> None:
    found: list[object] = []

    def struck() -> None:
        getattr(scene.others, strike)()
        found.extend(rows_of(scene))

    scene.adversary.lies_in_wait(struck, scene.way.passes)
    with nullcontext() if scene.way.is_upkeep else pytest.raises(StoreMismatch, match="which is not the topology's"):
        scene.writes()
    # And it stays stopped.
    with pytest.raises(StoreMismatch, match="which is not the topology's"):
        scene.state.merge(scene.place.attempt(scene.way.next_txid, 20), counts({"dog": 1}))
    assert scene.adversary.struck == 1
    assert rows_of(scene) == found


def rows_of(scene: Scene) -> list[object]:
    table = scene.others.table
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT word, count FROM t ORDER BY 1, 2").read_all())
    return [table.version(), *found.to_pylist()]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "scene", [name for name, way in WAYS.items() if not way.is_upkeep and way.turns_to is None], indirect=True
)
def test_who_comes_first_each_time_fails_the_attempt_and_no_more(scene: Scene) -> None:
    scene.strikes("rewrites", times=ALWAYS)
    with pytest.raises((TableConflict, OperatingError), match="another writer's"):
        scene.writes()
    assert 1 < scene.adversary.struck < ALWAYS
    scene.adversary.lies_in_wait(lambda: None)
    scene.check(BEFORE)
    scene.state.merge(scene.place.attempt(4, 20), counts({"dog": 1, "bird": 5}))
    scene.check(AFTER)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scene", [name for name, way in WAYS.items() if not way.is_upkeep], indirect=True)
def test_whoever_was_taken_over_changes_nothing(scene: Scene) -> None:
    def takes_over() -> None:
        new = scene.opened()
        scene.place.fence(new, 3, 15)

    scene.adversary.lies_in_wait(takes_over, scene.way.passes)
    with nullcontext() if scene.way.write is fold else pytest.raises(Fenced):
        scene.writes()
    assert scene.adversary.struck == 1
    scene.check(BEFORE)
    with pytest.raises(Fenced):
        scene.state.merge(scene.place.attempt(4, 10), counts({"dog": 9}))
    scene.check(BEFORE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strike", [*HARMLESS, *HARMFUL])
@pytest.mark.parametrize("scene", ["an entry of our own", "rows of a log"], indirect=True)
def test_a_repair_is_of_the_version_that_was_looked_at_or_is_none(scene: Scene, strike: str) -> None:
    left = scene.others.table.version()
    scene.others.updates()
    found: list[object] = []

    def struck() -> None:
        getattr(scene.others, strike)()
        found.extend(rows_of(scene))

    scene.adversary.lies_in_wait(struck)
    seen = scene.others.table.version()
    # What was cleaned out of the log is nowhere.
    is_gone, is_late = strike.endswith("cleans"), strike not in ("checkpoints", "vacuums")
    why = "can't be restored" if is_gone else "nothing was restored"
    with pytest.raises(OperatingError, match=why) if is_late else nullcontext():
        repaired(scene, left, seen)
    assert scene.adversary.struck == 1
    assert not is_late or rows_of(scene) == found
    if is_gone:
        return
    if is_late:
        repaired(scene, left, scene.others.table.version())
    assert content(scene.opened(scene.way.layout)) == BEFORE


def repaired(scene: Scene, target: int, seen: int) -> None:
    """As the doctor does, who has found a foreign change in this Delta version."""
    put_back(
        DeltaLocation.of(scene.others.path),
        OWNER,
        Diagnosis(Problem.FOREIGN_WRITER, "", "", "", target=target, seen=seen),
    )
