"""Two store URLs on one table, and a store that is restored from a backup: refused in one line, and nothing is lost."""

from __future__ import annotations

import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import postgres_names, postgres_schema, postgres_sockets, redis_server, redis_url
from tests.integration.faults.room import LENGTH, ONE, OTHER, Room, check_one_line, right
from tests.integration.postgres import url_of
from tests.rewinding import end_lease
from transactional.errors import ConfigError, Fenced, StoreMismatch, TopologyInUse, TransactionalError

__all__ = ["postgres_names", "postgres_schema", "postgres_sockets", "redis_server", "redis_url"]

# `make check` has the rule itself: tests/unit/operations/doctor/test_examine.py.
pytestmark = pytest.mark.sampled(9, tests=True)
KINDS = [
    *("merge", "log", "sqlite", "memory"),
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("redis", marks=pytest.mark.redis),
]

PREFIXES = itertools.count(1)


@pytest.fixture(params=KINDS)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Room:
    server = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    if request.param == "postgres":
        server = url_of(request.getfixturevalue("postgres_sockets"), request.getfixturevalue("postgres_schema"))
    return Room(tmp_path, request.param, server, f"{next(PREFIXES)} ")


# --- two stores -------------------------------------------------------------------------------------------------------


def test_another_store_is_refused_however_often_it_is_tried(room: Room) -> None:
    """Each start draws an attempt id, so that the other store comes to count as far as the table is."""
    assert room.lead(1) is None
    for _ in range(4):
        said = check_one_line(room.lead(LENGTH, OTHER), StoreMismatch)
        assert "or the table belongs to another store. To do: " in said
        assert room.contents() == right(1)
    assert room.lead(LENGTH) is None
    assert room.contents() == right(LENGTH)
    assert room.findings(LENGTH) == []


WRITES = [
    *(("acquire", 1), ("open", 1), ("open", 2), ("record_fence", 1), ("table", 1), ("table", 2), ("record_start", 1)),
    *(("record_attempt", 1), ("table", 4), ("table", 5), ("record_commit", 1), ("record_attempt", 2), ("release", 1)),
]
"""Three tables are opened and fenced, and then written in each transaction."""
PAIRS = [
    *itertools.product(("record_fence", "table"), ("record_start", "record_attempt", "table 4")),
    *(("acquire", "table 4"), ("open", "open"), ("open", "open 2"), ("open 2", "open"), ("open 2", "record_start")),
]
"""The first ones by name. Without the ids of stores the first six let both in, in each kind of table; none of the other
163 pairs of those writes does."""
AFTER_ONE = "table 7"


@pytest.mark.parametrize("write", WRITES, ids=lambda write: "{} {}".format(*write))
def test_of_two_at_once_one_is_refused(room: Room, write: tuple[str, int]) -> None:
    """The first one stands still before a write, the other one comes, and the first one goes on."""
    said = dict[str, TransactionalError | None]()

    def come(*now: Any) -> None:
        if now == write:
            said[OTHER] = room.lead(LENGTH, OTHER)

    said[ONE] = room.lead(LENGTH, ONE, come)
    [leader] = [store for store, error in said.items() if error is None]
    for store, error in said.items():
        if store != leader:
            check_one_line(error, StoreMismatch, Fenced)
            check_one_line(room.lead(LENGTH + 1, store), StoreMismatch)
    assert room.contents() == right(LENGTH)
    assert room.findings(LENGTH, leader) == []
    assert room.lead(LENGTH + 1, leader) is None
    assert room.contents() == right(LENGTH + 1)


@pytest.mark.parametrize(("write", "until"), PAIRS)
def test_of_two_new_ones_in_one_instant_one_is_refused(room: Room, write: str, until: str) -> None:
    """The first one stands still before a write while the other one, which draws the same ids, comes as far as another
    write; then the first one commits a transaction, the other one goes on to its end, and then the first one."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand(name: str, number: int) -> None:
        if f"{name} {number}" in (until, f"{until} 1"):
            stands.set()
            assert goes_on.wait(60)

    def other() -> TransactionalError | None:
        try:
            return room.lead(LENGTH, OTHER, stand, take=2)
        finally:
            stands.set()

    with ThreadPoolExecutor(1) as pool:
        coming = list[Any]()

        def come(name: str, number: int) -> None:
            now = f"{name} {number}"
            if now in (write, f"{write} 1") and not coming:
                coming.append(pool.submit(other))
                assert stands.wait(60)
            if now == AFTER_ONE and coming:
                goes_on.set()
                coming[0].exception()

        try:
            said = {ONE: room.lead(LENGTH, ONE, come)}
        finally:
            goes_on.set()
        said[OTHER] = coming[0].result()
    [leader] = [store for store, error in said.items() if error is None]
    [loser] = [store for store in said if store != leader]
    check_one_line(said[loser], StoreMismatch, Fenced)
    assert room.contents() == right(LENGTH)
    assert room.findings(LENGTH, leader) == []
    check_one_line(room.lead(LENGTH, loser), StoreMismatch)
    assert room.lead(LENGTH + 1, leader) is None
    assert room.contents() == right(LENGTH + 1)


# --- a store from a backup --------------------------------------------------------------------------------------------

COPIED = {"the file": ("",), "the file and its log": ("", "-wal")}
"""What is copied of a SQLite database that is open."""
BACKUP, AFTERWARDS = 4, 24


@pytest.mark.parametrize("room", [kind for kind in KINDS if kind != "memory"], indirect=True)
@pytest.mark.parametrize("copied", COPIED)
def test_a_store_restored_from_a_backup_is_refused_until_it_has_caught_up(room: Room, copied: str) -> None:
    backup = room.folder / "backup"
    backup.mkdir()

    def copy(*now: Any) -> None:
        if now == ("record_commit", BACKUP):
            for end in COPIED[copied]:
                shutil.copy(room.folder / f"{ONE}{end}", backup)

    assert room.lead(AFTERWARDS, before=copy) is None
    for file in room.folder.glob(f"{ONE}*"):
        file.unlink()
    shutil.copytree(backup, room.folder, dirs_exist_ok=True)
    if len(COPIED[copied]) > 1:
        # As in the backup somebody leads; and nobody has told the file alone of any topology.
        check_one_line(room.lead(AFTERWARDS), TopologyInUse)
        end_lease(room.folder)
    for _ in range(2):
        said = check_one_line(room.lead(AFTERWARDS + 1), StoreMismatch)
        assert "the store was wiped or restored" in said
        assert "(transactional doctor --repair --journal)" in said
    assert room.contents() == right(AFTERWARDS)
    with pytest.raises(ConfigError, match="with --journal FILE"):
        room.repair(AFTERWARDS, None)
    assert len(room.repair(AFTERWARDS, room.journal)) == 1
    assert room.contents() == right(AFTERWARDS)
    assert room.findings(AFTERWARDS) == []
    assert room.lead(AFTERWARDS + 1) is None
    assert room.contents() == right(AFTERWARDS + 1)
    assert room.findings(AFTERWARDS + 1) == []
