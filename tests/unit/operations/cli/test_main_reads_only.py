"""Commands that look at a store leave it as it is: a database of something else, and a store of another version."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.command_line import Command


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
        ("ui", "words", "--out", "page.html"),
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


@pytest.mark.parametrize("version", [2, 6, 8])
@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("txns", "words"),
        ("ui", "--port", "0"),
        ("ui", "words", "--out", "page.html"),
        ("verify", "words"),
        ("doctor", "{m}:build"),
        ("run", "{m}:build", "--master", "none", "--until-drained"),
    ],
    ids=" ".join,
)
def test_the_store_of_another_schema_version_is_refused_in_one_line(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], version: int
) -> None:
    file = tmp_path / "other.db"
    before = made(
        file,
        "CREATE TABLE transactional_schema (version BIGINT NOT NULL, PRIMARY KEY (version));"
        f"INSERT INTO transactional_schema VALUES ({version});",
    )
    done = command(*arguments, "--store", f"sqlite:///{file}")
    assert done.code != 0
    assert (done.out, done.err.count("\n")) == ("", 1), done.err
    assert f"has schema version {version}" in done.err
    assert "reads version 7 only" in done.err
    assert "with a new store" in done.err
    assert arguments[0] == "run" or file.read_bytes() == before
    with closing(sqlite3.connect(file)) as connection:
        assert [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")] == [
            "transactional_schema"
        ]


WORDS = """
from pathlib import Path
from spouts import MemoryTransactionalSpout
from state import SqlMapState
from transactional import TransactionalTopologyBuilder

def build():
    spout = MemoryTransactionalSpout([[("cat",)]], "word string", 1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    words = SqlMapState(f"sqlite:///{Path(__file__).parent}/words.db", "words", "word")
    builder.set_committer_bolt("words", words.count()).fields_grouping("spout", "word")
    return builder.build()
"""


def test_on_a_file_system_that_is_read_only_a_sqlite_state_is_checked_and_a_run_is_refused(
    command: Command, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text(WORDS)
    run = ("run", "{m}:build", "--master", "none", "--set", "stop_when_drained=true")
    assert command(*run).code == 0
    before = sorted(tmp_path.glob("*.db*"))

    can, opened = os.access, set[str]()
    monkeypatch.setattr(os, "access", lambda path, mode, **how: mode != os.W_OK and can(path, mode, **how))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    connect: Any = sqlite3.dbapi2.connect

    def seen(*given: Any, **how: Any) -> Any:
        connection = connect(*given, **how)
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
        opened.update(path.name for path in tmp_path.glob("*.db-*"))
        return connection

    monkeypatch.setattr(sqlite3.dbapi2, "connect", seen)
    for looks in (("verify", "{m}:build"), ("doctor", "{m}:build"), ("status",), ("txns", "words")):
        done = command(*looks)
        assert (done.code, done.err) == (0, ""), looks
    refused = command(*run)
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "the coordinator's store can't be written: this user may not write" in refused.err
    assert (opened, sorted(tmp_path.glob("*.db*"))) == (set(), before)
