"""A run whose store and outbox are on a disk that is filled while it runs, and has room again behind a gate.

The disk is a small one that only this process sees. `PAGES` are left on it:
`unshare --map-root-user --mount python -m tests.integration.faults.full_outbox BOOTSTRAP TOPIC PAGES`. The records of
each transaction are too large for a row, so their payload is a file.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sinks import KafkaSink
from spouts import OpaqueMemoryTransactionalSpout
from tests.integration.faults.full_disk import fill
from tests.integration.signals import wait_at
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.machine.protocol import Action, AttemptFailed, CommitSucceeded, Event
from transactional.errors import StoreUnavailable

WORDS = [random.Random(number).randbytes(200_000).hex() for number in range(12)]


def build(bootstrap: str, topic: str) -> Topology:
    """Publish every word; two are a transaction."""
    spout = OpaqueMemoryTransactionalSpout([[(word,) for word in WORDS]], "word string", take=2)
    builder = TransactionalTopologyBuilder(f"full-{topic}", "words", spout)
    builder.set_sink("alerts", KafkaSink(bootstrap, topic)).shuffle_grouping("words")
    return builder.build()


def main(bootstrap: str, topic: str, pages: str) -> None:
    """Run to the end; a run that ends because its store has no room is started again once there is some."""
    disk = Path("disk").absolute()
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    fillers, partial_files = list[Path](), list[Path]()

    def free() -> None:
        wait_at("gate")
        fillers[0].unlink()

    freeing = threading.Thread(target=free, daemon=True)

    def fill_disk(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, CommitSucceeded) and event.attempt.txid == 2 and not fillers:
            fillers.append(fill(disk, leaving=int(pages)))
            freeing.start()
        if isinstance(event, AttemptFailed):
            partial_files.extend((disk / "outbox").glob(f"alerts-{event.attempt.txid}-*"))

    store = f"sqlite:///{disk}/store.db"
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1)
    try:
        run_topology(build(bootstrap, topic), store=store, config=config, master="none", observers=[fill_disk])
    except StoreUnavailable:
        freeing.join()
        # The lease has to expire: there was no room to release it.
        run_topology(build(bootstrap, topic), store=store, config=config, master="none", standby=True)
    assert not partial_files


if __name__ == "__main__":
    main(*sys.argv[1:])
