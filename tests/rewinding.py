"""A run of sixty transactions to be taken back: counts, a state that deletes, dead letters, in any layout; and a model
of what is in its tables after each of them."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from state.delta.segments.log_layout import LogLayout
from state.delta.write import entry as delta_entry
from state.table_state import TableState
from tests.proof.shapes import Counting
from transactional import (
    Topology,
    TopologyConfig,
    TopologyDriver,
    TransactionalTopologyBuilder,
    Tuple,
)
from transactional.core.machine.protocol import Action, BatchPlanned, Event
from transactional.core.ports import Clock
from transactional.core.store import CoordinatorStore
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import RewindUnfinished
from transactional.model.attempt import TxId
from transactional.model.names import LOG_COMMITS_PROPERTY
from transactional.operations.doctor.examine import examine
from transactional.runtime.engine import rewinding
from transactional.runtime.executors.local import LocalExecutor
from verifier import CheckedTable, verify

TRANSACTIONS = 60
NAMES = ("cat", "dog", "bird", "fish", "cow", "12")
"""The last one no bolt can work on."""
LAYOUTS: Mapping[str, LogLayout | str] = {
    "merge": "merge",
    "log": LogLayout(compact_after=4, staged_bytes=None),
    "staged": LogLayout(compact_after=5, staged_bytes=0),
}
Contents = Mapping[str, Mapping[Any, Any]]
States = Callable[..., TableState[Any]]


def words(transactions: int = TRANSACTIONS) -> list[list[tuple[str]]]:
    """Two partitions, of each of which a transaction takes a row."""
    chosen = [NAMES[(number * number + number // 7) % len(NAMES)] for number in range(2 * transactions)]
    return [[(word,) for word in chosen[part::2]] for part in range(2)]


def spell(row: Tuple) -> tuple[str]:
    """A bolt that some tuples are nothing for."""
    if not row["word"].isalpha():
        raise ValueError("no word")
    return (str(row["word"]),)


def spell_or_skip(row: Tuple) -> list[tuple[str]]:
    """One that leaves them out."""
    return [(str(row["word"]),)] if row["word"].isalpha() else []


KEPT_FOR_NO_TIME = {
    **dict.fromkeys(("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"), "interval 0 seconds"),
    "delta.checkpointInterval": "3",
    LOG_COMMITS_PROPERTY: "2",
}


def delta_states(folder: Path, layout: str, properties: Mapping[str, str] | None = None) -> States:
    """States in Delta tables in a folder."""
    has = properties or {"delta.checkpointInterval": "7"}

    def state(name: str, key: str | None = None, values: str = "", **named: Any) -> TableState[Any]:
        return DeltaMapState(folder / name, key, values, layout=LAYOUTS[layout], properties=has, **named)

    return state


def build(
    folder: Path, state: States, *, transactions: int = TRANSACTIONS, is_opaque: bool = True, letters: bool = True
) -> Topology:
    """The topology; a memory spout takes a row of each partition."""
    kind = OpaqueMemoryTransactionalSpout if is_opaque else MemoryTransactionalSpout
    spout = kind(words(transactions), fields="word string", take=1)
    builder = TransactionalTopologyBuilder("rewound", "words", spout, parallelism=2)
    builder.set_bolt("spell", spell if letters else spell_or_skip, output="word string").shuffle_grouping("words")
    counts = state("per-word", "word string", "count long", deletes=True)
    builder.set_stateful_bolt("per-word", Counting(), 2, state=counts).fields_grouping("spell", "word")
    builder.set_committer_bolt("highest", state("highest", "word").max("count")).fields_grouping("per-word", "word")
    builder.set_committer_bolt("in-all", state("in-all", "word").count()).fields_grouping("spell", "word")
    if letters:
        builder.set_dead_letters(DeadLetterTable(folder / "letters"))
    return builder.build()


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def run(topology: Topology, store: CoordinatorStore, *, owner: str = "run", clock: Clock | None = None) -> None:
    """Run until all is read, with a transaction for each record of a partition. None closes windows behind the last
    one, as in a run that goes on: this one is told to drain as soon as the last record is planned."""

    def drain_at_end(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, BatchPlanned) and (
            event.batch is None or topology.spout.parts.backlog.lag(event.batch) == 0
        ):
            driver.drain()

    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1, idle_pause_ms=1, tick_ms=10)
    driver = TopologyDriver(
        topology, store, LocalExecutor(topology), config, owner=owner, clock=clock, observers=[drain_at_end]
    )
    driver.run()


def expected(txid: int, transactions: int = TRANSACTIONS) -> Contents:
    """What a plain count of the rows of the first transactions gives."""
    taken = [word for part in words(transactions) for (word,) in part[:txid]]
    good = Counter(word for word in taken if word.isalpha())
    return {
        "per-word": {word: count % 3 for word, count in good.items() if count % 3},
        "highest": {word: min(count, 3) for word, count in good.items()},
        "in-all": dict(good),
        "dead-letters": dict(Counter(word for word in taken if not word.isalpha())),
    }


def contents(topology: Topology, committed_txid: int | None = None) -> Contents:
    """What readers find in the tables; of the letters how many there are of each word."""
    found = {}
    for component in topology.committers:
        state: Any = component.state
        rows: Sequence[Mapping[str, Any]] = state.read(committed_txid).to_pylist()
        state.close()
        if component.id == "dead-letters":
            found[component.id] = dict(Counter("12" for _ in rows))
        else:
            found[component.id] = {row["word"]: next(v for k, v in row.items() if k != "word") for row in rows}
    return found


def committed_txid(folder: Path) -> int:
    with closing(SqlCoordinatorStore(store_url(folder))) as store:
        return store.status("rewound")[0].committed_txid


# --- steps ------------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process is gone."""


