"""Topologies with words that a bolt can't stomach, and runs of them.

When `CURED` it can: there is a fixture for that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total
from transactional import RunSummary, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, TopologyContext
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.errors import FailedException
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.letter_spout import LetterSpout
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.topology import Topology

WORD = "word string"


POISON = [[("cat",), ("poison",), ("dog",), ("poison",), ("cat",)], [("cat",), ("venom",)]]


def letters(name: str = "letters") -> MemoryMapState:
    return MemoryMapState(LETTER_KEY, LETTER_VALUES, table=MemoryTable(name))


class Picky(BasicBolt):
    """Does not like some words."""

    output = WORD

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if tuple["word"] in ("poison", "venom"):
            raise FailedException(f"can't stomach {tuple['word']}")
        collector.emit(tuple["word"])


class PickyTotal(Total):
    """Does not like some words, while it counts them for the commit phase."""

    def execute(self, tuple: Tuple) -> None:
        if tuple["word"] in ("poison", "venom"):
            raise ValueError(tuple["word"])
        super().execute(tuple)


class PickyCount(StatefulBolt):
    """Does not like some words, which it has counted already when it notices."""

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        self.counts.put(tuple.word, self.counts.get(tuple.word, 0) + 1)
        if tuple.word in ("poison", "venom"):
            raise ValueError(tuple.word)


def picky(row: Tuple) -> tuple[str]:
    assert row["word"] not in ("poison", "venom")
    return (row["word"],)


def topology(
    bolt: Any, *, opaque: bool = True, take: int = 10, parallelism: int = 1, partitions: Any = POISON
) -> tuple[TransactionalTopologyBuilder, MemoryTable, MemoryTable]:
    kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    made = TransactionalTopologyBuilder("words", "spout", kind(partitions, WORD, take), parallelism)
    output = WORD if callable(bolt) else None
    made.set_bolt("picky", bolt, parallelism, output=output).shuffle_grouping("spout")
    per_word, set_aside = MemoryTable("counts"), MemoryTable("letters")
    made.set_committer_bolt("counts", MemoryMapState("word", table=per_word).count()).fields_grouping("picky", "word")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=set_aside))
    return made, per_word, set_aside


def run(made: TransactionalTopologyBuilder, folder: Path, observers: Any = (), **config: Any) -> RunSummary:
    options = {"attempts_max": 2, "retry_pause_ms": 1, "stop_when_drained": True, **config}
    return run_topology(
        made.build(),
        store=f"sqlite:///{folder}/store.db",
        config=TopologyConfig(**options),
        master="none",
        observers=observers,
    )


def found(table: MemoryTable) -> list[tuple[int, str, str, str, str]]:
    """transaction, component, source, stream, word."""
    rows = [(key[0], *row.value[:3], json.loads(row.value[3])["word"]) for key, row in table.rows.items()]
    return sorted(rows)


class Relay(BatchBolt):
    """A committer that emits its tuples in `finish_batch`."""

    output = WORD

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector, self.words = collector, [""][:0]

    def execute(self, tuple: Tuple) -> None:
        self.words.append(tuple["word"])

    def finish_batch(self) -> None:
        for word in self.words:
            self.collector.emit(word)


class PickyUnlucky(PickyTotal):
    """Does not like some words; and once it has got over them, has no luck in the end."""

    def finish_batch(self) -> None:
        if not CURED:
            raise FailedException("no luck")
        super().finish_batch()


CURED = False


class Curable(Picky):
    """Likes some words only later."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        if not CURED:
            super().execute(tuple, collector)
        elif tuple["word"] == "venom":
            raise FailedException("still can't stomach venom")
        else:
            collector.emit(tuple["word"])


def try_again(
    topology: Topology, folder: Path, keys: Any = None, spout: LetterSpout | None = None, **config: Any
) -> RunSummary:
    options = {"attempts_max": 1, "stop_when_drained": True, **config}
    return run_topology(
        replace(topology, spout=spout or LetterSpout(topology, keys)),
        store=f"sqlite:///{folder}/store.db",
        config=TopologyConfig(**options),
        master="none",
    )
