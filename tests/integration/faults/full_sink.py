"""A run that appends to a table on a disk that is filled while it runs, and has room again behind a gate.

The disk is a small one that only this process sees. `PAGES` are left on it:
`unshare --map-root-user --mount python -m tests.integration.faults.full_sink PAGES`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable
from pyarrow import parquet

from sinks import DeltaSink
from sinks.delta import append_log
from spouts import OpaqueMemoryTransactionalSpout
from tests.integration.faults.full_disk import fill
from tests.integration.signals import wait_at
from transactional import TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.machine.protocol import Action, CommitSucceeded, Event

COUNT = 24
TXID = 3
"""The transaction after which the disk is filled; two numbers are a transaction."""


def main(pages: str) -> None:
    """Run to the end, and check that each number is in the table once, and nothing half written beside it."""
    append_log._PROPERTIES["delta.checkpointInterval"] = "2"
    disk = Path("disk").absolute()
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    fillers = list[Path]()

    def free() -> None:
        wait_at("gate")
        fillers[0].unlink()

    def fill_disk(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, CommitSucceeded) and event.attempt.txid == TXID:
            fillers.append(fill(disk, leaving=int(pages)))
            threading.Thread(target=free, daemon=True).start()

    spout = OpaqueMemoryTransactionalSpout([[(number,) for number in range(COUNT)]], "number long", take=2)
    builder = TransactionalTopologyBuilder("full", "numbers", spout)
    builder.set_sink("events", DeltaSink(disk / "events")).shuffle_grouping("numbers")
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=100)
    run_topology(builder.build(), store="sqlite:///store.db", config=config, master="none", observers=[fill_disk])
    table = DeltaTable(str(disk / "events"))
    assert sorted(table.to_pyarrow_table()["number"].to_pylist()) == list(range(COUNT))
    for path in (disk / "events").rglob("*.parquet"):
        parquet.read_metadata(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
