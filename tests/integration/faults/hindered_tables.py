"""A run whose tables lie on a disk that hinders it after each transaction, until an attempt has failed of it.

It is full but for a few pages, more each time, so that each of its writes is the one that finds no room; or the folders
may not be written; or they are mounted read-only, all of them or those of one table, while the other one is written.
`unshare --map-root-user --mount setpriv --bounding-set=-dac_override python -m …hindered_tables`
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from tests.contract.states import content
from tests.integration.faults.full_disk import fill, mount
from transactional import TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.core.machine.protocol import Action, Event, RecordFailure
from transactional.runtime.engine.history.observing import Committed, Notice
from verifier.checker import CheckedTable, verify

PAGES = range(8)
"""One transaction writes no more."""
TABLES = ("merge", "log")
"""Each in its layout."""
HINDRANCES = len(PAGES) + 2 + len(TABLES)
WORDS = [(f"w{number % 7}",) for number in range(4 * (HINDRANCES + 2))]


def full(disk: Path, pages: int) -> Iterator[str]:
    filler = fill(disk, leaving=pages)
    yield f"full but for {pages} pages"
    filler.unlink()


def forbidden(disk: Path) -> Iterator[str]:
    folders = [disk, *(each for each in disk.rglob("*") if each.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield "not to be written"
    for folder in folders:
        folder.chmod(0o755)


def read_only(folder: Path) -> Iterator[str]:
    """By a mount over it: to be read from there on, by whomever."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
    yield f"{folder.name} read-only"
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Hindering:
    """Hinders the run after each transaction, and lets it go on once an attempt has failed, or has not."""

    def __init__(self, disk: Path) -> None:
        self._waiting = [*(full(disk, pages) for pages in PAGES), forbidden(disk)]
        self._waiting += [read_only(folder) for folder in (disk, *(disk / name for name in TABLES))]
        self._now: Iterator[str] = iter(())
        self.failed = Counter[str]()
        self._name = ""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, RecordFailure):
                self.failed[self._name] += 1
                sys.stdout.write(f"{self._name}: {action.reason.splitlines()[0]}\n")
                self._end()

    def notice(self, at_ms: int, notice: Notice) -> None:
        if isinstance(notice, Committed):
            self._end()
            if self._waiting:
                self._now = self._waiting.pop(0)
                self._name = next(self._now)

    def _end(self) -> None:
        next(self._now, None)


def main() -> None:
    """Run it to its end: what an outage costs is no attempt."""
    disk = Path("tables").absolute()
    mount(disk)
    spout = OpaqueMemoryTransactionalSpout([WORDS], "word string", take=4)
    builder = TransactionalTopologyBuilder("hindered", "words", spout)
    for name in TABLES:
        state = DeltaMapState(disk / name, "word string", "count long", layout=name)
        builder.set_committer_bolt(name, state.count()).fields_grouping("words", "word")
    hindering = Hindering(disk)
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1)
    run_topology(builder.build(), store="sqlite:///store.db", config=config, master="none", observers=[hindering])
    for name in TABLES:
        state = DeltaMapState(disk / name, "word string", "count long", layout=name)
        assert content(state) == Counter(word for (word,) in WORDS), name
    report = verify(
        "sqlite:///store.db", "hindered", [CheckedTable(name, str(disk / name), counts="count") for name in TABLES]
    )
    assert report.findings == (), report.findings
    sys.stdout.write(f"{len(hindering.failed)} hindrances met, {sum(hindering.failed.values())} attempts failed\n")


if __name__ == "__main__":
    main()
