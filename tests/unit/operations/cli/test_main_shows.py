"""`describe` and `deadletters`: what they print, and what they say to what is not there."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.command_line import RUN, Command
from tests.unit.operations.console.stores import Past
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import PartitionId
from transactional.model.facts import Listed, Listing


def test_describe_shows_components_and_phases(command: Command) -> None:
    done = command("describe", "{m}:topology")
    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == """words
└── spout: MemoryTransactionalSpout, 1 task, processing
    emits  word string
    └── count: StateUpdate, 1 task, processing + commit
        reads  fields(word) of spout
        state  opaque
"""
    )
    assert command("describe", "{m}:topology", "--format", "mermaid").out.startswith("flowchart LR\n")
    assert json.loads(command("describe", "{m}:topology", "--format", "json").out)["topology"] == "words"
    assert json.loads(command("describe", "{m}:topology", "--json").out)["topology"] == "words"
    assert command("describe", "{m}:nothing").err.startswith("TX100: module ")
    assert command("describe", "{m}:topology", "--format", "pdf").code == 2


def test_dead_letters_are_listed_and_tried_again(command: Command, module: str) -> None:
    assert command(*RUN, "--attempts-max", "1", "{m}:choosy").code == 0
    done = command("deadletters", "{m}:choosy")
    letter, row, error = done.out.splitlines()
    assert letter == "2:0     bolt, from spout"
    assert row == '  tuple {"word": "dog"}'
    assert error.startswith("  error component 'bolt' raised AssertionError: no [/red] word (")
    [line] = command("deadletters", "{m}:choosy", "2:0", "--json").out.splitlines()
    assert json.loads(line)["tuple"] == '{"word": "dog"}'
    sys.modules[module].LIKED.append("dog")
    done = command("deadletters", "{m}:choosy", "--replay", "--master", "none")
    assert (done.code, done.out) == (0, "1 transactions of dead letters committed, the last is 3\n")
    assert command("deadletters", "{m}:choosy").out.endswith("  tried again in transaction 3\n")
    assert command("deadletters", "{m}:choosy", "9:9", "--replay", "--master", "none").err == (
        "TX100: there is no dead letter 9:9; topology 'words' has 1\n"
    )


def test_letters_are_tried_again_with_the_options_of_the_topology(command: Command, module: str) -> None:
    """From code, from a file and from the command line; none of them makes it close windows, or go on for ever."""
    assert command(*RUN, "--attempts-max", "1", "{m}:choosy").code == 0
    Path("transactional.toml").write_text("[topology]\ncommit_timeout_ms = 99000\n")
    replay = ("deadletters", "{m}:choosy", "--replay", "--master", "none")
    assert command(*replay, "--set", "retry_pause_ms=7", "--attempts-max", "2").code == 0
    with closing(SqlCoordinatorStore("sqlite:///transactional.db")) as store:
        settings = store.runs("words", limit=1)[0].about.settings
    names = ("lease_ms", "commit_timeout_ms", "retry_pause_ms", "attempts_max", "stop_when_drained", "close_windows")
    assert [settings[name] for name in names] == [21_000, 99_000, 7, 2, True, False]
    assert settings["max_spout_pending"] == 1, "letters in flight still wait, and would be planned again"
    assert command(*replay, "--set", "lease=1").err.startswith("TX100: --set: ")
    assert command(*replay, "--set", "max_spout_pending=3").err == (
        "TX100: --set max_spout_pending is not for --replay, which always runs with max_spout_pending=1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ui", "--out", "page.html", "--port", "0"), "--port is for pages that are served, and --out writes one to"),
        (("ui", "--out", "page.html", "--app", "{m}:build"), "--app is for pages that are served, and --out writes"),
        (("deadletters", "{m}:choosy", "--attempts-max", "2"), "--attempts-max is for --replay: without it letters"),
        (("deadletters", "{m}:choosy", "--set", "lease_ms=1"), "--set is for --replay: without it letters are only"),
        (("deadletters", "{m}:choosy", "--replay", "--json"), "--json is for letters that are shown, and --replay"),
        (("doctor", "{m}:build", "--journal", "words.journal"), "--journal is for --repair, which restores a store"),
        (("savepoint", "{m}:build", "--txid", "1"), "--txid is for one savepoint: name it; without a name all are"),
        (("savepoint", "{m}:build", "noon", "--drop", "--txid", "1"), "--txid is for a new savepoint, and --drop"),
        (("describe", "{m}:build", "--format", "text", "--json"), "--format and --json both say how to show it"),
        ((*RUN, "{m}:build", "--spark-log", "spark.log"), "--spark-log is for Spark's own output, and there is none"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_an_option_that_a_command_would_ignore_is_refused(
    command: Command, arguments: tuple[str, ...], message: str
) -> None:
    done = command(*arguments)
    assert (done.code, done.err.startswith(f"TX100: {message}"), done.err.count("\n")) == (1, True, 1), done


def test_what_is_no_letter_is_reported(command: Command) -> None:
    told = "TX100: 'seven' is not a dead letter; the form is TXID:NUMBER, such as 7:0\n"
    assert command("deadletters", "{m}:choosy", "seven").err == told
    none = "TX100: topology 'words' keeps no dead letters: declare them with set_dead_letters(…)\n"
    assert command("deadletters", "{m}:topology").err == none


def test_status_names_the_partitions_without_a_record_that_windows_wait_for(command: Command) -> None:
    with closing(SqlCoordinatorStore("sqlite:///transactional.db")) as store:
        listed = {PartitionId("orders", number): Listed(0, Listing.EMPTY, number != 8) for number in (7, 8)}
        Past(store=store, listed=listed).begin().committed()
    assert command("status").out.splitlines()[-1] == "words: windows wait for orders[7] (empty), no record yet"
    assert json.loads(command("status", "--json").out)["windows_wait_for"] == {"orders[7]": "empty"}


def test_status_names_the_tables_that_are_not_maintained(command: Command) -> None:
    with closing(SqlCoordinatorStore("sqlite:///transactional.db")) as store:
        past = Past(store=store).begin().committed()
        past.commit(past.issue(), {"upkeep": {"count": "writing a checkpoint has failed 3 times in a row: no space"}})
    assert command("status").out.splitlines()[-1] == (
        "words: the table of count is not maintained, and others may not be able to open it: writing a checkpoint has "
        "failed 3 times in a row: no space"
    )


TICKS = """
from datetime import UTC, datetime

