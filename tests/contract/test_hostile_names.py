"""Names and values that look like SQL stay names and values, in stores and in states, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from state.sql.state import SqlMapState
from tests.contract.states import OWNER, Place
from tests.contract.storages import Storage
from transactional.core.ports import StateKind
from transactional.core.store import AttemptRecord, DesiredState
from transactional.core.store.progress import Phase
from transactional.errors import ConfigError
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId

HOSTILE = (
    "x'; DROP TABLE transactional_states; --",
    'x"; DELETE FROM "words" WHERE 1=1; --',
    "%s ? :wanted $1 {0}",
    "SELECT",
    "back\\slash `tick` [box]",
    "é 🐈 \u202e",
)
COLUMNS = ("select", "%s", ":wanted", "SELECT", "back~tick|", "é$1")


@pytest.fixture
def place(database: Storage, tmp_path: Path) -> Iterator[Place]:
    """A place in an empty database of each kind."""
    place = Place("sql", tmp_path, url=database.url or "")
    yield place
    place.close()


@pytest.mark.parametrize("column", HOSTILE[:3] + HOSTILE[4:])
def test_columns_that_could_not_be_quoted_everywhere_are_refused(place: Place, column: str) -> None:
    """Delta and Spark quote in other ways than SQL, and a state may move."""
    with pytest.raises(ConfigError):
        SqlMapState(place.url, "words", f"`{column}` string", "count long")


@pytest.mark.parametrize("table", ["%(k0)s", "zero\0byte", "", "x" * 64])
def test_tables_that_no_statement_can_name_are_refused(place: Place, table: str) -> None:
    with pytest.raises(ConfigError):
        SqlMapState(place.url, table, "word string", "count long")


@pytest.mark.parametrize(("name", "column"), list(zip(HOSTILE, COLUMNS, strict=True)))
def test_tables_columns_keys_and_values_of_a_state(place: Place, name: str, column: str) -> None:
    key, value = f"k{column}", f"v{column}"
    state = SqlMapState(place.url, name, f"`{key}` string", f"`{value}` string", kind=StateKind.OPAQUE)
    place.opened.append(state)
    state.open(f"{OWNER}{name}", place.txids.__getitem__)
    rows = {(text,): (text,) for text in HOSTILE}
    for attempt in (place.attempt(1, 1), place.attempt(1, 2), place.attempt(2, 3)):
        state.put(attempt, rows)
        wanted = [(HOSTILE[0],), (name,)]
        assert state.get(attempt, wanted) == ({} if attempt.txid == 1 else {key: key for key in wanted})
    assert {(row[key], row[value]) for row in state.read().to_pylist()} == {(text, text) for text in HOSTILE}


@pytest.mark.parametrize("name", HOSTILE)
def test_ids_owners_names_and_errors_in_a_store(database: Storage, name: str) -> None:
    store = database.open()
    other = store.acquire("other", {}, owner="other", lease_ms=10_000)
    lease = store.acquire(name, {name: {name: name}}, owner=name, lease_ms=10_000, name=name)
    store.record_start(lease, {name: {name: name}})
    store.record_fence(lease, name, TxId(0))
    attempt = TransactionAttempt(TxId(1), AttemptId(2))
    batch = BatchMetadata(
        {PartitionId(name, 0): OffsetRange(Offset(0), Offset(3))}, metadata={PartitionId(name, 0): name}
    )
    record = AttemptRecord(attempt, "processing", batch, None, 0, 0, None, None, None, None)
    store.record_attempt(lease, record, forget_later=False)
    store.record_failure(lease, attempt, Phase.PROCESSING, name, at_ms=1)
    assert store.desire(name, DesiredState.INACTIVE)
    [found] = store.attempts(name, limit=9)
    assert (found.batch, found.error) == (batch, f"processing: {name}")
    [status] = store.status(name)
    assert (status.topology_id, status.owner, status.name, status.fingerprint) == (
        name,
        name,
        name,
        {name: {name: name}},
    )
    assert store.has_fence(name, name)
    assert not store.has_fence(name, "other")
    assert {each.topology_id for each in store.status()} == {name, "other"}
    store.renew(other, lease_ms=10_000)
