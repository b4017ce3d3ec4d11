"""A topology over a file of words that grows, for the command line; its table is made in the current directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from spouts import MemoryTransactionalSpout
from spouts.planning import Logs
from state import DeltaMapState
from transactional import Topology, TransactionalTopologyBuilder
from transactional.model.batch import BatchMetadata

WORDS_FILE = Path("words.txt")


class GrowingSpout(MemoryTransactionalSpout):
    """A word per line, and a transaction per word."""

    def __init__(self) -> None:
        self.rows: list[tuple[str]] = []
        super().__init__([self.rows], fields="word string", take=1)
        self.read_on()

    def read_on(self) -> None:
        """Take in the lines that were added."""
        lines = WORDS_FILE.read_text(encoding="utf-8").splitlines()
        self.rows += [(line,) for line in lines[len(self.rows) :]]

    def logs(self, after: BatchMetadata) -> Logs:
        """All lines that there are now."""
        self.read_on()
        return super().logs(after)


def build() -> Topology:
    """Counts the words."""
    builder = TransactionalTopologyBuilder("growing-words", "words", GrowingSpout())
    builder.set_committer_bolt("count", DeltaMapState("count", key="word").count()).fields_grouping("words", "word")
    return builder.build(config={"idle_pause_ms": 10})


def expected(folder: Path) -> Counter[str]:
    """How often each word is in the file."""
    return Counter((folder / WORDS_FILE).read_text(encoding="utf-8").splitlines())
