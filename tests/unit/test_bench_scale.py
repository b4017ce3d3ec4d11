"""What is shown of large batches and large tables, of records passed on to Kafka, and of rows
appended to tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bench import append_sheets, sink_programs, sink_sheets, sinks
from bench.append_programs import ROW_BYTES, RowMaker, translator_of
from bench.appends import FORMS, TableReader
from bench.decoders import records
from bench.rounds import WrongResult
from bench.scale_targets import scale_targets
from bench.sheets import scale_sheet


def test_large_batches_and_tables_are_held_against_their_targets() -> None:
    commits = [
        {"rows": 1_000, "files": 2, "compactions": 2, "wall_p50_ms": 10.0, "wall_p99_ms": 20.0},
        {"rows": 10_000_000, "files": 2, "compactions": 3, "wall_p50_ms": 14.0, "wall_p99_ms": 60.0},
        {"rows": 1_000_000, "files": 200, "compactions": 3, "wall_p50_ms": 30.0, "wall_p99_ms": 61.0},
    ]
    driver = {"peak_jvm_mib": 300.0, "driver_cpu_s_per_transaction": 0.05, "jvm_cpu_s_per_transaction": 0.05}
    memory = [
        {**driver, "keys": 1_000_000, "peak_driver_mib": 200.0, "messages_per_s": 500_000},
        {**driver, "keys": 1_000, "peak_driver_mib": 100.0, "messages_per_s": 2_000},
    ]
    slower = {f"{number} in round 1": [{"messages_per_s": speed}] for number, speed in (("1", 10), ("2", 9))}
    count = {"work": "count", "compactions": 2, "p50_ms": 10.0, "mean_with_base_compactions_ms": 9.0}
    tables = [{**count, "keys": 1_000_000, "p99_ms": 10.0}, {**count, "keys": 100_000_000, "p99_ms": 21.0}]
    found: dict[str, dict[str, Any]] = {
        "commits": {"commits": commits},
        "memory": {"all": memory},
        "executors": slower,
        "tables": {"count": tables},
    }
    figures = [{"part": part, "case": case, "tables": each} for part in found for case, each in found[part].items()]
    ratios = [
        {"system": "ours-auto", "peer": peer, "throughput": {"min": 1.0, "median": median, "max": 20.0}}
        for peer, median in (("expert", 2.5), ("merge", 15.0))
    ]
    summaries = [{"system": "ours-auto", "batches": 30}]
    of_peers = {"keys": 1_000_000, "table": 1_000_000, "ratios": ratios, "summaries": summaries}
    documents = {"scale": {"figures": figures}, "grid": {"points": [of_peers]}}
    verdicts = {each.what.split(",")[0]: [] for each in scale_targets(documents)}  # type: ignore[var-annotated]
    for each in scale_targets(documents):
        verdicts[each.what.split(",")[0]].append(each.is_met)
    assert verdicts == {
        "a million keys a batch": [False, True],
        "staged commit": [True, False],
        "staged commit of 20 files": [None],
        "staged commit of 200 files": [None],
        "driver's peak memory": [False],
        "driver's share of a transaction's time": [True],
        "throughput of 2 executors against 1": [False],
        "throughput of 4 executors against 2": [None],
        "count": [True, False, True],
        "read-modify-write into 10⁸ keys: p50": [None],
        "read-modify-write into 10⁸ keys: p99": [None],
        "read-modify-write into 10⁸ keys: mean with compactions": [None],
    }
    assert len(scale_sheet(documents).rows) == 16
    assert not scale_sheet({}).rows


def test_records_that_were_passed_on_are_timed_from_when_they_were_sent_and_none_may_be_missing() -> None:
    def record(number: int, sent_us: int) -> bytes:
        return f"{sent_us:016}{number:016}".encode()

    now = sink_programs.record_of(7)
    assert (sink_programs.number_of(now), len(now)) == (7, sink_programs.RECORD_BYTES)
    seen = sinks.Seen()
    seen.add([record(sinks.PROBE, 500), record(1, 1_000), record(2, 4_000)], 9_000, [1, 2, 2])
    seen.add([record(3, 5_000)], 10_000, [3])
    seen.parse()
    assert (seen.count, len(seen.numbers), seen.speed()) == (4, 3, 1_000)
    assert seen.latency(2_000) == {"p50_ms": 5, "p99_ms": 5}
    planned_us = {2: 5_000, 3: 8_000}
    assert seen.latency_since_planned(2_000, planned_us) == {"consumed_p50_ms": 2, "consumed_p99_ms": 4}
    seen.check(3, exactly=True)
    seen.add([record(3, 5_000)], 11_000)
    seen.parse()
    seen.check(3, exactly=False)
    with pytest.raises(WrongResult, match=r"^3 records were sent; 4 came, 3 of them different$"):
        seen.check(3, exactly=True)
    with pytest.raises(WrongResult, match=r"^4 records were sent; 4 came, 3 of them different$"):
        seen.check(4, exactly=False)


def test_rows_of_sinks_are_summed_up_over_their_rounds() -> None:
    rows = [
        {"what": "latency", "system": "ours", "records": 1_000, "round": n, "p50_ms": ms} for n, ms in ((1, 9), (2, 7))
    ]
    assert list(sink_sheets.sink_rows(rows)) == [("latency", "1,000", "ours", "p50 7.0 … 8.0 … 9.0 ms")]
    assert [target.is_met for target in sink_sheets.sink_targets(rows)] == [None] * 7
    rows[0]["consumed_p50_ms"] = 20
    assert [target.is_met for target in sink_sheets.sink_targets(rows)] == [True, *[None] * 6]
    assert sum(what == "throughput" for what, _, _ in sinks.rows_of(sinks.WHOLE, sinks.SYSTEMS)) == 7


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_both_forms_are_read_as_they_were_sent(form: str) -> None:
    rows = RowMaker(form)
    values = [rows.make(number) for number in (1, 2, 70_000)]
    assert all(900 <= len(value) <= ROW_BYTES for value in values)
    table = translator_of(form).translate(records(values, translator_of(form)))
    columns = table.to_pydict()
    assert columns["number"] == [1, 2, 70_000]
    assert columns["customer"] == ["c00001", "c00002", "c00000"]
    assert len({*columns["payload"]}) == 3


def test_rows_that_are_compacted_are_not_counted_again(tmp_path: Path) -> None:
    rows = pa.table({"number": pa.array([1, 2]), "sent_us": pa.array([0, 0])})
    for part in (rows.slice(0, 1), rows.slice(1)):
        write_deltalake(tmp_path, part, mode="append")
    DeltaTable(tmp_path).optimize.compact()
    reader = TableReader(tmp_path)
    reader.poll()
    assert reader.rows == len(reader.read(2)) == 2
    with pytest.raises(WrongResult, match="3 rows were sent; 2 are in the table, 2 of them different"):
        reader.read(3)


def test_appends_are_held_against_their_targets() -> None:
    rows = [
        {"what": "backlog", "form": "json", "system": "ours", "round": 1, "mb_per_s": 120.0},
        {"what": "backlog", "form": "json", "system": "spark", "round": 1, "mb_per_s": 60.0},
        {"what": "growth", "form": "1,000 rows", "system": "ours", "round": 1, "growth": 1.5},
    ]
    assert [target.is_met for target in append_sheets.append_targets(rows)] == [True, *[None] * 7, False]
    assert [line[2:] for line in append_sheets.append_rows(rows)][1] == ("spark", "60.0 … 60.0 … 60.0 MB/s")
