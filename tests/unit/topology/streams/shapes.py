"""Streams for tests: Storm's sentences, numbers, and topologies of a spout and what is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from transactional.model.user_code.tuples import Tuple
from transactional.testing import complete_topology
from transactional.topology.topology import Topology
from transactional.trident import Count, Stream, TridentTopology

LINES = [("the cow jumped over the moon",), ("the man went to the store",), ("",), ("four score and seven",)]
PAIRS = "word string, n long"
PAIR_ROWS = [("cat", 1), ("dog", 2), ("cat", 3), (None, 4), ("emu", None), ("", -5)]


class Word(NamedTuple):
    word: str


def split(row: Tuple) -> Iterator[Word]:
    return (Word(word) for word in row.line.split())


def lines(topology: TridentTopology, rows: Sequence[Any] = LINES, fields: str = "line string", take: int = 2) -> Stream:
    """A stream of rows in two partitions."""
    return topology.new_stream("lines", MemoryTransactionalSpout([rows[::2], rows[1::2]], fields, take))


def built(make: Callable[[Stream], Any], *, parallelism: int = 2, **spout: Any) -> Topology:
    """A topology of what is made of a stream of lines."""
    topology = TridentTopology("shape", parallelism=parallelism)
    end = make(lines(topology, **spout))
    if isinstance(end, Stream):
        end.named("end").peek(print).persistent_aggregate(MemoryMapState(), Count())
    return topology.build(strict=True)


def emitted(
    make: Callable[[Stream], Stream], rows: Iterable[tuple[Any, ...]], fields: str, *, parallelism: int = 1
) -> list[tuple[Any, ...]]:
    """What a stream that is made of rows has, all of them in one batch."""
    topology = TridentTopology("shape", parallelism=parallelism)
    end = make(topology.new_stream("rows", MemoryTransactionalSpout([[]], fields, 1))).shuffle().named("end")
    end.persistent_aggregate(MemoryMapState(), Count())
    made = topology.build(strict=True)
    [last] = [component.id for component in made.components if component.id.endswith("-end")]
    return [tuple(row) for row in complete_topology(made, list(rows))[last]]
