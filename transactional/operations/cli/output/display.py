"""The display of a run on a terminal, a live line per transaction in flight, and tables of what a store holds."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from transactional.core.machine.protocol import (
    Action,
    DrainRequested,
    Event,
    Halt,
    PauseRequested,
    RecordCommit,
    RecordFailure,
    ResumeRequested,
    StopRequested,
)
from transactional.core.store import AttemptRecord
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config_sources import Setting, SourcedValue
from transactional.model.plumbing.redaction import without_login
from transactional.operations.cli.output.lines import first_line, make_plain_console, print_line, print_table
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.history.timeline import Moment, Timeline
from transactional.topology.describing import describe_in_lines
from transactional.topology.topology import Topology

WIDE = 160
"""The least number of columns of a terminal on which attempts are shown with all their times."""

REQUESTS: Mapping[type[Event], str] = {
    PauseRequested: "no new transactions are issued until the topology is activated",
    ResumeRequested: "new transactions are issued again",
    DrainRequested: "no new transactions are issued; the run ends once everything in flight is committed",
    StopRequested: "stopping: the running commit phase will finish",
}
"""The line that is printed when the desired state of a running topology changes."""


def print_header(topology: Topology, store: str, master: str) -> None:
    """Print on a terminal which topology runs where, and how it is stopped."""
    if sys.stdout.isatty():
        print_line(f"{topology.id}: store {without_login(store)}, master {master}; Ctrl-C stops it")


def components_tree(topology: Topology) -> Tree:
    """A topology's components, each below the first one that it reads from."""
    tree = Tree(Text(topology.id))
    nodes: dict[str | None, Tree] = {None: tree}
    for component in describe_in_lines(topology):
        nodes[component.id] = nodes[component.above].add(Text("\n".join(component.lines)))
    return tree


def letters_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return dead letters as blocks: a line with the letter and its bolt, and below it the tuple and the error."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for row in rows:
        stream = "" if row["stream"] == "default" else f" / {row['stream']}"
        replay_txid = row["tried_again_in"]
        lines = {
            f"{row['transaction']}:{row['number']}": f"{row['component']}, from {row['source']}{stream}",
            "  tuple": row["tuple"],
            "  error": first_line(row["error"]),
            **({} if replay_txid is None else {"  tried again": f"in transaction {replay_txid}"}),
        }
        for name, text in lines.items():
            table.add_row(Text(name), Text(text))
    return table


RECENT = 10
"""Rows per second are computed over this many of the last transactions."""


@dataclass(frozen=True, slots=True)
class TimeInFlight:
    """When a transaction was in flight, and how many rows it has committed."""

    began_ms: int
    ended_ms: int
    rows: int


def rows_per_second(spells: Iterable[TimeInFlight]) -> int:
    """Return the rate while at least one of these transactions was in flight: waiting for a source does not count."""
    busy_ms, until_ms, rows = 0, 0, 0
    for spell in sorted(spells, key=lambda spell: spell.began_ms):
        busy_ms += max(0, spell.ended_ms - max(spell.began_ms, until_ms))
        until_ms = max(until_ms, spell.ended_ms)
        rows += spell.rows
    return rows * 1000 // max(busy_ms, 1)


