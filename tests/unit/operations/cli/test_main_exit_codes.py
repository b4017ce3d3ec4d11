"""What a supervisor sees: 0 done, 1 a person has to look, 2 wrong usage, 75 try again."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.command_line import RUN, Command
from transactional.errors import TransactionalError
from transactional.model import errors
from transactional.operations.loading import open_store

ERRORS = Path(__file__).parents[4] / "docs" / "errors.md"
STORE = "sqlite:///transactional.db"
KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TransactionalError)]


def documented() -> dict[int, str]:
    """The table of exit codes: which errors end with each, as written."""
    rows = re.findall(r"^\| (\d+) \| [^|]* \| ([^|]*) \|", ERRORS.read_text("utf-8"), flags=re.MULTILINE)
    return {int(code): named for code, named in rows}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_the_documented_table_has_each_error_once(kind: type[TransactionalError]) -> None:
    found = [
        code
        for code, named in documented().items()
        if kind.code in named or any(kind.code.startswith(few) for few in re.findall(r"(TX\d)\.\.", named))
    ]
    assert found == ([kind.exit_code] if kind not in (TransactionalError, errors.FatalError) else [])


def test_who_can_not_lead_yet_tries_again(command: Command) -> None:
    assert command(*RUN, "{m}:topology").code == 0
    with closing(open_store(STORE)) as store:
        [status] = store.status()
        store.acquire("words", status.fingerprint, owner="another:7:ab", lease_ms=60_000)
    done = command(*RUN, "{m}:topology")
    assert (done.code, done.err[:7]) == (75, "TX402: ")


def test_who_was_replaced_tries_again(command: Command) -> None:
    done = command(*RUN, "{m}:robbed")
    assert (done.code, done.err[:7]) == (75, "TX401: ")


def test_a_store_that_is_not_there_is_tried_again(command: Command) -> None:
    done = command(*RUN, "--store", "postgresql://127.0.0.1:1/none?connect_timeout=1", "{m}:topology")
    assert (done.code, done.err[:7]) == (75, "TX306: ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("{m}:broken",), "TX100: "),
        (("{m}:changed",), "TX403: "),
        (("--attempts-max", "1", "{m}:failing", "--store", "sqlite:///failing.db"), "TX408: "),
    ],
)
def test_what_would_end_the_same_way_wants_a_person(command: Command, arguments: tuple[str, ...], code: str) -> None:
    assert command(*RUN, "{m}:build").code == 0
    done = command(*RUN, *arguments)
    assert (done.code, done.err[:7]) == (1, code)


def test_a_store_of_a_newer_version_wants_a_person(command: Command) -> None:
    assert command(*RUN, "{m}:topology").code == 0
    with closing(sqlite3.connect("transactional.db")) as connection:
        connection.execute("UPDATE transactional_schema SET version = version + 1")
        connection.commit()
    done = command("status")
    assert (done.code, done.err[:7]) == (1, "TX405: ")
