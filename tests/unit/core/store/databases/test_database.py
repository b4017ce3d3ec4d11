"""SQLite files that are deleted, moved or replaced while they are open: who writes is refused, who reads opens anew."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text

from state.sql.state import SqlMapState
from tests.unit.drivers import DRAINED, World
from tests.unit.fakes import builder, opaque_words
from transactional.core.store.databases.database import Database
from transactional.core.store.databases.quick import QuickQuery
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import FileReplaced
from transactional.model.user_code.tuples import Tuple

COUNT = QuickQuery(select(text("count(*) FROM numbers")))


def delete(file: Path) -> None:
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()


def move(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))


def replace(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, closing(sqlite3.connect(file.with_suffix(".old"))) as copy:
        connection.backup(copy)
    delete(file)
    shutil.move(file.with_suffix(".old"), file)


ALL = pytest.mark.parametrize("change", [delete, move, replace])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "numbers.db"


@pytest.fixture
def database(file: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{file}", timeout_ms=1_000)
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE numbers (number)")
    yield database
    database.close()


def insert(connection: Connection) -> None:
    connection.exec_driver_sql("INSERT INTO numbers VALUES (1)")


def write(database: Database) -> None:
    with database.writing() as connection:
        insert(connection)


def read(database: Database) -> None:
    with database.reading():
        pass


def answer(database: Database) -> None:
    database.answer(COUNT, {})


@ALL
@pytest.mark.parametrize("use", [write, read, answer])
def test_a_file_that_is_not_the_one_that_is_open_is_used_no_longer(
    database: Database, file: Path, change: Callable[[Path], None], use: Callable[[Database], None]
) -> None:
    change(file)
    for _ in range(2):
        with pytest.raises(FileReplaced, match=r"numbers\.db, was deleted, moved or replaced while it was open"):
            use(database)


@ALL
def test_what_is_written_while_the_file_is_replaced_is_not_taken_for_written(
    database: Database, file: Path, change: Callable[[Path], None]
) -> None:
    def write_and_change() -> None:
        with database.writing() as connection:
            insert(connection)
            change(file)

    with pytest.raises(FileReplaced):
        write_and_change()


def test_a_second_connection_does_not_write_to_the_new_file(database: Database, file: Path) -> None:
    """The first is in use, so another one is opened by the path."""
    with database.reading():
        replace(file)
        with pytest.raises(FileReplaced):
            database._engine.connect()


def test_a_shorter_timeout_does_not_open_another_file(database: Database, file: Path) -> None:
    replace(file)
    database.limit_timeout(500)
    with pytest.raises(FileReplaced):
        write(database)


def test_who_has_closed_the_old_file_may_open_the_new_one(database: Database, file: Path) -> None:
    write(database)
    replace(file)
    database.close()
    assert database.answer(COUNT, {}) == [(1,)]


@pytest.mark.parametrize("name", ["store.db", "states.db"])
@pytest.mark.parametrize("change", [delete, replace])
def test_a_run_whose_file_is_replaced_ends_and_commits_nothing_more(
    tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    world, seen = World(), list[Tuple]()
    world.store = SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")

    def pass_on(row: Tuple) -> Tuple:
        seen.append(row)
        if len(seen) == 4:
            change(tmp_path / name)
        return row

    made = builder(opaque_words([[(word,) for word in "abcdefgh"]], take=1))
    made.set_bolt("pass", pass_on, output="word string").shuffle_grouping("spout")
    counts = SqlMapState(f"sqlite:///{tmp_path}/states.db", "counts", key="word")
    made.set_committer_bolt("counts", counts.count()).fields_grouping("pass", "word")
    with pytest.raises(FileReplaced, match=name):
        world.run(made.build(), DRAINED)
    assert len(seen) < 8