class Display:
    """An observer of the driver: shows transactions in flight, rows per second and lag while the topology runs."""

    def __init__(self, topology: Topology, console: Console | None = None) -> None:
        self._topology, self._console = topology, console or make_plain_console()
        self._timeline = Timeline()
        self._live: Live | None = None
        self._stopping = False
        self._failed: TxId | None = None
        """The transaction that failed last, until one is committed: a replay may come empty, which is worth a line."""
        self._recent = deque[TimeInFlight](maxlen=RECENT)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Show the transactions in flight after an event, and print a line for what has happened."""
        self._stopping |= isinstance(event, StopRequested) or any(isinstance(action, Halt) for action in actions)
        moment = Moment(at_ms, at_ms)
        self._timeline.note_event(event, moment)
        if type(event) in REQUESTS:
            self._print_line(REQUESTS[type(event)])
        for action in actions:
            self._timeline.note_action(action, moment)
            self._print_action(action, at_ms)
        if self._live is not None:
            self._live.update(self._flights_table(at_ms))

    def _print_action(self, action: Action, at_ms: int) -> None:
        match action:
            case RecordFailure(attempt, phase, reason, retry_in_ms):
                self._failed = attempt.txid
                when = f"in {retry_in_ms} ms" if retry_in_ms else "immediately"
                retry = "" if self._stopping else f", retrying {when}"
                self._print_line(f"transaction {attempt} failed in {phase.value}{retry}: {first_line(reason)}")
            case RecordCommit(_, batch) if not batch.offset_count and self._failed is None:
                pass  # a tick, which reads no record
            case RecordCommit(attempt, batch, report):
                self._failed = None
                flight = self._timeline.find(attempt)
                began_ms = flight.issued.wall_ms if flight else at_ms
                self._recent.append(TimeInFlight(began_ms, at_ms, batch.record_count or 0))
                took = f" in {at_ms - began_ms} ms" if flight else ""
                took += f", {flight.limit}" if flight and flight.limit else ""
                self._print_line(
                    f"transaction {attempt} committed: {batch.record_count or 0} rows{took}; "
                    f"{self._rate_and_lag(batch)}"
                )
                if report.letters:
                    self._print_line(
                        f"transaction {attempt}: {report.set_aside}; `transactional deadletters` shows them"
                    )

    def _rate_and_lag(self, batch: BatchMetadata) -> str:
        lag = self._topology.spout.parts.backlog.lag(batch)
        return f"{rows_per_second(self._recent)} rows/s" + ("" if lag is None else f", lag {lag}")

    def _print_line(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(Text(text), soft_wrap=True)
        else:
            print_line(text)

    def _flights_table(self, at_ms: int) -> Table:
        table = Table("txid", "attempt", "phase", "offsets", "in phase", box=None)
        for flight in self._timeline:
            txid, attempt_id = str(flight.attempt.txid), str(flight.attempt.attempt_id)
            offsets = flight.batch.offset_count if flight.batch is not None else 0
            table.add_row(txid, attempt_id, flight.step, str(offsets), f"{at_ms - flight.since.wall_ms} ms")
        return table


def settings_table(settings: Sequence[Setting]) -> Table:
    """The options of a topology, and where their values came from."""
    looks = box.HEAVY_HEAD if sys.stdout.isatty() else None
    table = Table("option", "value", "unit", "source", "instead of", box=looks, pad_edge=looks is not None)
    for setting in settings:
        overridden = ", ".join(f"{_format_value(other)} ({other.source})" for other in setting.overridden)
        table.add_row(
            setting.name, _format_value(setting.effective), setting.unit, setting.effective.source, overridden
        )
    return table


def _format_value(setting_value: SourcedValue) -> str:
    """Return a value as it is written on the command line."""
    return (
        without_login(setting_value.value) if isinstance(setting_value.value, str) else str(setting_value.value).lower()
    )


def print_attempts(attempts: Sequence[AttemptRecord]) -> None:
    """Print attempts as wide as the screen: on a narrow one, errors are below the table, each on its own line."""
    if not sys.stdout.isatty() or make_plain_console().width >= WIDE:
        print_table(attempts_table(attempts))
        return
    print_table(narrow_attempts_table(attempts))
    for record in attempts:
        if record.error:
            print_line(f"{record.attempt} {first_line(record.error)}")
        if messages := _count_messages(record):
            print_line(f"{record.attempt} messages: {messages}")


def narrow_attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    """Attempts in 80 columns: when the last step ended, and the milliseconds that each took."""
    table = Table("attempt", "phase", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("rows", "at", "plan ms", "process", "wait", "commit"):
        table.add_column(name, justify="right", no_wrap=True)
    for record in attempts:
        ends = (record.committed_at_ms, record.processed_at_ms, record.planned_at_ms, record.issued_at_ms)
        table.add_row(
            str(record.attempt),
            record.phase,
            _format_rows(record),
            _format_short_time(next((at_ms for at_ms in ends if at_ms is not None), None)),
            *_phase_durations(record),
        )
    return table


def attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    """Attempts with the time at which each step ended, and the milliseconds that it took."""
    table = Table("txid", "attempt", "phase", "rows", "planned", "processed", "committed")
    for name in ("plan ms", "process ms", "wait ms", "commit ms", "error"):
        table.add_column(name)
    follows = any(map(_count_messages, attempts))
    if follows:
        table.add_column("messages")
    for record in attempts:
        table.add_row(
            str(record.attempt.txid),
            str(record.attempt.attempt_id),
            record.phase,
            _format_rows(record),
            *(_format_time(at_ms) for at_ms in (record.planned_at_ms, record.processed_at_ms, record.committed_at_ms)),
            *_phase_durations(record),
            first_line(record.error),
            *([_count_messages(record)] if follows else []),
        )
    return table


def _count_messages(record: AttemptRecord) -> str:
    """Return how many messages an attempt processed again, left waiting and lost, if they are tracked one by one."""
    batch = record.batch
    counts = {"again": len(batch.again), "waiting": len(batch.pending), "lost": batch.lost}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


def _format_rows(record: AttemptRecord) -> str:
    return "-" if record.rows is None else str(record.rows)


def _phase_durations(record: AttemptRecord) -> tuple[str, str, str, str]:
    """Return the milliseconds that planning, processing, waiting and committing took."""
    return (
        _milliseconds_between(record.issued_at_ms, record.planned_at_ms),
        _milliseconds_between(record.planned_at_ms, record.processed_at_ms),
        _milliseconds_between(record.processed_at_ms, record.commit_started_at_ms),
        _milliseconds_between(record.commit_started_at_ms, record.committed_at_ms),
    )


def _format_time(at_ms: int | None) -> str:
    """Return a time in UTC, with its date unless that is today."""
    if at_ms is None:
        return "-"
    time, date = _time_and_date(at_ms)
    return f"{date} {time:%H:%M:%S.%f}"[:-3].strip()


def _format_short_time(at_ms: int | None) -> str:
    """Return a time in UTC in at most 11 columns, with its date unless that is today."""
    if at_ms is None:
        return "-"
    time, date = _time_and_date(at_ms)
    return f"{date[5:]} {time:%H:%M}" if date else f"{time:%H:%M:%S}"


def _time_and_date(at_ms: int) -> tuple[datetime, str]:
    """Return a time in UTC, and its date unless that is today."""
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    today = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).date()
    return time, "" if time.date() == today else f"{time:%Y-%m-%d}"


def _milliseconds_between(start_ms: int | None, end_ms: int | None) -> str:
    return "-" if start_ms is None or end_ms is None else str(end_ms - start_ms)
