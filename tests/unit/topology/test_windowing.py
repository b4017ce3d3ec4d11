"""Windowed bolts: windows of tuples by time and by count, what is new in them and what has expired, late tuples.

Storm rows C12, C13, X53 and X54.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from transactional import (
    ConfigError,
    TransactionalTopologyBuilder,
    Tuple,
    TupleWindow,
    WindowedBolt,
    count,
    sliding,
    tumbling,
)
from transactional.errors import RetriesExhausted, TopologyChanged
from transactional.model.config import TopologyConfig
from transactional.model.groupings import Grouping, GroupingKind
from transactional.model.schema import Schema
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore, complete_topology
from transactional.topology.describing import describe_topology
from transactional.topology.windowing import Windowing
from transactional.trident import session

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIELDS = "user string, at timestamp, n long"
SHOWN = "key string, start timestamp, tuples string, new string, expired string"


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


class Shown(WindowedBolt):
    """Emits what each window has."""

    output = SHOWN
    streams = {"late": "n long"}  # noqa: RUF012

    def execute(self, window: TupleWindow) -> None:
        texts = [",".join(str(t.n) for t in some) for some in (window.get(), window.get_new(), window.get_expired())]
        self.collector.emit("/".join(map(str, window.key)), window.start, *texts)


def builder_of(rows: list[tuple[str, float | None, int]], take: int = 1) -> TransactionalTopologyBuilder:
    timed = [(user, None if second is None else at(second), n) for user, second, n in rows]
    return TransactionalTopologyBuilder("t", "spout", MemoryTransactionalSpout([timed], FIELDS, take))


def windows_of(rows: list[tuple[str, float | None, int]], take: int = 1, **how: Any) -> tuple[list[Any], list[int]]:
    """What the bolt has seen: key, second of the start, tuples, new ones, expired ones; and what was late."""
    builder = builder_of(rows, take)
    builder.set_event_time("at", max_delay=how.pop("max_delay", "0 seconds"))
    builder.set_windowed_bolt("shown", Shown(), **{"state": MemoryMapState(), **how}).global_grouping("spout")
    emitted = complete_topology(builder.build(strict=True))
    seen = [
        (row.key, None if row.start is None else (row.start - NOON).total_seconds(), row.tuples, row.new, row.expired)
        for row in emitted["shown"]
    ]
    return seen, [row.n for row in emitted["shown", "late"]]


QUICK_AND_SLOW = ([(1, 1), (30, 2), (40, 3), (41, 4)], [(2, 5), (3, 6), (12, 7), (13, 8)])

# --- by time --------------------------------------------------------------------------------------------------------

TIMED: list[tuple[str, float | None, int]] = [
    ("a", 1, 1), ("b", 2, 2), ("a", 6, 3), ("a", 12, 4), ("a", 31, 5), ("b", 32, 6)
]  # fmt: skip


@pytest.mark.parametrize("take", [1, 5])
def test_tumbling_windows_are_all_new_and_expire_as_a_whole(take: int) -> None:
    seen, late = windows_of(TIMED, take, window=tumbling("10 seconds"), time="at")
    assert seen == [("", 0, "1,2,3", "1,2,3", ""), ("", 10, "4", "4", "1,2,3")]
    assert late == []


def test_sliding_windows_have_what_is_new_and_what_has_expired() -> None:
    """As in Storm, a window without a tuple is not processed."""
    seen, _ = windows_of(TIMED, window=sliding("10 seconds", every="5 seconds"), time="at")
    assert seen == [
        ("", -5, "1,2", "1,2", ""),
        ("", 0, "1,2,3", "3", ""),
        ("", 5, "3,4", "4", "1,2"),
        ("", 10, "4", "", "3"),
    ]


def test_keys_have_windows_apart() -> None:
    seen, _ = windows_of(TIMED, window=tumbling("10 seconds"), time="at", key="user")
    assert seen == [("a", 0, "1,3", "1,3", ""), ("b", 0, "2", "2", ""), ("a", 10, "4", "4", "1,3")]


def test_what_comes_too_late_is_in_the_stream_of_late_tuples() -> None:
    rows: list[tuple[str, float | None, int]] = [("a", 1, 1), ("a", 31, 2), ("a", 4, 3), ("a", None, 4), ("a", 32, 5)]
    seen, late = windows_of(rows, window=tumbling("10 seconds"), time="at", late="late")
    assert (seen, late) == ([("", 0, "1", "1", "")], [3, 4])


def test_a_tuple_that_has_missed_one_of_its_windows_is_new_in_the_next() -> None:
    rows: list[tuple[str, float | None, int]] = [("a", 6, 1), ("a", 11, 2), ("a", 7, 3), ("a", 40, 4), ("a", 40, 5)]
    seen, late = windows_of(rows, window=sliding("10 seconds", every="5 seconds"), time="at", late="late")
    assert seen == [
        ("", 0, "1", "1", ""),
        ("", 5, "1,2,3", "2,3", ""),
        ("", 10, "2", "", "1,3"),
    ]
    assert late == []


def test_the_lag_is_that_of_the_stream() -> None:
    """The watermark is the highest time less the lag."""
    rows: list[tuple[str, float | None, int]] = [("a", 1, 1), ("a", 12, 2), ("a", 3, 3), ("a", 15, 4), ("a", 15, 5)]
    seen, late = windows_of(rows, window=tumbling("10 seconds"), time="at", late="late", max_delay="5 seconds")
    assert (seen, late) == ([("", 0, "1,3", "1,3", "")], [])


def test_the_slowest_partition_decides() -> None:
    """The watermark is the minimum over the inputs."""
    partitions = [[("a", at(s), n) for s, n in rows] for rows in QUICK_AND_SLOW]
    builder = TransactionalTopologyBuilder("t", "spout", MemoryTransactionalSpout(partitions, FIELDS, 1))
    builder.set_event_time("at")
    builder.set_windowed_bolt(
        "shown", Shown(), window=tumbling("10 seconds"), time="at", state=MemoryMapState()
    ).global_grouping("spout")
    [row] = complete_topology(builder.build(strict=True))["shown"]
    assert sorted(row.tuples.split(",")) == ["1", "5", "6"]


def test_windows_of_the_transactions_own_time() -> None:
    builder = builder_of([("a", 1, 1), ("a", 2, 2)])
    window = tumbling("36500 days", time="transaction")
    builder.set_windowed_bolt("shown", Shown(), window=window, state=MemoryMapState()).global_grouping("spout")
    topology = builder.build(strict=True)
    assert complete_topology(topology)["shown"] == []


# --- by count -------------------------------------------------------------------------------------------------------


def test_windows_by_count_one_after_the_other() -> None:
    rows: list[tuple[str, float | None, int]] = [("a", None, n) for n in range(7)]
    assert windows_of(rows, 2, window=count(3))[0] == [
        ("", None, "0,1,2", "0,1,2", ""),
        ("", None, "3,4,5", "3,4,5", "0,1,2"),
    ]


def test_windows_by_count_that_slide_begin_with_fewer() -> None:
    """As Storm's: one after each two tuples, of the last four."""
    rows: list[tuple[str, float | None, int]] = [("a", None, n) for n in range(7)]
    assert windows_of(rows, 3, window=count(4, every=2))[0] == [
        ("", None, "0,1", "0,1", ""),
        ("", None, "0,1,2,3", "2,3", ""),
        ("", None, "2,3,4,5", "4,5", "0,1"),
    ]


