"""A topology in a folder that has run, to be hurt and examined."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.delta.state import DeltaMapState
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.operations.doctor.examine import examine
from transactional.operations.doctor.repairs import repair
from transactional.operations.launch.running import run_topology
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import CheckedTable, verify

WORDS = ["cat", "dog", "cat", "owl", "cat", "emu"]
TABLES = ("count", "other")


@dataclass
class Patient:
    """A topology in a folder that has run: two tables, a store and a journal."""

    folder: Path

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.folder}/store.db"

    @property
    def journal(self) -> Path:
        """Where runs write their journal."""
        return self.folder / "journal"

    def topology(self, words: list[str] = WORDS, key: str = "word") -> Topology:
        """The topology, over some words; one word is one transaction."""
        spout = OpaqueMemoryTransactionalSpout([[(word,) for word in words]], "word string", take=1)
        builder = TransactionalTopologyBuilder("words", "spout", spout)
        for name, layout in zip(TABLES, ("merge", "log"), strict=True):
            state = DeltaMapState(self.folder / name, key, layout=layout)
            builder.set_committer_bolt(name, state.count()).fields_grouping("spout", "word")
        return builder.build()

    def run(self, words: list[str] = WORDS) -> None:
        """Run until all words are counted."""
        journal = JournalWriter(self.journal)
        config = {"stop_when_drained": True, "max_spout_pending": 2}
        with closing(journal):
            run_topology(self.topology(words), store=self.url, master="none", config=config, observers=[journal])

    def copied(self, folder: Path) -> Patient:
        """A copy. Its tables have moved, and its store does not mind."""
        shutil.copytree(self.folder, folder)
        move(folder, self.folder, folder)
        return Patient(folder)

    def examine(self, topology: Topology | None = None) -> list[Diagnosis]:
        """What the doctor says."""
        with closing(SqlCoordinatorStore(self.url)) as store:
            return examine(topology or self.topology(), store, self.url)

    def problems(self) -> list[tuple[Problem, str, bool]]:
        """What it finds, where, and whether it can repair it."""
        return [(each.problem, each.component, each.can_repair) for each in self.examine()]

    def repair(self, *, journal: bool = False, accepts_sent: bool = False) -> list[str]:
        """What it then does."""
        with closing(SqlCoordinatorStore(self.url)) as store:
            topology = self.topology()
            path = self.journal if journal else None
            return repair(topology, store, examine(topology, store), path, accepts_sent=accepts_sent)

    def delta(self, component: str) -> DeltaTable:
        """A table as anybody opens it."""
        return DeltaTable(str(self.folder / component))

    def counts(self, component: str) -> dict[str, int]:
        """Word → count."""
        rows = DeltaMapState(self.folder / component, "word string", "count long").read().to_pylist()
        return {row["word"]: row["count"] for row in rows}

    def assert_right(self, words: list[str]) -> None:
        """Both tables count these words, and the checker finds nothing wrong."""
        expected = {word: words.count(word) for word in words}
        assert [self.counts(name) for name in TABLES] == [expected, expected]
        assert verify(
            self.url, "words", [CheckedTable(n, str(self.folder / n), counts="count") for n in TABLES]
        ).is_exact


def move(place: Path, tables: Path, to: Path) -> None:
    """Let the store in a folder know tables by another folder."""
    statement = f"UPDATE transactional_topologies SET fingerprint = replace(fingerprint, '{tables}', '{to}')"
    with closing(sqlite3.connect(place / "store.db")) as connection, connection:
        connection.execute(statement)
