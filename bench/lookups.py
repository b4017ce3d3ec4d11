"""`python -m bench.lookups`: questions from another process while transactions commit.

Each question looks three keys of a million up in the state of a topology that commits twenty transactions a second.
The states take turns, a round each, so that whatever else the machine does meets all of them. Every answer is compared
with plain Python, as of the transaction that it names, which had been committed when the query came.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic, perf_counter, thread_time
from typing import Any

import pyarrow as pa

from bench.figures import percentile
from state import DeltaMapState, SqlMapState
from state.delta.segments.log_layout import LogLayout
from transactional import Topology
from transactional.core.ports import PartitionReader, Spout
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.operations.loading import open_for_reading
from transactional.queries import Answer, QueryClient
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.trident import Count, Stream, TridentTopology

STATES = ("sqlite", "log")
RATE, BATCH, ASKED = 20, 100, 3
STEP = 7_919
"""A prime: one key after the other, this far apart."""
PAUSE_S = 0.005
COMPACT_AFTER = 15
_NEVER = Event()
_NUMBERS = PartitionId("numbers", 0)


def name_of(key: int) -> str:
    """A key as it is stored."""
    return f"key-{key:07d}"


@dataclass(frozen=True, slots=True)
class Numbers(PartitionReader):
    """Reads keys: the first so many offsets are every key once."""

    keys: int

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """The keys of a range."""
        found = (at if at < self.keys else at * STEP % self.keys for at in range(offsets.start, offsets.until))
        yield pa.record_batch({"key": pa.array([name_of(key) for key in found])})


@dataclass(slots=True)
class Paced(Spout):
    """An opaque spout: the first batch has every key, those after it come at a rate, so many to a run."""

    keys: int
    transactions: int
    _began_s: float = 0.0
    _planned: int = 0

    @property
    def output(self) -> Schema:
        """The keys."""
        return Schema.parse("key string")

    @property
    def replays_exactly(self) -> bool:
        """False: nobody needs it."""
        return False

    def identity(self) -> Mapping[str, str]:
        """The same for all runs."""
        return {"kind": "paced"}

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The next keys, when it is time."""
        start = after.positions().get(_NUMBERS, Offset(0))
        if start == 0:
            return BatchMetadata({_NUMBERS: OffsetRange(Offset(0), Offset(self.keys))})
        if not self._planned:
            self._began_s = monotonic()
            print("begun", flush=True)
        if self._planned == self.transactions and not replay:
            return None
        _NEVER.wait(max(0.0, self._began_s + self._planned / RATE - monotonic()))
        self._planned += 1
        return BatchMetadata({_NUMBERS: OffsetRange(start, Offset(start + BATCH))})

    def reader(self) -> Numbers:
        """What reads it."""
        return Numbers(self.keys)


@dataclass(frozen=True, slots=True)
class Table:
    """A topology with one state, in a folder."""

    state: str
    folder: Path
    keys: int

    @property
    def store(self) -> str:
        """The coordinator's store."""
        return f"sqlite:///{self.folder / 'store.db'}"

    def topology(self, transactions: int = 0) -> Topology:
        """Counts keys; its query looks some up."""
        state: DeltaMapState | SqlMapState
        if self.state == "sqlite":
            state = SqlMapState(f"sqlite:///{self.folder / 'state.db'}", "counts")
        else:
            layout = LogLayout(compact_after=COMPACT_AFTER) if self.state == "log" else self.state
            state = DeltaMapState(self.folder / "counts", layout=layout)
        topology = TridentTopology("lookups")
        numbers = topology.new_stream("numbers", Paced(self.keys, transactions))
        counts = numbers.group_by("key").persistent_aggregate(state, Count(), name="counts")

        @topology.query("count_of", "one string, two string, three string")
        def count_of(questions: Stream) -> Stream:
            return questions.flat_map(lambda row: [(key,) for key in row], "key string").state_query(counts)

        return topology.build()

    def write(self, transactions: int) -> None:
        """Run it: so many transactions more, and the one that fills the table, if it is empty."""
        topology, store = self.topology(transactions), SqlCoordinatorStore(self.store)
        config = TopologyConfig(stop_when_drained=True, idle_pause_ms=1)
        began = monotonic()
        summary = TopologyDriver(topology, store, LocalExecutor(topology), config).run()
        assert summary.failures == 0, summary
        store.close()
        print(json.dumps({"transactions": summary.transactions, "seconds": monotonic() - began}))

    def count(self, key: int, txid: int) -> int:
        """How often a key has come by a transaction, in plain Python."""
        came = BATCH * (txid - 1)
        # The only offset below `keys` that has the key, and those a whole round later.
        first = (key * pow(STEP, -1, self.keys)) % self.keys
        return 1 + (came - first + self.keys - 1) // self.keys if came > first else 1


