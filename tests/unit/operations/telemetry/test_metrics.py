"""What is counted and timed for Prometheus, and that no label grows without limit."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.drivers import World
from tests.unit.operations.telemetry.runs import lease, run_before, tried
from tests.unit.runtime.engine.history.test_troubles import failing
from transactional.core.machine.protocol import (
    AbortAttempt,
    BatchPlanned,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    SinksSettled,
    StartCommit,
    Tick,
)
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.progress import Phase
from transactional.errors import SourceUnavailable
from transactional.model.attempt import TxId
from transactional.model.batch import EMPTY_BATCH, BatchLimit, BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.operations.telemetry.metrics import Metrics
from transactional.operations.telemetry.trace_ids import trace_id_of
from transactional.runtime.engine.history.observing import (
    Committed,
    Ended,
    Leading,
    LeaseRenewed,
    Maintained,
    Recovered,
    StoreWritten,
)
from transactional.runtime.engine.history.timeline import Flight, Moment, Timeline

PARTITION = PartitionId("orders", 0)
BATCH = BatchMetadata({PARTITION: OffsetRange(Offset(0), Offset(5))}, {PARTITION: Digest(5, 1, 70)}, lost=2)


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample, as `name{label values but the topology's}`."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name not in ("topology", "le")]
            if "le" not in sample.labels:
                found[sample.name.removeprefix("transactional_") + (f"{{{','.join(labels)}}}" if labels else "")] = (
                    sample.value
                )
    return found


def flight(txid: int, *, limit: BatchLimit | None = None) -> Flight:
    at = [Moment(1_000 + ms, ms) for ms in (0, 10, 110, 310, 360)]
    made = Flight(tried(txid, txid), at[0], 0, "committed", at[4], limit, BATCH)
    made.planned, made.processed, made.commit_started, made.committed = at[1:]
    return made


def test_a_committed_transaction_is_counted_and_timed_by_phase() -> None:
    metrics = Metrics("words")
    details: dict[str, Any] = {
        "lag": 12,
        "lags": [["orders", 3, 7], ["orders", 0, 5]],
        "edges": [["spout", "default", "count", 5]],
        "states": {
            "count": {"at": 3, "ms": 40, "rows": 5, "bytes": 900, "version": 7, "compacted": 4},
            "sql": {"ms": 1},
        },
        "letters": 3,
        "letters_of": {"count": 1, "parse": 2},
        "processing": "on Spark: about 104 ms in workers, 52 ms on Spark",
    }
    metrics.notice(0, Committed(flight(1, limit=BatchLimit(100, None, "first")), BATCH, details))
    found = values(metrics)
    assert {
        name: found[name] for name in found if name.startswith(("phase_duration_seconds_sum", "lag", "partition"))
    } == {
        "phase_duration_seconds_sum{planning}": 0.01,
        "phase_duration_seconds_sum{processing}": 0.1,
        "phase_duration_seconds_sum{waiting}": 0.2,
        "phase_duration_seconds_sum{committing}": 0.05,
        "lag_records": 12,
        "partition_lag_records{3,orders}": 7,
        "partition_lag_records{0,orders}": 5,
    }
    assert (found["transaction_duration_seconds_sum"], found["transaction_duration_seconds_count"]) == (0.36, 1)
    assert found["state_commit_duration_seconds_sum{count}"] == 0.04
    assert (found["records_read_total{orders}"], found["read_bytes_total{orders}"]) == (5, 70)
    assert found["tuples_total{spout,default,count}"] == 5
    assert (found["dead_letters_total{count}"], found["dead_letters_total{parse}"]) == (1, 2)
    assert found["lost_messages_total"] == 2
    assert found["processed_transactions_total{spark}"] == 1
    assert (found["state_rows_total{count}"], found["state_written_bytes_total{count}"]) == (5, 900)
    assert (found["state_compactions_total{count}"], found["state_rows_total{sql}"]) == (0, 0)
    assert "state_written_bytes_total{sql}" not in found
    assert (found["batch_limit_records"], found["last_commit_timestamp_seconds"]) == (100, 1.36)


def test_what_bolts_count_and_that_their_names_are_bounded() -> None:
    metrics = Metrics("words")
    for txid, name in enumerate([*(f"n{at}" for at in range(102)), "n7"], start=1):
        counters = [["parse", name, 2], ["sum", "rows", 1]]
        metrics.notice(0, Committed(flight(txid), BATCH, {"counters": counters}))
    found = values(metrics)
    assert (found["bolt_counter_total{parse,n7}"], found["bolt_counter_total{sum,rows}"]) == (4, 103)
    assert found["bolt_counter_total{parse,other}"] == 4
    assert "bolt_counter_total{parse,n100}" not in found


def test_what_sinks_have_to_publish_and_have_published() -> None:
    metrics = Metrics("words")
    metrics.notice(0, Committed(flight(1), BATCH, {"sinks": {"alerts": {"count": 3}, "copy": {"count": 1}}}))
    metrics(0, SinksSettled(TxId(1)), [])
    samples = values(metrics)
    assert (samples["sink_records_total{alerts}"], samples["sink_records_total{copy}"]) == (3, 1)
    assert samples["sinks_settled_txid"] == 1


def test_event_time_its_windows_and_what_came_too_late() -> None:
    metrics = Metrics("words")
    unknown = {"newest_us": None, "watermark_us": None, "open": {"minutes": None, "visits": None}}
    metrics.notice(0, Committed(flight(1), BATCH, {"event_time": unknown}))
    found = values(metrics)
    assert (found["late_tuples_total{minutes}"], found["late_tuples_total{visits}"]) == (0, 0)
    assert not [name for name in found if name.startswith(("watermark", "newest", "open_windows"))]
    reached = {"newest_us": 1_500_000_000, "watermark_us": 1_440_000_000, "open": {"minutes": 2, "visits": None}}
    for txid in (2, 3):
        metrics.notice(0, Committed(flight(txid), BATCH, {"event_time": reached, "late": {"visits": 4}}))
    found = values(metrics)
    assert (found["newest_event_timestamp_seconds"], found["watermark_timestamp_seconds"]) == (1_500, 1_440)
    assert (found["late_tuples_total{minutes}"], found["late_tuples_total{visits}"]) == (0, 8)
    assert found["open_windows{minutes}"] == 2
    assert "open_windows{visits}" not in found


def test_waiting_for_records_is_no_latency() -> None:
    """A source has nothing for an hour: nobody waits for a transaction."""
    timeline, attempt, hour = Timeline(), tried(1, 1), 3_600_000

    def at(ms: int) -> Moment:
        return Moment(ms, ms)

    for began in (0, hour):
        timeline.note_action(PlanBatch(attempt, EMPTY_BATCH, replay=False), at(began))
        timeline.note_event(BatchPlanned(attempt, None, None), at(began + 5))
    timeline.note_action(PlanBatch(attempt, EMPTY_BATCH, replay=False), at(2 * hour))
    timeline.note_action(RecordAttempt(attempt, BATCH, forget_later=False), at(2 * hour + 7))
    timeline.note_event(ProcessingSucceeded(attempt, {}), at(2 * hour + 17))
    timeline.note_action(StartCommit(attempt, BATCH), at(2 * hour + 17))
    timeline.note_action(RecordCommit(attempt, BATCH), at(2 * hour + 20))
    metrics = Metrics("words")
    metrics.notice(0, Committed(timeline[attempt], BATCH, {"lag": 0}))
    found = values(metrics)
    assert found["transaction_duration_seconds_sum"] == 0.02
    assert found["phase_duration_seconds_sum{planning}"] == 0.007


def test_a_compaction_is_counted_once_it_shows() -> None:
    metrics = Metrics("words")
    for txid, compacted in enumerate((4, 4, 8, 8, 12), start=1):
        metrics.notice(0, Committed(flight(txid), BATCH, {"lag": 0, "states": {"count": {"compacted": compacted}}}))
    assert values(metrics)["state_compactions_total{count}"] == 2


def test_whoever_may_set_tuples_aside_has_a_count_before_it_does() -> None:
    """Otherwise the first dead letter would be no increase."""
    assert values(Metrics("words", ["count"]))["dead_letters_total{count}"] == 0


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_duration_comes_with_its_trace_if_there_are_traces(*, is_traced: bool) -> None:
    metrics = Metrics("words", is_traced=is_traced)
    metrics.notice(0, Committed(flight(7), BATCH, {"lag": 0}))
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    text = encode(metrics.registry).decode()
    assert (f'# {{trace_id="{trace_id_of("words", 7):032x}"}} 0.36' in text) is is_traced
    assert text.endswith("# EOF\n")


def test_partitions_that_are_no_longer_behind_are_no_longer_there() -> None:
    metrics = Metrics("words")
    metrics.notice(0, Committed(flight(1), BATCH, {"lag": 7, "lags": [["orders", 3, 7]]}))
    metrics.notice(0, Committed(flight(2), BATCH, {"lag": None}))
    assert not [name for name in values(metrics) if "lag" in name]


def test_attempts_are_counted_by_their_end() -> None:
    metrics = Metrics("words")
    metrics(0, Tick(1), [PlanBatch(tried(1, 1), EMPTY_BATCH, replay=False)])
    assert values(metrics)["in_flight"] == 0  # it may find nothing
    metrics(1, Tick(1), [RecordAttempt(tried(1, 1), BATCH, forget_later=False)])
    metrics(1, Tick(1), [RecordAttempt(tried(2, 2), BATCH, forget_later=False)])
    assert values(metrics)["in_flight"] == 2
    late = tried(1, 1)
    metrics(
        2,
        Tick(2),
        [
            RecordFailure(late, Phase.PROCESSING, "late", 5),
            AbortAttempt(late, "late"),
            AbortAttempt(tried(2, 2), "1 failed"),
        ],
    )
    metrics(3, Tick(3), [RecordFailure(tried(1, 3), Phase.COMMITTING, "conflict", 5)])
    found = values(metrics)
    assert found["failed_in_a_row"] == 2
    assert {name: count for name, count in found.items() if name.startswith("attempts_total")} == {
        "attempts_total{failed,processing}": 1,
        "attempts_total{failed,committing}": 1,
        "attempts_total{given_up,processing}": 1,
    }
    metrics(4, Tick(4), [RecordCommit(tried(1, 4), BATCH)])
    found = values(metrics)
    assert (found["failed_in_a_row"], found["attempts_total{committed,committing}"]) == (0, 1)


def test_a_source_that_answers_again_has_failed_no_more() -> None:
    metrics = Metrics("words")
    metrics(0, Tick(1), [RecordFailure(tried(1, 1), Phase.PLANNING, "away", 5)])
    metrics.notice(0, Recovered(TxId(1), 1, 5, "it responds"))
    assert values(metrics)["failed_in_a_row"] == 0


@pytest.mark.parametrize(("end", "taken_over"), [(None, 1), (RunEnd(EndedHow.LOST), 1), (RunEnd(EndedHow.STOPPED), 0)])
def test_who_leads_and_whether_it_took_over(end: RunEnd | None, taken_over: int) -> None:
    metrics = Metrics("words")
    assert values(metrics)["leading"] == 0
    metrics.notice(0, LeaseRenewed(10_000))
    metrics.notice(5_000, Leading(lease(committed=7), run_before(end)))
    found = values(metrics)
    assert (found["leading"], found["taken_over"], found["committed_txid"]) == (1, taken_over, 7)
    assert found["run_start_timestamp_seconds"] == 5
    assert 0 < found["lease_remaining_seconds"] <= 10
    metrics.notice(6_000, Ended(RunEnd(EndedHow.STOPPED), TxId(7)))
    found = values(metrics)
    assert (found["leading"], found["lease_remaining_seconds"]) == (0, 0)


def test_writes_and_maintenance_are_timed() -> None:
    metrics = Metrics("words")
    metrics.notice(0, StoreWritten("commit", 4.0))
    metrics.notice(0, Maintained("count", 2_500))
    found = values(metrics)
    assert found["store_write_duration_seconds_sum{commit}"] == 0.004
    assert found["state_maintenance_duration_seconds_sum{count}"] == 2.5


def test_a_run_is_counted_as_the_store_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    topology = world.topology()
    monkeypatch.setattr(topology.spout, "plan", failing(2, SourceUnavailable("away"), topology.spout.plan))
    metrics = Metrics(topology.id)
    summary = world.run(topology, observers=[metrics])
    found = values(metrics)
    assert found["committed_txid"] == found["attempts_total{committed,committing}"] == summary.committed_txid
    assert found["attempts_total{failed,planning}"] == summary.failures == 2
    assert found["transaction_duration_seconds_count"] == summary.transactions
    assert found["store_write_duration_seconds_count{commit}"] == summary.transactions
    assert (
        found["records_read_total{memory}"] == found["tuples_total{spout,default,counts}"]
        if "tuples_total{spout,default,counts}" in found
        else True
    )
    assert (found["lag_records"], found["in_flight"], found["leading"]) == (0, 0, 0)


def test_no_label_holds_what_grows_without_limit() -> None:
    metrics, sizes = Metrics("words"), list[int]()
    for txid in range(1, 60):
        metrics(txid, Tick(txid), [RecordAttempt(tried(txid, txid), BATCH, forget_later=False)])
        metrics(txid, Tick(txid), [RecordFailure(tried(txid, txid), Phase.COMMITTING, f"error {txid}", 5)])
        metrics.notice(txid, Committed(flight(txid), BATCH, {"lag": 1, "lags": [["orders", txid, 1]]}))
        metrics(txid, Tick(txid), [RecordCommit(tried(txid, txid), BATCH)])
        sizes.append(len(values(metrics)))
    assert set(sizes[5:]) == {sizes[5]}
