"""Windows that close are combined of their panes, each of all of them and in order, whether few close or many."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from transactional.core.machine.window_assignment import Windows
from transactional.model.aggregates.columns import Last, Min, Sum, TableAggregator
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.topology.streams.windows import closing
from transactional.topology.streams.windows.closing import Parts, WindowCloser
from transactional.topology.streams.windows.time_columns import TIMESTAMP
from transactional.topology.windows.windows import EVENT, Window

KEY, VALUES = Schema.parse("k string, pane_start timestamp"), Schema.parse("total long, least long, last long")
AGGREGATOR = TableAggregator(KEY, VALUES, (("total", Sum("n")), ("least", Min("n")), ("last", Last("n"))))
FIELDS = Schema.parse("k string, window_start timestamp, window_end timestamp, total long, least long, last long")
MAX = 2**63 - 1
Panes = dict[tuple[str, int], int]


def closed(windows: Windows, panes: Panes, facts: BatchFacts) -> list[tuple[Any, ...]]:
    """Rows of windows, of the value of each key and pane."""
    columns = [[key for key, _ in panes], [start for _, start in panes], *[[*panes.values()]] * 3]
    types = [pa.string(), TIMESTAMP, *[pa.int64()] * 3]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    rows = pa.table(arrays, names=[*KEY.names, *VALUES.names])
    closer = WindowCloser(FIELDS, Window("some windows", windows, EVENT), AGGREGATOR, "counts")
    table = closer.close_windows(rows, facts)
    numbers = [column.cast(pa.int64()).to_pylist() for column in table.columns[1:]]
    return sorted(zip(table["k"].to_pylist(), *numbers, strict=True))


def model(windows: Windows, panes: Panes, facts: BatchFacts) -> list[tuple[Any, ...]]:
    """The same, window by window."""
    range_ = windows.closing(facts.previous_watermark_us, facts.watermark_us)
    assert range_ is not None
    parts = defaultdict[tuple[str, int], list[int]](list)
    for (key, pane), value in sorted(panes.items()):
        first = (pane - windows.length_us) // windows.every_us * windows.every_us + windows.every_us
        for start in range(first, pane + 1, windows.every_us):
            if start <= range_.until and (range_.after is None or start > range_.after):
                parts[key, start].append(value)
    return sorted(
        (key, start, start + windows.length_us, sum(values), min(values), values[-1])
        for (key, start), values in parts.items()
    )


@pytest.mark.parametrize("parts_max", [closing.PARTS_MAX, 100, 7])
@pytest.mark.parametrize("blocks_from", [0, closing.BLOCKS_FROM, 10**9], ids=["blocks", "as it chooses", "panes"])
def test_each_window_has_all_its_panes(monkeypatch: pytest.MonkeyPatch, blocks_from: int, parts_max: int) -> None:
    monkeypatch.setattr(closing, "BLOCKS_FROM", blocks_from)
    monkeypatch.setattr(closing, "PARTS_MAX", parts_max)
    for seed in range(20):
        chance = Random(seed)
        every = chance.randint(1, 4)
        windows = Windows(5 * chance.randint(every + 1, 20), 5 * every)
        starts = range(-40 * windows.pane_us, 40 * windows.pane_us, windows.pane_us)
        where = list(product("ab", starts))
        panes = {place: chance.randint(-9, 9) for place in chance.sample(where, chance.randint(1, len(where)))}
        watermark = chance.randint(-100, 300)
        previous = chance.choice([None, watermark - windows.every_us - chance.randint(0, 200)])
        facts = BatchFacts(0, watermark, 0, previous)
        assert closed(windows, panes, facts) == model(windows, panes, facts), seed


def test_a_sum_of_some_parts_may_be_too_large_where_no_window_s_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "BLOCKS_FROM", 0)
    panes = {("a", 0): MAX, ("a", 1): MAX, ("a", 2): -MAX, ("a", 3): -MAX}
    rows = closed(Windows(4, 1), panes, BatchFacts(0, 4, 0, 3))
    assert rows == [("a", 0, 4, 0, -MAX, -MAX)]


@pytest.mark.parametrize("blocks_from", [0, 10**9], ids=["blocks", "panes"])
def test_no_more_parts_than_fit_into_memory_are_put_together_at_once(
    monkeypatch: pytest.MonkeyPatch, blocks_from: int
) -> None:
    """However many windows close; those of one window, which come as they are, are the least that there can be."""
    together, combine = list[int](), WindowCloser._combine_slice

    def counted(self: WindowCloser, parts: list[Parts]) -> pa.Table:
        together.append(sum(part.count for part in parts))
        return combine(self, parts)

    monkeypatch.setattr(WindowCloser, "_combine_slice", counted)
    monkeypatch.setattr(closing, "BLOCKS_FROM", blocks_from)
    monkeypatch.setattr(closing, "PARTS_MAX", 200)
    panes = {(key, start): 1 for key in "abc" for start in range(300)}
    rows = closed(Windows(60, 1), panes, BatchFacts(0, 300, 0, 100))
    assert len(rows) == 3 * 200
    assert max(together) <= 200
    assert sum(together) >= 3 * 200
