"""`transactional verify --windows`: windows that are computed of the source again, and rows that are wrong."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from state import DeltaMapState
from tests.unit.command_line import RUN, Command
from transactional.runtime.engine.clock import SystemClock
from verifier.evidence import findings
from verifier.horizons import ExpiryRule

TOPOLOGY = '''
"""Counts by page and window."""

from datetime import UTC, datetime, timedelta

from spouts.memory import MemoryTransactionalSpout
from state import DeltaMapState
from transactional.model.aggregates import Aggregate, Min
from transactional.trident import Avg, Collect, Combiner, Count, First, Last, Max, Sum, field
from transactional.trident import TridentTopology, count, session, sliding, tumbling

NOON = datetime(2020, 5, 1, 12, tzinfo=UTC)
SECONDS = (1, 4, 12, 3, 13, 26, 11, 31, 30, 55, 56)
ROWS = [("ab"[n % 2], NOON + timedelta(seconds=s), n) for n, s in enumerate(SECONDS)]


class Own:
    class Sum(Combiner):
        """Called as one of ours, and none of them."""

        output, field = "odd long", "n"

        def init(self, row):
            return row.n % 2

        def combine(self, one, other):
            return one + other


class Range(Aggregate):
    """Two columns of which a third is made."""

    def columns(self, name):
        return {"least": Min("n"), "most": Max("n")}

    def finish(self):
        return field("most") - field("least")


def build():
    topology = TridentTopology("clicks")
    spout = MemoryTransactionalSpout([ROWS], "page string, at timestamp, n long", take=3)
    clicks = topology.new_stream("clicks", spout, event_time="at", max_delay="1 second").filter(lambda row: row.n != 4)
    for name, window in {
        "tumbling": tumbling("10 seconds"),
        "sliding": sliding("10 seconds", every="4 seconds"),
        "session": session("9 seconds", longest="1 hour"),
    }.items():
        windows = clicks.group_by("page").window(window)
        state = windows.persistent_aggregate(DeltaMapState(name), count=Count(), n=Sum("n"), top=Max("n"))
        state.closed().persist(DeltaMapState(f"{name}-closed", ("page", "window_start")))
        if name == "tumbling":
            tens = state.closed().rename(ten="window_start").project("page", "ten", "n").group_by("page")
            tens = tens.window(tumbling("20 seconds"), on="ten")
            twenties = tens.persistent_aggregate(DeltaMapState("twenty"), Count())
            twenties.closed().persist(DeltaMapState("twenty-closed", ("page", "window_start")))
    windows = clicks.group_by("page").window(tumbling("10 seconds"))
    others = {"first": First("n"), "last": Last("n"), "mean": Avg("n"), "range": Range(), "odd": Own.Sum()}
    state = windows.persistent_aggregate(DeltaMapState("others"), Collect(), **others)
    state.closed().persist(DeltaMapState("others-closed", ("page", "window_start")))
    by_page = state.closed().filter(lambda row: row.mean > 1).group_by("page")
    by_page.persistent_aggregate(DeltaMapState("by-page"), n=Count(), mean=Sum("mean"))
    clicks.window(count(3)).persistent_aggregate(DeltaMapState("three", ()), Count())
    seen = DeltaMapState("seen", expires="at", after="AGE seconds")
    totals = clicks.group_by("page").persistent_aggregate(seen, n=Count(), at=Max("at")).new_values()
    windows = totals.group_by("page").window(tumbling("1 millisecond", time="transaction"))
    state = windows.persistent_aggregate(DeltaMapState("totals"), top=Max("n"))
    state.closed().persist(DeltaMapState("totals-closed", ("page", "window_start")))
    windows = totals.group_by("page").window(tumbling("1 hour", time="transaction"))
    windows.persistent_aggregate(DeltaMapState("totals-open"), top=Max("n"))
    return topology.build(strict=True)
'''
VERIFY = ("verify", "clicks:build", "--windows")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what the first test has run is kept for the others."""
    return tmp_path_factory.mktemp("kept") / "clicks"


