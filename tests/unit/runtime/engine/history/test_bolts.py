"""Letters find their bolts when operations of streams have other ids than when they were set aside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import stored
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.store.history import RunAbout, RunRecord
from transactional.errors import ConfigError
from transactional.model.attempt import Epoch, TxId
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.bolts import EarlierBolts
from transactional.runtime.engine.letter_spout import LetterSpout, waiting_letters
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing.memory_store import MemoryCoordinatorStore
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, tick_ms=1)


class Spelled:
    """Lets words through that it can read; its name says nothing of what those are."""

    mended = False

    def __init__(self, bad: str) -> None:
        self.bad = bad

    def __call__(self, row: Any) -> bool:
        if row.word == self.bad and not Spelled.mended:
            raise ValueError(row.word)
        return True


class Words:
    """A table of words for each that can't be read."""

    def __init__(self) -> None:
        self.store, self.letters = MemoryCoordinatorStore(), MemoryTable("letters")
        self.tables, self.others = {bad: MemoryTable(bad) for bad in ("cat", "dog")}, MemoryTable("others")

    def topology(self, *order: str, streams: tuple[str, ...] = ("app", "web"), joined: bool = False) -> Topology:
        topology = TridentTopology("words")
        read = {name: topology.new_stream(name, spout()) for name in streams}
        found = [read["web"].filter(Spelled(bad)) for bad in order]
        if joined:
            found = [found[0].merge(*found[1:])]
        for bad, words in zip(order, found, strict=False):
            words.group_by("word").persistent_aggregate(MemoryMapState(table=self.tables[bad]), Count(), name=bad)
        read["app"].group_by("word").persistent_aggregate(MemoryMapState(table=self.others), Count(), name="others")
        topology.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=self.letters))
        return topology.build(strict=True)

    def run(self, topology: Topology) -> None:
        TopologyDriver(topology, self.store, LocalExecutor(topology), CONFIG).run()

    def replay(self, topology: Topology) -> None:
        letters = LetterSpout(topology, None, self.store.runs("words", limit=10))
        self.run(replace(topology, spout=letters))

    @property
    def counted(self) -> list[dict[str, int]]:
        return [stored(table) for table in self.tables.values()]


def spout() -> OpaqueMemoryTransactionalSpout:
    return OpaqueMemoryTransactionalSpout([[("cat",), ("dog",)]], "word string", take=2)


@pytest.mark.parametrize("order", [("cat", "dog"), ("dog", "cat")])
@pytest.mark.parametrize("streams", [("app", "web"), ("web", "app")])
def test_a_letter_goes_to_its_own_bolt_in_whatever_order_bolts_and_streams_are_declared(
    order: tuple[str, str], streams: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Words()
    words.run(words.topology("cat", "dog"))
    assert words.counted == [{"dog": 1}, {"cat": 1}]
    monkeypatch.setattr(Spelled, "mended", True)
    words.replay(words.topology(*order, streams=streams))
    assert words.counted == [{"cat": 1, "dog": 1}, {"cat": 1, "dog": 1}]


def test_a_letter_whose_bolt_can_not_be_told_from_another_stays() -> None:
    words = Words()
    made = words.topology("cat", "dog", joined=True)
    words.run(made)
    runs = words.store.runs("words", limit=10)
    assert len(waiting_letters(made, None, runs)) == 2, "it is the same program"
    for now in (words.topology("cat", "dog", "cat", joined=True), words.topology("cat", "dog", streams=("web", "app"))):
        with pytest.raises(ConfigError, match=r"dead letter 1:0 came to bolt 'b-0-Spelled' .* several that it may be"):
            waiting_letters(now, None, runs)


def test_a_letter_whose_bolt_is_gone_is_not_sent_to_one_of_the_same_name() -> None:
    words = Words()
    words.run(words.topology("cat", "dog"))
    runs, now = words.store.runs("words", limit=10), words.topology("dog")
    with pytest.raises(ConfigError, match=r"dead letter 1:0 .* no longer has such a subscription"):
        waiting_letters(now, None, runs)
    assert [letter.component for letter in waiting_letters(now, [(1, 1)], runs)] == ["b-0-Spelled"]


def test_bolts_are_looked_for_in_what_the_run_has_described() -> None:
    words = Words()
    before, now = (describe_topology(words.topology(*order)) for order in (("cat", "dog"), ("dog", "cat")))
    first, second = (each["id"] for each in now["components"][1:] if each["id"].startswith("b-"))

    def today(bolt: str, txid: int, *runs: tuple[int, dict[str, Any]]) -> str | None:
        known = [RunRecord(Epoch(1), "test", None, RunAbout("", about), 0, TxId(at)) for at, about in runs]
        return EarlierBolts(now, known).current_id(bolt, TxId(txid))

    assert today(first, 1, (0, before)) == second
    assert today(first, 2, (3, now), (1, before), (0, now)) == second
    assert today(first, 2, (3, before), (1, now)) == first
    assert today(first, 1) == today(first, 1, (0, {})) == today(first, 1, (1, before)) == first, "no run tells"
    assert today("cat", 1, (0, before)) == "cat"
    assert today("b-9-gone", 1, (0, before)) == "b-9-gone"
