"""What the run beside a console is doing: planning, committing, the next retry, from its events alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.drivers import DRAINED, World
from tests.unit.operations.console.browsing import browser
from tests.unit.operations.console.stores import START_MS, Past
from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    DrainRequested,
    Halt,
    PauseRequested,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    StartCommit,
    StartProcessing,
    Tick,
)
from transactional.core.store.progress import Phase
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.operations.console.data.live import Live
from transactional.operations.console.views import version


def tried(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def doing(live: Live) -> list[tuple[int, int, str]]:
    return [(each.attempt.txid, each.attempt.attempt_id, each.doing) for each in live.rows()]


def test_an_attempt_is_followed_from_plan_to_commit() -> None:
    live, attempt = Live("words"), tried(1, 2)
    live(10, Tick(10), [PlanBatch(attempt, EMPTY_BATCH, replay=False)])
    assert doing(live) == [(1, 2, "planning")]
    planned = BatchPlanned(attempt, EMPTY_BATCH)
    live(20, planned, [RecordAttempt(attempt, EMPTY_BATCH, False), StartProcessing(attempt, EMPTY_BATCH)])
    assert doing(live) == [(1, 2, "processing")]
    live(30, ProcessingSucceeded(attempt), [])
    assert doing(live) == [(1, 2, "waiting")]
    live(40, Tick(40), [StartCommit(attempt, EMPTY_BATCH)])
    assert [(each.doing, each.since_ms) for each in live.rows()] == [("committing", 40)]
    live(50, CommitSucceeded(attempt), [RecordCommit(attempt, EMPTY_BATCH)])
    assert doing(live) == []


def test_a_failed_attempt_waits_for_its_retry_and_an_aborted_one_is_gone() -> None:
    live, first, second = Live("words"), tried(1, 2), tried(2, 3)
    live(10, Tick(10), [StartProcessing(first, EMPTY_BATCH), StartProcessing(second, EMPTY_BATCH)])
    stopped = AbortAttempt(second, "an earlier one failed")
    failed: list[Action] = [RecordFailure(first, Phase.PROCESSING, "no", 4_000), stopped]
    live(20, AttemptFailed(first, "no"), failed)
    assert [(each.doing, each.retry_at_ms) for each in live.rows()] == [("failed", 4_020), ("aborting", None)]
    live(30, AttemptFailed(second, "aborted"), [])
    assert doing(live) == [(1, 2, "failed")]
    live(40, Tick(40), [PlanBatch(tried(1, 4), EMPTY_BATCH, replay=True)])
    assert doing(live) == [(1, 4, "planning")]
    live(50, Tick(50), [Halt("TX1", "fenced")])
    assert doing(live) == []


def test_what_a_dead_attempt_answers_late_leaves_its_replay_in_flight() -> None:
    live = Live("words")
    live(10, Tick(10), [StartProcessing(tried(1, 4), EMPTY_BATCH)])
    live(20, AttemptFailed(tried(1, 2), "aborted"), [])
    assert doing(live) == [(1, 4, "processing")]


def test_a_source_without_data_is_idle_however_often_it_is_asked() -> None:
    live, attempt = Live("words"), tried(1, 2)
    live(10, Tick(10), [PlanBatch(attempt, EMPTY_BATCH, replay=False)])
    live(20, BatchPlanned(attempt, None), [])
    before = live.version
    for at_ms in (70, 170):
        live(at_ms, Tick(at_ms), [PlanBatch(attempt, EMPTY_BATCH, replay=False)])
        live(at_ms + 10, BatchPlanned(attempt, None), [])
    assert [(each.doing, each.since_ms) for each in live.rows()] == [("idle", 20)]
    assert live.version == before, "an open page has nothing new to show"
    live(270, BatchPlanned(attempt, EMPTY_BATCH), [StartProcessing(attempt, EMPTY_BATCH)])
    assert doing(live) == [(1, 2, "processing")]


@pytest.mark.parametrize("request_", [PauseRequested(), DrainRequested()])
def test_who_issues_nothing_new_waits_for_nothing(request_: Any) -> None:
    live = Live("words")
    live(20, BatchPlanned(tried(1, 2), None), [])
    live(30, request_, [])
    assert doing(live) == []


def test_a_real_run_ends_with_nothing_in_flight() -> None:
    live, world = Live("words"), World()
    world.run(observers=[live], config=DRAINED)
    assert live.version > 6
    assert doing(live) == []


def test_the_overview_shows_it_and_an_open_page_learns_of_it() -> None:
    past, live = Past().begin().committed(3), Live("words")
    before = version(past.store, "words", live)
    live(START_MS, Tick(10), [PlanBatch(tried(4, 9), EMPTY_BATCH, replay=False)])
    live(START_MS, Tick(10), [RecordFailure(tried(5, 10), Phase.PROCESSING, "no", 999_000)])
    assert version(past.store, "words", live) != before
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", browser(past, live=live).get("/t/words/").text))
    assert "4 attempt 9 planning" in text
    assert re.search(r"5 attempt 10 failed again in 16 min", text), text
    assert "beside this console" not in browser(past).get("/t/words/").text, "there is no run beside this console"
