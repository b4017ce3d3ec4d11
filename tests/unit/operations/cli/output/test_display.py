"""What is shown while a topology runs: lines when stdout is no terminal, a live table when it is, and the tables."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.unit.drivers import World
from tests.unit.fakes import words
from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    DrainRequested,
    Event,
    Halt,
    PauseRequested,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    ResumeRequested,
    StartCommit,
    StopRequested,
    Tick,
)
from transactional.core.machine.report import CommitReport
from transactional.core.store import AttemptRecord, DesiredState, TopologyStatus
from transactional.core.store.history import EndedHow, RunAbout, RunEnd, RunRecord, Trouble
from transactional.core.store.progress import Phase
from transactional.model.attempt import AttemptId, Epoch, TransactionAttempt, TxId
from transactional.model.batch import (
    EMPTY_BATCH,
    BatchLimit,
    BatchMetadata,
    Digest,
    Offset,
    OffsetRange,
    PartitionId,
    PendingMessage,
)
from transactional.model.config_sources import Setting, SourcedValue
from transactional.operations.cli.output.display import (
    RECENT,
    Display,
    TimeInFlight,
    attempts_table,
    narrow_attempts_table,
    rows_per_second,
    settings_table,
)
from transactional.operations.cli.output.lines import first_line, make_plain_console, print_table
from transactional.operations.cli.output.statuses import describe_troubles, print_statuses, statuses_table
from transactional.runtime.engine.clock import SystemClock
from transactional.testing import ManualClock

WORDS = PartitionId("memory", 0)
BATCH = BatchMetadata({WORDS: OffsetRange(Offset(0), Offset(9))})
READ = BATCH.with_digests({WORDS: Digest(8, 1)})


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


class Screen:
    """A display on a terminal that is kept as text."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        console = Console(file=self.file, force_terminal=True, width=100, color_system=None)
        self.display = Display(World().topology(words([[]])), console)
        self.at_ms = 1_000

    def tell(self, event: Any, *actions: Action, after_ms: int = 0) -> list[list[str]]:
        """Tell the display, and return the rows of its table."""
        self.at_ms += after_ms
        self.display(self.at_ms, event, actions)
        table = self.display._flights_table(self.at_ms)
        return [list(cells) for cells in zip(*(column.cells for column in table.columns), strict=True)]


def test_the_live_table_follows_a_transaction_through_its_phases() -> None:
    screen = Screen()
    first = attempt(1, 2)
    with screen.display:
        assert screen.tell(Tick(0), PlanBatch(first, BATCH, replay=False)) == [["1", "2", "planning", "0", "0 ms"]]
        assert screen.tell(BatchPlanned(first, BATCH), RecordAttempt(first, BATCH, forget_later=False), after_ms=5) == [
            ["1", "2", "processing", "9", "0 ms"]
        ]
        assert screen.tell(Tick(1), after_ms=7) == [["1", "2", "processing", "9", "7 ms"]]
        assert screen.tell(ProcessingSucceeded(first), StartCommit(first, READ)) == [
            ["1", "2", "committing", "9", "0 ms"]
        ]
        assert screen.tell(CommitSucceeded(first), RecordCommit(first, READ), after_ms=8) == []
    assert "transaction 1:2 committed: 8 rows in 20 ms; 400 rows/s" in screen.file.getvalue()


def test_the_limit_of_a_sized_batch_is_reported_with_its_reason() -> None:
    screen, first = Screen(), attempt(1, 2)
    with screen.display:
        screen.tell(Tick(0), PlanBatch(first, BATCH, replay=False))
        screen.tell(BatchPlanned(attempt(1, 1), BATCH, BatchLimit(7, None, "late")))
        limited = BatchPlanned(first, BATCH, BatchLimit(8_000, 70, "55 ms + 55 µs a record"))
        screen.tell(limited, RecordAttempt(first, BATCH, forget_later=False))
        screen.tell(CommitSucceeded(first), RecordCommit(first, READ), after_ms=20)
    shown = " ".join(screen.file.getvalue().split())
    assert "committed: 8 rows in 20 ms, limit 8000 (55 ms + 55 µs a record); 400 rows/s" in shown