users = st.lists(st.sampled_from("abc"), max_size=40)


@given(users, st.integers(1, 9), st.integers(1, 9), st.integers(1, 7))
@settings(max_examples=examples(25), deadline=None)
def test_windows_by_count_are_the_last_ones_of_each_key(names: list[str], length: int, every: int, take: int) -> None:
    length, every = max(length, every), min(length, every)
    seen, _ = windows_of(
        [(user, None, n) for n, user in enumerate(names)], take, window=count(length, every=every), key="user"
    )
    expected, so_far, before = [], dict[str, list[int]](), dict[str, list[int]]()
    for n, user in enumerate(names):
        its = so_far.setdefault(user, [])
        its.append(n)
        if len(its) % every == 0:
            last, old = its[-length:], before.get(user, [])
            new, gone = [n for n in last if n not in old], [n for n in old if n not in last]
            expected.append((user, None, *(",".join(map(str, some)) for some in (last, new, gone))))
            before[user] = last
    assert sorted(seen) == sorted(expected)
    assert [row for row in seen if row[0] == "a"] == [row for row in expected if row[0] == "a"]


# --- keys that are equal --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", [1, 5])
@pytest.mark.parametrize(("window", "time"), [(count(2), None), (tumbling("10 seconds"), "at")])
def test_keys_that_group_by_takes_for_one_have_one_window(window: Any, time: str | None, take: int) -> None:
    """0.0 and -0.0 are one key, and so are all NaNs."""
    rows = [(-0.0, at(1), 1), (0.0, at(2), 2), (math.nan, at(3), 3), (-math.nan, at(4), 4)]
    rows += [(1.0, at(60), 5), (-1.0, at(61), 6)]
    fields = "price double, at timestamp, n long"
    builder = TransactionalTopologyBuilder("t", "spout", MemoryTransactionalSpout([rows], fields, take))
    builder.set_event_time("at")
    builder.set_windowed_bolt(
        "shown", Shown(), window=window, time=time, key="price", state=MemoryMapState()
    ).fields_grouping("spout", "price")
    seen = complete_topology(builder.build(strict=True))["shown"]
    assert sorted((row.key, row.tuples) for row in seen) == [("0.0", "1,2"), ("nan", "3,4")]


