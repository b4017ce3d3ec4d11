"""The topologies whose power is cut: a program of its own, to be recorded, and runs over what a cut leaves."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from deltalake import DeltaTable

from sinks import DeltaSink
from sinks.delta import append_log, compaction
from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import DeltaMapState, SqlMapState
from state.delta.log import log as delta_log
from state.delta.log.background import BackgroundWork
from state.delta.segments.log_layout import LogLayout
from state.delta.upkeep import merged_upkeep as delta_merged
from state.delta.upkeep import table_upkeep as delta_upkeep
from state.delta.write import change as delta_small
from tests.proof.crashing import LEASE_MS
from tests.proof.effects import done_at_once
from transactional import StateKind, Topology, TopologyConfig, TransactionalTopologyBuilder
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.rewinding import rewind
from transactional.runtime.executors.local import LocalExecutor

WORDS = "abcabda"
REWIND_TARGET = TxId(3)
SINK_PROPERTIES = {"delta.checkpointInterval": "2", "delta.deletedFileRetentionDuration": "interval 0 seconds"}
PROPERTIES = {"delta.checkpointInterval": "3", "transactional.logCommits": "2"}


@dataclass(frozen=True)
class Setting:
    """What tables are written by: as a whole, file by file, as a log, by tasks (staged); in SQLite; and by a sink.

    The table of a "rewound sink" is taken back after its run, and the power is cut meanwhile.
    """

    tables: str
    is_opaque: bool = True
    durability: str = "disk"

    @property
    def has_sink(self) -> bool:
        """Whether the topology has a sink, and no states."""
        return self.tables.endswith("sink")

    @property
    def goes_back(self) -> bool:
        """Whether the power is cut during a rewind."""
        return self.tables == "rewound sink"

    def __str__(self) -> str:
        return f"{self.tables}, {'opaque' if self.is_opaque else 'transactional'}"


class _Told:
    """Tells of each transaction commit, on a file that is not on the disk."""

    told = -1

    def committed(self, batch: BatchMetadata) -> None:
        super().committed(batch)  # type: ignore[misc]
        if self.told >= 0:
            os.write(self.told, b"committed\n")


class ToldSpout(_Told, MemoryTransactionalSpout):
    """A transactional one."""


class OpaqueToldSpout(_Told, OpaqueMemoryTransactionalSpout):
    """An opaque one."""


def build(setting: Setting, folder: Path, *, take: int = 1, told: int = -1) -> Topology:
    """The topology over tables in a folder."""
    kind = OpaqueToldSpout if setting.is_opaque else ToldSpout
    spout = kind([[(word,) for word in WORDS]], fields="word string", take=take)
    spout.told = told
    builder = TransactionalTopologyBuilder("cut", "words", spout)
    if setting.has_sink:
        builder.set_sink("events", DeltaSink(folder / "tables" / "events")).shuffle_grouping("words")
        return builder.build()
    of_state = StateKind.OPAQUE if setting.is_opaque else StateKind.TRANSACTIONAL
    for name in ("one", "other"):
        builder.set_committer_bolt(name, state_of(setting, folder, name, of_state).count()).fields_grouping(
            "words", "word"
        )
    return builder.build()


def state_of(setting: Setting, folder: Path, name: str, kind: StateKind) -> DeltaMapState | SqlMapState:
    """One of the two states."""
    if setting.tables == "sqlite":
        return SqlMapState(f"sqlite:///{folder}/{name}.db", name, "word string", kind=kind)
    layouts = {
        "log": LogLayout(compact_after=2),
        "staged": LogLayout(compact_after=2, staged_bytes=0),
    }
    layout: Any = layouts.get(setting.tables, "merge")
    # In a folder that is made with the table.
    return DeltaMapState(folder / "tables" / name, "word string", kind=kind, layout=layout, properties=PROPERTIES)


@contextmanager
def frequent_maintenance(setting: Setting) -> Iterator[None]:
    """Everything that deletes files does so after a few transactions."""
    with (
        mock.patch.object(delta_log, "LOG_KEPT_S", -10),
        mock.patch.object(delta_upkeep, "VACUUM_INTERVAL", 4),
        mock.patch.object(BackgroundWork, "start", done_at_once),
        mock.patch.object(delta_merged, "COMPACTION_INTERVAL", 5),
        mock.patch.object(delta_merged, "FILES_MAX", 1),
        mock.patch.object(compaction, "FILES_MIN", 2),
        mock.patch.dict(append_log._PROPERTIES, SINK_PROPERTIES),
        mock.patch.object(delta_small, "REWRITTEN_BYTES_MAX", -1 if setting.tables == "merge" else 1_000_000),
    ):
        yield


def live(setting: Setting, folder: Path, *, take: int = 1, told: int = -1) -> None:
    """Run until the source is drained. Raises what stops a run."""
    config = TopologyConfig(
        stop_when_drained=True,
        attempts_max=3,
        lease_ms=LEASE_MS,
        retry_pause_ms=1,
        idle_pause_ms=1,
        tick_ms=1,
        durability=setting.durability,
    )
    with frequent_maintenance(setting), closing(SqlCoordinatorStore(f"sqlite:///{folder}/store.db")) as store:
        topology = build(setting, folder, take=take, told=told)
        # The same owner, so that nobody waits for the lease of the one whose power was cut.
        TopologyDriver(topology, store, LocalExecutor(topology), config, owner="cut").run()


def committed(folder: Path) -> int:
    """The transaction that the store says is committed, 0 without a store."""
    if not (folder / "store.db").exists():
        return 0
    with closing(SqlCoordinatorStore(f"sqlite:///{folder}/store.db")) as store:
        return max((int(status.committed_txid) for status in store.status("cut")), default=0)


def go_back(setting: Setting, folder: Path) -> None:
    """Take the topology back, or finish a rewind that was begun."""
    with frequent_maintenance(setting), closing(SqlCoordinatorStore(f"sqlite:///{folder}/store.db")) as store:
        rewind(build(setting, folder), store, REWIND_TARGET, owner="cut")


def check(setting: Setting, folder: Path, words: str = WORDS) -> None:
    """Both tables hold a plain count, exactly, and that of a sink each of `words` once."""
    if setting.has_sink:
        try:
            appended = DeltaTable(str(folder / "tables" / "events")).to_pyarrow_table()["word"].to_pylist()
        except OSError as error:
            raise AssertionError("table events") from error
        assert Counter(appended) == Counter(words), "table events"
        return
    for name in ("one", "other"):
        state: Any = build(setting, folder).component(name).state
        found = {row["word"]: row["count"] for row in state.read().to_pylist()}
        assert found == dict(Counter(WORDS)), f"table {name}"


if __name__ == "__main__":
    tables, opaque, durability, folder, told = sys.argv[1:]
    file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    setting = Setting(tables, opaque == "True", durability)
    live(setting, Path(folder), told=file)
    if setting.goes_back:
        go_back(setting, Path(folder))