from spouts import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional.trident import Count, TridentTopology, tumbling

OPEN, CLOSED = MemoryTable("open"), MemoryTable("closed")
ROWS = [("a", datetime(2026, 1, 1, 0, minute, tzinfo=UTC)) for minute in (0, 10)]


def build():
    made = TridentTopology("tick")
    stream = made.new_stream("s", MemoryTransactionalSpout([ROWS, ROWS], "k string, at timestamp", 5), event_time="at")
    counts = stream.window(tumbling("1 minute")).persistent_aggregate(MemoryMapState(table=OPEN), Count(), name="open")
    counts.closed().persist(MemoryMapState("window_start", table=CLOSED), name="closed")
    return made.build(strict=True)
"""


def test_windows_are_shown_as_open_until_they_are_closed_on_request(command: Command) -> None:
    Path("ticks.py").write_text(TICKS, encoding="utf-8")
    run = ("run", "ticks:build", "--master", "none", "--close-windows")
    assert command(*run[:-1], "--until-drained").code == 0
    assert command("status").out.splitlines()[-1] == (
        "tick: windows of open are open, the last until 2026-01-01 00:11:00: they wait for later events, "
        "the watermark is 2026-01-01 00:10:00; s/memory[0] is furthest behind"
    )
    open_windows = json.loads(command("status", "--json").out)["open_windows"]["open"]
    assert open_windows["last_end_ms"] - open_windows["watermark_ms"] == 60_000
    assert command(*run).err.startswith("TX100: close_windows closes windows once the source is drained")
    assert command(*run, "--until-drained").code == 0
    assert json.loads(command("status", "--json").out)["open_windows"] == {}
