"""What a batch in flight was recorded with by another program: exclusions of other bolts, digests of other fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import stored
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.store.history import RunAbout, RunRecord
from transactional.core.store.progress import Progress
from transactional.errors import FailedException, RetriesExhausted
from transactional.model.attempt import AttemptId, Epoch, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.letters import Exclusion, Letter
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.in_flight import usable_progress
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, tick_ms=1)


class Breaking(MemoryMapState):
    """A state that is not written while a test says so."""

    breaks = False

    def merge(self, *given: Any) -> None:
        if Breaking.breaks:
            raise FailedException("not written")
        super().merge(*given)


def spelled(row: Any) -> bool:
    """Nothing for a bad word."""
    if row.word == "bad":
        raise ValueError(row.word)
    return True


def any_word(row: Any) -> bool:
    return True


STEPS = {"good": spelled, "all": any_word}


class Words:
    """A topology of words that are counted twice, once without the bad ones."""

    def __init__(self) -> None:
        self.store, self.letters = MemoryCoordinatorStore(), MemoryTable("letters")
        self.tables = {name: MemoryTable(name) for name in STEPS}

    def topology(self, *order: str, fields: str = "word string, n long") -> Topology:
        words = [("cat", 1), ("bad", 2)]
        rows = words if fields.startswith("word") else [(n, word) for word, n in words]
        topology = TridentTopology("words")
        stream = topology.new_stream("words", MemoryTransactionalSpout([rows], fields, take=2))
        for name in order:
            counted = stream.filter(STEPS[name]).group_by("word")
            counted.persistent_aggregate(Breaking(table=self.tables[name]), Count(), name=name)
        topology.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=self.letters))
        return topology.build(strict=True)

    def run(self, topology: Topology, *, breaks: bool = False) -> None:
        Breaking.breaks = breaks
        try:
            TopologyDriver(topology, self.store, LocalExecutor(topology), CONFIG).run()
        except RetriesExhausted:
            assert breaks
        finally:
            Breaking.breaks = False

    @property
    def found(self) -> tuple[dict[str, int], dict[str, int], int]:
        return stored(self.tables["good"]), stored(self.tables["all"]), len(self.letters.rows)


@pytest.mark.parametrize("order", [("good", "all"), ("all", "good")])
def test_a_tuple_is_set_aside_from_the_bolt_that_fails_on_it_in_whatever_order_bolts_are_declared(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same label, so that the id of one is that of the other in the other order."""
    monkeypatch.setattr(any_word, "__name__", "spelled")
    words = Words()
    words.run(words.topology("good", "all"), breaks=True)
    [attempt, *_] = words.store.attempts_at("words", TxId(1))
    assert [each.component for each in attempt.batch.excluded] == ["b-0-spelled"]
    words.run(words.topology(*order))
    assert words.found == ({"cat": 1}, {"cat": 1, "bad": 1}, 1)


def test_fields_in_another_order_are_the_same_records() -> None:
    words = Words()
    words.run(words.topology("good", "all"), breaks=True)
    [attempt, *_] = words.store.attempts_at("words", TxId(1))
    assert attempt.batch.digests
    words.run(words.topology("good", "all", fields="n long, word string"))
    assert words.found == ({"cat": 1}, {"cat": 1, "bad": 1}, 1)


AT = PartitionId("words/memory", 0)
BATCH = BatchMetadata(
    {AT: OffsetRange(Offset(0), Offset(2))},
    {AT: Digest(2, 7)},
    excluded=(Exclusion("b-0-spelled", "0", "bad"),),
    letters=(Letter(1, 0, "b-0-spelled", "words", "default", "{}", "bad"),),
)
PROGRESS = Progress(TxId(3), recorded={TxId(4): BATCH, TxId(5): replace(BATCH, digests={})}, attempt_id=AttemptId(9))


class Runs(MemoryCoordinatorStore):
    """A store that knows of some runs, newest first: what they ran, and after which transaction."""

    def __init__(self, *runs: tuple[Topology | None, int]) -> None:
        super().__init__()
        self.known = [
            RunRecord(Epoch(1), "test", None, RunAbout("", describe_topology(of) if of else {}), 0, TxId(txid))
            for of, txid in runs
        ]

    def runs(self, topology_id: str, *, limit: int) -> list[RunRecord]:
        return self.known[:limit]


def kept(now: Topology, *runs: tuple[Topology | None, int]) -> list[tuple[int, int, int]]:
    recorded = usable_progress(now, Runs(*runs), PROGRESS).recorded.values()
    return [(len(batch.digests), len(batch.excluded), len(batch.letters)) for batch in recorded]


def test_what_the_same_program_has_recorded_is_kept() -> None:
    same, other, read = (
        Words().topology(*order, fields=fields)
        for order, fields in (
            (("good", "all"), "word string, n long"),
            (("all", "good"), "word string, n long"),
            (("good", "all"), "n long, word string"),
        )
    )
    all_of_it, no_letters = [(1, 1, 1), (0, 1, 1)], [(1, 0, 0), (0, 0, 0)]
    assert kept(same, (same, 3), (same, 2)) == all_of_it
    assert kept(same, (same, 3), (None, 3)) == all_of_it, "it was no run, or one that is not describe_topology"
    assert kept(same, (same, 3), (same, 2), (other, 1)) == all_of_it, "it had ended before"
    assert kept(same, (same, 3), (other, 3), (same, 2)) == no_letters, "the batch may be that of the run between"
    assert kept(other, (other, 3), (other, 3), (same, 2)) == no_letters, "the run between has recorded nothing"
    assert kept(read, (read, 3), (same, 2)) == [(0, 0, 0)] * 2, "what bolts emit has another order, too"


def test_without_anything_of_that_kind_no_run_is_looked_for() -> None:
    topology = Words().topology("good", "all")
    bare = replace(PROGRESS, recorded={TxId(4): replace(BATCH, digests={}, excluded=(), letters=())})
    assert usable_progress(topology, Runs(), bare) is bare


def test_what_was_found_out_of_the_source_is_kept_whatever_the_bolts_are() -> None:
    other = Words().topology("all", "good")
    fact = Exclusion("words", "schema id 7 of values of topic 't'", "unknown")
    progress = replace(PROGRESS, recorded={TxId(4): replace(BATCH, excluded=(*BATCH.excluded, fact))})
    same = Words().topology("good", "all")
    assert usable_progress(other, Runs((same, 3)), progress).recorded[TxId(4)].excluded == (fact,)
