"""Small queries that go to the driver as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    UpdateBase,
    bindparam,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError

from transactional.core.store.databases.database import Database, DatabaseFailed
from transactional.core.store.databases.quick import QuickQuery, change

OF_ONE = QuickQuery(text("SELECT n, name FROM some WHERE n = :wanted").bindparams(bindparam("wanted")))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """With a table of two rows."""
    made = Database(f"sqlite:///{tmp_path / 'some.db'}", timeout_ms=500)
    with made.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE some (n INTEGER, name TEXT)")
        connection.exec_driver_sql("INSERT INTO some VALUES (1, 'one'), (2, NULL)")
    yield made
    made.close()


def test_it_finds_what_sqlalchemy_finds(database: Database) -> None:
    for wanted in (1, 2, 3):
        with database.reading() as connection:
            expected = [tuple(row) for row in connection.execute(OF_ONE.query, {"wanted": wanted})]
        assert database.answer(OF_ONE, {"wanted": wanted}) == expected


def test_within_a_moment_it_sees_that_moment(database: Database) -> None:
    """The database transaction begins before it, not with it."""
    with database.reading(is_snapshot=True) as connection:
        assert OF_ONE.rows(connection, {"wanted": 1}) == [(1, "one")]
        with database.writing() as writing:
            writing.exec_driver_sql("UPDATE some SET name = 'other'")
        assert OF_ONE.rows(connection, {"wanted": 1}) == [(1, "one")]
    assert database.answer(OF_ONE, {"wanted": 1}) == [(1, "other")]


def test_what_the_driver_raises_is_the_databases_failure(database: Database) -> None:
    """As everywhere else: with the driver's words, and without parameters."""
    astray = QuickQuery(text("SELECT n FROM elsewhere WHERE n = :wanted").bindparams(bindparam("wanted")))
    with pytest.raises(DatabaseFailed, match="no such table: elsewhere") as failed:
        database.answer(astray, {"wanted": "a secret"})
    assert isinstance(failed.value.error, OperationalError)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ('FATAL: password authentication failed for user "me"', "Check user, password and database in its URL"),
        ('FATAL: database "wrods" does not exist', "Check user, password and database in its URL"),
        ("connection refused", "Check that it is running and reachable"),
        ("FATAL: the database system is starting up", "Check that it is running and reachable"),
    ],
)
def test_what_can_be_done_depends_on_what_the_database_says(words: str, advice: str) -> None:
    assert DatabaseFailed(OperationalError("SELECT 1", {}, Exception(words))).advice == advice


def test_a_file_that_is_gone_is_not_read_on(database: Database, tmp_path: Path) -> None:
    """What is still open would show the same forever."""
    reader = database.for_reading()
    assert reader.answer(OF_ONE, {"wanted": 1}) == [(1, "one")]
    (tmp_path / "some.db").rename(tmp_path / "away.db")
    with pytest.raises(DatabaseFailed, match="unable to open"):
        reader.answer(OF_ONE, {"wanted": 1})
    reader.close()


SOME = Table("some", MetaData(), Column("n", Integer), Column("name", Text), Column("at", DateTime))
RENAME = update(SOME).where(SOME.c.n >= bindparam("least"), SOME.c.n != 3).values(name=bindparam("new_name"))


def test_it_changes_what_sqlalchemy_changes(database: Database) -> None:
    """Values that stand in the statement are among its parameters, and an insert has those columns that are given."""
    with database.writing() as connection:
        assert change(connection, RENAME, {"least": 1, "new_name": "new"}) == 2
        assert change(connection, RENAME, {"new_name": "none", "least": 4}) == 0
        assert change(connection, insert(SOME), {"n": 3}) == 1
        assert change(connection, RENAME, {"least": 3, "new_name": "none"}) == 0
    with database.reading() as connection:
        assert [tuple(row) for row in connection.execute(select(SOME.c.n, SOME.c.name))] == [
            (1, "new"),
            (2, "new"),
            (3, None),
        ]


def test_a_change_that_fails_is_the_databases_failure(database: Database) -> None:
    """And nothing of its transaction is there."""
    astray = update(Table("elsewhere", MetaData(), Column("n", Integer))).values(n=bindparam("new_n"))

    def fail() -> None:
        with database.writing() as connection:
            change(connection, RENAME, {"least": 1, "new_name": "new"})
            change(connection, astray, {"new_n": 1})

    with pytest.raises(DatabaseFailed, match="no such table: elsewhere") as failed:
        fail()
    assert isinstance(failed.value.error, OperationalError)
    assert database.answer(OF_ONE, {"wanted": 1}) == [(1, "one")]


@pytest.mark.parametrize(
    "statement", [update(SOME).values(at=bindparam("new_at")), update(SOME).where(SOME.c.n.in_([1, 2])).values(n=1)]
)
def test_what_a_driver_does_not_take_is_no_such_statement(database: Database, statement: UpdateBase) -> None:
    with database.writing() as connection, pytest.raises(AssertionError):
        change(connection, statement, {"new_at": None})
