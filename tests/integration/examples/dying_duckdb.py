"""Words of a Kafka topic in two tables of a DuckDB file, by a process that kills itself in a write of transaction 2.

`python -m tests.integration.examples.dying_duckdb BOOTSTRAP TOPIC MASTER POINT`, in the folder of its tables.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb

from examples.duckdb_state import DuckDBMapState, DuckRows
from spouts import OpaqueKafkaSpout
from state.row_table import Change, Changes, RowTable, RowWrite
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology

TABLES = ("words", "letters")
POINTS = [f"{when} of {table}" for table in TABLES for when in ("before", "at the version", "at the rows", "after")]
POINT = ""
"""Where this process dies."""


class PerilousRows(DuckRows):
    """A real store, which the process does not survive at its point."""

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        self._dies("before", write)
        super().write(write, change)
        self._dies("after", write)

    def _move(self, write: RowWrite) -> None:
        super()._move(write)
        self._dies("at the version", write)
        self._now = write

    def _replace(self, changes: Changes) -> None:
        super()._replace(changes)
        self._dies("at the rows", self._now)

    def _dies(self, when: str, write: RowWrite) -> None:
        if write.txid == 2 and f"{when} of {self._name}" == POINT:
            os.kill(os.getpid(), signal.SIGKILL)


class PerilousState(DuckDBMapState):
    """A state over it."""

    def _table_in(self, connection: duckdb.DuckDBPyConnection, owner: str) -> RowTable:
        return RowTable(PerilousRows(connection, self._table_name, self.declared, owner), self.declared)


def letter(tuple: Tuple) -> Iterator[tuple[str, int]]:
    """A word's first letter, and its length."""
    yield tuple.value[:1], len(tuple.value)


def build(bootstrap: str, topic: str, folder: str = ".", batch: int = 10) -> Topology:
    """At most `batch` words in a transaction."""
    spout = OpaqueKafkaSpout(bootstrap, [topic], fields=("value",), value_type="string", batch_records_max=batch)
    builder = TransactionalTopologyBuilder("duckdb-words", "lines", spout, parallelism=2)
    file = Path(folder) / "tables.duckdb"
    words, letters = PerilousState(file, "words", "value"), PerilousState(file, "letters", "letter")
    builder.set_committer_bolt("words", words.count()).fields_grouping("lines", "value")
    builder.set_bolt("letter", letter, output="letter string, length long").shuffle_grouping("lines")
    builder.set_committer_bolt("letters", letters.mean("length")).fields_grouping("letter", "letter")
    return builder.build(strict=True)


def run(bootstrap: str, topic: str, folder: str, master: str, batch: int = 10) -> None:
    """Run until the topic is drained, or the end."""
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True, tick_ms=10)
    topology = build(bootstrap, topic, folder, batch)
    run_topology(topology, store=f"sqlite:///{folder}/store.db", config=config, master=master)


if __name__ == "__main__":
    *_, POINT = sys.argv
    run(sys.argv[1], sys.argv[2], ".", sys.argv[3])
