"""The benchmark's own arithmetic, without servers: what is counted, compared, kept, told and drawn."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bench import (
    closing,
    lookups,
    model,
    page,
    plots,
    processes,
    results,
    sampling,
    streams,
    windows,
    works,
)
from bench.__main__ import attempted, options_of
from bench.contest import Contest, Plan
from bench.figures import Spread, compare, percentile, summarise
from bench.grid_systems import Course
from bench.results import Results, load
from bench.rounds import BatchTimes, CountingSystem, Round, Stage, WrongResult, bytes_of_new, files_below
from bench.sheets import all_sheets, grid_sheet
from bench.steady import TimedDriver
from bench.targets import Target, formatted, targets
from bench.workload import Workload, departures, timed, zipf
from bench.works import Work
from examples import transactional_global_count
from transactional import TopologyConfig
from transactional.model.batch import Offset, OffsetRange, PartitionId
from transactional.operations.launch.running import make_executor
from transactional.operations.loading import open_store


def rounds(system: str, *each_ms: int, size: int = 1_000, work: str = "keys-8k", commit_ms: int = 50) -> list[Round]:
    """Rounds of three batches, which follow each other; a batch takes so many milliseconds."""
    phases = {"processing": 100, "commit": commit_ms}
    return [
        Round(work, system, size, 3 * size, tuple(BatchTimes(n * ms, ms, ms, phases) for n in range(3)), 0.1, 600)
        for ms in each_ms
    ]


def document(part: str, *found: Round) -> dict[str, Any]:
    """A part's file as it is read back."""
    kept = Results(part, "python -m bench", list(found))
    return cast(dict[str, Any], json.loads(json.dumps(results.rounded(kept.document()))))


# --- figures --------------------------------------------------------------------------------------------------------


def test_percentiles_are_figures_that_were_measured() -> None:
    assert [percentile([4, 1, 3, 2], percent) for percent in (1, 50, 75, 99)] == [1, 2, 3, 4]


def test_a_summary_leaves_out_the_first_batch_of_each_round_and_nothing_of_the_throughput() -> None:
    found = summarise(rounds("ours-1", 100, 200))
    assert (found.batches, found.p50_ms, found.p99_ms) == (4, 100, 200)
    assert found.messages_per_second == Spread(5_000, 7_500, 10_000)
    assert (found.bytes_per_batch, found.bytes_per_message) == (200, 0.2)
    assert found.phases_ms == {"processing": 100, "commit": 50}


def test_ratios_are_of_rounds_that_ran_beside_each_other() -> None:
    found = compare(rounds("ours-3", 100, 200), rounds("merge", 1_000, 4_000))
    assert found.throughput == Spread(10, 15, 20)
    assert found.latency == Spread(10, 15, 20)


def test_one_reading_in_one_go_has_a_throughput_and_no_latency() -> None:
    raw = [Round("keys-8k", "raw", 1_000, 3_000, (BatchTimes(0, 150, 150, {}),), None)]
    found = compare(rounds("ours-3", 100), raw)
    assert (found.throughput, found.latency) == (Spread(0.5, 0.5, 0.5), None)
    assert summarise(raw).p50_ms is None


