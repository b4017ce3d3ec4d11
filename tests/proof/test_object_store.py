"""States on a real object store: each Delta commit takes its version with a conditional put, or is refused.

Ways of writing and adversary are those of `tests/integration/delta/test_adversary.py`, where they meet on a disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from state.delta.state import DeltaMapState
from tests.contract.adversary import Adversary, Others
from tests.contract.states import OWNER, Place, write_by_files
from tests.contract.writing import AFTER, BEFORE, EVERY_WAY, Way, adds, begun
from tests.contract.writing import added as counted
from tests.proof.object_store import BUCKET, object_store
from transactional.errors import Fenced, OperatingError, StoreMismatch

BY_TASKS = ("file by file, by tasks", "an entry of our own, by tasks")
ON_DISKS_ALONE = ("staged files", "a compaction in the background", "a compaction of files", *BY_TASKS)
"""And of what is compacted there are too few files here."""
REMOTE = {name: way for name, way in EVERY_WAY.items() if not name.startswith(ON_DISKS_ALONE)}
WRITERS = 6


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(tmp_path_factory.mktemp("weed")) as options:
        yield options


@dataclass(frozen=True)
class Remote:
    """A table in the bucket, at its third transaction."""

    way: Way
    place: Place
    uri: str
    options: Mapping[str, str]

    def opened(self, layout: Any = "auto", **more: Any) -> DeltaMapState:
        said = {"key": "word string", "values": "count long", **self.way.declared, **more}
        state = DeltaMapState(self.uri, layout=layout, storage_options=self.options, **said)
        state.open(OWNER, self.place.txids.__getitem__)
        return state

    def adds(self, state: DeltaMapState, txid: int, attempt_id: int, words: Mapping[str, int]) -> None:
        adds(state, self.place, txid, attempt_id, words, puts=self.way.puts)

    def content(self) -> dict[str, int]:
        rows = self.opened(**self.way.gained).read().select(["word", "count"]).to_pylist()
        found = {row["word"]: row["count"] for row in rows}
        assert len(found) == len(rows), "a key has two rows"
        return found


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path, options: dict[str, str]) -> Remote:
    way: Way = REMOTE[request.param]
    table = Remote(way, Place("delta-rs", tmp_path), f"s3://{BUCKET}/{uuid4()}", options)
    state = table.opened(way.layout)
    for txid, words in enumerate([{"dog": 1}, {"dog": 1, "cat": 1}, {"cow": 1}], 1):
        table.adds(state, txid, txid, words)
    state.close()
    return table


@pytest.fixture
def writes(table: Remote, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], DeltaMapState]:
    """Write, while somebody else does something right before; the state."""
    way = table.way
    if way.by_delta_rs:
        monkeypatch.setattr("state.delta.write.loaded_table.list_replaceable_files", lambda _: None)
    if not way.is_small:
        write_by_files(monkeypatch)
    if way.is_upkeep:
        monkeypatch.setattr("state.delta.upkeep.merged_upkeep.COMPACTION_INTERVAL", 1)
        monkeypatch.setattr("state.delta.upkeep.merged_upkeep.FILES_MAX", 1)

    def written(strike: str, raises: Any = None) -> DeltaMapState:
        state = table.opened(way.turns_to or way.layout, **way.gained)
        adversary = Adversary(monkeypatch)
        adversary.lies_in_wait(getattr(Others(table.uri, table.options), strike), way.passes)
        with nullcontext() if raises is None or way.is_upkeep else pytest.raises(raises):
            way.write(state, table.place)
        assert adversary.struck == 1
        return state

    return written


@pytest.mark.proof
@pytest.mark.parametrize("strike", ["rewrites", "declares", "notes", "checkpoints"])
@pytest.mark.parametrize("table", REMOTE, indirect=True)
def test_what_changes_no_row_is_harmless(table: Remote, writes: Any, strike: str) -> None:
    state = writes(strike)
    assert table.content() == table.way.leaves
    table.adds(state, table.way.next_txid, 20, {"dog": 1})
    assert table.content() == {**table.way.leaves, "dog": table.way.leaves["dog"] + 1}


@pytest.mark.proof
@pytest.mark.parametrize("strike", ["deletes", "updates"])
@pytest.mark.parametrize("table", REMOTE, indirect=True)
def test_what_changes_rows_stops_us(table: Remote, writes: Any, strike: str) -> None:
    state = writes(strike, StoreMismatch)
    version = DeltaTable(table.uri, storage_options=dict(table.options)).version()
    with pytest.raises(StoreMismatch, match="which is not the topology's"):
        table.adds(state, table.way.next_txid, 20, {"dog": 1})
    assert DeltaTable(table.uri, storage_options=dict(table.options)).version() == version


@pytest.mark.proof
@pytest.mark.parametrize("round_", range(5))
@pytest.mark.parametrize(
    "table", ["an entry of our own", "file by file", "an overwrite", "rows of a log"], indirect=True
)
def test_of_those_who_write_at_once_the_newest_leads_and_each_row_counts_once(
    table: Remote, round_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinators that do not know of one another: each write takes a version of its own, or is refused."""
    del round_
    if table.way.by_delta_rs:
        monkeypatch.setattr("state.delta.write.loaded_table.list_replaceable_files", lambda _: None)
    if not table.way.is_small:
        write_by_files(monkeypatch)
    states = {10 + number: table.opened(table.way.layout) for number in range(WRITERS)}
    attempts = {number: begun(state, table.place, 4, number) for number, state in states.items()}
    barrier, refused, done = threading.Barrier(WRITERS), list[BaseException](), list[int]()

    def write(number: int) -> None:
        state = states[number]
        barrier.wait()
        try:
            state.merge(attempts[number], counted(state, {"dog": 1, "bird": 5}))
            done.append(number)
        except (Fenced, OperatingError) as error:
            refused.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done
    assert len(done) + len(refused) == WRITERS
    assert table.content() == AFTER
    versions = DeltaTable(table.uri, storage_options=dict(table.options))
    assert versions.transaction_version(OWNER) == max(done), "an older coordinator has written over a newer one"


@pytest.mark.proof
@pytest.mark.parametrize(
    "table", ["an entry of our own", "file by file", "an overwrite", "rows of a log"], indirect=True
)
def test_a_writer_that_comes_late_changes_nothing(table: Remote) -> None:
    late, new = table.opened(table.way.layout), table.opened(table.way.layout)
    table.place.fence(new, 3, 30)
    with pytest.raises(Fenced):
        table.adds(late, 4, 10, {"dog": 1})
    assert table.content() == BEFORE