def test_a_failed_transaction_leaves_the_table_and_comes_back() -> None:
    screen = Screen()
    first, second, again = attempt(1, 2), attempt(2, 3), attempt(1, 4)
    with screen.display:
        screen.tell(Tick(0), RecordAttempt(first, BATCH, forget_later=False), PlanBatch(second, BATCH, replay=False))
        failure = RecordFailure(first, Phase.PROCESSING, "no [/red] luck :cat:\nTraceback", 100)
        rows = screen.tell(AttemptFailed(first, failure.reason), failure, AbortAttempt(second, "transaction 1 failed"))
        assert rows == [["2", "3", "aborting", "0", "0 ms"]]
        assert screen.tell(AttemptFailed(second, "…")) == []
        rows = screen.tell(Tick(1), RecordAttempt(again, BATCH, forget_later=False))
        assert rows == [["1", "4", "processing", "9", "0 ms"]]
        assert screen.tell(AttemptFailed(first, "late")) == rows
    shown = screen.file.getvalue()
    assert "transaction 1:2 failed in processing, retrying in 100 ms: no [/red] luck :cat:\n" in shown
    assert "Traceback" not in shown


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(World().topology(words([[]])))
    with display:
        display(1_000, Tick(0), [RecordAttempt(attempt(1, 2), BATCH, forget_later=False)])
        display(1_250, CommitSucceeded(attempt(1, 2)), [RecordCommit(attempt(1, 2), READ)])
        display(1_300, Tick(1), [RecordFailure(attempt(2, 3), Phase.COMMITTING, "no [/red] luck", 100)])
    committed, failed = capsys.readouterr().out.splitlines()
    assert committed.startswith("transaction 1:2 committed: 8 rows in 250 ms; 32 rows/s")
    assert failed == "transaction 2:3 failed in committing, retrying in 100 ms: no [/red] luck"


def test_what_is_set_aside_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(World().topology(words([[]])))
    report = CommitReport(letters={"parse": 2, "sum": 1})
    display(1_000, Tick(0), [RecordCommit(attempt(1, 2), READ, report)])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "transaction 1:2: 3 tuples set aside, of 'parse', 'sum'; `transactional deadletters` shows them"
    ]


def test_a_transaction_in_which_only_time_passes_is_no_line_unless_it_is_a_replay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = Display(World().topology(words([[]])))
    display(1_000, Tick(0), [RecordCommit(attempt(1, 2), EMPTY_BATCH)])
    assert capsys.readouterr().out == ""
    display(1_100, Tick(0), [RecordFailure(attempt(2, 3), Phase.COMMITTING, "no luck", 100)])
    display(1_200, Tick(0), [RecordCommit(attempt(2, 4), EMPTY_BATCH)])
    assert "transaction 2:4 committed: 0 rows" in capsys.readouterr().out


def test_a_failure_that_is_the_last_one_promises_no_other_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    failure = RecordFailure(attempt(1, 2), Phase.PROCESSING, "no luck", 100)
    display = Display(World().topology(words([[]])))
    display(1_000, AttemptFailed(attempt(1, 2), "no luck"), [failure, Halt("TX408", "failed 1 times")])
    assert capsys.readouterr().out == "transaction 1:2 failed in processing: no luck\n"
    display = Display(World().topology(words([[]])))
    display(1_000, StopRequested(), [AbortAttempt(attempt(1, 2), "the topology is being stopped")])
    display(1_100, AttemptFailed(attempt(1, 2), "given up"), [failure])
    assert capsys.readouterr().out.splitlines()[1] == "transaction 1:2 failed in processing: no luck"


def test_rows_per_second_are_those_of_the_last_transactions(capsys: pytest.CaptureFixture[str]) -> None:
    """A slow start, and the time in which there was nothing to do, say nothing of the pace now."""
    display = Display(World().topology(words([[]])))
    at_ms = 1_000
    for number, took_ms in enumerate([60_000, *[10] * RECENT], start=1):
        display(at_ms, Tick(0), [RecordAttempt(attempt(number, number), BATCH, forget_later=False)])
        at_ms += took_ms
        display(at_ms, CommitSucceeded(attempt(number, number)), [RecordCommit(attempt(number, number), READ)])
        at_ms += 5_000
    lines = capsys.readouterr().out.splitlines()
    assert ("; 0 rows/s" in lines[0], "; 800 rows/s" in lines[-1]) == (True, True)


