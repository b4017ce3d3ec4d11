"""The power is cut after each operation on a file that a run makes; a run over what is left goes on, and counts right.

A run is recorded as the system sees it, by strace: delta-rs and SQLite write without Python. `disk` tells what a cut
may leave; whatever it is, another run has to go on from there to the end, and no transaction is lost that was told as
committed.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.proof.disk import (
    ALL_LOST,
    KINDS,
    TRACED,
    Call,
    Disk,
    Tree,
    cuts,
    digest,
    fates_of,
    lay_out,
    plain_cuts,
    read_calls,
)
from tests.proof.power import REWIND_TARGET, WORDS, Setting, check, committed, go_back, live
from transactional.errors import TransactionalError

ROOT = Path(__file__).parents[2]
SETTINGS = [Setting(tables) for tables in ("small", "merge", "log", "staged", "sqlite", "sink", "rewound sink")]
SETTINGS += [Setting(tables, is_opaque=False) for tables in ("small", "log")]
SUBSETS = 20
PARTS = 8
"""The proof deals each setting's operations out to so many parts, which can be run side by side, and resumed."""


State = tuple[int, Tree, int]
"""After which call, the files, and how many transactions were told as committed."""
Left = Callable[[Disk], Iterable[Tree]]


@dataclass
class Recorded:
    """What a run did, and the folder that it was done in."""

    setting: Setting
    folder: Path
    told: Path
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        trace = self.folder.parent / "trace"
        strace = ["strace", "-f", "-qq", "-s", "100000000", "-o", str(trace), "-e", f"trace={','.join(TRACED)}"]
        given = [self.setting.tables, str(self.setting.is_opaque), self.setting.durability, self.folder, self.told]
        program = [sys.executable, "-m", "tests.proof.power", *map(str, given)]
        subprocess.run([*strace, *program], cwd=ROOT, check=True, timeout=120)
        with trace.open(encoding="latin-1") as lines:
            self.calls = list(read_calls(lines))
        trace.unlink()

    def states(self, left: Left, forgets: Callable[[str], bool] = lambda _: False) -> Iterator[State]:
        """After each operation what a cut may leave, and how many transactions were told as committed by then."""
        return ((number, tree, told) for number, disk, told in self.disks(forgets) for tree in left(disk))

    def disks(self, forgets: Callable[[str], bool] = lambda _: False) -> Iterator[tuple[int, Disk, int]]:
        """The disk after each call from which on a cut leaves something else than before, and the same number."""
        disk, told = Disk(self.folder, forgets), 0
        for number, call in enumerate(self.calls):
            told += call.name == "write" and b"committed\n" in call.strings
            if disk.apply(call) and (told == len(WORDS) or not self.setting.goes_back):
                yield number, disk, told

    @functools.cached_property
    def left(self) -> Set[tuple[str, int]]:
        """The digest of each state that a cut may leave, with all or nothing lost."""
        return {(digest(tree), told) for _, tree, told in self.states(plain_cuts)}

    def go_on(self, tree: Tree, told: int) -> None:
        """Run over what is left. Raises when something is wrong."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        lay_out(tree, self.folder)
        if self.setting.goes_back:
            go_back(self.setting, self.folder)
            check(self.setting, self.folder, WORDS[:REWIND_TARGET])
        else:
            assert committed(self.folder) >= told, f"{told} transactions were told as committed"
        live(self.setting, self.folder, take=2 if self.setting.is_opaque else 1)
        check(self.setting, self.folder)


@dataclass
class CutCounts:
    """How many states were tried."""

    operations: int = 0
    states: int = 0
    tried: int = 0

    def __str__(self) -> str:
        return (
            f"power cuts: {self.tried:,} different states tried of {self.states:,} that cuts after {self.operations:,} "
            "operations on files may leave, 0 wrong"
        )


@pytest.fixture(scope="module")
def cut_counts(told: list[str], counts: Counter[str]) -> Iterator[CutCounts]:
    cuts = CutCounts()
    yield cuts
    told.append(str(cuts))
    counts["states after a cut"] += cuts.tried


Record = Callable[..., Recorded]
"""Records the run of a setting, once; with another number anew."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Record:
    def record(setting: Setting, number: int = 0) -> Recorded:
        del number
        folder = tmp_path_factory.mktemp("cut")
        return Recorded(setting, folder / "disk", folder / "told")

    return functools.cache(record)


def different(states: Iterator[State], counts: CutCounts, known: Iterable[tuple[str, int]] = ()) -> Iterator[State]:
    """Each state once, for each number of transactions that were told as committed; none that is known."""
    seen, last = set(known), -1
    for number, tree, told in states:
        counts.states += 1
        counts.operations += number != last
        last = number
        if (state := (digest(tree), told)) not in seen:
            seen.add(state)
            yield number, tree, told


def go_on_from(run: Recorded, number: int, tree: Tree, told: int) -> None:
    try:
        run.go_on(tree, told)
    except BaseException as wrong:
        wrong.add_note(f"{run.setting}: the power was cut after call {number}: {run.calls[number]!r:.300}")
        wrong.add_note("\n".join(f"{path} {'' if content is None else len(content)}" for path, content in tree.items()))
        raise


