"""Others who write to a table while its topology runs: what rewrites files is harmless, what changes rows stops it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spouts.memory import MemoryTransactionalSpout
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, Place, content, counts
from tests.integration.delta.many_keys import KEYS, TRANSACTIONS
from tests.integration.programs import CLI, Program
from tests.integration.tables import counts as counts_in
from transactional import TransactionalTopologyBuilder
from transactional.core.machine.protocol import Action, Event, RecordCommit
from transactional.errors import Fenced, StoreMismatch
from transactional.model.attempt import AttemptId
from transactional.operations.launch.running import run_topology

pytestmark = pytest.mark.long("tests/integration/delta/test_adversary.py")

LAYOUTS = ("merge", "log")


def test_a_process_that_optimizes_all_the_time_changes_no_count(tmp_path: Path) -> None:
    run = [*CLI, "run", "tests.integration.delta.many_keys:build", "--master", "none", "--until-drained"]
    other = [sys.executable, "-m", "tests.integration.delta.many_keys", str(tmp_path / "count")]
    with Program(other, tmp_path) as optimizing, Program(run, tmp_path) as program:
        program.wait()
        assert program.lines[-1].startswith(f"{TRANSACTIONS} transactions committed"), program.text
        optimizing.kill()
    table = DeltaTable(tmp_path / "count")
    assert table.count() == KEYS
    assert set(counts_in(tmp_path / "count", "key").values()) == {TRANSACTIONS}
    assert sum("OPTIMIZE" in commit["operation"] for commit in table.history()) >= 3


def run_while(strike: Callable[[DeltaTable], object], path: Path, layout: str) -> None:
    """Count six words, one a transaction; after each one somebody else does something to the table."""
    spout = MemoryTransactionalSpout([[("cat",), ("dog",)] * 3], "word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    state = DeltaMapState(path, "word", layout=layout)
    builder.set_committer_bolt("count", state.count()).fields_grouping("spout", "word")
    store = f"sqlite:///{path.parent}/store.db"

    def others(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        del at_ms, event
        if any(isinstance(action, RecordCommit) for action in actions):
            strike(DeltaTable(path))

    run_topology(builder.build(), store=store, master="none", config={"stop_when_drained": True}, observers=[others])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "strike",
    [
        lambda table: table.update(new_values={"count": "100"}, predicate="word = 'cat'"),
        lambda table: table.delete("word = 'cat'"),
        lambda table: table.restore(table.version() - 1),
    ],
    ids=["UPDATE", "DELETE", "RESTORE"],
)
def test_who_changes_rows_stops_a_running_topology(
    tmp_path: Path, layout: str, strike: Callable[[DeltaTable], object]
) -> None:
    with pytest.raises(StoreMismatch, match="which is not the topology's"):
        run_while(strike, tmp_path / "t", layout)
    # Nothing was built on it.
    assert "UPDATE DELETE RESTORE".count(DeltaTable(tmp_path / "t").history(1)[0]["operation"]) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_maintains_a_table_does_not(tmp_path: Path, layout: str) -> None:
    def maintain(table: DeltaTable) -> None:
        table.optimize.z_order(["word"])
        table.optimize.compact()
        table.vacuum(dry_run=False)

    run_while(maintain, tmp_path / "t", layout)
    state = DeltaMapState(tmp_path / "t", "word string", "count long")
    assert content(state) == {"cat": 3, "dog": 3}


class TestAReaderInAnotherThread:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("reads", ["read", "view"])
    def test_does_not_let_a_fenced_coordinator_write(self, tmp_path: Path, layout: str, reads: str) -> None:
        """It reads while the old leader stands between its look at the version and its write."""
        place = Place("delta-rs", tmp_path)

        def opened(kind: type[DeltaMapState] = DeltaMapState) -> DeltaMapState:
            state = kind(tmp_path / "t", "word string", "count long", layout=layout)
            state.open(OWNER, place.txids.__getitem__)
            return state

        new = opened()
        new.merge(place.attempt(1, 1), counts({"dog": 1}))

        class Paused(DeltaMapState):
            def _confirm(self, *given: Any) -> None:
                place.txids[10] = place.txids[1]
                assert new.version() == 1
                new.fence(AttemptId(10))
                new.merge(place.attempt(2, 11), counts({"cat": 1}))
                reader = threading.Thread(target=lambda: state.read() if reads == "read" else state.view("t"))
                reader.start()
                reader.join()
                super()._confirm(*given)

        state = opened(Paused)
        with pytest.raises(Fenced):
            state.merge(place.attempt(2, 2), counts({"dog": 1}))
        assert content(new) == {"dog": 1, "cat": 1}

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_disturbs_no_transaction(self, tmp_path: Path, layout: str) -> None:
        place, over = Place("delta-rs", tmp_path), threading.Event()
        state = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
        state.open(OWNER, place.txids.__getitem__)
        state.merge(place.attempt(1, 1), counts({"dog": 1}))
        errors: list[BaseException] = []

        def read() -> None:
            last = 0
            try:
                while not over.is_set():
                    seen = content(state)["dog"]
                    assert seen >= last
                    last = seen
            except BaseException as error:
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for txid in range(2, 40):
            state.merge(place.attempt(txid, txid), counts({"dog": 1}))
        over.set()
        for reader in readers:
            reader.join()
        assert not errors
        assert content(state) == {"dog": 39}
