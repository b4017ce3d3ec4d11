"""The process dies before or after each durable effect of a run; the next one goes on, and all counts are right.

An effect is a write to the store, a Delta commit, a clean-up of a table, the positions mirrored elsewhere. They are
numbered as they come; a run crashes at effect 1, the next at effect 2, and so on until one ends without a crash.
"""

from __future__ import annotations

import inspect
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from state.delta.tables.staging import FileStager
from state.delta.tables.table import DeltaLocation
from state.delta.write.creating import create_table
from state.rows.columns import StateColumns
from tests.proof.coverage import Coverage
from tests.proof.crashing import crash_and_go_on, live
from tests.proof.effects import AFTER, WHENS, Crash, Effects, NumberedStore, Point, numbered_delta
from tests.proof.shapes import Setting
from transactional.core.store import CoordinatorStore
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema

SHAPES = ("counts", "words", "letters")
SETTINGS = [Setting(*each) for each in itertools.product(SHAPES, (False, True), (1, 2, 3, 4))]
SETTINGS += [Setting("counts", *each, layout="log") for each in itertools.product((False, True), (1, 4))]
SETTINGS += [Setting("counts", *each, layout="staged") for each in itertools.product((False, True), (1, 3))]
SETTINGS += [Setting("stateful", *each) for each in itertools.product((False, True), (1, 3))]
SETTINGS += [Setting("stateful", is_opaque=True, pending=2, layout="log")]
SETTINGS += [Setting("stateful", *each, layout="staged") for each in ((False, 1), (True, 3))]
SETTINGS += [Setting("words", is_opaque=True, pending=2, layout="staged")]
SETTINGS += [Setting("new values", *each) for each in ((False, 1), (True, 3))]
SETTINGS += [Setting("new values", is_opaque=True, pending=2, layout=layout) for layout in ("log", "staged")]
SETTINGS += [Setting("pairs", *each) for each in ((False, 2), (True, 1))]
SETTINGS += [Setting("pairs", is_opaque=False, pending=3, layout="staged")]
SETTINGS += [Setting("windows", *each) for each in ((False, 1), (True, 3))]
SETTINGS += [Setting("windows", is_opaque=True, pending=2, layout=layout) for layout in ("log", "staged")]
SETTINGS += [Setting("expiring", *each) for each in ((False, 1), (True, 2), (True, 3))]
SETTINGS += [Setting("expiring", is_opaque=True, pending=2, layout="log")]
SAMPLED = (Setting("letters", is_opaque=False, pending=3), Setting("stateful", is_opaque=True, pending=2, layout="log"))
"""Both layouts, both kinds of spout, and effects of each kind that a table with letters or a stateful bolt has."""
TWICE = 10
"""Per setting: so many pairs of crashes, the second one while the next process recovers from the first."""
NUMBERED_ONCE_IN_A_WHILE = {"status", "attempts", "attempts_at", "times", "runs", "minutes", "txid_of", "has_fence"}
NUMBERED_ONCE_IN_A_WHILE |= {"desired", "close", "desire", "reset", "recount", "begin_rewind", "finish_rewind"}
NUMBERED_ONCE_IN_A_WHILE |= {"savepoints", "note_savepoint", "drop_savepoint", "position", "times_with_letters"}
NUMBERED_ONCE_IN_A_WHILE |= {"sinks", "outbox", "outbox_in_files", "sink_letters", "place_sink", "set_aside"}
"""What a run asks the store without changing it; and what no run calls."""

Names = Mapping[Setting, Sequence[str]]
"""The effects of a clean run, one after the other."""
Sample = Mapping[Setting, Sequence[Point]]


def name_of(setting: Setting) -> str:
    return str(setting)


def crash(setting: Setting, folder: Path, *points: Point) -> list[Effects]:
    """Crash, go on, check; tell where it was when something is wrong."""
    lives: list[Effects] = []
    home = folder / "-".join(f"{point.when}{point.number}" for point in points)
    home.mkdir()
    try:
        lives = crash_and_go_on(setting, home, *points)
    except AssertionError as wrong:
        wrong.add_note(f"{setting}: crashed at {points}, in {home}")
        raise
    shutil.rmtree(home)
    return lives


def points_of(effects: int) -> list[Point]:
    return [Point(number, when) for number in range(1, effects + 1) for when in WHENS]


def clean_run(setting: Setting, folder: Path) -> Effects:
    home = folder / "clean"
    home.mkdir()
    [life] = crash_and_go_on(setting, home)
    shutil.rmtree(home)
    return life


def test_every_write_of_the_store_has_a_number() -> None:
    calls = {name for name, _ in inspect.getmembers(CoordinatorStore, inspect.isfunction) if not name.startswith("_")}
    assert calls - set(vars(NumberedStore)) == NUMBERED_ONCE_IN_A_WHILE


def test_a_crash_stops_every_later_effect(tmp_path: Path) -> None:
    """Else the proof would prove nothing."""
    effects = live(SETTINGS[0], tmp_path, Point(20, AFTER))
    assert effects.is_dead
    assert len(effects.names) == 20
    assert "store: release" not in effects.names


