"""The values for the template of each page, read from a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from transactional.core.store import AttemptTimes, StoreReader, TopologyStatus
from transactional.core.store.rules import COMMITTED, FAILED, GIVEN_UP, OPEN, REWOUND, letters_in, upkeep_in
from transactional.core.store.set_aside import set_aside_of
from transactional.core.store.troubles import retry_at_stop
from transactional.model.attempt import AttemptId, TxId
from transactional.model.drawing.graph import make_graph
from transactional.model.drawing.rows import draw_graph
from transactional.operations.console.data import reading
from transactional.operations.console.data.event_times import event_tiles, event_times_of
from transactional.operations.console.data.executor_choices import phase_executors_of
from transactional.operations.console.data.figures import (
    SPANS,
    Series,
    phases_of,
    series_of,
    states_of,
    tuples_by_edge,
)
from transactional.operations.console.data.sinks import read_sinks
from transactional.operations.console.data.tiles import attempts_of_run, letters_tiles, tiles_of
from transactional.operations.console.drawing import charts
from transactional.operations.console.drawing.staircase import bars_of, draw_staircase
from transactional.operations.console.findings import Examination, find_notices
from transactional.operations.console.history import History
from transactional.operations.console.letters import (
    TRANSACTIONS_MAX,
    count_letters_by_transaction,
    letters_by_component,
    read_letters_table,
)
from transactional.operations.console.slugs import slug_of
from transactional.topology.topology import Topology

View = Mapping[str, Any]

PHASES: Final = {
    "": ("all", ()),
    "failed": ("failed", (FAILED,)),
    "given-up": ("given up", (GIVEN_UP, REWOUND)),
    "open": ("in flight", OPEN),
    "committed": ("committed", (COMMITTED,)),
}
"""The filters of the list of attempts."""
PARTITIONS_OF_OVERVIEW: Final = 8
PARTITIONS_OF_PAGE: Final = 50
ATTEMPTS_OF_OVERVIEW: Final = 12
_PULSE: Final = 40
_AGES_EVERY_MS: Final = 10_000


def home(store: StoreReader, now_ms: int) -> View:
    """Return the values of the page of all topologies: each has the pulse of its last attempts."""
    statuses = store.status()
    cards = []
    for status in statuses:
        recent = store.times(status.topology_id, limit=_PULSE)
        took = [_duration_and_kind(attempt, now_ms) for attempt in reversed(recent)]
        pulse = charts.draw_pulse(took, f"the last {len(took)} attempts") if took else ""
        cards.append((status, tiles_of(status, recent, now_ms), pulse, retry_at_stop(store, status)))
    return {"statuses": statuses, "cards": cards, "title": "Topologies"}


def status_values(store: StoreReader, status: TopologyStatus, now_ms: int, form_key: str | None = None) -> View:
    """Return what every page of a topology shows of its status. `form_key` is the key that forms have to send back, or
    None if pages have no forms."""
    retry = retry_at_stop(store, status)
    return {"status": status, "now_ms": now_ms, "path": path_of(status), "form_key": form_key, "retry_at_stop": retry}


def _duration_and_kind(attempt: AttemptTimes, now_ms: int) -> tuple[float, str]:
    bars = bars_of(attempt, now_ms)
    kind = {COMMITTED: "committing", FAILED: "failed", GIVEN_UP: "given-up", REWOUND: "given-up"}.get(
        attempt.phase, "processing"
    )
    return min(bars[-1].end_ms, now_ms) - bars[0].start_ms, kind


def topology(store: StoreReader, status: TopologyStatus, now_ms: int, *, history: History, span: str = "") -> View:
    """Return the values of the overview of a topology. The charts cover `span`, a key of `SPANS`; by default they are
    of the present run's last attempts."""
    overview = reading.read_overview(store, status)
    status, recent = overview.status, overview.recent
    run_attempts = attempts_of_run(recent, status.run)
    graph = make_graph(overview.described, tuples_by_edge(run_attempts))
    partitions, waits = reading.read_partitions(store, status)
    times = event_times_of(run_attempts)
    return {
        "status": status,
        "title": status.topology_id,
        "tab": "overview",
        "tiles": [*tiles_of(status, recent, now_ms), *letters_tiles(set_aside_of(store, status))],
        "upkeep": upkeep_in(overview.newest.details if overview.newest is not None else None),
        "event_times": times,
        "event_tiles": event_tiles(times, now_ms) if times else (),
        "graph_svg": draw_graph(graph),
        "executors": phase_executors_of(overview.newest.details) if overview.newest is not None else [],
        "staircase": draw_staircase(recent, overview.runs, now_ms, _transaction_links(status)),
        "charts": _draw_charts(
            history.series(store, status.topology_id, span, now_ms) if span in SPANS else series_of(run_attempts)
        ),
        "span": span if span in SPANS else "",
        "spans": {"": f"last {len(run_attempts)} attempts of run {status.epoch}"}
        | {name: chart_span.words for name, chart_span in SPANS.items()},
        "partitions": partitions[:PARTITIONS_OF_OVERVIEW],
        "partitions_all": len(partitions),
        "waits": waits,
        "states": overview.states,
        "sinks": read_sinks(store, status.topology_id),
        "rows": recent[:ATTEMPTS_OF_OVERVIEW],
        "phases_of": phases_of,
    }


