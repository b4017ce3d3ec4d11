"""Two store URLs on one table, and a store that is restored from a backup: refused in one line, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from state import SqlMapState
from state.store.sql_store import SqlCoordinatorStore
from state.table_state import TableState
from tests.rewinding import build, contents, delta_states, end_lease, expected
from transactional import Topology, TopologyConfig, TopologyDriver
from transactional.doctor.examine import examine
from transactional.doctor.repairs import repair
from transactional.engine.fencing import one_by_one
from transactional.engine.history.journal import JournalWriter
from transactional.errors import ConfigError, Fenced, StoreMismatch, TopologyInUse, TransactionalError
from transactional.phases.local_executor import LocalExecutor
from verifier import CheckedSqlTable, CheckedTable, verify

# `make check` has the rule itself: tests/unit/doctor/test_examine.py.
pytestmark = pytest.mark.sampled(9, tests=True)
ONE, OTHER = "store.db", "other.db"
LENGTH = 3
CONFIG = TopologyConfig(
    stop_when_drained=True, attempts_max=1, retry_pause_ms=1, idle_pause_ms=1, tick_ms=10, window_tick_ms=None
)
STORE_WRITES = ("acquire", "record_fence", "record_start", "record_attempt", "record_commit", "release")
Hook = Callable[[str, int], None]
"""Told before each write: its name, and the how manieth of that name it is."""


@dataclass
class Room:
    """A folder with the tables of a topology, and with stores."""

    folder: Path
    kind: str

    @property
    def journal(self) -> Path:
        """Where runs write their journal."""
        return self.folder / "journal"

    def url(self, store: str) -> str:
        """The URL of a store."""
        return f"sqlite:///{self.folder}/{store}"

    def topology(self, transactions: int) -> Topology:
        """The topology, whose source has the rows of so many transactions."""

        def in_sqlite(name: str, key: str | None = None, values: str = "", **named: Any) -> TableState[Any]:
            return SqlMapState(f"sqlite:///{self.folder}/states.db", name, key, values, **named)

        states = in_sqlite if self.kind == "sqlite" else delta_states(self.folder, self.kind)
        return build(self.folder, states, transactions=transactions, letters=False)

    def lead(self, transactions: int, store: str = ONE, before: Hook | None = None) -> TransactionalError | None:
        """Lead until the source is drained; what ends it before."""
        topology = self.topology(transactions)
        with closing(SqlCoordinatorStore(self.url(store))) as opened, closing(JournalWriter(self.journal)) as journal:
            driver = TopologyDriver(topology, opened, LocalExecutor(topology), CONFIG, observers=[journal])
            driver.leadership._side_by_side = one_by_one
            with pytest.MonkeyPatch.context() as patch:
                if before is not None:
                    watch(patch, opened, topology, before)
                try:
                    driver.run()
                except TransactionalError as error:
                    return error
        return None

    def contents(self) -> Any:
        """What readers find."""
        return contents(self.topology(LENGTH))

    def findings(self, transactions: int, store: str = ONE) -> list[Any]:
        """What the doctor and the checker find, that is wrong."""
        topology, url = self.topology(transactions), self.url(store)
        states: dict[str, Any] = {each.id: each.state for each in topology.committers}
        if self.kind == "sqlite":
            tables: list[Any] = [CheckedSqlTable(name, f"sqlite:///{self.folder}/states.db", name) for name in states]
        else:
            tables = [CheckedTable(name, state.address().uri) for name, state in states.items()]
        report = verify(url, topology.id, tables)
        with closing(SqlCoordinatorStore(url)) as opened:
            examined = examine(topology, opened, url)
        return [*(each for each in examined if not each.is_harmless), *report.findings]

    def repair(self, transactions: int, journal: Path | None) -> list[str]:
        """What `transactional doctor --repair` does."""
        topology = self.topology(transactions)
        with closing(SqlCoordinatorStore(self.url(ONE))) as opened:
            return repair(topology, opened, examine(topology, opened, self.url(ONE)), journal)


def watch(patch: pytest.MonkeyPatch, store: SqlCoordinatorStore, topology: Topology, before: Hook) -> None:
    """Tell before each write to this store, and to the tables of this topology."""
    names = list[str]()

    def told(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            names.append(name)
            before(name, names.count(name))
            return write(*given, **named)

        return call

    for name in STORE_WRITES:
        patch.setattr(store, name, told(name, getattr(store, name)))
    for component in topology.committers:
        state: Any = component.state
        confirm = state._confirm
        patch.setattr(state, "_confirm", lambda by, write, confirm=confirm: confirm(by, told("table", write)))


def right(transactions: int) -> Any:
    """What a plain count gives."""
    return {name: rows for name, rows in expected(transactions, transactions).items() if name != "dead-letters"}


def check_one_line(refused: TransactionalError | None, *kinds: type[TransactionalError]) -> str:
    assert isinstance(refused, kinds), repr(refused)
    assert "\n" not in str(refused)
    return str(refused)


@pytest.fixture(params=["merge", "log", "sqlite"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Room:
    return Room(tmp_path, request.param)


# --- two stores -------------------------------------------------------------------------------------------------------


def test_another_store_is_refused_however_often_it_is_tried(room: Room) -> None:
    """Each start draws an attempt id, so that the other store comes to count as far as the table is."""
    assert room.lead(1) is None
    for _ in range(4):
        said = check_one_line(room.lead(LENGTH, OTHER), StoreMismatch)
        assert "or the table belongs to another store. To do: " in said
        assert room.contents() == right(1)
    assert room.lead(LENGTH) is None
    assert room.contents() == right(LENGTH)
    assert room.findings(LENGTH) == []


WRITES = [
    *(("acquire", 1), ("record_fence", 1), ("table", 1), ("table", 2), ("record_start", 1), ("record_attempt", 1)),
    *(("table", 4), ("table", 5), ("record_commit", 1), ("record_attempt", 2), ("release", 1)),
]
"""Three tables are fenced, and then written in each transaction."""


@pytest.mark.parametrize("write", WRITES, ids=lambda write: "{} {}".format(*write))
def test_of_two_at_once_one_is_refused(room: Room, write: tuple[str, int]) -> None:
    """The first one stands still before a write, the other one comes, and the first one goes on."""
    said = dict[str, TransactionalError | None]()

    def come(*now: Any) -> None:
        if now == write:
            said[OTHER] = room.lead(LENGTH, OTHER)

    said[ONE] = room.lead(LENGTH, ONE, come)
    [leader] = [store for store, error in said.items() if error is None]
    for store, error in said.items():
        if store != leader:
            check_one_line(error, StoreMismatch, Fenced)
            check_one_line(room.lead(LENGTH + 1, store), StoreMismatch)
    assert room.contents() == right(LENGTH)
    assert room.findings(LENGTH, leader) == []
    assert room.lead(LENGTH + 1, leader) is None
    assert room.contents() == right(LENGTH + 1)


# --- a store from a backup --------------------------------------------------------------------------------------------

COPIED = {"the file": ("",), "the file and its log": ("", "-wal")}
"""What is copied of a SQLite database that is open."""
BACKUP, AFTERWARDS = 4, 24


@pytest.mark.parametrize("copied", COPIED)
def test_a_store_restored_from_a_backup_is_refused_until_it_has_caught_up(room: Room, copied: str) -> None:
    backup = room.folder / "backup"
    backup.mkdir()

    def copy(*now: Any) -> None:
        if now == ("record_commit", BACKUP):
            for end in COPIED[copied]:
                shutil.copy(room.folder / f"{ONE}{end}", backup)

    assert room.lead(AFTERWARDS, before=copy) is None
    for file in room.folder.glob(f"{ONE}*"):
        file.unlink()
    shutil.copytree(backup, room.folder, dirs_exist_ok=True)
    if len(COPIED[copied]) > 1:
        # As in the backup somebody leads; and nobody has told the file alone of any topology.
        check_one_line(room.lead(AFTERWARDS), TopologyInUse)
        end_lease(room.folder)
    for _ in range(2):
        said = check_one_line(room.lead(AFTERWARDS + 1), StoreMismatch)
        assert "the store was wiped or restored" in said
        assert "(transactional doctor --repair --journal)" in said
    assert room.contents() == right(AFTERWARDS)
    with pytest.raises(ConfigError, match="with --journal FILE"):
        room.repair(AFTERWARDS, None)
    assert len(room.repair(AFTERWARDS, room.journal)) == 1
    assert room.contents() == right(AFTERWARDS)
    assert room.findings(AFTERWARDS) == []
    assert room.lead(AFTERWARDS + 1) is None
    assert room.contents() == right(AFTERWARDS + 1)
    assert room.findings(AFTERWARDS + 1) == []