def test_a_task_may_stage_while_a_delta_commit_is_under_way(tmp_path: Path) -> None:
    """Neither is the run given up then, nor the Delta commit taken for one that had a number."""
    effects, log = Effects(), tmp_path / "words" / "_delta_log"
    log.mkdir(parents=True)
    stager = FileStager(log.parent, "proof", Schema.parse("count long"))
    attempt = TransactionAttempt(TxId(2), AttemptId(2))
    with pytest.raises(AssertionError, match="has no number: 0 have one, 1 are there"):  # noqa: SIM117, PT012
        with numbered_delta(effects, tmp_path, merges=False, apart=True):
            (log / f"{0:020}.json").touch()
            stager.stage(attempt, pa.table({"count": [1]}))
            assert (effects.names, effects.is_dead) == (["words: stage"], False)
            with pytest.raises(Crash):
                create_table(DeltaLocation.parse(log.parent), StateColumns(Schema(()), Schema.parse("n long"), {}), {})


def kinds_of(setting: Setting, point: Point) -> set[tuple[str, str, str]]:
    """That effect on that table or the store; and that effect on any table in that layout."""
    _, when, name = point
    return {(when, "", name), (when, setting.layout, name.split(": ")[1])}


def one_of_each_kind(names: Names, seed: int) -> Sample:
    """Points that meet each kind of crash point, in settings that chance chooses; at least one of each setting.

    The last one of several effects of a name is none of them: how threads interleave decides whether it comes.
    """
    found = [
        (setting, Point(nth, when, name))
        for setting, effects in names.items()
        for name, count in Counter(effects[:-1]).items()
        for nth, when in itertools.product(range(1, max(2, count)), WHENS)
    ]
    # Each by itself: with a point more or less the others stay where they are.
    found.sort(key=lambda each: Random(f"{seed} {each}").random())
    met, chosen = set[tuple[str, str, str]](), dict[Setting, list[Point]]()
    for kinds_at_once in (2, 1):
        for setting, point in found:
            if len(kinds_of(setting, point) - met) >= kinds_at_once:
                met |= kinds_of(setting, point)
                chosen.setdefault(setting, []).append(point)
    for setting, point in found:
        chosen.setdefault(setting, [point])
    return chosen


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Names:
    """The effects of each setting that this run tries."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    tried = {item.callspec.params["setting"] for item in items if item.originalname == "test_some_crash_points"}
    return {
        setting: clean_run(setting, tmp_path_factory.mktemp("clean")).names for setting in SETTINGS if setting in tried
    }


@pytest.fixture(scope="module")
def sample(names: Names, coverage: Coverage, seed: int) -> Sample:
    coverage.add_total(sum(map(len, names.values())))
    return one_of_each_kind(names, seed)


@pytest.mark.sample
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            each, id=name_of(each), marks=() if each in SAMPLED else pytest.mark.long("test_some_crash_points")
        )
        for each in SETTINGS
    ],
)
def test_some_crash_points(setting: Setting, sample: Sample, tmp_path: Path, coverage: Coverage) -> None:
    for point in sample[setting]:
        crashed, *_ = crash(setting, tmp_path, point)
        # With several in flight, or tables that are maintained, runs differ a little in length.
        if crashed.is_dead:
            coverage.reached(crashed)
    assert coverage.covered


@pytest.mark.sample
@pytest.mark.long("test_some_crash_points")
def test_a_crash_point_of_each_kind_is_among_them(names: Names, sample: Sample) -> None:
    every = {
        kind
        for setting, effects in names.items()
        for when, name in itertools.product(WHENS, effects[:-1])
        for kind in kinds_of(setting, Point(1, when, name))
    }
    assert {kind for setting, some in sample.items() for point in some for kind in kinds_of(setting, point)} == every
    assert {"stage", "rewrite", "vacuum", "delete", "record_fence"} <= {name for _, _, name in every}


@pytest.mark.proof
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_every_crash_point(setting: Setting, tmp_path: Path, coverage: Coverage, seed: int) -> None:
    cover_all(setting, tmp_path, coverage)
    crash_twice(setting, tmp_path, coverage, Random(f"{seed} {setting}"))


def until_clean(setting: Setting, folder: Path) -> Iterator[Effects]:
    """Runs that crash at effect 1, 2, 3, … until one does not; that one comes last."""
    for number in itertools.count(1):
        for when in WHENS:
            crashed, *_ = crash(setting, folder, Point(number, when))
            yield crashed
            if not crashed.is_dead:
                return


def cover_all(setting: Setting, folder: Path, coverage: Coverage) -> None:
    *crashed, clean = until_clean(setting, folder)
    assert clean.crash_at is not None
    assert [each.crash_at for each in crashed] == points_of(clean.crash_at.number)[: len(crashed)]
    # Several in flight, and the maintenance of dead letters beside the attempts that fail, come in another order in
    # each run, and a little more or less often.
    assert len(crashed) == 2 * len(clean.names) or setting.pending > 1 or setting.shape == "letters"
    coverage.total += len(crashed)
    for each in crashed:
        coverage.reached(each)


def crash_twice(setting: Setting, folder: Path, coverage: Coverage, chance: Random) -> None:
    effects = len(clean_run(setting, folder).names)
    for _ in range(TWICE):
        points = chance.choice(points_of(effects - 1)), chance.choice(points_of(effects // 2))
        first, second, *_ = crash(setting, folder, *points)
        coverage.twice += first.is_dead and second.is_dead
