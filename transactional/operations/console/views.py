"""What each page shows: from a store, the values for its template."""

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
from transactional.operations.console.data.figures import (
    SPANS,
    Series,
    phases_of,
    series_of,
    states_of,
    tuples_by_edge,
)
from transactional.operations.console.data.phase_executors import phase_executors_of
from transactional.operations.console.data.tiles import letters_tiles, of_run, tiles_of
from transactional.operations.console.drawing import charts
from transactional.operations.console.drawing.staircase import bars_of, draw_staircase
from transactional.operations.console.findings import Examination, at_a_glance
from transactional.operations.console.history import History
from transactional.operations.console.letters import TRANSACTIONS_MAX, letters_by_component, table_of, with_letters
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
    """All topologies, each with the pulse of its last attempts."""
    statuses = store.status()
    cards = []
    for status in statuses:
        recent = store.times(status.topology_id, limit=_PULSE)
        took = [_taken(each, now_ms) for each in reversed(recent)]
        pulse = charts.draw_pulse(took, f"the last {len(took)} attempts") if took else ""
        cards.append((status, tiles_of(status, recent, now_ms), pulse, retry_at_stop(store, status)))
    return {"statuses": statuses, "cards": cards, "title": "Topologies"}


def of_status(store: StoreReader, status: TopologyStatus, now_ms: int, form_key: str | None = None) -> View:
    """Return what every page of a topology shows of its status. `form_key` is the key that forms have to send back, or
    None if pages have no forms."""
    retry = retry_at_stop(store, status)
    return {"status": status, "now_ms": now_ms, "path": path_of(status), "form_key": form_key, "retry_at_stop": retry}


def _taken(each: AttemptTimes, now_ms: int) -> tuple[float, str]:
    bars = bars_of(each, now_ms)
    kind = {COMMITTED: "committing", FAILED: "failed", GIVEN_UP: "given-up", REWOUND: "given-up"}.get(
        each.phase, "processing"
    )
    return min(bars[-1].end_ms, now_ms) - bars[0].start_ms, kind


def topology(store: StoreReader, status: TopologyStatus, now_ms: int, *, history: History, span: str = "") -> View:
    """One topology at a glance. The charts go back as far as `span` says, a key of `SPANS`; by default they are of the
    present run's last attempts."""
    overview = reading.overview_of(store, status)
    status, recent = overview.status, overview.recent
    own = of_run(recent, status.run)
    graph = make_graph(overview.described, tuples_by_edge(own))
    partitions, waits = reading.partitions_of(store, status)
    times = event_times_of(own)
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
        "staircase": draw_staircase(recent, overview.runs, now_ms, _link_from(status)),
        "charts": _charts(history.series(store, status.topology_id, span, now_ms) if span in SPANS else series_of(own)),
        "span": span if span in SPANS else "",
        "spans": {"": f"last {len(own)} attempts of run {status.epoch}"}
        | {name: of.words for name, of in SPANS.items()},
        "partitions": partitions[:PARTITIONS_OF_OVERVIEW],
        "partitions_all": len(partitions),
        "waits": waits,
        "states": overview.states,
        "rows": recent[:ATTEMPTS_OF_OVERVIEW],
        "phases_of": phases_of,
    }


def path_of(status: TopologyStatus) -> str:
    """Where the pages of a topology are."""
    return f"/t/{slug_of(status.topology_id)}"


def _link_from(status: TopologyStatus) -> Callable[[TxId], str]:
    return lambda txid: f"{path_of(status)}/transactions/{txid}"


def _charts(series: Series | None) -> list[charts.Chart]:
    if series is None or not any(slot.transactions for slot in series.slots):
        return []
    phases = {each: series.spent(each) for each in ("planning", "processing", "waiting", "committing")}
    drawn = [
        charts.area("Records per second", series, series.rates, "Records per second over time", "rate"),
        charts.stack("Latency by phase, ms", series, phases, "Mean latency by phase over time"),
    ]
    if any(slot.lag is not None for slot in series.slots):
        drawn.append(charts.area("Lag, records", series, series.lags, "Lag over time", "lag"))
    if any(slot.behind_ms is not None for slot in series.slots):
        words = "Watermark behind the newest event over time"
        drawn.append(charts.area("Watermark lag, s", series, series.behind_s, words, "watermark"))
    return drawn


