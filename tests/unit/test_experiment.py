"""The experiment's arithmetic, without a cluster: who dies when, lag, latency, recovery, and the picture."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experiment import load, report
from tests.experiment.schedule import Kind, Plan
from tests.experiment.timeline import Reached, Run, weighted

PLAN = Plan(workers=4, kills=3, every_s=10, away_s=4, leader_at_each=3)


def steady(*, stalls_at: float = 99.0, until: float = 99.0, name: str = "one") -> Run:
    """100 messages a second in 2 partitions for 70 s; each is committed after half a second, but for one stall."""
    due = [Reached(tick / 10, (5 * tick, 5 * tick)) for tick in range(1, 701)]
    committed = [Reached(each.at_s + 0.5, each.positions) for each in due if not stalls_at < each.at_s + 0.5 < until]
    return Run(name, due, committed, [stalls_at] if stalls_at < 70 else [])


def test_every_worker_that_comes_back_was_away_and_the_leader_dies_at_each_third() -> None:
    steps = PLAN.steps()
    assert [(step.at_s, step.kind, step.worker) for step in steps] == [
        (10, Kind.WORKER, 0),
        (14, Kind.BACK, 0),
        (20, Kind.WORKER, 1),
        (24, Kind.BACK, 1),
        (30, Kind.LEADER, 2),
        (34, Kind.BACK, 2),
        (40, Kind.GONE, 1),
        (50, Kind.GONE, 2),
        (60, Kind.GONE, 3),
    ]
    assert PLAN.lasts_s == 70


def test_an_undisturbed_run_lags_by_what_half_a_second_brings() -> None:
    run = steady()
    assert {lag for at, lag in run.lag() if at >= 1} == {50}
    assert {round(each.p99_s or 0, 3) for each in run.latencies() if each.at_s < 69} == {0.5}
    assert {rate for at, rate in run.throughput() if at > 5} == {100.0}
    assert [each.seconds for each in run.recoveries(PLAN.steps())] == [0.0] * 6


def test_a_stall_is_recovered_from_when_the_lag_is_what_it_was() -> None:
    run = steady(stalls_at=30.0, until=33.7)
    recoveries = run.recoveries(PLAN.steps())
    assert [each.seconds for each in recoveries] == [0.0, 0.0, 4.0, 0.0, 0.0, 0.0]
    assert [each.first_s for each in recoveries] == [0.0, 0.0, 4.0, 0.0, 0.0, 0.0]
    assert recoveries[2].lag_before == 50
    assert max(each.p99_s or 0 for each in run.latencies()) > 3.9


def test_a_lag_that_is_as_before_and_rises_once_more_has_not_stayed_there() -> None:
    run = steady(stalls_at=30.0, until=33.7)
    late = [Reached(each.at_s + 0.5 * (36.0 < each.at_s < 36.8), each.positions) for each in run.committed]
    found = Run("one", run.due, sorted(late, key=lambda each: each.at_s), ()).recoveries(PLAN.steps())[2]
    assert (found.first_s, found.seconds) == (4.0, 7.0)


def test_who_does_not_come_back_before_the_next_kill_has_not_recovered() -> None:
    assert [each.seconds for each in steady(stalls_at=10.0, until=25.0).recoveries(PLAN.steps())][:2] == [None, 5.0]


def test_what_was_never_committed_has_no_latency() -> None:
    run = steady(stalls_at=60.0, until=99.0)
    assert run.latencies()[-1].p50_s is None
    assert run.percentile(0.99) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1), st.sampled_from([0.25, 0.5, 0.99, 1.0]))
def test_a_weighted_percentile_is_that_of_the_pieces_spelt_out(pieces: list[tuple[int, int]], share: float) -> None:
    spelt = sorted(figure for figure, weight in pieces for _ in range(weight))
    place = next(place for place in range(1, len(spelt) + 1) if place >= share * len(spelt))
    assert weighted(list(pieces), share) == spelt[place - 1]


@settings(max_examples=20)
@given(st.integers(0, 30_000))
def test_counts_and_positions_of_the_load_are_those_of_its_messages(messages: int) -> None:
    assert load.counts(messages) == Counter(load.word(number) for number in range(messages))
    spread = Counter(number % load.PARTITIONS for number in range(messages))
    assert load.positions(messages) == tuple(spread[partition] for partition in range(load.PARTITIONS))


def test_the_report_is_a_picture_and_its_figures(tmp_path: Path) -> None:
    runs = [steady(name="one & only"), steady(stalls_at=30.0, until=33.7, name="other")]
    report.save(tmp_path, PLAN, runs, {"rate": 100.0})
    picture = ElementTree.fromstring((tmp_path / report.PICTURE).read_text("utf-8"))
    assert sum(1 for line in picture.iter() if line.tag.endswith("polyline")) >= 2 * 5
    figures = json.loads((tmp_path / report.FIGURES).read_text("utf-8"))
    assert figures["systems"]["other"]["recoveries"][2]["seconds"] == 4.0
