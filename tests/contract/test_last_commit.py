"""What a state tells of its last write is what lies in its table afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from tests.contract.states import OWNER, Place, always, counts
from transactional.core.ports import CommitFacts
from transactional.core.ports.state_parts import StateParts, TableMaintenance
from transactional.model.attempt import TxId
from transactional.runtime.commit.committing import recorded_write_facts

LAYOUTS: dict[str, str | LogLayout] = {"merge": "merge", "log": LogLayout(compact_after=2)}


@pytest.fixture(params=LAYOUTS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, DeltaMapState]]:
    place = Place("delta-rs", tmp_path)
    state = DeltaMapState(tmp_path / "table", "word string", "count long", layout=LAYOUTS[request.param])
    place.opened.append(state)
    state.open(OWNER, place.txids.__getitem__)
    place.fence(state, 0, 1)
    yield place, state
    place.close()


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.rglob("*.parquet")}


def test_it_tells_version_bytes_and_compactions(
    request: pytest.FixtureRequest, place: tuple[Place, DeltaMapState]
) -> None:
    at, state = place
    compacted = set[int | None]()
    for txid in range(1, 9):
        before = files(at.folder / "table")
        state.merge(at.attempt(txid, txid + 1), counts({"cat": 1, f"word {txid}": 2}))
        told = state.parts.maintenance.last_commit()
        assert told is not None
        came = {name: size for name, size in files(at.folder / "table").items() if name not in before}
        assert told.size_bytes == sum(came.values()) > 0
        assert told.version == DeltaTable(at.folder / "table").version()
        compacted.add(told.compacted_txid)
        state.parts.maintenance.maintain(TxId(txid), always)
    is_log = "log" in request.node.name
    assert len(compacted) > 2 if is_log else compacted == {None}


class Away(MemoryMapState, TableMaintenance):
    """A state whose table is gone by the time that it is asked."""

    @property
    def parts(self) -> StateParts:
        return replace(super().parts, maintenance=self)

    def last_commit(self) -> CommitFacts | None:
        raise FileNotFoundError


def test_a_transaction_commits_also_if_that_can_not_be_told() -> None:
    assert recorded_write_facts(Away("word string", "count long"), 3) == {"rows": 3}
    assert recorded_write_facts(MemoryMapState("word string", "count long"), None) == {}