def path_of(status: TopologyStatus) -> str:
    """Return the path of a topology's pages."""
    return f"/t/{slug_of(status.topology_id)}"


def _transaction_links(status: TopologyStatus) -> Callable[[TxId], str]:
    return lambda txid: f"{path_of(status)}/transactions/{txid}"


def _draw_charts(series: Series | None) -> list[charts.Chart]:
    if series is None or not any(slot.transactions for slot in series.slots):
        return []
    phases = {phase: series.spent(phase) for phase in ("planning", "processing", "waiting", "committing")}
    drawn = [
        charts.make_area_chart("Records per second", series, series.rates, "Records per second over time", "rate"),
        charts.make_stack_chart("Latency by phase, ms", series, phases, "Mean latency by phase over time"),
    ]
    if any(slot.lag is not None for slot in series.slots):
        drawn.append(charts.make_area_chart("Lag, records", series, series.lags, "Lag over time", "lag"))
    if any(slot.behind_ms is not None for slot in series.slots):
        words = "Watermark behind the newest event over time"
        drawn.append(charts.make_area_chart("Watermark lag, s", series, series.behind_s, words, "watermark"))
    return drawn


def attempts(store: StoreReader, status: TopologyStatus, older_than: AttemptId | None, phase: str) -> View:
    """Return the values of a page of the list of attempts, which begins before an attempt and has one phase."""
    phase_filter = phase if phase in PHASES else ""
    page = reading.read_attempts_page(store, status.topology_id, older_than=older_than, phases=PHASES[phase_filter][1])
    return {
        "title": f"Attempts of {status.topology_id}",
        "tab": "attempts",
        "rows": page.rows,
        "older": page.older,
        "is_first": older_than is None,
        "phase": phase_filter,
        "filters": [(name, words) for name, (words, _) in PHASES.items()],
        "phases_of": phases_of,
    }


def transaction(store: StoreReader, status: TopologyStatus, txid: TxId, now_ms: int) -> View | None:
    """Return the values of the page of a transaction, or None if the store has no attempt at it."""
    history = reading.read_transaction(store, status.topology_id, txid)
    if not history.attempts:
        return None
    previous = history.previous
    attempts = []
    for record, times in zip(history.attempts, history.times, strict=True):
        waited = previous is not None and _has_waited(times, previous)
        edges = [(s, stream, t, n) for s, stream, t, n in (record.details or {}).get("edges", ())]
        attempts.append((record, times, phases_of(times), waited, edges, phase_executors_of(record.details)))
    return {
        "title": f"Transaction {txid} of {status.topology_id}",
        "tab": "attempts",
        "txid": txid,
        "tries": attempts,
        "is_last": txid >= status.committed_txid and not store.attempts_at(status.topology_id, TxId(txid + 1)),
        "staircase": draw_staircase(
            [*([previous] if previous else []), *history.times],
            store.runs(status.topology_id, limit=20),
            now_ms,
            _transaction_links(status),
        ),
        "ranges_max": PARTITIONS_OF_PAGE,
        "letters_in": letters_in,
        "letters_by_component": letters_by_component,
    }


