"""A run whose tasks write to a disk that is full, until a gate is opened: a small one, that only this process sees. The
driver's own disk is another one.

`unshare --map-root-user --mount python -m tests.integration.faults.full_disk`
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import Counter
from pathlib import Path

from examples.stateful_words import WordCount
from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.staging import STAGED_FOLDER
from tests.contract.states import content
from tests.integration.signals import wait_at
from transactional import TopologyConfig, TransactionalTopologyBuilder, run_topology

PAGE = 4096
WORDS = [(f"w{number % 50}",) for number in range(400)]


def mount(folder: Path) -> None:
    """Mount a small disk."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)


def fill(folder: Path, *, leaving: int = 0) -> Path:
    """Leave no room on a disk but for so many pages; the file that takes all of it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(PAGE))
        file.truncate(file.tell() - leaving * PAGE)
    return filler


def main() -> None:
    """Run it to its end: what an outage costs is no attempt."""
    disk = Path("counts").absolute() / STAGED_FOLDER
    mount(disk)
    filler = fill(disk)

    def free() -> None:
        wait_at("gate")
        filler.unlink()

    threading.Thread(target=free, daemon=True).start()
    spout = OpaqueMemoryTransactionalSpout([WORDS[::2], WORDS[1::2]], "word string", take=50)
    builder = TransactionalTopologyBuilder("full", "words", spout, 2)
    state = DeltaMapState("counts", "word string", "count long", layout=LogLayout(staged_bytes=0))
    builder.set_stateful_bolt("count", WordCount(), 2, state=state).fields_grouping("words", "word")
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, commit_steps="jobs", retry_pause_ms=1)
    run_topology(builder.build(), store="sqlite:///store.db", config=config, master="none")
    assert content(state) == Counter(word for (word,) in WORDS)


if __name__ == "__main__":
    main()