def test_the_time_of_transactions_in_flight_at_once_counts_once() -> None:
    assert (
        rows_per_second(
            [
                TimeInFlight(0, 100, 10),
                TimeInFlight(50, 150, 10),
                TimeInFlight(60, 90, 10),
                TimeInFlight(1_000, 1_050, 10),
            ]
        )
        == 200
    )
    assert rows_per_second([]) == 0


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (PauseRequested(), "no new transactions are issued until the topology is activated"),
        (ResumeRequested(), "new transactions are issued again"),
        (DrainRequested(), "no new transactions are issued; the run ends once everything in flight is committed"),
        (StopRequested(), "stopping: the running commit phase will finish"),
    ],
)
def test_what_is_wished_of_a_run_is_reported(event: Event, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    Display(World().topology(words([[]])))(1_000, event, [])
    assert capsys.readouterr().out == f"{told}\n"
    screen = Screen()
    with screen.display:
        screen.tell(event)
    assert told in screen.file.getvalue()


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_run_may_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    topology = world.topology()
    with Display(topology) as display:
        world.run(topology, observers=[display], clock=ManualClock(wall_ms=1_000))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(", ")[2] for line in lines] == ["lag 10", "lag 3", "lag 0"]
    assert [line.split(" rows")[0] for line in lines] == [
        "transaction 1:2 committed: 9",
        "transaction 2:3 committed: 7",
        "transaction 3:4 committed: 3",
    ]


# --- tables -------------------------------------------------------------------------------------------------------


def printed(table: Any, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines if line[0] in "┃│"]


def test_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    running = TopologyStatus("flights", Epoch(3), "host:1:ab", 5_000, True, TxId(7), AttemptId(9), {})
    words = Epoch(1), None, None, False, TxId(0), AttemptId(1)
    stopped = TopologyStatus("words", *words, {}, "deploy-7", DesiredState.INACTIVE)
    trouble = Trouble(1_700_000_000_000, TxId(8), "planning: TX301 no broker answers\nTraceback")
    failing = replace(running, topology_id="orders", trouble=trouble, committed_at_ms=1_700_000_000_999, lag=12)
    run = RunRecord(Epoch(1), "host:2", None, RunAbout(), 1, TxId(0), 1_700_000_060_000, TxId(0))
    ended = replace(run, end=RunEnd(EndedHow.FAILED, "TX406", "the topic is gone\nmore"))
    statuses = [running, failing, stopped, replace(stopped, topology_id="gone", run=ended)]
    day = "2023-11-14 22:13:20"
    now_ms = 1_700_000_000_999 + 3 * 60_000
    assert printed(statuses_table(statuses, now_ms), capsys) == [
        ["topology", "name", "state", "committed", "ago", "lag", "desired", "owner", "epoch"],
        ["flights", "flights", "running", "7", "-", "-", "active", "host:1:ab", "3"],
        ["orders", "orders", "failing", "7", "3 min", "12", "active", "host:1:ab", "3"],
        ["words", "deploy-7", "not running", "0", "-", "-", "inactive", "-", "1"],
        ["gone", "deploy-7", "failed", "0", "-", "-", "inactive", "-", "1"],
    ]
    assert describe_troubles(statuses) == [
        f"orders has been failing since {day} at transaction 8: planning: TX301 no broker answers",
        "gone: its last run ended 2023-11-14 22:14:20 with TX406: the topic is gone",
    ]


def on_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))


