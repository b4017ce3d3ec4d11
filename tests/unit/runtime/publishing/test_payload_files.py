"""Large payloads in files beside a store in SQLite: what crashes leave, what is refused, and a disk without room."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from spouts import MemoryTransactionalSpout
from state import DeltaMapState, MemoryMapState
from tests.file_limit import files_up_to
from tests.unit.runtime.publishing.word_sink import TARGETS, Target, WordSink, build, run
from transactional import Topology, TopologyDriver, TransactionalTopologyBuilder
from transactional.core.store import Lease
from transactional.core.store.outbox import ROW_BYTES_MAX, OutboxRow, SinkRecords
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, CorruptRecord, Fenced, RecordRefused, RetriesExhausted
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.config import TopologyConfig
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.publishing.payload_files import PayloadFolder, outbox_folder
from transactional.runtime.publishing.relay import Relay
from transactional.testing import MemoryCoordinatorStore

LARGE = random.Random(1).randbytes(4 * ROW_BYTES_MAX).hex()
ROWS = [[("cat",), (LARGE,), ("dog",)]]
PUBLISHED = [(1, ["cat", LARGE]), (2, ["dog"])]


@pytest.fixture
def target() -> Target:
    TARGETS["words"] = Target()
    return TARGETS["words"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlCoordinatorStore]:
    store = SqlCoordinatorStore(f"sqlite:///{tmp_path / 'transactional.db'}")
    yield store
    store.close()


@pytest.fixture
def topology() -> Topology:
    return build(counts=MemoryMapState("word string"), rows=ROWS)


def files_in(folder: Path) -> list[Path]:
    return list((folder / "outbox").iterdir())


def run_unpublished(topology: Topology, store: SqlCoordinatorStore, target: Target) -> OutboxRow:
    """Run a topology whose sink refuses everything. Returns the row of the transaction with a large payload."""
    target.errors = [RecordRefused("no")]
    with pytest.raises(RecordRefused, match="no"):
        run(topology, store)
    target.errors = []
    [row] = store.outbox_in_files("words")
    return row


def test_a_large_payload_is_published_from_a_file_which_is_then_deleted(
    topology: Topology, store: SqlCoordinatorStore, target: Target, tmp_path: Path
) -> None:
    row = run_unpublished(topology, store, target)
    [file] = files_in(tmp_path)
    assert row.file is not None
    assert (row.file.name, row.file.size_bytes) == (file.name, file.stat().st_size)
    assert len(row.payload) == 4
    assert store.sinks("words")["alerts"].size_bytes > ROW_BYTES_MAX
    run(topology, store)
    assert sorted(target.published) == PUBLISHED
    assert files_in(tmp_path) == []


def test_files_that_a_crash_has_left_are_swept(
    topology: Topology, store: SqlCoordinatorStore, target: Target, tmp_path: Path
) -> None:
    """One was written and not committed, one was published and not deleted; the file of a copied store stays."""
    row = run_unpublished(topology, store, target)
    [file] = files_in(tmp_path)
    assert row.file is not None
    names = [file.name.replace("-1-", "-2-", 1), file.name.replace("-1-", "-1-1", 1)]
    of_a_copy = f"{file.name.rpartition('-')[0]}-{'0' * 16}.records"
    for name in (*names, of_a_copy, "another file"):
        (file.parent / name).write_bytes(b"")
    run(topology, store)
    assert sorted(target.published) == PUBLISHED
    assert {left.name for left in files_in(tmp_path)} == {of_a_copy, "another file"}


def test_a_sweep_leaves_files_of_attempts_in_flight(store: SqlCoordinatorStore, tmp_path: Path) -> None:
    """A suspended leader sweeps nothing of the one that has taken over."""
    leases = list[Lease]()
    for owner in ("earlier", "later"):
        leases.append(store.acquire("words", {}, owner=owner, lease_ms=1_000))
        store.release(leases[-1])
    folders = [PayloadFolder(tmp_path / "outbox") for _ in leases]
    for folder, lease in zip(folders, leases, strict=True):
        folder.begin(store, lease)
    attempt = TransactionAttempt(TxId(1), AttemptId(leases[1].fence_id + 1))
    records = folders[1].store_large(attempt, {"alerts": SinkRecords(bytes(ROW_BYTES_MAX + 1), 1)})["alerts"]
    for folder in folders:
        folder.sweep(store)
    assert records.file is not None
    assert [file.name for file in files_in(tmp_path)] == [records.file.name]


def test_an_attempt_that_fails_after_its_file_was_written_leaves_it_to_the_next(
    store: SqlCoordinatorStore, tmp_path: Path
) -> None:
    folder = PayloadFolder(tmp_path / "outbox")
    folder.begin(store, store.acquire("words", {}, owner="leader", lease_ms=1_000))
    for attempt_id in (7, 8, 9):
        attempt = TransactionAttempt(TxId(1), AttemptId(attempt_id))
        folder.store_large(attempt, {"a long/name" * 30: SinkRecords(bytes(ROW_BYTES_MAX + 1), 1)})
        assert len(files_in(tmp_path)) == 1


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_file_that_is_not_what_was_stored_is_refused(
    topology: Topology, store: SqlCoordinatorStore, target: Target, tmp_path: Path, damage: str
) -> None:
    run_unpublished(topology, store, target)
    [file] = files_in(tmp_path)
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        half = len(content) // 2
        flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
        file.write_bytes(content[:-1] if damage == "shorter" else flipped)
    with pytest.raises(CorruptRecord, match=r"payload of transaction 1 of sink 'alerts'.* readable: ") as refused:
        run(topology, store)
    assert "\n" not in str(refused.value)
    assert target.published == []


def test_a_file_of_another_payload_is_refused(
    topology: Topology, store: SqlCoordinatorStore, target: Target, tmp_path: Path
) -> None:
    row = run_unpublished(topology, store, target)
    [file] = files_in(tmp_path)
    file.write_bytes(bytes(4) + file.read_bytes()[4:])
    with pytest.raises(CorruptRecord, match="was changed"):
        PayloadFolder(file.parent).read(row)


def test_a_leader_whose_successor_has_published_a_file_is_fenced(
    topology: Topology, store: SqlCoordinatorStore, target: Target, tmp_path: Path
) -> None:
    """Its outbox row was read before: nothing is corrupt, and no backup is to be restored."""
    row = run_unpublished(topology, store, target)
    folder = PayloadFolder(tmp_path / "outbox")
    lease = store.acquire("words", topology.fingerprint(), owner="earlier", lease_ms=1_000)
    store.release(lease)
    relay = Relay("alerts", WordSink("words"), store, lease, lambda: None, lambda: 0, folder)
    folder.delete([row])
    with pytest.raises(Fenced, match="it has released its lease"):
        relay.step()


def test_without_room_nothing_is_committed_until_there_is_some(
    topology: Topology, store: SqlCoordinatorStore, target: Target, tmp_path: Path
) -> None:
    # A limit of the process stands in for a full disk.
    with (
        files_up_to(3 * ROW_BYTES_MAX),
        pytest.raises(RetriesExhausted, match="/outbox: File too large") as full,
    ):
        run(topology, store, outage_timeout_ms=50)
    assert "\n" not in str(full.value)
    assert (store.status("words")[0].committed_txid, files_in(tmp_path)) == (0, [])
    run(topology, store)
    assert sorted(target.published) == PUBLISHED


def test_where_no_folder_is_known_it_is_asked_for(store: SqlCoordinatorStore, tmp_path: Path) -> None:
    attempt = TransactionAttempt(TxId(7), AttemptId(9))
    records = {"alerts": SinkRecords(bytes(5_000_000), 3)}
    with pytest.raises(RecordRefused, match=r"the 3 records of transaction 7 take 5000000 bytes .* set outbox_folder"):
        PayloadFolder(None).store_large(attempt, records)
    in_option = TopologyConfig(outbox_folder=str(tmp_path / "shared"))
    assert outbox_folder(in_option, store) == tmp_path / "shared"
    assert outbox_folder(TopologyConfig(), store) == tmp_path / "outbox"
    assert outbox_folder(TopologyConfig(), MemoryCoordinatorStore()) is None


def test_the_folder_is_not_inside_a_table(tmp_path: Path) -> None:
    table = DeltaMapState(tmp_path / "table", "word string").count()
    builder = TransactionalTopologyBuilder("words", "rows", MemoryTransactionalSpout(ROWS, "word string", take=2))
    builder.set_sink("alerts", WordSink("words")).shuffle_grouping("rows")
    builder.set_committer_bolt("count", table).shuffle_grouping("rows")
    topology, config = builder.build(), TopologyConfig(outbox_folder=str(tmp_path / "table" / "outbox"))
    with pytest.raises(ConfigError, match=r"the folder of the outbox is at .*, inside the folder of the Delta table"):
        TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology), config)