def _has_waited(attempt: AttemptTimes, previous: AttemptTimes) -> bool:
    return (
        attempt.processed_at_ms is not None
        and previous.committed_at_ms is not None
        and attempt.processed_at_ms < previous.committed_at_ms
    )


def partitions(store: StoreReader, status: TopologyStatus, page: int) -> View:
    """Return the values of a page of the partitions."""
    rows, waits = reading.read_partitions(store, status)
    pages = max(1, -(-len(rows) // PARTITIONS_OF_PAGE))
    page = min(page, pages)
    return {
        "title": f"Partitions of {status.topology_id}",
        "tab": "partitions",
        "partitions": rows[(page - 1) * PARTITIONS_OF_PAGE : page * PARTITIONS_OF_PAGE],
        "partitions_all": len(rows),
        "waits": waits,
        "page": page,
        "pages": pages,
    }


def states(store: StoreReader, status: TopologyStatus, _now_ms: int) -> View:
    """Return the values of the page of states, as of the newest committed transaction."""
    newest = next(iter(store.times(status.topology_id, limit=1, phases=(COMMITTED,))), None)
    return {"title": f"States of {status.topology_id}", "tab": "states", "states": states_of(status, newest)}


def runs(store: StoreReader, status: TopologyStatus, _now_ms: int) -> View:
    """Return the values of the page of the last runs, newest first."""
    last_runs = store.runs(status.topology_id, limit=reading.RUNS_MAX)
    return {"title": f"Runs of {status.topology_id}", "tab": "runs", "runs": last_runs}


def configuration(store: StoreReader, status: TopologyStatus, epoch: int | None) -> View:
    """Return the values of the page of a run's options, with those of the previous run."""
    last_runs = store.runs(status.topology_id, limit=reading.RUNS_MAX)
    place = next((number for number, run in enumerate(last_runs) if run.epoch == epoch), 0)
    run = last_runs[place] if last_runs else None
    previous_run = last_runs[place + 1] if place + 1 < len(last_runs) else None
    return {
        "title": f"Configuration of {status.topology_id}",
        "tab": "configuration",
        "run": run,
        "previous_run": previous_run,
        "options": [] if run is None else reading.options_of(run, previous_run),
        "runs": last_runs,
    }


def letters(store: StoreReader, status: TopologyStatus, known_topology: Topology | None) -> View:
    """Return the values of the page of dead letters: by transaction, and from their table."""
    set_aside = set_aside_of(store, status)
    return {
        "title": f"Dead letters of {status.topology_id}",
        "tab": "letters",
        "by_transaction": count_letters_by_transaction(set_aside),
        "set_aside": set_aside,
        "shown_max": TRANSACTIONS_MAX,
        "is_known": known_topology is not None,
        "table": read_letters_table(known_topology),
    }


def doctor(
    store: StoreReader, status: TopologyStatus, now_ms: int, known_topology: Topology | None, report: Examination | None
) -> View:
    """Return the values of the doctor's page: notices from the store alone, and an examination if there was one."""
    return {
        "title": f"Doctor of {status.topology_id}",
        "tab": "doctor",
        "notices": find_notices(store, status, now_ms),
        "is_known": known_topology is not None,
        "report": report,
    }


def read_version(store: StoreReader, topology_id: str, now_ms: int) -> object:
    """Return a value that differs whenever a page may have something new, and while a run is in progress every ten
    seconds: pages show how long ago things happened."""
    status = next(iter(store.status(topology_id)), None)
    if status is None:
        return None
    newest = [(attempt.attempt, attempt.phase) for attempt in store.times(topology_id, limit=6)]
    age = now_ms // _AGES_EVERY_MS if status.is_leased else None
    return age, newest, status.epoch, status.is_leased, status.desired, status.trouble, status.committed_txid
