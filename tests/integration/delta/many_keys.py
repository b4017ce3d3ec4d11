"""A topology of transactions over the same thousands of keys, for the command line; its table is made in the current
directory. Run as a program, this is somebody who optimizes that table all the time."""

from __future__ import annotations

import sys
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import Topology, TransactionalTopologyBuilder

TRANSACTIONS, KEYS = 15, 5_000


def build() -> Topology:
    """Each transaction has each key once."""
    rows = [(f"key-{number}",) for number in range(KEYS)] * TRANSACTIONS
    spout = MemoryTransactionalSpout([rows], fields="key string", take=KEYS)
    builder = TransactionalTopologyBuilder("many-keys", "keys", spout)
    builder.set_committer_bolt("count", DeltaMapState("count", key="key").count()).fields_grouping("keys", "key")
    return builder.build()


def optimize_for_ever(table: Path) -> None:
    """Rewrite the table's files, again and again, until the process is killed."""
    while True:
        try:
            DeltaTable(table).optimize.z_order(["key"])
        except (DeltaError, OSError):
            continue  # it is not there yet, or somebody else was quicker


if __name__ == "__main__":
    optimize_for_ever(Path(sys.argv[1]))
