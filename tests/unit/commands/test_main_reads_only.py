"""Commands that look at a store leave it as it is: a database of something else, and the store of an older release."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.command_line import Command

OLDER = Path(__file__).parents[2] / "contract" / "store_version_2.sql"


def made(path: Path, statements: str) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    return path.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("txns", "words"),
        ("ui", "--port", "0"),
        ("ui", "--port", "0", "--allow-actions"),
        ("export-html", "words", "--out", "page.html"),
        ("doctor", "{m}:build"),
        ("drain", "words"),
        ("reset", "words", "--yes"),
    ],
    ids=" ".join,
)
def test_a_database_of_something_else_is_told_in_one_line(
    command: Command, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "theirs.db"
    before = made(file, "CREATE TABLE theirs (a INTEGER); INSERT INTO theirs VALUES (1);")
    done = command(*arguments, "--store", f"sqlite:///{file}")
    assert done.code == 1
    assert f"there is no store in sqlite:///{file}" in done.err
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (("status",), "carriers"),
        (("txns", "carriers"), "committed"),
        (("export-html", "carriers", "--out", "page.html"), "has the overview of carriers"),
        (("verify", "carriers"), "carriers"),
    ],
)
def test_the_store_of_an_older_release_is_shown_as_it_is(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], shows: str
) -> None:
    file = tmp_path / "older.db"
    before = made(file, OLDER.read_text("utf-8"))
    done = command(*arguments, "--store", f"sqlite:///{file}")
    assert shows in done.out, done.err
    assert file.read_bytes() == before