# --- what a state has ---------------------------------------------------------------------------------------------


def test_tuples_leave_the_state_with_their_windows() -> None:
    table = MemoryTable()
    rows: list[tuple[str, float | None, int]] = [("a", float(s), s) for s in range(0, 200, 3)]
    windows_of(rows, window=sliding("10 seconds", every="5 seconds"), time="at", state=MemoryMapState(table=table))
    assert len(MemoryMapState("w string, p long, t long", "tuples binary", table=table, deletes=True).read()) < 15


def test_windows_continue_after_a_restart_and_are_not_continued_as_others() -> None:
    store, table = MemoryCoordinatorStore(), MemoryTable()
    rows: list[tuple[str, float | None, int]] = [("a", None, n) for n in range(4)]

    def run(some: list[Any], window: Any, *, accept_changes: bool = False) -> list[str]:
        builder = builder_of(some)
        builder.set_windowed_bolt("w", Shown(), window=window, state=MemoryMapState(table=table)).global_grouping(
            "spout"
        )
        builder.set_committer_bolt("seen", MemoryMapState(table=closed).count().group_by("tuples")).fields_grouping(
            "w", "tuples"
        )
        topology = builder.build(strict=True)
        config = TopologyConfig(stop_when_drained=True)
        TopologyDriver(topology, store, LocalExecutor(topology), config, accept_changes=accept_changes).run()
        return sorted(topology.component("seen").state.read()["tuples"].to_pylist())  # type: ignore[union-attr]

    closed = MemoryTable()
    assert run(rows, count(3)) == ["0,1,2"]
    assert run([*rows, ("a", None, 4), ("a", None, 5)], count(3)) == ["0,1,2", "3,4,5"]
    with pytest.raises(TopologyChanged, match="has open windows of tuples of 3 every 3 by count"):
        run(rows, count(4), accept_changes=True)