def seen(capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed, without what makes it bold."""
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("topology_id", ["flights", "flights-" * 12])
def test_statuses_are_cut_at_no_width(
    topology_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = "runner-7d9f4c6b58-x2x7q:1234567:0a1b2c3d"
    first = TopologyStatus(topology_id, Epoch(12), owner, 5_000, True, TxId(12_345_678), AttemptId(9), {}, topology_id)
    since = replace(first, committed_at_ms=1_000, lag=123_456_789)
    stopped = TopologyStatus("words", Epoch(1), None, None, False, TxId(0), AttemptId(1), {}, "deploy-7")
    on_a_terminal(80, monkeypatch)
    print_statuses([since, stopped], 3_541_000)
    lines = seen(capsys).splitlines()
    assert max(map(len, lines[:-2])) <= 80
    assert lines[0].split() == ["topology", "state", "committed", "ago", "lag", "desired", "epoch"]
    assert lines[1].split()[1:] == ["running", "12345678", "59", "min", "123456789", "active", "12"]
    assert lines[-3].split() == ["words", "not", "running", "0", "-", "-", "active", "1"]
    assert "".join(line.split()[0] for line in lines[1:-3]) == topology_id
    assert lines[-2:] == [f"{topology_id}: owner {owner}", "words: name deploy-7"]


@pytest.mark.parametrize(("columns", "heads"), [(89, 7), (90, 9)])
def test_statuses_have_all_columns_where_these_have_room(
    columns: int, heads: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = [TopologyStatus("words", Epoch(1), None, None, False, TxId(0), AttemptId(1), {}, "deploy-7")]
    on_a_terminal(columns, monkeypatch)
    print_statuses(statuses)
    lines = seen(capsys).splitlines()
    assert len(re.findall(r"\w+", next(line for line in lines if "topology" in line))) == heads
    assert max(map(len, lines)) <= columns


def test_settings_are_plain_columns_when_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    given = SourcedValue(3, "--max-pending")
    settings = [Setting("max_spout_pending", given, (SourcedValue(2, "a.toml"), SourcedValue(1, "default")))]
    print_table(settings_table([*settings, Setting("attempts_max", SourcedValue(None, "default"))]))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["option", "value", "unit", "source", "instead", "of"],
        ["max_spout_pending", "3", "--max-pending", "2", "(a.toml),", "1", "(default)"],
        ["attempts_max", "none", "default"],
    ]


def record(phase: str, *times: int | None, error: str | None = None, rows: int | None = None) -> AttemptRecord:
    issued, planned, processed, started, committed = times
    assert issued is not None
    assert planned is not None
    return AttemptRecord(attempt(3, 4), phase, BATCH, rows, issued, planned, processed, started, committed, error)


def test_attempts(capsys: pytest.CaptureFixture[str]) -> None:
    long = "processing: TX302 [/red] :cat: " + "x" * 300
    rows: Sequence[AttemptRecord] = [
        record("committed", 1_000, 1_005, 1_105, 1_106, 1_130, rows=8),
        record("failed", 60_000, 60_001, None, None, None, error=f"{long}\nTraceback"),
    ]
    header, committed, failed = printed(attempts_table(rows), capsys)
    assert header[:4] == ["txid", "attempt", "phase", "rows"]
    assert committed == [
        *("3", "4", "committed", "8"),
        *(f"1970-01-01 00:00:01.{milliseconds}" for milliseconds in ("005", "105", "130")),
        *("5", "100", "1", "24", ""),
    ]
    assert failed == ["3", "4", "failed", "-", "1970-01-01 00:01:00.001", "-", "-", "1", "-", "-", "-", long]


def test_a_time_of_today_has_no_date(capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = SystemClock().wall_ms()
    _, row = printed(attempts_table([record("committed", *[now_ms] * 5)]), capsys)
    assert len(row[6]) == len("00:00:01.130")


def test_attempts_tell_of_messages_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    message = PendingMessage(WORDS, Offset(1), 1, 0, "no")
    done = record("committed", 1_000, 1_005, 1_105, 1_106, 1_130, rows=8)
    with_messages = replace(done, batch=replace(done.batch, again=(message,), pending=(message, message), lost=3))
    header, first, second = printed(attempts_table([done, with_messages]), capsys)
    assert header[-1] == "messages"
    assert first[-1] == ""
    assert second[-1] == "1 again, 2 waiting, 3 lost"


@pytest.mark.parametrize(("text", "expected"), [(None, ""), ("", ""), ("one", "one"), ("one\ntwo", "one")])
def test_first_line(text: str | None, expected: str) -> None:
    assert first_line(text) == expected


def test_a_value_in_an_error_controls_no_terminal() -> None:
    assert first_line("no such word: '\x1b]0;owned\x07\x9b31m'\tsee\nat line 7") == (
        "no such word: '\\x1b]0;owned\\x07\\x9b31m'\tsee"
    )


def test_attempts_fit_into_80_columns() -> None:
    longest = attempt(1_234_567, 12_345_678)
    record = AttemptRecord(
        longest, "processing", BATCH, 12_345_678, 0, 99_999, 199_998, 299_997, 399_996, "TX302 " * 99
    )
    console = make_plain_console(80)
    with console.capture() as captured:
        console.print(narrow_attempts_table([record]))
    head, line = captured.get().splitlines()
    assert head.split() == ["attempt", "phase", "rows", "at", "plan", "ms", "process", "wait", "commit"]
    assert line.split() == ["1234567:12345678", "processing", "12345678", "01-01", "00:06", *["99999"] * 4]
