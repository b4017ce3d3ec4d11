"""Charts of an hour, a day and a month: from the sums by minute, read again only when there may be another."""

from __future__ import annotations

import pytest

from tests.unit.operations.console.browsing import browser
from tests.unit.operations.console.stores import START_MS, Past
from transactional.core.store import StoreReader
from transactional.core.store.history import MinuteRecord
from transactional.operations.console.data.figures import SPANS, series_of_minutes
from transactional.operations.console.history import History

MINUTE = 60_000


def minute(at_ms: int, transactions: int = 2, rows: int = 600, lag: int = 5) -> MinuteRecord:
    return MinuteRecord(at_ms, transactions, rows, 0, (transactions,), lag, lag, {"planning": 4, "committing": 40})


@pytest.mark.parametrize("span", SPANS)
def test_minutes_are_summed_up_in_the_slots_of_a_span(span: str) -> None:
    of = SPANS[span]
    now_ms = START_MS + of.ms
    minutes = [minute(START_MS - MINUTE), minute(START_MS), minute(now_ms - 1), minute(now_ms)]
    series = series_of_minutes(minutes, now_ms, of)
    assert (len(series.slots), series.start_ms) == (of.slots, START_MS)
    assert [slot.transactions for slot in series.slots if slot.transactions] == [2, 2]
    assert sum(series.rates) * series.slot_ms / 1_000 == pytest.approx(1_200)
    assert (series.spent("committing")[0], series.spent("processing")[0]) == (20, 0)
    assert series.lags == [5.0] * of.slots, "in a time without a commit it is that of before"


class Counting:
    """A store that has minutes, and counts how often they are read."""

    def __init__(self) -> None:
        self.read = 0

    def minutes(self, topology_id: str, *, since_ms: int, each_ms: int | None = None) -> list[MinuteRecord]:
        self.read += 1
        assert each_ms is not None, "a month is 43,200 rows"
        return [minute(since_ms + MINUTE)]


def test_what_was_read_is_shown_again_for_a_part_of_a_slot() -> None:
    counting = Counting()
    store: StoreReader = counting  # type: ignore[assignment]
    history = History()
    for at_ms in (START_MS, START_MS + 1_000, START_MS + 7_000):
        history.series(store, "words", "hour", at_ms)
    assert counting.read == 1
    history.series(store, "words", "hour", START_MS + 9_000)
    history.series(store, "words", "day", START_MS + 9_000)
    history.series(store, "others", "hour", START_MS + 9_000)
    history.series(store, "words", "hour", START_MS)
    assert counting.read == 5, "a clock that is set back, too"


def test_the_overview_has_charts_of_each_span() -> None:
    past = Past().begin()
    past.store.record_commit(
        past.held,
        attempt := past.issue(),
        past.batch(attempt),
        processed_at_ms=START_MS,
        started_at_ms=START_MS,
        at_ms=START_MS,
        minute=minute(START_MS - 5 * MINUTE),
    )
    client = browser(past)
    assert "Too little was committed" in client.get("/t/words/").text
    for span in SPANS:
        page = client.get(f"/t/words/?charts={span}").text
        assert "Records per second over time" in page
        assert f'href="/t/words/?charts={span}" aria-current="page"' in page
    assert "Too little was committed" in client.get("/t/words/?charts=nonsense").text