class Refuses(Shown):
    """Fails on the windows of one user."""

    def execute(self, window: TupleWindow) -> None:
        if window.key == ("b",):
            raise ValueError("no b here")
        super().execute(window)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"window": tumbling("10 seconds"), "time": "at"}, "[2026-05-01 12:00:00+00:00, 2026-05-01 12:00:10+00:00) of"),
        ({"window": count(2)}, "of"),
    ],
)
def test_a_window_on_which_the_bolt_raises_is_named_and_left_behind_by_new_code(
    how: dict[str, Any], named: str
) -> None:
    """The run ends at each start until then; nothing is lost, and nothing is counted twice."""
    store, kept, closed = MemoryCoordinatorStore(), MemoryTable(), MemoryTable()
    rows: list[tuple[str, float | None, int]] = [("a", 1, 1), ("b", 2, 2), ("a", 3, 3), ("b", 4, 4), ("a", 30, 5)]

    def run(bolt: WindowedBolt) -> list[dict[str, Any]]:
        builder = builder_of(rows)
        builder.set_event_time("at", max_delay="0 seconds")
        state = MemoryMapState(table=kept)
        builder.set_windowed_bolt("refuses", bolt, key="user", state=state, **how).global_grouping("spout")
        seen = MemoryMapState(("key", "tuples"), table=closed).count()
        builder.set_committer_bolt("seen", seen).fields_grouping("refuses", "key", "tuples")
        topology = builder.build(strict=True)
        config = TopologyConfig(stop_when_drained=True, attempts_max=2, retry_pause_ms=1)
        TopologyDriver(topology, store, LocalExecutor(topology), config).run()
        return topology.component("seen").state.read().to_pylist()  # type: ignore[no-any-return, union-attr]

    text = f"component 'refuses' raised ValueError: no b here on the window {named} user='b', which has 2 tuples"
    for _ in range(2):
        with pytest.raises(RetriesExhausted) as ended:
            run(Refuses())
        said = re.sub(r" \([^()]*:\d+\),", "", str(ended.value))
        assert text in said
    assert run(Shown()) == [
        {"key": user, "tuples": tuples, "count": 1} for user, tuples in (("a", "1,3"), ("b", "2,4"))
    ]


def test_describe_shows_the_window() -> None:
    builder = builder_of([])
    builder.set_windowed_bolt(
        "top", Shown(), window=count(4, every=2), key=["user"], state=MemoryMapState()
    ).global_grouping("spout")
    [component] = describe_topology(builder.build())["components"][1:]
    assert (component["kind"], component["steps"]) == ("Shown", ["window(count(4, every=2), key=user)"])


# --- mistakes -----------------------------------------------------------------------------------------------------


