"""Runs commands of the command line in this process, in a folder with a module that holds topologies."""

from __future__ import annotations

import functools
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

from transactional.operations.cli import main as cli
from transactional.operations.cli import running

made_once = functools.cache(typer.main.get_command)
"""All commands with their options, which typer makes anew for each call: most of the time of many a command."""

MODULE = '''
"""A topology to be run from the command line."""

import sqlite3
import sys
import threading

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.operations.loading import open_store
from transactional.core.ports import StateKind
from transactional.topology.builder import TransactionalTopologyBuilder

ROWS = [[("cat",), ("dog",)], [("cat",)]]
LETTERS, COUNTS = MemoryTable("letters"), MemoryTable("counts")

def builder(spout=None, key="word"):
    made = TransactionalTopologyBuilder("words", "spout", spout or MemoryTransactionalSpout(ROWS, "word string", 1))
    made.set_committer_bolt("count", MemoryMapState(key).count()).fields_grouping("spout", "word")
    return made

def build():
    return builder().build()

def configured():
    return builder().build(config={"keep_attempts_days": 7})

def changed():
    made = builder()
    made._bolts["count"].bolt.state.stored.name = "another"
    return made.build()

def weaker():
    made = TransactionalTopologyBuilder("words", "spout", OpaqueMemoryTransactionalSpout(ROWS, "word string", 1))
    update = MemoryMapState("word", kind=StateKind.TRANSACTIONAL).count()
    made.set_committer_bolt("count", update).shuffle_grouping("spout")
    return made.build()

def refuse(row):
    raise ValueError("no [/red] :cat: [0, 1)")

LIKED = ["cat"]

def choose(row):
    assert row["word"] in LIKED, "no [/red] word"
    return tuple(row)

def choosy():
    made = TransactionalTopologyBuilder("words", "spout", MemoryTransactionalSpout(ROWS, "word string", 1))
    made.set_committer_bolt("count", MemoryMapState("word", table=COUNTS).count()).fields_grouping("bolt", "word")
    made.set_bolt("bolt", choose, output="word string").shuffle_grouping("spout")
    made.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES, table=LETTERS))
    return made.build(config={"lease_ms": 21_000, "close_windows": True, "stop_when_drained": True})

def hang(row):
    sys.stdout.write("hangs\\n")
    sys.stdout.flush()
    threading.Event().wait()

def with_bolt(bolt):
    made = builder()
    made.set_bolt("bolt", bolt, output="word string").shuffle_grouping("spout")
    return made.build()

def failing():
    return with_bolt(refuse)

def rob(row):
    store = open_store("sqlite:///transactional.db")
    [status] = store.status()
    with sqlite3.connect("transactional.db") as connection:
        connection.execute("UPDATE transactional_topologies SET leased_until_ms = 0")
    store.acquire("words", status.fingerprint, owner="robber:7:ab", lease_ms=60_000)
    store.close()
    return tuple(row)

def robbed():
    return with_bolt(rob)

def hanging():
    return with_bolt(hang)

def wants(directory):
    return build()

def broken():
    return builder(key="wrod").build()

topology = build()
not_built = builder()
number = 3
'''


@dataclass(frozen=True)
class Done:
    """How a command has ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the current folder."""
    name = re.sub(r"\W", "_", tmp_path.name)
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def command(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Runs a command in this process; `{m}` stands for the module."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() sets it
    monkeypatch.setattr(typer.main, "get_command", made_once)
    monkeypatch.setattr(running, "keep_what_is_loaded", lambda: None)  # this process does other things, too
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["transactional", *(each.format(m=module) for each in arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return Done(code if isinstance(code, int) else -1, *capsys.readouterr())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


RUN = ("run", "--master", "none", "--until-drained")