def test_bytes_are_those_of_files_that_came_or_grew(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/0.json").write_text("1234")
    (tmp_path / "old").write_text("12345678")
    before = files_below(tmp_path)
    (tmp_path / "log/1.json").write_text("12")
    (tmp_path / "log/0.json").write_text("12345")
    (tmp_path / "old").unlink()
    assert bytes_of_new(before, files_below(tmp_path)) == 3


# --- workloads ------------------------------------------------------------------------------------------------------


def test_the_words_are_the_same_ones_each_time_and_their_counts_are_known() -> None:
    workload = zipf("words", 1_000, 50, 200)
    assert (workload.messages, workload) == (1_200, zipf("words", 1_000, 50, 200))
    assert workload.words[:50] == tuple(f"word-{rank}" for rank in range(50))
    until = workload.until(333)
    assert until == {0: 84, 1: 83, 2: 83, 3: 83}
    assert works.per_key(workload, "keys").expected(until) == Counter(workload.words[:333])
    assert works.global_count(workload).expected(until) == {"all": 333}
    assert works.capitals(workload).expected(until) == Counter(word.upper() for word in workload.words[:333])


def test_flights_are_counted_by_what_their_json_says() -> None:
    flights = departures("flights", 0, messages=500)
    assert flights.messages == 500
    assert flights.values is not None
    first = works.carriers(flights).expected(flights.until(400))
    assert first == Counter(json.loads(value)["carrier"] for value in flights.values[:400])
    assert len(first) > 5


# --- a contest ------------------------------------------------------------------------------------------------------


class Fake:
    """A system that is right, or not, and writes a file per batch."""

    def __init__(self, name: str, work: Work, calls: list[str], directory: Path, *, wrong: int = 0) -> None:
        self.name, self.work, self.calls, self.wrong = name, work, calls, wrong
        self.directory: Path | None = directory / name
        self.directory.mkdir()
        self.done = 0

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """As many batches as it takes."""
        self.calls.append(self.name)
        self.until, start, self.done = until, self.done, sum(until.values())
        assert self.directory is not None
        (self.directory / str(self.done)).write_text("1234")
        return [BatchTimes(float(n), 1.0, 1.0, {}) for n in range((self.done - start) // batch_messages)]

    def counts(self) -> dict[str, int]:
        """What it was asked for, and what it invents."""
        return self.work.expected(self.until) | ({"invented": self.wrong} if self.wrong else {})


def not_appended(workload: Workload, start: int, end: int) -> None:
    """The fakes read no topic."""


def contest(tmp_path: Path, minutes: float = 1) -> Contest:
    """A contest without Spark."""
    session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None))
    stage = Stage(cast(Any, session), "nowhere", tmp_path, 2)
    until_s = monotonic() + minutes * 60
    return Contest(
        stage, Results("pairs", "test"), Console(file=io.StringIO()), until_s, tmp_path / "out", not_appended
    )


def test_systems_work_in_turns_over_the_same_messages_and_each_round_is_kept(tmp_path: Path) -> None:
    work, calls = works.per_key(zipf("words", 120, 10, 40), "keys-8k"), list[str]()
    held = contest(tmp_path)
    systems = [Fake(name, work, calls, tmp_path) for name in ("ours-1", "merge")]
    assert all(isinstance(system, CountingSystem) for system in systems)
    held.hold(work, systems, Plan(20, rounds=2, batches=3))
    assert calls == ["ours-1", "merge"] * 3
    kept = results.load(tmp_path / "out")["pairs"]
    assert [(each["system"], each["messages"], each["bytes_written"]) for each in kept["rounds"]] == [
        *(("ours-1", 60, 4), ("merge", 60, 4)) * 2
    ]
    assert len(held.results.checked) == 2


def test_a_wrong_count_is_an_error(tmp_path: Path) -> None:
    work = works.per_key(zipf("words", 120, 10, 40), "keys-8k")
    with pytest.raises(WrongResult, match="'invented': 3 instead of None"):
        contest(tmp_path).hold(work, [Fake("ours-1", work, [], tmp_path, wrong=3)], Plan(20, 2, 3))


def test_when_time_is_up_no_round_is_started_and_what_was_done_is_checked(tmp_path: Path) -> None:
    work = works.per_key(zipf("words", 120, 10, 40), "keys-8k")
    held = contest(tmp_path, minutes=-1)
    held.hold(work, [Fake("ours-1", work, [], tmp_path)], Plan(20, 2, 3))
    assert (held.results.rounds, len(held.results.checked)) == ([], 1)


# --- targets --------------------------------------------------------------------------------------------------------


def test_the_median_decides_whether_a_target_is_met() -> None:
    spread = {"min": 7.0, "median": 8.0, "max": 30.0}
    assert [Target("", spread, at_least=limit).is_met for limit in (8, 8.1)] == [True, False]
    assert [Target("", spread, at_most=limit).is_met for limit in (8, 7.9)] == [True, False]
    assert [Target("", None, at_most=1).is_met, Target("", spread).is_met] == [None, None]
    assert Target("", spread, at_least=8).shown == "7 … 8 … 30 \N{MULTIPLICATION SIGN}"


def test_every_line_is_there_when_nothing_was_measured() -> None:
    found = targets({})
    assert len(found) >= 19
    assert {each.shown for each in found} == {"not measured"}


def test_lines_are_made_from_the_parts_files() -> None:
    pairs = document(
        "pairs",
        *(*rounds("ours-1", 100, 100), *rounds("merge", 1_500, 1_100)),
        *(*rounds("ours-3", 50, 50, size=20_000), *rounds("merge", 550, 500, size=20_000)),
    )
    shown = {each.what: (each.shown, each.is_met) for each in targets({"pairs": pairs})}
    times = "\N{MULTIPLICATION SIGN}"
    assert shown["p50 planned → committed against its trigger, 1,000"] == (f"11 … 13 … 15 {times} shorter", True)
    assert shown["messages/s against Structured Streaming + MERGE, 20,000"] == (f"10 … 10.5 … 11 {times}", False)


@pytest.mark.parametrize(("commit_ms", "told_of"), [(49, False), (50, True)])
def test_the_pipeline_is_judged_where_the_commit_weighs(commit_ms: int, told_of: bool) -> None:  # noqa: FBT001
    found = document(
        "works", *(each for n in (1, 3) for each in rounds(f"ours-{n}", 90 // n, commit_ms=commit_ms, work="keys-1m"))
    )
    lines = [each for each in targets({"works": found}) if "in flight" in each.what]
    assert [each.is_met for each in lines] == [True if told_of else None]


def test_memory_is_that_of_driver_and_jvm_together() -> None:
    steady = {"peaks_mib": {"5000": {"driver": 210, "jvm": 900}, "500": {"driver": 200, "jvm": 800}}}
    [line] = [each for each in targets({"steady": steady}) if "memory" in each.what]
    assert (line.reached, line.is_met) == (1.11, False)


def test_figures_are_reported_short() -> None:
    assert [formatted(figure) for figure in (0.8456, 8.0, 12.04, 123456.7, None)] == ["0.85", "8", "12", "123,457", "-"]
    assert results.rounded({"a": [1.234567891, 123456.789, 7, None, True]}) == {"a": [1.2346, 123457.0, 7, None, True]}


# --- what is shown --------------------------------------------------------------------------------------------------


def test_a_page_is_filled_between_its_marks_and_filling_it_again_changes_nothing() -> None:
    documents = {"pairs": document("pairs", *rounds("ours-1", 100), *rounds("merge", 1_000))}
    text = "before\n<!-- figures: pairs -->\nold\n<!-- end: pairs -->\nafter <!-- figures: x -->\n"
    once = page.filled(text, documents)
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("after <!-- figures: x -->\n")
    assert "| keys-8k | 1,000 | ours-1 | merge | 10 … 10 … 10 | 10 … 10 … 10 |" in once
    assert page.filled(once, documents) == once
    with pytest.raises(KeyError):
        page.filled("<!-- figures: nothing -->\n<!-- end: nothing -->", documents)


def test_all_tables_have_as_many_cells_as_columns() -> None:
    pairs = document("pairs", *rounds("ours-1", 100), *rounds("merge", 1_000))
    profile = {"driver": 1.0, "jvm": 2.0, "workers": 1.0}
    steady = {"transactions": 50, "seconds": 5, "batch_messages": 10, "in_flight": 3, "own_ms": {"p50": 2.0}}
    profiles = [{"batch_messages": 1_000, "profile": {"cpu_seconds": profile, "driver": {"top": {"a.py: f": 0.5}}}}]
    found = list(all_sheets({"pairs": pairs, "steady": steady, "profile": {"profiles": profiles}}))
    assert all(len(row) == len(sheet.columns) for sheet in found for row in sheet.rows)
    assert ("1,000", "driver, JVM", "50%", "-") in [row for sheet in found for row in sheet.rows]


def test_plots_are_svg_with_a_bar_for_each_system(tmp_path: Path) -> None:
    documents = {"pairs": document("pairs", *rounds("ours-1", 100), *rounds("merge", 1_000))}
    paths = plots.save(documents, tmp_path)
    assert [path.name for path in paths] == ["pairs-throughput.svg", "pairs-latency.svg"]
    for path in paths:
        rectangles = ElementTree.parse(path).findall("{http://www.w3.org/2000/svg}rect")
        assert len(rectangles) == 3  # the background, and two bars
        assert float(rectangles[1].get("width", 0)) > 0


# --- profiles and processes -----------------------------------------------------------------------------------------


def test_samples_are_shared_out_by_process_and_innermost_function() -> None:
    lines = [
        'process 7:"python -m bench";run (transactional/driver.py:10);handle (transactional/coordinator.py:9) 30',
        'process 7:"python -m bench";run (transactional/driver.py:10) 10',
        'process 7:"python -m bench";process 9:"python daemon";main (worker.py:1);read (/a/b/spouts/kafka.py:3) 60',
    ]
    found = sampling.shares(lines, driver=7)
    assert found["driver"] == {
        "samples": 40,
        "top": {"transactional/coordinator.py: handle": 0.75, "transactional/driver.py: run": 0.25},
    }
    assert found["workers"] == {"samples": 60, "top": {"spouts/kafka.py: read": 1.0}}


def test_memory_and_processor_time_are_those_of_the_processes() -> None:
    parts = {"driver": [os.getpid()], "jvm": []}
    processes.reset_peaks(parts)
    assert processes.peaks_mib(parts)["driver"] > 10
    assert processes.cpu_seconds(parts)["driver"] > 0
    assert processes.cpu_seconds(parts)["jvm"] == 0
    assert processes.parents_of_all()[os.getpid()] == os.getppid()


def test_the_coordinators_own_work_is_reported_per_transaction(tmp_path: Path) -> None:
    topology, seen = transactional_global_count.build(str(tmp_path)), list[int]()
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    config = TopologyConfig(stop_when_drained=True)
    driver = TimedDriver(topology, store, make_executor(topology, master="none"), config)
    driver.spent_ms, driver.on_commit = {}, seen.append
    transactions = driver.run().transactions
    store.close()
    assert seen == list(range(1, transactions + 1))
    assert [len(spent) for spent in driver.spent_ms.values()] == [transactions] * 3
    assert all(0 < store < own for own, store in zip(driver.spent_ms["own"], driver.spent_ms["store"], strict=True))


def test_a_part_that_there_is_not_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(["--parts", "pairs,nothing"])
    assert "no such part: nothing" in capsys.readouterr().err
    assert options_of(["--short"]).output == Path("artifacts/performance")
    assert options_of([]).output == Path("docs/performance")


def test_a_part_that_fails_is_reported_and_the_next_one_runs() -> None:
    done: list[str] = []

    def fails() -> None:
        raise WrongResult("a count is wrong")

    console = Console(file=io.StringIO())
    assert attempted([("pairs", fails), ("raw", lambda: done.append("raw"))], console) == ["pairs"]
    assert done == ["raw"]
    assert "a count is wrong" in cast(io.StringIO, console.file).getvalue()


def test_a_part_s_file_has_a_line_for_each_record_and_says_the_same() -> None:
    document = {"part": "works", "machine": {"cores": 2}, "rounds": [{"ms": [1.5, 2]}, {"ms": None}], "checked": []}
    lines = results.in_lines(document)
    assert json.loads(lines) == document
    assert lines.splitlines()[4:6] == [' {"ms": [1.5, 2]},', ' {"ms": null}']


def test_the_figures_that_are_kept_have_a_line_for_each_record() -> None:
    for path in results_files():
        assert results.in_lines(json.loads(path.read_text("utf-8"))) == path.read_text("utf-8"), path.name


def results_files() -> list[Path]:
    found = sorted(Path(__file__).parents[2].glob("docs/performance/*.json"))
    assert found
    return found


def test_by_hand_and_by_trident_the_same_is_counted() -> None:
    """Few tuples, so the figures say nothing; that both count the same is asserted within."""
    found = streams.measured(200, 1)
    document = {name: {"times": asdict(spreads["times"])} for name, spreads in found.items()}
    lines = [each for each in targets({"streams": {"streams": document}}) if "as a stream" in each.what]
    assert [line.is_met is None for line in lines] == [False, False]


@pytest.mark.long("what a client answers: tests/unit/operations/queries")
def test_each_answer_of_the_lookups_is_compared_with_plain_python(tmp_path: Path) -> None:
    """Two processes, few keys: answers are asserted within; and a count that is wrong by one is noticed."""
    found = lookups.measured(tmp_path, 500, 5, 1, ["sqlite", "log"])
    assert [each["answers"] > 0 for each in found.values()] == [True, True]
    lines = [each for each in targets({"lookups": {"keys": 500, "lookups": found}}) if "looking 3" in each.what]
    assert [line.is_met is None for line in lines] == [False, False]
    table = lookups.Table("log", tmp_path / "log", 500)
    keys = [key for txid in range(2, 8) for batch in lookups.Numbers(500).read(*_range(txid)) for key in batch["key"]]
    for key in range(500):
        assert table.count(key, 7) == 1 + [str(each) for each in keys].count(lookups.name_of(key))


def _range(txid: int) -> tuple[PartitionId, OffsetRange]:
    start = 500 + (txid - 2) * lookups.BATCH
    return PartitionId("numbers", 0), OffsetRange(Offset(start), Offset(start + lookups.BATCH))


# --- the model ------------------------------------------------------------------------------------------------------


def test_the_model_says_what_it_was_fitted_to_and_no_transaction_is_shorter_than_its_ordered_part() -> None:
    documents = load(page.FOLDER)
    made = model.fitted(documents)
    assert made is not None
    for messages in model.FITTED_AT:
        measured = next(
            each
            for each in documents["pairs"]["summaries"]
            if (each["system"], each["batch_messages"]) == ("ours-1", messages)
        )
        period_ms = 1000 * messages / measured["messages_per_second"]["median"]
        assert made.period_ms(messages) == pytest.approx(period_ms, rel=0.03)
    least_ms = made.commit_ms + made.recording_ms + made.between_ms
    assert made.period_ms(1, in_flight=100, tasks=100) == pytest.approx(least_ms)
    assert made.period_ms(20_000, in_flight=3, waits_ms=50) == pytest.approx(least_ms + 50)


def test_without_the_measured_points_there_is_no_model() -> None:
    assert model.fitted({}) is None
    assert list(model.constants({})) == list(model.tried({})) == []


def test_windows_are_compared_once_they_have_surely_closed() -> None:
    workload = timed(zipf("words", 3_000, 5, 0), "by-minute", 100)
    work = windows.ByMinute("windows", "by minute", workload, batch_messages=100)
    found = work.expected(workload.until(3_000))
    # A message is of every 0.6 s; six batches are six minutes, and the delay is ten seconds.
    assert sum(found.values()) == 23 * 100
    ended = work.ends_by(workload.until(3_000))
    one = ("word-1", datetime(2025, 1, 1, tzinfo=UTC), 7)
    assert windows.known(iter([one]), ended) == {"word-1 at 01 00:00": 7}
    assert not windows.known(iter([one]), one[1])
    with pytest.raises(ValueError, match="closed twice"):
        windows.known(iter([one, one]), ended)


def test_closing_is_measured_with_as_many_rows_open_as_are_asked_for(tmp_path: Path) -> None:
    for size in (2_000, 4_000):
        (tmp_path / str(size)).mkdir()
    costs = closing.measure("log", [2_000, 4_000], 3, tmp_path)
    assert {size: len(each) for size, each in costs.items()} == {2_000: 3, 4_000: 3}
    topology = closing.topology_of("memory", tmp_path)
    next(closing.transactions(topology, 2))
    with pytest.raises(AssertionError, match="1000 windows have closed instead of 2000"):
        closing.check(topology, 2)


# --- the grid -------------------------------------------------------------------------------------------------------


def point(keys: int, *found: Round, unfinished: Sequence[str] = ()) -> dict[str, Any]:
    """A point of the grid as it is read back."""
    return {**document("grid", *found), "keys": keys, "table": keys, "unfinished": list(unfinished)}


def test_the_grid_compares_with_the_better_peer_and_names_who_did_not_finish() -> None:
    ours, slow, quick = rounds("ours-auto", 100, 100), rounds("merge", 400, 400), rounds("expert", 90, 200)
    points = [point(7, *ours, *slow, *quick), point(8, *ours, *rounds("expert", 50, 60), unfinished=["merge: no"])]
    rows = [(row[0], row[2], *row[-2:]) for row in grid_sheet({"grid": {"points": points}}).rows]
    assert rows == [
        ("7", "ours-auto", "0.9 … 1.45 … 2 times expert", "met"),
        ("7", "merge", "-", "-"),
        ("7", "expert", "-", "-"),
        ("8", "ours-auto", "0.5 … 0.55 … 0.6 times expert", "**not met**"),
        ("8", "expert", "-", "-"),
        ("8", "merge", "-", "-"),
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("keys", "table"), [(1_000, 10_000), (300, 1_000), (1_000, 1_000), (5, 5_000_000)])
def test_batches_of_the_grid_fill_the_table_and_then_have_each_key_once(keys: int, table: int) -> None:
    course = Course(keys, table, tasks=2)

    def numbers(batch: int) -> list[int]:
        parts = [part for task in range(course.tasks) for part in course.part(batch, task)]
        return sorted(number for part in parts for number in part["key"].to_pylist())

    filled = [number for batch in range(course.fills) for number in numbers(batch)]
    assert (len(filled), filled[0], filled[-1]) == (table, 0, table - 1)
    for batch in range(course.fills, course.fills + 4):
        found = numbers(batch)
        assert len(found) == len(set(found)) == keys
        assert set(found) <= set(range(table))
    assert course.messages(course.fills + 3) == table + 3 * keys