@dataclass(slots=True)
class Asked:
    """What was measured of one state."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    transactions: set[int] = field(default_factory=set)
    rates: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As it is saved."""
        spreads = {
            name: {"p50": percentile(times, 50), "mean": sum(times) / len(times), "p99": percentile(times, 99)}
            for name, times in (("wall_ms", self.wall_ms), ("cpu_ms", self.cpu_ms))
        }
        rate = sum(self.rates) / len(self.rates)
        return {"answers": len(self.wall_ms), "txids": len(self.transactions), "commits_per_s": rate, **spreads}


def round_of(table: Table, asked: Asked, transactions: int, seed: int) -> None:
    """Query as long as another process commits. Raises `AssertionError` for a wrong answer."""
    given = [table.state, str(table.folder), str(table.keys), str(transactions)]
    command = [sys.executable, "-m", "bench.lookups", "write", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert "begun" in writer.stdout.readline(), "the writer has ended"
        began = monotonic()
        _ask_while(lambda: writer.poll() is None, table, asked, random.Random(seed))
        took = monotonic() - began
        done = json.loads(writer.stdout.read())
    assert writer.returncode == 0
    asked.rates.append(done["transactions"] / took)


def _ask_while(goes_on: Callable[[], bool], table: Table, asked: Asked, chosen: random.Random) -> None:
    with closing(open_for_reading(table.store)) as store, QueryClient(table.topology(), table.store) as client:
        _ask(table, client, store, [0, 1, 2])  # a log is copied for the first one
        while goes_on():
            committed = _committed(store)
            recent = [STEP * (BATCH * (committed - 1) - chosen.randrange(1, 1_000)) % table.keys for _ in range(2)]
            wall_ms, cpu_ms, txid = _ask(table, client, store, [chosen.randrange(table.keys), *recent])
            asked.wall_ms.append(wall_ms)
            asked.cpu_ms.append(cpu_ms)
            asked.transactions.add(txid)
            _NEVER.wait(PAUSE_S)


def _committed(store: Any) -> int:
    return int(store.position("lookups").committed_txid)


def _ask(table: Table, client: QueryClient, store: Any, keys: Sequence[int]) -> tuple[float, float, int]:
    before, wall, cpu = _committed(store), perf_counter(), thread_time()
    answer: Answer = client.execute("count_of", *map(name_of, keys))
    cpu, wall = thread_time() - cpu, perf_counter() - wall
    assert before <= answer.txid <= _committed(store), "it was not committed"
    found = [row["count"] for row in answer]
    assert found == [table.count(key, answer.txid) for key in keys], (found, keys, answer.txid)
    return 1_000 * wall, 1_000 * cpu, answer.txid


def measured(folder: Path, keys: int, transactions: int, rounds: int, states: Sequence[str]) -> dict[str, Any]:
    """All rounds; documents by state."""
    tables = [Table(state, folder / state, keys) for state in states]
    found = {table.state: Asked() for table in tables}
    for table in tables:
        table.folder.mkdir()
        given = [table.state, str(table.folder), str(keys), "1"]
        subprocess.run([sys.executable, "-m", "bench.lookups", "write", *given], check=True, stdout=subprocess.DEVNULL)
    for number in range(rounds):
        for table in tables:
            round_of(table, found[table.state], transactions, number)
    return {state: asked.document() for state, asked in found.items()}


def main() -> None:
    """Measure, and print what was found; or write it to a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.lookups", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--transactions", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--states", nargs="+", default=STATES, choices=("sqlite", "log", "merge"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lookups-") as folder:
        given = (options.keys, options.transactions, options.rounds, options.states)
        found = measured(Path(folder), *given)
    if options.output is not None:
        given_as = {"keys": options.keys, "transactions": options.transactions * options.rounds}
        options.output.write_text(json.dumps({**given_as, "lookups": found}), "utf-8")
        return
    for state, each in found.items():
        wall, cpu = (" / ".join(f"{each[clock][of]:.2f}" for of in ("p50", "mean", "p99")) for clock in CLOCKS)
        print(
            f"{state}: {each['answers']} answers of {each['txids']} transactions, {each['commits_per_s']:.1f} a "
            f"second; wall {wall} ms, processor {cpu} ms (p50 / mean / p99)"
        )


CLOCKS = ("wall_ms", "cpu_ms")

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", state, folder, keys, transactions]:
            Table(state, Path(folder), int(keys)).write(int(transactions))
        case _:
            main()
