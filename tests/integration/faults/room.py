"""A room with the tables of a topology, in which several stores, and runs of them, come to lead it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from state import MemoryMapState, RedisMapState, SqlMapState
from state.memory import MemoryTable
from state.table_state import TableState
from tests.rewinding import LAYOUTS, States, build, contents, delta_states, expected
from transactional import Topology, TopologyConfig, TopologyDriver
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import TransactionalError
from transactional.operations.doctor.examine import examine
from transactional.operations.doctor.repairs import repair
from transactional.runtime.engine.fencing import one_by_one
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.runtime.executors.local import LocalExecutor
from verifier import CheckedSqlTable, CheckedTable, verify

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
    """A folder with stores, and the tables of a topology in it, in this process' memory, or on the server at `url`."""

    folder: Path
    kind: str
    server: str = ""
    prefix: str = ""
    """Before the names of its tables on the server."""
    memory: dict[str, MemoryTable] = field(default_factory=dict)

    @property
    def journal(self) -> Path:
        """Where runs write their journal."""
        return self.folder / "journal"

    def url(self, store: str) -> str:
        """The URL of a store."""
        return f"sqlite:///{self.folder}/{store}"

    @property
    def tables_url(self) -> str:
        """The URL of what holds the tables, unless that is Delta or memory."""
        return self.server or f"sqlite:///{self.folder}/states.db"

    def topology(self, transactions: int, take: int = 1) -> Topology:
        """The topology, whose source has the rows of so many transactions, if `take` rows of a partition are one."""
        topology = build(self.folder, self._states, transactions=transactions, letters=False)
        topology.spout.take = take  # type: ignore[attr-defined]
        return topology

    @property
    def _states(self) -> States:
        def state(name: str, key: str | None = None, values: str = "", **named: Any) -> TableState[Any]:
            if self.kind == "memory":
                return MemoryMapState(key, values, table=self.memory.setdefault(name, MemoryTable(name)), **named)
            if self.kind == "redis":
                return RedisMapState(self.server, self.prefix + name, key, values, **named)
            return SqlMapState(self.tables_url, name, key, values, **named)

        return state if self.kind not in LAYOUTS else delta_states(self.folder, self.kind)

    def lead(
        self, transactions: int, store: str = ONE, before: Hook | None = None, take: int = 1
    ) -> TransactionalError | None:
        """Lead until the source is drained; what ends it before."""
        topology = self.topology(transactions, take)
        with closing(SqlCoordinatorStore(self.url(store))) as opened, closing(JournalWriter(self.journal)) as journal:
            driver = TopologyDriver(topology, opened, LocalExecutor(topology), CONFIG, observers=[journal])
            driver.leadership._side_by_side = one_by_one if store == ONE else backwards
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
        report = verify(url, topology.id, self._checked(topology))
        with closing(SqlCoordinatorStore(url)) as opened:
            examined = examine(topology, opened, url)
        return [*(each for each in examined if not each.is_harmless), *report.findings]

    def _checked(self, topology: Topology) -> list[Any]:
        states: dict[str, Any] = {each.id: each.state for each in topology.committers}
        if self.kind == "memory":
            return []
        if self.kind in LAYOUTS:
            return [CheckedTable(name, state.parts.examination.address().uri) for name, state in states.items()]
        return [
            CheckedSqlTable(name, self.tables_url, state.parts.examination.address().table)
            for name, state in states.items()
        ]

    def repair(self, transactions: int, journal: Path | None) -> list[str]:
        """What `transactional doctor --repair` does."""
        topology = self.topology(transactions)
        with closing(SqlCoordinatorStore(self.url(ONE))) as opened:
            return repair(topology, opened, examine(topology, opened, self.url(ONE)), journal)


def backwards(works: Sequence[Callable[[], None]]) -> None:
    """As `one_by_one`: the order of what is done in threads is any."""
    one_by_one(works[::-1])


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
        patch.setattr(state, "open", told("open", state.open))
        confirm = state._confirm
        patch.setattr(state, "_confirm", lambda by, write, confirm=confirm: confirm(by, told("table", write)))


def right(transactions: int) -> Any:
    """What a plain count gives."""
    return {name: rows for name, rows in expected(transactions, transactions).items() if name != "dead-letters"}


def check_one_line(refused: TransactionalError | None, *kinds: type[TransactionalError]) -> str:
    assert isinstance(refused, kinds), repr(refused)
    assert "\n" not in str(refused)
    return str(refused)
