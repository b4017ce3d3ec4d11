"""Tuples that are kept for open windows come back by the names of their fields, whatever has become of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional import TransactionalTopologyBuilder, Tuple, TupleWindow, WindowedBolt, count, tumbling
from transactional.errors import SchemaMismatch, TopologyChanged
from transactional.model.arrow.kept_rows import rows_from_ipc, rows_to_ipc
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.windows.windows import CountWindow, Window

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
BEFORE = "amount long, price long, at timestamp"
VALUES: dict[str, Callable[[Any], Any]] = {
    "amount long": lambda _: 7,
    "amount string": lambda _: "7",
    "price long": lambda t: t.price,
    "at timestamp": lambda t: t.at,
    "seen timestamp": lambda t: t.at + timedelta(days=1),
    "extra string": lambda _: "x",
}


class Shown(WindowedBolt):
    """Emits what it finds in each tuple, by name."""

    output = "tuples string"
    wants: ClassVar[tuple[str, ...]] = ("amount", "price", "extra")

    def execute(self, window: TupleWindow) -> None:
        texts = [
            f"{t.source}:" + ",".join(f"{name}={t[name]}" for name in self.wants if name in t.fields)
            for t in window.get()
        ]
        self.collector.emit(" ".join(sorted(texts)))


class Shop:
    """A topology that runs again and again, each time with three tuples more."""

    def __init__(self, window: Window | CountWindow) -> None:
        self.window, self.store, self.rows = window, MemoryCoordinatorStore(), 0
        self.kept, self.seen = MemoryTable("kept"), MemoryTable("seen")

    def run(
        self, fields: str, *, accept: bool = False, time: str = "at", inputs: Sequence[str] = ("even", "odd")
    ) -> None:
        rows = [(NOON + timedelta(seconds=7 * n), n) for n in range(self.rows + 3)]
        source = MemoryTransactionalSpout([rows], "at timestamp, price long", take=2)
        builder = TransactionalTopologyBuilder("shop", "sales", source)
        builder.set_event_time("at", max_ahead=None)
        for name in sorted(inputs):
            values = partial(_values_of, parity=["even", "odd"].index(name), fields=str(Schema.parse(fields)))
            builder.set_bolt(name, values, output=fields).shuffle_grouping("sales")
        how = {"time": time} if isinstance(self.window, Window) else {}
        state = MemoryMapState(table=self.kept)
        bolt = builder.set_windowed_bolt("w", Shown(), window=self.window, state=state, **how)
        for name in inputs:
            bolt.global_grouping(name)
        seen = MemoryMapState(table=self.seen).count().group_by("tuples")
        builder.set_committer_bolt("seen", seen).fields_grouping("w", "tuples")
        topology = builder.build(strict=True)
        config = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1)
        TopologyDriver(topology, self.store, LocalExecutor(topology), config, accept_changes=accept).run()
        self.rows += 3

    @property
    def found(self) -> list[str]:
        return sorted(key[0] for key in self.seen.rows)


def _values_of(t: Tuple, *, parity: int, fields: str) -> tuple[Any, ...] | None:
    return tuple(VALUES[str(field)](t) for field in Schema.parse(fields)) if t.price % 2 == parity else None


def ran(window: Window | CountWindow, *fields: str, accept: bool = False, **options: Any) -> Shop:
    """A shop that has run with some fields, one after the other."""
    shop = Shop(window)
    for each in fields:
        shop.run(each, accept=accept, **options)
    return shop


@pytest.fixture(params=[tumbling("20 seconds"), count(4, every=2)], ids=["by time", "by count"])
def window(request: pytest.FixtureRequest) -> Any:
    return request.param


CHANGES = {
    "reordered": "price long, at timestamp, amount long",
    "a new field": "amount long, extra string, price long, at timestamp",
    "a field less": "price long, at timestamp",
}


@pytest.mark.parametrize("change", CHANGES)
def test_values_stay_in_their_fields_in_whatever_order_they_are(window: Any, change: str) -> None:
    now = CHANGES[change]
    shop, same = ran(window, BEFORE), ran(window, BEFORE, BEFORE, BEFORE)
    if change != "reordered":
        with pytest.raises(
            TopologyChanged, match=r'committers\.w\.window_fields: stored "amount long, price long, at time'
        ):
            shop.run(now)
    shop.run(now, accept=change != "reordered")
    shop.run(now)
    assert sorted(map(bare, shop.found)) == sorted(map(bare, same.found))
    [later] = [text for text in shop.found if "price=2" in text][:1]
    assert ("price=2,extra=None" in later) is (change == "a new field"), "it was kept without"
    assert ("amount=7,price=2" in later) is (change != "a field less")


def bare(text: str) -> str:
    """What is the same whichever of these fields there are."""
    return text.replace("amount=7,", "").replace(",extra=None", "").replace(",extra=x", "")


@pytest.mark.parametrize("accept", [False, True])
def test_a_field_of_another_type_is_refused_at_the_start(window: Any, accept: bool) -> None:  # noqa: FBT001
    shop = ran(window, BEFORE)
    now = "price long, amount string, at timestamp"
    with pytest.raises(
        TopologyChanged, match=r"'w' keeps tuples of open windows whose field 'amount' is long, and it is string now"
    ):
        shop.run(now, accept=accept)
    shop.run(BEFORE)
    assert shop.found == ran(window, BEFORE, BEFORE).found


def test_another_time_is_refused_unless_it_is_accepted() -> None:
    fields = f"{BEFORE}, seen timestamp"
    shop = ran(tumbling("20 seconds"), fields)
    with pytest.raises(TopologyChanged, match=r'committers\.w\.window_time: stored "at", given "seen"'):
        shop.run(fields, time="seen")
    shop.run(fields, time="seen", accept=True)


def test_tuples_say_where_they_came_from_also_if_that_is_gone(window: Any) -> None:
    shop = ran(window, BEFORE)
    for inputs in (("odd", "even"), ("odd",), ("odd",)):
        shop.run(BEFORE, inputs=inputs)
    came = [each.partition(":amount=7,price=") for text in shop.found for each in text.split()]
    assert {(source, int(price) % 2) for source, _, price in came} == {("even", 0), ("odd", 1)}


def test_kept_rows_are_brought_back_by_names_and_types() -> None:
    data = rows_to_ipc([(1, "x", 9)], Schema.parse("a long, b string"), [" n"], "of both")
    note, rows = rows_from_ipc(data, Schema.parse("b string, c long, a long"), [" n"])
    assert (note, list(rows)) == ("of both", [("x", None, 1, 9)])
    with pytest.raises(SchemaMismatch, match="field 'b' is string, and it is long now"):
        rows_from_ipc(data, Schema.parse("b long"), [" n"])
