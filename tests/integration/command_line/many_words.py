"""A topology that is busy for a while, for the command line; its table is made in the current directory."""

from __future__ import annotations

from collections import Counter

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import Topology, TransactionalTopologyBuilder

TRANSACTIONS = 30
WORDS = [(f"word-{number * number % 11}",) for number in range(2 * TRANSACTIONS)]


def build() -> Topology:
    """Two words in each transaction."""
    spout = MemoryTransactionalSpout([WORDS], fields="word string", take=2)
    builder = TransactionalTopologyBuilder("many-words", "words", spout)
    builder.set_bolt("same", lambda row: (row["word"],), 2, output="word string").shuffle_grouping("words")
    builder.set_committer_bolt("count", DeltaMapState("count", key="word").count()).fields_grouping("same", "word")
    return builder.build()


def expected() -> Counter[str]:
    """How often each word comes."""
    return Counter(word for (word,) in WORDS)
