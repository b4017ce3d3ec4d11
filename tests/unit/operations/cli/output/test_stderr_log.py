"""`run --log`: what is on stderr, what no longer is on stdout, and how it ends."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tests.unit.command_line import RUN, Command, Done
from transactional.errors import CommitStuck
from transactional.operations.launch import running
from transactional.operations.loading import load_topology, open_store


def told(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.err.splitlines()]


def test_a_run_that_is_logged_displays_nothing(command: Command) -> None:
    done = command(*RUN, "--log", "json", "{m}:topology")
    assert (done.code, done.out) == (0, "")
    assert [each["event"] for each in told(done)] == ["started", "ended"]
    assert told(done)[0]["topology"] == "words"


def test_the_environment_may_ask_for_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSACTIONAL_LOG", "human")
    done = command(*RUN, "{m}:topology")
    assert (done.code, done.out) == (0, "")
    assert [line.split()[1] for line in done.err.splitlines()] == ["info", "info"]


def test_an_error_is_one_line_and_the_exit_code(command: Command) -> None:
    done = command(*RUN, "--log", "json", "--attempts-max", "1", "{m}:failing")
    assert (done.code, done.out) == (1, "")
    assert [each["event"] for each in told(done)] == ["started", "attempt_failed", "ended"]
    assert (told(done)[-1]["code"], told(done)[-1]["level"]) == ("TX408", "error")


def test_an_error_before_there_is_a_run_is_logged_too(command: Command) -> None:
    done = command(*RUN, "--log", "json", "{m}:broken")
    [line] = told(done)
    assert (done.code, line["event"], line["code"], line["level"]) == (1, "failed", "TX100", "error")


def test_an_unexpected_error_is_one_line_with_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(running, "make_executor", broken)
    done = command(*RUN, "--log", "json", "{m}:topology")
    [line] = told(done)
    assert (done.code, line["event"], line["level"]) == (1, "crashed", "critical")
    assert "ZeroDivisionError: a bug" in line["exception"]


def test_what_is_stuck_ends_after_its_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def stuck(*_: object, **__: object) -> None:
        raise CommitStuck("too long")

    monkeypatch.setattr(running, "make_executor", stuck)
    monkeypatch.setattr("os._exit", ended.append)
    done = command(*RUN, "--log", "json", "{m}:topology")
    assert (ended, told(done)[0]["code"]) == ([75], "TX409")


def test_afterwards_nothing_is_logged_there_any_more(command: Command) -> None:
    before = list(logging.getLogger().handlers)
    levels = {name: logging.getLogger(name).level for name in ("transactional", "state", "spouts", "sinks")}
    command(*RUN, "--log", "json", "{m}:topology")
    assert logging.getLogger().handlers == before
    assert levels == {name: logging.getLogger(name).level for name in levels}


def test_a_takeover_is_logged_with_the_process_that_was_lost(command: Command, module: str) -> None:
    topology = load_topology(f"{module}:topology")
    with closing(open_store("sqlite:///transactional.db")) as store:
        store.acquire("words", topology.fingerprint(), owner="lost:7:ab", lease_ms=60_000)
    with closing(sqlite3.connect("transactional.db")) as connection:
        connection.execute("UPDATE transactional_topologies SET leased_until_ms = 0")
        connection.commit()
    done = command(*RUN, "--log", "json", "{m}:topology")
    taken = [each for each in told(done) if each["event"] == "taken_over"]
    assert [(each["before"], each["level"]) for each in taken] == [("lost:7:ab", "warning")]
