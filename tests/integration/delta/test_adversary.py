"""All ways of writing a Delta table, and what others may do to it between our look at it and our Delta commit.

Whatever changes no row is harmless: the version is checked again, and write what we would have written. Whatever
changes rows stops us before anything is built on it. The adversary strikes at the last moment; see
`tests/contract/adversary.py`, and for the ways `tests/contract/writing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from state.delta.doctor import put_back
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from tests.contract.adversary import ALWAYS, HARMFUL, HARMLESS, Adversary, Others
from tests.contract.states import OWNER, Place, write_by_files
from tests.contract.writing import BEFORE, EVERY_WAY, Way, adds
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.errors import BeyondKept, Fenced, OperatingError, StoreMismatch, TableConflict


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

    def adds(self, txid: int, attempt_id: int, words: Mapping[str, int]) -> None:
        """A transaction without any trick."""
        adds(self.state, self.place, txid, attempt_id, words, puts=self.way.puts)

    def strikes(self, strike: str, times: int = 1) -> None:
        self.adversary.lies_in_wait(getattr(self.others, strike), self.way.passes, times)

    def opened(self, layout: Any = "auto") -> DeltaMapState:
        state = declared(self.way, self.others.path, layout, **self.way.gained)
        state.open(OWNER, self.place.txids.__getitem__)
        return state

    def check(self, expected: dict[str, int]) -> None:
        """What readers see, and that no key has two rows in the table itself, unless it is a log."""
        assert content(self.state) == content(self.opened()) == expected
        table = DeltaTable(self.others.path)
        if not table.metadata().partition_columns and not self.way.declared:
            assert table.count() == len(expected)


def declared(way: Way, path: Path | str, layout: Any, **more: Any) -> DeltaMapState:
    said = {"key": "word string", "values": "count long", **way.declared, **more}
    return DeltaMapState(path, layout=layout, **said)


def content(state: DeltaMapState) -> dict[str, int]:
    rows = state.read().select(["word", "count"]).to_pylist()
    found = {row["word"]: row["count"] for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Way], Path]:
    """The table at its third transaction; those that come about in one way are written once."""
    folder, known = tmp_path_factory.mktemp("tables"), dict[str, Path]()

    def table(way: Way) -> Path:
        name = str((way.layout, way.by_delta_rs, way.is_small, way.puts, way.declared))
        if name not in known:
            known[name] = folder / str(len(known))
            place = Place("delta-rs", folder)
            state = declared(way, known[name], way.layout)
            state.open(OWNER, place.txids.__getitem__)
            for txid, words in enumerate([{"dog": 1}, {"dog": 1, "cat": 1}, {"cow": 1}], 1):
                adds(state, place, txid, txid, words, puts=way.puts)
            state.close()
        return known[name]

    return table


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Callable[[Way], Path]
) -> Scene:
    way: Way = EVERY_WAY[request.param]
    if way.by_delta_rs:
        monkeypatch.setattr("state.delta.write.loaded_table.list_replaceable_files", lambda _: None)
    if not way.is_small:
        write_by_files(monkeypatch)
    if way.is_upkeep:
        monkeypatch.setattr("state.delta.upkeep.merged_upkeep.COMPACTION_INTERVAL", 1)
        monkeypatch.setattr("state.delta.upkeep.merged_upkeep.FILES_MAX", 1)
    # However few they are, rows go to a file for each thread, and those of a compaction go apart.
    monkeypatch.setattr("state.delta.write.rewriting.LANE_ROWS", 1)
    monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0 if way.is_apart else 1_000)
    place, others = Place("delta-rs", tmp_path), Others(tmp_path / "table")
    for number in range(1, 4):
        place.attempt(number, number)
    copytree(tables(way), others.path)
    state = declared(way, others.path, way.turns_to or way.layout, **way.gained)
    state.open(OWNER, place.txids.__getitem__)
    return Scene(way, place, state, Adversary(monkeypatch), others)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("strike", HARMLESS)
@pytest.mark.parametrize("scene", EVERY_WAY, indirect=True)
def test_what_changes_no_row_is_harmless(scene: Scene, strike: str) -> None:
    scene.strikes(strike)
    is_beyond = scene.way.needs_log and strike.endswith("cleans")
    with pytest.raises((BeyondKept, OperatingError)) if is_beyond else nullcontext():
        scene.writes()
    assert scene.adversary.struck == 1
    leaves = BEFORE if is_beyond else scene.way.leaves
    scene.check(leaves)
    # And it goes on.
    scene.adds(4 if is_beyond else scene.way.next_txid, 20, {"dog": 1})
    scene.check({**leaves, "dog": leaves["dog"] + 1})


@pytest.mark.sampled(20)
@pytest.mark.parametrize("scene", EVERY_WAY, indirect=True)
def test_a_log_that_is_cleaned_between_two_transactions_is_harmless(scene: Scene) -> None:
    """No Delta version comes of it: what was loaded is the newest one, made of entries that are gone."""
    scene.others.cleans()
    with pytest.raises(BeyondKept) if scene.way.needs_log else nullcontext():
        scene.writes()
    scene.check(BEFORE if scene.way.needs_log else scene.way.leaves)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("strike", HARMFUL)
@pytest.mark.parametrize("scene", EVERY_WAY, indirect=True)
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
        scene.adds(scene.way.next_txid, 20, {"dog": 1})
    assert scene.adversary.struck == 1
    assert rows_of(scene) == found


def rows_of(scene: Scene) -> list[object]:
    table = scene.others.table
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT word, count FROM t ORDER BY 1, 2").read_all())
    return [table.version(), *found.to_pylist()]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("scene", [name for name, way in EVERY_WAY.items() if way.is_attempted], indirect=True)
def test_who_comes_first_each_time_fails_the_attempt_and_no_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("state.table_state", "state.delta.state"):
        monkeypatch.setattr(f"{module}.WRITE_TRIES", 3)
    scene.strikes("rewrites", times=ALWAYS)
    with pytest.raises((TableConflict, OperatingError), match="another writer's"):
        scene.writes()
    assert scene.adversary.struck == 3
    scene.adversary.lies_in_wait(lambda: None)
    scene.check(BEFORE)
    scene.adds(4, 20, {"dog": 1, "bird": 5})
    scene.check(scene.way.goes_on_with)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("scene", [name for name, way in EVERY_WAY.items() if not way.is_upkeep], indirect=True)
def test_whoever_was_taken_over_changes_nothing(scene: Scene) -> None:
    def takes_over() -> None:
        new = scene.opened()
        scene.place.fence(new, 3, 15)

    scene.adversary.lies_in_wait(takes_over, scene.way.passes)
    with pytest.raises(Fenced) if scene.way.is_fenced else nullcontext():
        scene.writes()
    assert scene.adversary.struck == 1
    scene.check(BEFORE)
    with pytest.raises(Fenced):
        scene.adds(4, 10, {"dog": 9})
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
        DeltaLocation.parse(scene.others.path),
        OWNER,
        Diagnosis(Problem.FOREIGN_WRITER, "", "", "", target=target, seen=seen),
    )
