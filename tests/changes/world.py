"""One topology id over several runs, whose program changes between them: what it has read, what its tables hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from tests.changes.places import Place
from tests.changes.plain import END, Committed, Tables, in_order, letters, published, tables
from tests.changes.program import ID, Lets, Program, Source, built
from tests.changes.topics import Topics
from transactional.core.ports import State, StateKind
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.ports.stream_names import split_stream_name
from transactional.errors import FailedException, RecordRefused, RetriesExhausted
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.names import DEAD_LETTERS
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.letter_spout import LetterSpout
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

START = datetime(2026, 5, 1, tzinfo=UTC)
FAR = timedelta(days=10)
ENDINGS = ("drained", "while processing", "before a write", "after a write", "before a write with letters")
"""How the run before the change ends: with nothing in flight, by an error while it works on tuples, or in the commit
phase, before one of its tables is written, or after; or as soon as a batch is committed that skips a tuple."""
CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, retry_pause_ms=1, tick_ms=1)
KEPT_WINDOWS = "window_of string, window_pane long, window_txid long", "tuples binary"


class World:
    """A store, tables in one place, and data that grows."""

    def __init__(self, seed: int, place: Place, *, is_small: bool = False) -> None:
        self.random, self.place, self.is_small = Random(seed), place, is_small
        self.store = MemoryCoordinatorStore()
        self.records: dict[str, dict[int, list[dict[str, Any]]]] = {}
        self.parts: list[tuple[Program, Committed]] = []
        self.read: dict[tuple[str, PartitionId], int] = {}
        self.now, self.ids = START, 0
        self.breaks: tuple[int, str] | None = None
        """Before how many more writes one fails, and when."""
        self.last: Topology | None = None
        self.topics = Topics(place.folder / "appended")

    # --- data -----------------------------------------------------------------------------------------------------

    def write(self, program: Program) -> None:
        """Some more records, none of which is late by the least delay that there is."""
        for data in sorted({source.data_of(source.topic) for source in program.sources}):
            partitions = self.records.setdefault(data, {number: [] for number in range(1 if self.is_small else 2)})
            for number, rows in partitions.items():
                rows += [
                    self._record(f"{data}{number}") for _ in range(2 if self.is_small else self.random.randint(1, 3))
                ]
        self.now += timedelta(seconds=self.random.choice((1, 2, 5)))

    def _record(self, origin: str) -> dict[str, Any]:
        self.ids += 1
        random, at = self.random, self.now + timedelta(milliseconds=self.random.randint(0, 1_900))
        return {
            "id": self.ids,
            "word": f"{origin}-{random.choice('ab')}",
            "place": random.choice("xyz"),
            "n": random.randint(1, 9),
            "m": random.randint(1, 3),
            "at": at,
            "seen": at + timedelta(milliseconds=random.randint(0, 1_000)),
        }

    def write_end(self, program: Program) -> None:
        """A record in each partition that is so much later that every window before it closes."""
        self.now += FAR
        for source in program.sources:
            for rows in self.records[source.data_of(source.topic)].values():
                self.ids += 1
                at = self.now
                rows.append(
                    {"id": -self.ids, "word": END, "place": END, "n": 0, "m": 0, "at": at, "seen": at}  # never late
                )

    # --- runs -----------------------------------------------------------------------------------------------------

    def run(self, program: Program, *, accept: bool = False, ending: str = "drained", before: int = 0) -> None:
        """Run until all is read, or to such an end, `before` so many writes; then note what was committed."""
        topology = built(program, self.records, self.state, self.topics.sink)
        self.breaks = (before, ending) if "write" in ending else None
        Lets.breaks = ending == "while processing"
        config = replace(CONFIG, max_spout_pending=program.pending)
        driver = TopologyDriver(topology, self.store, LocalExecutor(topology), config, accept_changes=accept)
        try:
            driver.run()
        except RetriesExhausted:
            if ending == "drained":
                raise
        except RecordRefused:
            self.note(program)
            raise
        finally:
            self.breaks, Lets.breaks = None, False
        self.last = topology
        self.note(program)

    def run_without_publishing(self, program: Program) -> None:
        """Run until the topics of the sinks refuse what is published. Something waits in the outbox then."""
        self.write(program)
        self.topics.are_full = True
        with pytest.raises(RecordRefused):
            self.run(program)
        self.topics.are_full = False
        assert any(progress.waiting for progress in self.store.sinks(ID).values())

    def replay_letters(self, program: Program) -> None:
        """Send all letters to their bolts again, which are mended, and let the model hear nothing of failures."""
        topology = built(program.mended(), self.records, self.state, self.topics.sink)
        letters = LetterSpout(topology, None, self.store.runs(ID, limit=100))
        replayed = replace(topology, spout=letters)
        TopologyDriver(replayed, self.store, LocalExecutor(replayed), CONFIG).run()
        self.parts = [(each.mended(), committed) for each, committed in self.parts]

    @contextmanager
    def may_break(self, table: str, attempt: TransactionAttempt) -> Iterator[None]:
        """A write to a table."""
        left, when = self.breaks or (-1, "")
        if when.endswith("letters") and not self.store.attempts_at(ID, attempt.txid)[0].batch.excluded:
            left = -1
        elif self.breaks:
            self.breaks = left - 1, when
        if left == 0 and when.startswith("before"):
            raise FailedException(f"{table} is not written")
        yield
        if left == 0:
            raise FailedException(f"{table} is written")

    def state(self, name: str, key: Any, kind: StateKind) -> State:
        """The state of a table."""
        given: dict[str, Any] = {"key": None, "values": ""}
        if key == "window":
            given = dict(zip(("key", "values"), KEPT_WINDOWS, strict=True)) | {"deletes": True}
        if key == "letters":
            given = {"key": LETTER_KEY, "values": LETTER_VALUES}
        made = self.place.state(name, kind, given)
        made.watch, made.of_table = self.may_break, name
        return made  # type: ignore[no-any-return]

    def note(self, program: Program) -> None:
        """What has been committed since the run before, for the model: by this program."""
        batch, committed = self.committed(), dict[str, list[list[dict[str, Any]]]]()
        for source in program.sources:
            for partition, until in batch.positions().items() if batch else ():
                stream, own = split_stream_name(partition)
                if (stream or source.name) == source.name:
                    since = self.read.get((source.name, partition), 0)
                    rows = self.records[source.data_of(own.source)][own.index][since:until]
                    committed.setdefault(source.name, []).append(rows)
                    self.read[source.name, partition] = until
        self.parts.append((program, committed))

    def committed(self) -> BatchMetadata | None:
        """The last batch that is."""
        position = self.store.position(ID)
        records = self.store.attempts_at(ID, position.committed_txid) if position else []
        return next((record.batch for record in records if record.phase == "committed"), None)

    # --- what there is --------------------------------------------------------------------------------------------

    def check(self, program: Program) -> None:
        """Every table holds what plain Python makes of what was committed; and that is all there is."""
        for source in program.sources:
            there = sum(map(len, self.records[source.data_of(source.topic)].values()))
            assert self.read_of(source) == there, f"not all of {source.name} is committed"
        expected, found = tables(self.parts), self.tables()
        for name in found:
            assert found[name] == expected[name], name
        assert self.topics.contents() == published(self.parts)
        if program.has_letters and any(each.fails_on for each in program.branches):
            assert self.letters() == letters(self.parts)

    def read_of(self, source: Source) -> int:
        """How many records of a stream's topic are committed."""
        return sum(
            until for (name, at), until in self.read.items() if name == source.name and _topic(at) == source.topic
        )

    def tables(self) -> Tables:
        """What the last topology's tables hold; of windows those that have closed."""
        assert self.last is not None
        found = {c.id: c.state for c in self.last.committers if c.id != DEAD_LETTERS}
        states: list[Any] = [state for name, state in found.items() if f"{name}-closed" not in found]
        return {state.of_table: in_order(state.read().to_pylist()) for state in states}

    def letters(self) -> list[int]:
        """The ids of the tuples that were set aside, sorted."""
        assert self.last is not None
        state: Any = self.last.dead_letters
        return sorted(json.loads(row["tuple"])["id"] for row in state.read().to_pylist())

    def has_in_flight(self, stream: str) -> bool:
        """Whether a batch with records of a stream is recorded and not committed."""
        position = self.store.position(ID)
        txid = position.committed_txid + 1 if position else 1
        batches = [records[0].batch for at in (txid, txid + 1) if (records := self.store.attempts_at(ID, TxId(at)))]
        return any(split_stream_name(at)[0] == stream for batch in batches for at, _ in batch.non_empty())

    def whole(self, *, with_tables: bool = True) -> Any:
        """All that is stored: what a start that is refused may not change. Tables may get fences."""
        status = self.store.status(ID)
        stored = [(each.committed_txid, each.fingerprint) for each in status], self.store.attempts(ID, limit=1_000)
        tables = self.place.whole() if with_tables else self.tables()
        return stored, tables, self.store.sinks(ID), self.topics.contents()


def _topic(partition: PartitionId) -> str:
    return split_stream_name(partition)[1].source