@dataclass
class Steps:
    """The durable steps of one process, and what happens before and after each of them.

    `at` is told the number of the moment: 2n is before step n, 2n + 1 after it. Whoever dies does nothing any more.
    """

    at: Callable[[int], None] = field(default=lambda moment: None)
    names: list[str] = field(default_factory=list)
    is_dead: bool = False
    is_away: bool = False

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self.is_dead:
            raise Died
        if self.is_away:  # what others do meanwhile is no step of this process
            yield
            return
        self.names.append(name)
        moment = 2 * (len(self.names) - 1)
        self._tell(moment)
        yield
        self._tell(moment + 1)

    def _tell(self, moment: int) -> None:
        self.is_away = True
        try:
            self.at(moment)
        except Died:
            self.is_dead = True
            raise
        finally:
            self.is_away = False


def dies_at(wanted: int) -> Callable[[int], None]:
    """A process that is gone at one moment."""

    def at(moment: int) -> None:
        if moment == wanted:
            raise Died

    return at


STORE_WRITES = ("acquire", "renew", "release", "record_fence", "begin_rewind", "finish_rewind")
DELTA_WRITES = ((DeltaTable, "restore"), (delta_entry, "write_entry"))


@contextmanager
def stepping(store: CoordinatorStore, steps: Steps) -> Iterator[None]:
    """All that is written to this store, and to any Delta table, is a step."""

    def wrapped(write: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with steps.step(name):
                return write(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STORE_WRITES:
            patch.setattr(store, name, wrapped(getattr(store, name), name), raising=True)
        for owner, name in DELTA_WRITES:
            patch.setattr(owner, name, wrapped(getattr(owner, name), name))
        yield


def end_lease(folder: Path) -> None:
    """As if its time were over."""
    with closing(sqlite3.connect(folder / "store.db")) as connection, connection:
        connection.execute("UPDATE transactional_topologies SET leased_until_ms = 0")


class World:
    """A folder with a store and tables, in which a run has ended; `kept` is a copy of it."""

    def __init__(
        self, folder: Path, layout: str, length: int, kept: Path, properties: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.layout, self.length, self.kept = folder, layout, length, kept
        self.properties = properties
        self.store = SqlCoordinatorStore(store_url(folder))

    def topology(self, **options: Any) -> Topology:
        states = delta_states(self.folder, self.layout, self.properties)
        return build(self.folder, states, **{"transactions": self.length, **options})

    def run(self, *, transactions: int | None = None, **options: Any) -> None:
        """Run until the source is drained, which may have fewer rows than it will have."""
        run(self.topology(transactions=transactions or self.length), self.store, **options)

    def contents(self) -> Contents:
        """What readers find."""
        return contents(self.topology())

    def expected(self, txid: int) -> Contents:
        """What a plain count gives."""
        return expected(txid, self.length)

    def back_to(self, txid: int, *, owner: str = "rewinder", restores: Mapping[str, int | None] | None = None) -> None:
        """Rewind. `restores` plants a mistake: tables that go to other transactions, or nowhere."""
        with pytest.MonkeyPatch.context() as patch:
            if restores is not None:
                patch.setattr(rewinding, "_take_back", wrongly(restores))
            rewinding.rewind(self.topology(), self.store, TxId(txid), owner=owner)

    def free(self) -> None:
        """The lease of whoever has died is over."""
        end_lease(self.folder)

    def finish(self, txid: int) -> None:
        """What whoever comes after one that has died does, and that all is well then."""
        end_lease(self.folder)
        if self.rewinding_to() is not None:
            with pytest.raises(RewindUnfinished):
                self.run(owner="another")
            end_lease(self.folder)
        self.back_to(txid, owner="next")
        assert self.contents() == self.expected(txid)
        assert self.findings() == []

    def restart(self) -> None:
        """As it was when the run had ended."""
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.kept, self.folder)
        self.store = SqlCoordinatorStore(store_url(self.folder))

    def versions(self) -> dict[str, int]:
        return {each.name: DeltaTable(each).version() for each in sorted(self.folder.iterdir()) if each.is_dir()}

    def rewinding_to(self) -> int | None:
        return self.store.status("rewound")[0].rewinding_to

    def findings(self) -> list[Any]:
        """What the doctor and the checker find, that is wrong."""
        topology, states = self.topology(), dict[str, Any]()
        states.update((each.id, each.state) for each in topology.committers)
        tables = [CheckedTable(name, state.parts.examination.address().uri) for name, state in states.items()]
        report = verify(store_url(self.folder), "rewound", tables)
        examined = examine(topology, self.store, store_url(self.folder))
        return [*(each for each in examined if not each.is_harmless), *report.findings]


class Kept:
    """Copies of folders in which a run of a length has ended, by layout: tables stay where they were."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length

    def world(self, layout: str, kind: type[World] = World) -> World:
        (self.folder / layout).mkdir(exist_ok=True)
        world = kind(self.folder / layout, layout, self.length, self.folder / f"{layout}-kept")
        if not world.kept.exists():
            world.run()
            world.store.close()
            shutil.copytree(world.folder, world.kept)
        world.restart()
        return world


def wrongly(restores: Mapping[str, int | None]) -> Callable[..., None]:
    """A step of a rewind that takes some tables to another transaction than the store is told, or leaves them."""

    def take_back(component: Any, state: Any, store: CoordinatorStore, lease: Any, txid: TxId) -> None:
        goes_to = restores.get(component.id, txid)
        store.record_fence(lease, component.id, txid)
        if goes_to is None:
            state.fence(lease.fence_id)
        else:
            state.parts.rewind.rewind(
                rewinding.rewind_target(store, lease.topology_id, component.id, TxId(goes_to)), lease.fence_id
            )

    return take_back
