"""Random topologies whose bolts keep explicit sets of what is outstanding: what the acker says is compared with these.

Each tuple carries, as an ordinary field, the messages that it belongs to. Whoever receives it enters it under them,
whoever acks it takes it out again: no ids and no XOR.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from spouts.memory import MemoryTransactionalSpout
from transactional.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import RichBolt, TopologyBuilder, TupleCollector
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.topology import Topology

FIELDS = "number long, of array<string>"
ATTEMPT = TransactionAttempt(TxId(1), AttemptId(1))


@dataclass
class Book:
    """What is outstanding, and what has failed, by message."""

    outstanding: dict[str, set[int]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    received: int = 0
    tokens: Any = field(default_factory=count)

    def enter(self, of: list[str]) -> int:
        token: int = next(self.tokens)
        self.received += 1
        for message in of:
            self.outstanding.setdefault(message, set()).add(token)
        return token

    def leave(self, of: list[str], token: int) -> None:
        for message in of:
            self.outstanding[message].discard(token)

    def unfinished(self) -> set[str]:
        return {message for message, left in self.outstanding.items() if left} | self.failed


BOOK = Book()


class Odd(RichBolt):
    """Acks, forgets, fails, raises, holds and emits by chance, but always the same for the same tuple."""

    output = FIELDS
    streams: ClassVar = {"side": FIELDS, "direct": FIELDS}

    def __init__(self, seed: int, targets: dict[str, int]) -> None:
        self.seed, self.targets = seed, targets

    def prepare(self, context: TopologyContext, collector: TupleCollector) -> None:
        self.collector, self.name = collector, context.component_id
        self.held: list[tuple[Tuple, int]] = []

    def execute(self, tuple: Tuple) -> None:
        token = BOOK.enter(tuple.of)
        rng = random.Random(f"{self.seed}/{self.name}/{tuple.number}")
        self._emit(rng, [tuple])
        match rng.choices(["ack", "hold", "forget", "fail", "raise"], [30, 10, 1, 1, 1])[0]:
            case "ack":
                self._done(tuple, token)
                if rng.random() < 0.1:
                    self.collector.ack(tuple)  # once more, which changes nothing
            case "hold":
                self.held.append((tuple, token))
            case "fail":
                BOOK.failed.update(tuple.of)
                self.collector.fail(tuple, "no")
            case "raise":
                BOOK.failed.update(tuple.of)
                raise ValueError("no")
        if len(self.held) == 3:
            self._join(rng)

    def finish_batch(self) -> None:
        if self.held:
            self._join(random.Random(f"{self.seed}/{self.name}/end"))

    def _join(self, rng: random.Random) -> None:
        self._emit(rng, [tuple for tuple, _ in self.held])
        for tuple, token in self.held:
            self._done(tuple, token)
        self.held = []

    def _done(self, tuple: Tuple, token: int) -> None:
        BOOK.leave(tuple.of, token)
        self.collector.ack(tuple)

    def _emit(self, rng: random.Random, anchors: list[Tuple]) -> None:
        of = sorted({message for anchor in anchors for message in anchor.of})
        tied: Any = anchors[0] if len(anchors) == 1 and rng.random() < 0.5 else anchors
        for _ in range(rng.choice([0, 1, 1, 2])):
            if rng.random() < 0.1:
                self.collector.emit(rng.getrandbits(40), [])  # belongs to nothing
            else:
                self.collector.emit(rng.getrandbits(40), of, anchors=tied)
        if rng.random() < 0.4:
            self.collector.emit(rng.getrandbits(40), of, anchors=tied, stream="side")
        if self.targets and rng.random() < 0.4:
            target = rng.choice(sorted(self.targets))
            task = rng.randrange(self.targets[target])
            self.collector.emit_direct(target, task, rng.getrandbits(40), of, anchors=tied, stream="direct")


class Simple(BasicBolt):
    """Anchors and acks by itself; raises by chance."""

    output = FIELDS
    streams: ClassVar = {"side": FIELDS, "direct": FIELDS}

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def prepare(self, context: TopologyContext) -> None:
        self.name = context.component_id

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        token = BOOK.enter(tuple.of)
        rng = random.Random(f"{self.seed}/{self.name}/{tuple.number}")
        for stream in rng.choices(["default", "side"], k=rng.choice([0, 1, 2])):
            collector.emit(rng.getrandbits(40), tuple.of, stream=stream)
        if rng.random() < 0.03:
            BOOK.failed.update(tuple.of)
            raise ValueError("no")
        BOOK.leave(tuple.of, token)


def topology(seed: int) -> tuple[Topology, BatchMetadata]:
    """A random topology, and a batch of all that its spout has."""
    rng = random.Random(seed)
    sizes = [rng.randrange(0, 12) for _ in range(rng.choice([1, 2, 3]))]
    rows = [[(rng.getrandbits(40), [f"memory[{p}] {o}"]) for o in range(size)] for p, size in enumerate(sizes)]
    built = TopologyBuilder("trees", guarantee="at-least-once", ackers=rng.choice([1, 2, 3]))
    tasks = {"spout": rng.choice([1, 2])}
    built.set_spout("spout", MemoryTransactionalSpout(rows, FIELDS, take=100), tasks["spout"])
    names = [f"bolt-{number}" for number in range(rng.choice([1, 2, 3, 4, 5]))]
    tasks |= {name: rng.choice([1, 1, 2, 3]) for name in names}
    inputs = {name: _inputs(rng, ["spout", *names[:at]]) for at, name in enumerate(names)}
    for name in names:
        direct = {other: tasks[other] for other in names if (name, "direct") in [i[:2] for i in inputs[other]]}
        bolt = Odd(seed, direct) if rng.random() < 0.7 else Simple(seed)
        declared = built.set_bolt(name, bolt, tasks[name])
        for source, stream, grouping in inputs[name]:
            fields = ("number",) if grouping in ("fields", "partial_key") else ()
            getattr(declared, f"{grouping}_grouping")(source, *fields, stream=stream)
    ranges = {PartitionId("memory", p): OffsetRange(Offset(0), Offset(size)) for p, size in enumerate(sizes)}
    return built.build(), BatchMetadata(ranges)


def _inputs(rng: random.Random, sources: list[str]) -> list[tuple[str, str, str]]:
    """Source, stream and grouping of each input."""
    found = []
    for source in rng.sample(sources, k=min(len(sources), rng.choice([1, 1, 2]))):
        streams = ["default"] if source == "spout" else rng.sample(["default", "side", "direct"], k=rng.choice([1, 2]))
        for stream in streams:
            plain = rng.choice(["shuffle", "shuffle", "fields", "all", "global", "partial_key", "local_or_shuffle"])
            found.append((source, stream, "direct" if stream == "direct" else plain))
    return found


def compared(seed: int) -> tuple[set[str], set[str], int]:
    """The unfinished messages by the acker, and by the explicit sets; and how many tuples were received."""
    BOOK.__init__()  # type: ignore[misc]
    made, batch = topology(seed)
    processed = LocalExecutor(made).run(ATTEMPT, batch)
    told = {f"{message.partition} {message.offset}" for message in processed.failed}
    return told, BOOK.unfinished(), BOOK.received