def declared(**how: Any) -> None:
    builder = builder_of([])
    if how.pop("event_time", True):
        builder.set_event_time("at")
    bolt = how.pop("bolt", Shown())
    declarer = builder.set_windowed_bolt("w", bolt, **{"window": count(3), "state": MemoryMapState(), **how})
    declarer.global_grouping("spout")
    builder.build()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"bolt": object()}, "windowed bolt 'w' is a object, not a WindowedBolt"),
        ({"bolt": Shown}, "is the class Shown; pass an instance"),
        ({"window": "5 minutes"}, "window is one such as tumbling"),
        ({"window": session("1 minute", longest="1 hour")}, "sessions are windows of streams"),
        ({"window": tumbling("1 minute")}, "name the field with time='…'"),
        ({"time": "at"}, r"time='at' has no meaning for count\(3\), for which no tuple is late"),
        ({"late": "late"}, "late='late' has no meaning"),
        ({"window": tumbling("1 minute"), "time": "at", "late": "old"}, "declares in streams: late"),
        ({"window": tumbling("1 minute"), "time": "when"}, "when"),
        ({"window": tumbling("1 minute"), "time": "n"}, "field 'n' is a long, and times are timestamps"),
        ({"window": tumbling("1 minute"), "time": "at", "event_time": False}, r"call set_event_time\('at'\)"),
        ({"key": "name"}, "name"),
        ({"state": "tables"}, "is not a state"),
        ({"state": MemoryMapState("a", "b long")}, "declares the state"),
        ({"state": None}, "has no state"),
    ],
)
def test_mistakes_are_reported_at_build(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declared(**how)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: count(0), "count: length is 0; it is a number of tuples, from 1 to 1,000,000"),
        (lambda: count("5 minutes"), "count: length is '5 minutes'"),
        (lambda: count(3, every=4), "leave tuples out"),
        (lambda: count(3, every=True), "count: every is True"),
        (lambda: builder_of([]).set_bolt("w", Shown()), "add it with set_windowed_bolt"),
    ],
)
def test_other_mistakes(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


class Origins(WindowedBolt):
    """Emits what each tuple has, and from where it came."""

    output = "tuples string"

    def execute(self, window: TupleWindow) -> None:
        shown = [
            f"{t.source}:{','.join(f'{k}={v}' for k, v in t.as_dict().items() if k != 'at')}" for t in window.get()
        ]
        self.collector.emit(" ".join(sorted(shown)))


def unlike(output: str, **how: Any) -> TransactionalTopologyBuilder:
    """A windowed bolt whose inputs are a spout and a bolt with other fields."""
    builder = builder_of([("a", 1, 1), ("b", 2, 2), ("a", 40, 3), ("a", 40, 4), ("a", 41, 5)], take=2)
    builder.set_event_time("at")
    builder.set_bolt("names", lambda t: (t.user, t.at, t.n * 10), output=output).global_grouping("spout")
    builder.set_bolt("bare", lambda t: (t.n, t.at, t.user), output="n long, at timestamp, user string").global_grouping(
        "spout"
    )
    declarer = builder.set_windowed_bolt("w", Origins(), state=MemoryMapState(), **how)
    declarer.global_grouping("bare").global_grouping("names")
    return builder


@pytest.mark.parametrize("window", [{"window": count(2)}, {"window": tumbling("10 seconds"), "time": "at"}])
def test_inputs_may_have_other_fields(window: dict[str, Any]) -> None:
    """Each tuple has those of its input, in its order, after it was kept, too."""
    builder = unlike("user string, at timestamp, tens long", key="user", **window)
    shown = [row.tuples for row in complete_topology(builder.build(strict=True))["w"]]
    assert "bare:n=1,user=a names:user=a,tens=10" in shown
    assert "bare:n=2,user=b names:user=b,tens=20" in shown


class Lates(Origins):
    """With a stream of late tuples."""

    streams = {"late": "n long, tens long"}  # noqa: RUF012


def test_late_tuples_have_none_of_what_their_input_lacks() -> None:
    rows: list[tuple[str, float | None, int]] = [("a", 1, 1), ("a", 31, 2), ("a", 4, 3), ("a", 32, 4)]
    builder = builder_of(rows)
    builder.set_event_time("at")
    builder.set_bolt("tens", lambda t: (t.at, t.n * 10), output="at timestamp, tens long").global_grouping("spout")
    how: dict[str, Any] = {"window": tumbling("10 seconds"), "time": "at", "late": "late", "state": MemoryMapState()}
    builder.set_windowed_bolt("w", Lates(), **how).global_grouping("spout").global_grouping("tens")
    late = complete_topology(builder.build(strict=True))["w", "late"]
    assert sorted(late, key=str) == [(3, None), (None, 30)]


@pytest.mark.parametrize(
    ("output", "how", "message"),
    [
        (
            "user string, at timestamp, n string",
            {"window": count(3)},
            "'n' is long from 'bare', and string from 'names'",
        ),
        (
            "name string, at timestamp, n long",
            {"window": count(3), "key": "user"},
            "'user', which 'names' does not have",
        ),
        (
            "user string, then timestamp, n long",
            {"window": tumbling("1 minute"), "time": "at"},
            "'at', which 'names' does not have",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused(output: str, how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unlike(output, **how).build()


def test_its_state_may_be_that_of_the_provider() -> None:
    builder = builder_of([("a", None, n) for n in range(3)])
    builder.set_windowed_bolt("w", Shown(), window=count(3)).global_grouping("spout")
    topology = builder.build(config={"state_provider": "memory"})
    assert [row.tuples for row in complete_topology(topology)["w"]] == ["0,1,2"]


def test_rows_that_keep_the_same_tuples_are_comparable() -> None:
    """Tuples of a transaction come in any order; which there are does not depend on it."""
    windowing = Windowing.from_declaration("w", Shown(), count(9), "user", None, None)
    windowing.check_inputs("w", [(Grouping(GroupingKind.GLOBAL, "spout"), Schema.parse(FIELDS))])
    rows = []
    for numbers in ((1, 2, 3), (3, 1, 2), (1, 2), (1, 2, 2), (1, 2, 4)):
        came = [(0, place, Tuple(("user", "at", "n"), ("a", NOON, n), "spout")) for place, n in enumerate(numbers)]
        rows.append(windowing.comparable({"tuples": windowing._pack(came)}))
    assert [row == rows[0] for row in rows] == [True, True, False, False, False]
    assert windowing.comparable({"tuples": b"12"}) == {"tuples": b"12"}