def attempts(store: StoreReader, status: TopologyStatus, before: AttemptId | None, phase: str) -> View:
    """A page of the list of attempts."""
    wanted = phase if phase in PHASES else ""
    page = reading.attempts_page(store, status.topology_id, before=before, phases=PHASES[wanted][1])
    return {
        "title": f"Attempts of {status.topology_id}",
        "tab": "attempts",
        "rows": page.rows,
        "older": page.older,
        "is_first": before is None,
        "phase": wanted,
        "filters": [(name, words) for name, (words, _) in PHASES.items()],
        "phases_of": phases_of,
    }


def transaction(store: StoreReader, status: TopologyStatus, txid: TxId, now_ms: int) -> View | None:
    """One transaction with all its attempts; None: there is none."""
    found = reading.transaction_of(store, status.topology_id, txid)
    if not found.attempts:
        return None
    before = found.before
    tries = []
    for record, times in zip(found.attempts, found.times, strict=True):
        waited = before is not None and _waited(times, before)
        edges = [(s, stream, t, n) for s, stream, t, n in (record.details or {}).get("edges", ())]
        tries.append((record, times, phases_of(times), waited, edges, phase_executors_of(record.details)))
    return {
        "title": f"Transaction {txid} of {status.topology_id}",
        "tab": "attempts",
        "txid": txid,
        "tries": tries,
        "is_last": txid >= status.committed_txid and not store.attempts_at(status.topology_id, TxId(txid + 1)),
        "staircase": draw_staircase(
            [*([before] if before else []), *found.times],
            store.runs(status.topology_id, limit=20),
            now_ms,
            _link_from(status),
        ),
        "ranges_max": PARTITIONS_OF_PAGE,
        "letters_in": letters_in,
        "letters_by_component": letters_by_component,
    }


def _waited(each: AttemptTimes, before: AttemptTimes) -> bool:
    return (
        each.processed_at_ms is not None
        and before.committed_at_ms is not None
        and each.processed_at_ms < before.committed_at_ms
    )


def partitions(store: StoreReader, status: TopologyStatus, page: int) -> View:
    """A page of the partitions."""
    rows, waits = reading.partitions_of(store, status)
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
    """All states."""
    newest = next(iter(store.times(status.topology_id, limit=1, phases=(COMMITTED,))), None)
    return {"title": f"States of {status.topology_id}", "tab": "states", "states": states_of(status, newest)}


def runs(store: StoreReader, status: TopologyStatus, _now_ms: int) -> View:
    """The last runs, newest first."""
    found = store.runs(status.topology_id, limit=reading.RUNS_MAX)
    return {"title": f"Runs of {status.topology_id}", "tab": "runs", "runs": found}


def configuration(store: StoreReader, status: TopologyStatus, epoch: int | None) -> View:
    """The options as of a run, and what has changed since the one before."""
    found = store.runs(status.topology_id, limit=reading.RUNS_MAX)
    place = next((number for number, run in enumerate(found) if run.epoch == epoch), 0)
    run = found[place] if found else None
    before = found[place + 1] if place + 1 < len(found) else None
    return {
        "title": f"Configuration of {status.topology_id}",
        "tab": "configuration",
        "run": run,
        "before": before,
        "options": [] if run is None else reading.options_of(run, before),
        "runs": found,
    }


def letters(store: StoreReader, status: TopologyStatus, known: Topology | None) -> View:
    """Dead letters: by transaction, and from their table."""
    set_aside = set_aside_of(store, status)
    return {
        "title": f"Dead letters of {status.topology_id}",
        "tab": "letters",
        "by_transaction": with_letters(set_aside),
        "set_aside": set_aside,
        "shown_max": TRANSACTIONS_MAX,
        "is_known": known is not None,
        "table": table_of(known),
    }


def doctor(
    store: StoreReader, status: TopologyStatus, now_ms: int, known: Topology | None, report: Examination | None
) -> View:
    """What is wrong: at a glance, and by the doctor's last examination."""
    return {
        "title": f"Doctor of {status.topology_id}",
        "tab": "doctor",
        "notices": at_a_glance(store, status, now_ms),
        "is_known": known is not None,
        "report": report,
    }


def version(store: StoreReader, topology_id: str, now_ms: int) -> object:
    """Return a value that differs whenever a page may have something new, and while a run is in progress every ten
    seconds: pages show how long ago things happened."""
    status = next(iter(store.status(topology_id)), None)
    if status is None:
        return None
    newest = [(each.attempt, each.phase) for each in store.times(topology_id, limit=6)]
    age = now_ms // _AGES_EVERY_MS if status.is_leased else None
    return age, newest, status.epoch, status.is_leased, status.desired, status.trouble, status.committed_txid