@pytest.mark.proof
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_power_cut(setting: Setting, part: int, recorded: Record, cut_counts: CutCounts, seed: int) -> None:
    run = recorded(setting)
    chance, numbers = Random(f"{seed} {setting} {part}"), itertools.count()

    def dealt(disk: Disk) -> Iterator[Tree]:
        """What a cut may leave after every eighth operation."""
        if next(numbers) % PARTS == part:
            yield from cuts(disk, chance, SUBSETS)

    for number, tree, told in different(run.states(dealt), cut_counts):
        go_on_from(run, number, tree, told)
        cut_counts.tried += 1


def one_of_each_kind(run: Recorded, chance: Random) -> Mapping[int, list[str]]:
    """After which calls the power is cut, and how: once in each way, wherever chance chooses; and after the first, the
    last and another transaction that was told as committed all is lost that is unsynced."""
    where, after, last = defaultdict[str, list[int]](list), list[int](), 0
    for number, disk, told in run.disks():
        for kind in {kind for kind, _ in fates_of(disk, chance, 1)}:
            where[kind].append(number)
        if told > last:
            after.append(number)
        last = told
    assert where.keys() == KINDS
    chosen = defaultdict[int, list[str]](list)
    for number in (after[0], after[len(after) // 2], after[-1]):
        chosen[number].append(ALL_LOST)
    for kind in sorted(where):
        chosen[chance.choice(where[kind])].append(kind)
    return chosen


@pytest.mark.sample
@pytest.mark.long("tests/integration/delta/test_syncing.py")
@pytest.mark.parametrize("setting", SETTINGS[:7], ids=str)
def test_a_power_cut_of_each_kind(setting: Setting, recorded: Record, cut_counts: CutCounts, seed: int) -> None:
    run, chance = recorded(setting), Random(f"{seed} {setting}")
    chosen = one_of_each_kind(run, chance)
    for number, disk, told in run.disks():
        cut_counts.operations += 1
        for wanted in chosen.get(number, ()):
            left = [fates for kind, fates in fates_of(disk, chance, SUBSETS) if kind == wanted]
            cut_counts.states += len(left)
            go_on_from(run, number, disk.left(chance.choice(left)), told)
            cut_counts.tried += 1


def of_table(path: str) -> bool:
    return "/tables/" in path


PLANTED: list[tuple[str, str, Callable[[str], bool]]] = [
    ("small", "a data file", lambda path: path.endswith(".parquet") and "_delta_log" not in path),
    ("small", "an entry", lambda path: "_commit_" in path),
    ("small", "a table's folder", lambda path: of_table(path) and path.endswith("/one")),
    ("small", "a log's folder", lambda path: path.endswith("_delta_log")),
    ("small", "the folder above", lambda path: path.endswith("/tables")),
    ("small", "a checkpoint", lambda path: path.endswith(".checkpoint.parquet")),
    ("merge", "delta-rs' file", lambda path: path.endswith(".parquet") and "_delta_log" not in path),
    ("merge", "delta-rs' entry", lambda path: path.endswith(".json")),
    ("log", "a new folder", lambda path: "/txid=" in path and not path.endswith(".parquet")),
    ("log", "a checkpoint", lambda path: path.endswith(".checkpoint.parquet")),
    ("staged", "a staged file", lambda path: "/_staged/" in path and path.endswith(".parquet")),
    ("staged", "the folder of staged files", lambda path: path.endswith("/_staged")),
    ("small", "the store's log", lambda path: path.endswith("store.db-wal")),
    ("sink", "a run file", lambda path: "/_runs/" in path and path.endswith(".parquet")),
    ("sink", "the folder of run files", lambda path: path.endswith("/_runs")),
    ("sink", "a merged file", lambda path: "/compacted-" in path),
    ("sink", "an entry", lambda path: "_commit_" in path),
    ("rewound sink", "a divided file", lambda path: "/compacted-" in path),
    ("rewound sink", "an entry", lambda path: "_commit_" in path),
    ("sqlite", "a state's log", lambda path: path.endswith("one.db-wal")),
]


@pytest.mark.long("tests/integration/delta/test_syncing.py")
@pytest.mark.parametrize(("tables", "what", "forgets"), PLANTED, ids=[f"{each[0]}: {each[1]}" for each in PLANTED])
def test_a_sync_that_is_missing_is_found(
    tables: str, what: str, forgets: Callable[[str], bool], recorded: Record
) -> None:
    """Else the proof would prove nothing."""
    del what
    # What is deleted after which write depends on when tables were maintained: where a machine is busy, on another run.
    assert any(is_found(recorded(Setting(tables), number), forgets) for number in range(3))


def is_found(run: Recorded, forgets: Callable[[str], bool]) -> bool:
    """Whether one of the states is wrong that no cut leaves of what was synced; from the end, where most is missing."""
    try:
        for number, tree, told in reversed(list(different(run.states(plain_cuts, forgets), CutCounts(), run.left))):
            go_on_from(run, number, tree, told)
    except (AssertionError, TransactionalError):
        return True
    return False
