"""VACUUM by somebody else, at each step of transactions, compactions and rewinds: what is done is exact, or is refused
in one
line, with a way out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.faults.taking_over import findings, lead
from tests.proof.crashing import check_at_the_end
from tests.proof.effects import DeltaLogs, Effects, numbered_delta
from tests.proof.shapes import Setting
from tests.rewinding import Kept, Steps, World, end_lease, stepping
from transactional.errors import BeyondKept
from transactional.model.attempt import TxId
from transactional.runtime.engine.rewinding import plan_rewind

# `make check` has what is deleted of a table's own, and what is missed then: tests/integration/delta/test_vacuum.py,
# tests/integration/delta/test_deleted_files.py.
pytestmark = pytest.mark.sampled(9, tests=True)
RETENTION = "delta.deletedFileRetentionDuration"
DAY_MS = 86_400_000
Vacuum = Callable[[Path], object]


def tables(folder: Path) -> list[Path]:
    return sorted({entry.parent.parent for entry in folder.glob("*/_delta_log/*.json")})


VACUUM = DeltaTable.vacuum
"""Somebody else's, which is no effect of the leader."""


def keeping_nothing(folder: Path) -> None:
    """As delta-rs does it: what the log has given up."""
    for path in tables(folder):
        VACUUM(DeltaTable(path), retention_hours=0, dry_run=False, enforce_retention_duration=False)


def keeping_a_minute(folder: Path) -> None:
    """Also what no log knows, as Spark does it."""
    for path in tables(folder):
        VACUUM(DeltaTable(path), dry_run=False, enforce_retention_duration=False, full=True)


# --- transactions and compactions -------------------------------------------------------------------------------------

SETTINGS = {
    "merge": Setting("new values", is_opaque=True, pending=1),
    "log": Setting("new values", is_opaque=True, pending=1, layout="log"),
    "staged": Setting("new values", is_opaque=False, pending=1, layout="staged"),
}


@dataclass
class Beside(Effects):
    """The effects of a leader, before each n-th of which somebody else does something: were it before each one, no
    write would ever be over the version that was read and checked."""

    work: Callable[[], object] = field(default=lambda: None)
    each: int = 1
    done: int = 0

    @contextmanager
    def numbered(self, name: str) -> Iterator[None]:
        with self.lock:
            self.names.append(name)
            if len(self.names) % self.each == 0:
                self.work()
                self.done += 1
        yield


def check_beside(layout: str, folder: Path, work: Callable[[], object], each: int, patch: pytest.MonkeyPatch) -> None:
    setting = SETTINGS[layout]
    beside = Beside(work=work, each=each)
    patch.setattr(DeltaLogs, "are_as_seen", lambda logs: True)  # a VACUUM makes Delta commits, too
    with numbered_delta(beside, folder, merges=True, apart=layout == "staged"):
        assert lead(setting, folder, "leader", beside) is None
    assert beside.done > 10
    assert any("compaction" in name or "rewrite" in name or "write" in name for name in beside.names)
    check_at_the_end(setting, folder)
    assert findings(setting, folder) == []


@pytest.mark.parametrize("vacuum", [keeping_nothing, keeping_a_minute])
@pytest.mark.parametrize("each", [2, 3])
@pytest.mark.parametrize("layout", SETTINGS)
def test_beside_transactions_and_compactions(
    layout: str, each: int, vacuum: Vacuum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_beside(layout, tmp_path, lambda: vacuum(tmp_path), each, monkeypatch)


# --- rewinds ----------------------------------------------------------------------------------------------------------

LENGTH, TARGET = 8, 5


class Aged(World):
    """A world whose run was a day ago, by what its tables know of deleted files. They keep them for a minute."""

    def __init__(self, folder: Path, layout: str, length: int, kept: Path) -> None:
        super().__init__(
            folder, layout, length, kept, {RETENTION: "interval 1 minute", "delta.checkpointInterval": "99"}
        )

    def restart(self) -> None:
        super().restart()
        for entry in self.folder.glob("*/_delta_log/*.json"):
            entry.write_text(re.sub(r'(?<="deletionTimestamp":)\d+', _a_day_before, entry.read_text("utf-8")), "utf-8")

    def reachable(self) -> list[int]:
        """The transactions that a rewind can go to."""
        return [txid for txid in range(LENGTH + 1) if self._is_reachable(TxId(txid))]

    def _is_reachable(self, txid: TxId) -> bool:
        try:
            plan_rewind(self.topology(), self.store, txid)
            return True
        except BeyondKept as error:
            said = str(error)
        assert "\n" not in said
        assert (self.rewinding_to() is None) is ("was begun: finish it with a --to-txid that" not in said)
        return False

    def start_over(self) -> None:
        """With empty tables."""
        end_lease(self.folder)
        assert self.store.reset("rewound")
        for path in tables(self.folder):
            shutil.rmtree(path)


def _a_day_before(found: re.Match[str]) -> str:
    return str(int(found[0]) - DAY_MS)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("vacuumed"), LENGTH)


@pytest.mark.parametrize("layout", ["merge", "log"])
@pytest.mark.parametrize("vacuum", [keeping_nothing, keeping_a_minute])
@pytest.mark.parametrize("after", ["record_fence 4", "begin_rewind 1", "restore 1", "restore 3", "restore 4"])
def test_in_the_middle_of_a_rewind(kept: Kept, layout: str, vacuum: Vacuum, after: str) -> None:
    """It ends, if every table has gone back or what its target takes is kept; or it is refused, and may end elsewhere:
    at the latest where it began, as long as that is kept; otherwise the topology starts over."""
    world = kept.world(layout, Aged)
    assert isinstance(world, Aged)
    steps, said = Steps(), list[str]()

    def at(moment: int) -> None:
        name = steps.names[-1]
        if moment % 2 and f"{name} {steps.names.count(name)}" == after:
            vacuum(world.folder)

    steps.at = at
    with closing(world.store):
        with stepping(world.store, steps):
            try:
                world.back_to(TARGET)
            except BeyondKept as error:
                said.append(str(error))
        assert bool(said) is (after != "restore 4")
        if said:
            assert "\n" not in said[0]
            is_begun = world.rewinding_to() is not None
            assert is_begun is (after != "record_fence 4")
            possible = world.reachable()
            # Until a table has gone back, what is committed is what is there.
            assert (LENGTH in possible) is (vacuum is keeping_a_minute or not after.startswith("restore"))
            assert TARGET not in possible
            if possible and is_begun:
                world.finish(possible[-1])
            elif not possible:
                world.start_over()
        world.run()
        assert world.contents() == world.expected(LENGTH)
        assert world.findings() == []
