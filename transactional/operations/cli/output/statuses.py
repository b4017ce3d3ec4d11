"""The topologies of a store as the command line shows them: a table as wide as the screen, and their troubles."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from rich.table import Table

from transactional.core.store import TopologyStatus
from transactional.core.store.history import EndedHow
from transactional.core.store.outbox import SinkProgress
from transactional.core.store.rules import state_of
from transactional.core.store.set_aside import RecentLetters
from transactional.operations.cli.output.lines import WIDTH_MAX, first_line, make_plain_console, print_line, print_table
from transactional.operations.cli.output.status_json import UnclosedWindows
from transactional.runtime.engine.clock import SystemClock


def statuses_table(statuses: Sequence[TopologyStatus], now_ms: int | None = None) -> Table:
    """Return the table of a store's topologies, with ages as of `now_ms`."""
    now_ms = SystemClock().wall_ms() if now_ms is None else now_ms
    table = Table("topology", "name", "state", "committed", "ago", "lag", "desired", "owner", "epoch")
    table.columns[4].min_width = len("59 min")  # keeps the table from getting wider over time
    for status in statuses:
        table.add_row(
            status.topology_id,
            status.name or status.topology_id,
            state_of(status),
            str(status.committed_txid),
            _format_age(status.committed_at_ms, now_ms),
            "-" if status.lag is None else str(status.lag),
            status.desired.value,
            status.owner or "-",
            str(status.epoch),
        )
    return table


def print_statuses(statuses: Sequence[TopologyStatus], now_ms: int | None = None) -> None:
    """Print the topologies of a store as wide as the screen: if not all columns have room, names and owners are below
    the table, a line for each topology."""
    console, table = make_plain_console(), statuses_table(statuses, now_ms)
    needed = console.measure(table, options=console.options.update_width(WIDTH_MAX)).maximum
    if not sys.stdout.isatty() or needed <= console.width:
        print_table(table)
        return
    print_table(narrow_statuses_table(statuses, now_ms))
    for status in statuses:
        name = f"name {status.name}" if status.name not in (None, status.topology_id) else ""
        if name_and_owner := ", ".join(filter(None, [name, f"owner {status.owner}" if status.owner else ""])):
            print_line(f"{status.topology_id}: {name_and_owner}")


def narrow_statuses_table(statuses: Sequence[TopologyStatus], now_ms: int | None = None) -> Table:
    """The topologies of a store in 80 columns, without their names and owners; only a long id is folded."""
    wide = statuses_table(statuses, now_ms)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    columns = [column for column in wide.columns if column.header not in ("name", "owner")]
    for number, column in enumerate(columns):
        table.add_column(column.header, no_wrap=number > 0, overflow="fold", min_width=column.min_width)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def describe_troubles(
    statuses: Sequence[TopologyStatus], retries_at_stop: Mapping[str, str | None] = MappingProxyType({})
) -> list[str]:
    """Return a line for each topology that is failing, whose last run ended with an error, or that was taken back.
    `retries_at_stop` has, by topology, the text of `retry_at_stop`."""
    lines = []
    for status in statuses:
        trouble, end = status.trouble, status.run.end if status.run is not None else None
        if trouble is not None and (retry := retries_at_stop.get(status.topology_id)) is not None:
            lines.append(f"{status.topology_id}: transaction {trouble.txid} {retry}: {first_line(trouble.error)}")
        elif trouble is not None:
            since = f"has been failing since {_format_time(trouble.since_ms)} at transaction {trouble.txid}"
            lines.append(f"{status.topology_id} {since}: {first_line(trouble.error)}")
        if status.run is not None and end is not None and end.code is not None and not status.is_leased:
            ended = f"its last run ended {_format_time(status.run.ended_at_ms)}"
            lines.append(f"{status.topology_id}: {ended} with {end.code}: {first_line(end.reason)}")
        if status.rewinding_to is not None:
            todo = "which is not finished: the same `transactional rewind` finishes it"
            lines.append(f"{status.topology_id} is being taken back to transaction {status.rewinding_to}, {todo}")
        elif status.run is not None and end is not None and end.how is EndedHow.REWOUND:
            when = _format_time(status.run.ended_at_ms)
            lines.append(f"{status.topology_id}: it was taken back {when}, {first_line(end.reason)}")
    return lines


def describe_maintenance_failures(upkeep: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each committer whose table can't be maintained; the reasons are by topology and committer."""
    return [
        f"{topology}: the table of {component} is not maintained, and others may not be able to open it: "
        f"{first_line(reason)}"
        for topology, components in upkeep.items()
        for component, reason in components.items()
    ]


def describe_dead_letters(letters_by_topology: Mapping[str, RecentLetters]) -> list[str]:
    """Return a line for each topology whose last transactions have set tuples aside."""
    return [
        f"{topology}: {letters.letters} tuple{'' if letters.letters == 1 else 's'} set aside, {letters.scope}; "
        "`transactional deadletters` shows them"
        for topology, letters in letters_by_topology.items()
        if letters.letters
    ]


def describe_sinks(
    sinks: Mapping[str, Mapping[str, SinkProgress]], statuses: Sequence[TopologyStatus] = ()
) -> list[str]:
    """Return a line for each sink with transactions that are committed and not published, and for waiting commits."""
    lines = [
        f"{topology}: sink {name}: {progress.unsent_summary}"
        for topology, progresses in sinks.items()
        for name, progress in sorted(progresses.items())
        if progress.waiting
    ]
    for status in statuses:
        progresses = sinks.get(status.topology_id, {}).values()
        settings = {} if status.run is None else status.run.about.settings
        waiting = {
            "sink_pending_max": max((progress.waiting for progress in progresses), default=0),
            "sink_pending_bytes_max": sum(progress.size_bytes for progress in progresses),
        }
        lines += [
            f"{status.topology_id}: no transaction is committed before its sinks have published more ({name} = {limit})"
            for name, size in waiting.items()
            if (limit := settings.get(name)) is not None and size >= limit
        ]
    return lines


def describe_open_windows(windows: Mapping[str, Mapping[str, UnclosedWindows]]) -> list[str]:
    """Return a line for each component with windows that may be open: until when, and what they wait for."""
    return [
        f"{topology}: windows of {component} are open, the last until {_format_time(open_windows.last_end_ms)}: "
        f"{_describe_wait(open_windows)}"
        for topology, components in windows.items()
        for component, open_windows in components.items()
    ]


def _describe_wait(open_windows: UnclosedWindows) -> str:
    if open_windows.by_transaction:
        return "they close by the clock while the topology runs"
    slowest = f"; {open_windows.slowest} is furthest behind" if open_windows.slowest else ""
    return f"they wait for later events, the watermark is {_format_time(open_windows.watermark_ms)}{slowest}"


def _format_age(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago a time was, in a suitable unit."""
    if at_ms is None:
        return "-"
    seconds = max(now_ms - at_ms, 0) // 1_000
    unit, length = next((unit, length) for unit, length in _UNITS if seconds >= length or length == 1)
    return f"{seconds // length} {unit}"


_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def _format_time(at_ms: int | None) -> str:
    """Return a date and time in UTC."""
    return "-" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