@pytest.fixture
def clicks(command: Command, kept: Path) -> Command:
    """A topology that has run, as module `clicks`."""
    sys.modules.pop("clicks", None)
    if kept.exists():
        shutil.copytree(kept, Path.cwd(), dirs_exist_ok=True)
        return command
    # What was seen before second 30 has expired when it comes.
    age = SystemClock().wall_ms() // 1_000 - int(datetime(2020, 5, 1, 12, 0, 30, tzinfo=UTC).timestamp())
    Path("clicks.py").write_text(TOPOLOGY.replace("AGE", str(age)))
    assert command(*RUN, "clicks:build").code == 0
    shutil.copytree(Path.cwd(), kept)
    return command


def test_windows_are_what_is_computed_again(clicks: Command) -> None:
    result = clicks(*VERIFY)
    assert result.code == 0, result.out
    assert "nothing is wrong" in result.out
    number = int(result.out.rpartition(" windows")[0].rpartition(" ")[2])
    rows = [DeltaTable(path).to_pyarrow_table().num_rows for path in ("tumbling-closed", "sliding-closed")]
    assert number >= sum(rows) > 8
    twenties = DeltaTable("twenty-closed").to_pyarrow_table()
    assert sum(twenties["count"].to_pylist()) > twenties.num_rows


def test_every_table_that_was_read_is_closed(clicks: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read, close = DeltaMapState.read, DeltaMapState.close
    open_tables, tables = set[str](), set[str]()

    def note_read(state: DeltaMapState, *given: Any) -> Any:
        open_tables.add(state.declared.table)
        tables.add(state.declared.table)
        return read(state, *given)

    def note_closed(state: DeltaMapState) -> None:
        open_tables.discard(state.declared.table)
        close(state)

    monkeypatch.setattr(DeltaMapState, "read", note_read)
    monkeypatch.setattr(DeltaMapState, "close", note_closed)
    assert clicks(*VERIFY).code == 0
    assert open_tables == set()
    assert len(tables) > 8


WINDOWS = ("tumbling", "sliding", "session", "tumbling-closed", "sliding-closed")
WRONG = [
    *((table, "n", "n + 1", None, "window") for table in WINDOWS),
    ("session-closed", "n", "n + 1", "page = 'b'", "window"),
    ("twenty-closed", "count", "count + 1", None, "window"),
    ("others", "first", "first + 1", "first = 10", "window"),
    ("others", "sum_n", "sum_n + 1", "first = 11", "window"),
    ("others", "last", "last + 1", "first = 9", "window"),
    ("others", "count_n", "count_n + 1", "first = 9", "window"),
    ("others", "least", "least - 1", "first = 9", "window"),
    ("others", "odd", "odd + 1", "first = 9", "row"),
    ("others", "collect", "'[]'", "first = 9", "row"),
    ("others-closed", "collect", "'[]'", "first = 0", "row"),
    ("totals-open", "top", "top + 1", None, "window"),
    ("totals-closed", "top", "top + 1", None, "window"),
    ("seen", "n", "n + 1", None, "row"),
    ("by-page", "mean", "mean + 1", None, "row"),
    ("three", "count", "count + 1", None, "row"),
]
"""Tables, what is wrong in them and where, and what is reported: a window, or a row of what only the code makes."""


def test_whatever_is_wrong_is_found(clicks: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "SHOWN_PER_KIND", 99)
    for table, column, wrong, where, _ in WRONG:
        changed = DeltaTable(table).update({column: wrong}, predicate=where)
        assert changed["num_updated_rows"], (table, column)
    DeltaTable("session-closed").delete("page = 'a'")
    result = clicks(*VERIFY, "--json")
    assert result.code == 1
    found = [each for each in json.loads(result.out)["findings"] if each["kind"] == "wrong-window"]
    for table, column, *_, what in WRONG:
        assert any(
            each["where"].startswith(f"table of '{table}', {what} ")
            and value_of(column, each["found"]) != value_of(column, each["expected"])
            for each in found
        ), f"{column} of {table}"
    assert "no row" in [each["found"] for each in found]


def value_of(column: str, told: str) -> str:
    return f", {told}".partition(f", {column}=")[2].partition(", ")[0]


def test_the_code_is_needed(clicks: Command) -> None:
    assert "pass it as MODULE:TOPOLOGY" in clicks("verify", "clicks", "--windows").err


def test_a_row_that_has_expired_and_is_there_is_found(clicks: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row["at"].second for row in DeltaMapState("seen", "page").read().to_pylist()] == [55, 56]
    monkeypatch.setattr(ExpiryRule, "horizon", lambda expires, batch: None)
    assert "wrong-window: table of 'seen', row " in clicks(*VERIFY).out
