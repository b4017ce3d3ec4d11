"""Cases of rows that are removed: keys that are deleted, rows that expire, and tables that are rewound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from transactional.core.ports.expiry import Expiry, Time
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.absent import ABSENT
from transactional.model.errors import BeyondKept, ConfigError, Fenced, ProtocolError
from transactional.model.facts import BatchFacts
from transactional.testing.cases.register import NotOffered
from transactional.testing.states.trial import Trial, Writer, case

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SEEN: Final = "count long, seen timestamp"
EXPIRY: Final = Expiry("seen", 10_000_000)
"""A row expires ten seconds after the time in its column `seen`."""


def time_of(second: float) -> datetime:
    """Return the time that is this many seconds after 1970."""
    return EPOCH + timedelta(seconds=second)


# --- deletes ----------------------------------------------------------------------------------------------------------


@case
def deleted_keys(trial: Trial) -> None:
    """A deleted key is gone, was there before, and can come again; one that is not there can be deleted, too."""
    words = trial.open(deletes=True)
    words.put(1, {"cat": 2, "dog": 1})
    words.put(2, {"cat": ABSENT, "owl": ABSENT})
    words.check_rows({"dog": 1})
    words.check_rows({"cat": 2, "dog": 1}, committed=1)
    words.check_lookup(3, {"dog": 1}, ["cat", "dog", "owl"])
    words.put(3, {"cat": 5, "dog": ABSENT})
    words.check_rows({"cat": 5})
    words.check_rows({"dog": 1}, committed=2)
    words.put(4, {})
    words.check_rows({"cat": 5})


@case
def deletes_of_a_dead_attempt(trial: Trial) -> None:
    """A replay finds the keys that a dead attempt has deleted, and they stay unless the replay deletes them, too."""
    words = trial.open(deletes=True)
    words.put(1, {"cat": 2, "dog": None, "owl": 3})
    words.put(2, {"cat": ABSENT, "dog": ABSENT})
    replaying = trial.open(deletes=True)
    attempt = trial.attempt(2)
    replaying.check_lookup(attempt, {"cat": 2, "dog": None, "owl": 3}, ["cat", "dog", "owl"])
    replaying.put(attempt, {"owl": ABSENT})
    replaying.check_rows({"cat": 2, "dog": None})
    replaying.put(2, {})
    replaying.check_rows({"cat": 2, "dog": None, "owl": 3})


@case
def deletes_that_are_not_allowed(trial: Trial) -> None:
    """A state whose keys may not be deleted refuses to, and writes nothing."""
    words = trial.open()
    trial.expect_error(ConfigError, lambda: words.put(1, {"cat": ABSENT}))
    words.check_version(None)


# --- expiry -----------------------------------------------------------------------------------------------------------


@case
def an_expired_key_begins_anew(trial: Trial) -> None:
    """A row that has expired does not exist for a transaction, and a replay by a clock that is behind finds what it
    was."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    combine = {"count": "sum", "seen": "max"}
    words.merge(1, {"cat": (5, time_of(1))}, combine, planned_s=1)
    late, replay = words.begin(2, 11), trial.attempt(2)
    words.check_lookup(late, {}, ["cat"])
    words.merge(late, {"cat": (1, time_of(11))}, combine)
    words.check_rows({"cat": (1, time_of(11))})
    words.check_rows({"cat": (5, time_of(1))}, committed=1)
    words.begin(replay, 10)
    words.merge(replay, {"cat": (1, time_of(10))}, combine)
    words.check_rows({"cat": (6, time_of(10))})


@case
def expired_rows_are_seen_by_nobody(trial: Trial) -> None:
    """Readers see a row until the transaction for which it has expired, and one without a time always."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.put(1, {"cat": (1, time_of(1)), "dog": (1, None)}, planned_s=1)
    words.put(2, {"owl": (2, time_of(11))}, planned_s=11)
    words.check_rows({"dog": (1, None), "owl": (2, time_of(11))})
    words.check_rows({"cat": (1, time_of(1)), "dog": (1, None)}, committed=1)
    words.put(3, {}, planned_s=12)
    words.state.parts.maintenance.maintain(trial.txid_of(words.state.version()), lambda: True)
    words.check_rows({"dog": (1, None), "owl": (2, time_of(11))}, committed=2)
    words.put(4, {}, planned_s=30)
    words.check_rows({"dog": (1, None)})


@case
def a_horizon_never_goes_back(trial: Trial) -> None:
    """Expired rows stay expired, whatever clocks and settings say later, and for every process that opens the table."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.put(1, {"cat": (1, time_of(5))}, planned_s=1)
    words.put(2, {"cat": (2, time_of(10))}, planned_s=30)
    longer = trial.open(values=SEEN, expiry=Expiry("seen", 29_000_000))
    third = longer.begin(3, 31)
    longer.check_lookup(third, {}, ["cat"])
    longer.put(third, {})
    longer.check_rows({})


@case
def horizons_of_transactions_without_rows(trial: Trial) -> None:
    """A transaction without rows records its horizon; a fence changes none; without facts nothing more expires."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.put(1, {"cat": (1, time_of(1))}, planned_s=1)
    words.put(words.begin(2, None), {})
    words.check_rows({"cat": (1, time_of(1))})
    words.put(2, {}, planned_s=13)
    fencing = trial.open(values=SEEN, expiry=EXPIRY)
    fencing.fence(2)
    fencing.check_rows({})
    fencing.check_rows({"cat": (1, time_of(1))}, committed=1)


@case
def rows_between_two_times(trial: Trial) -> None:
    """`rows_between` has the rows that were there before, also those that expire only now: by a time in the key, and by
    event times, as windows do."""
    pages = trial.open("page string, start timestamp", expiry=Expiry("start", 5_000_000, Time.EVENT))
    for txid, watermark in ((1, None), (2, 14), (3, 15), (4, 20)):
        attempt = trial.attempt(txid)
        pages.state.parts.declared.begin(attempt, BatchFacts(10**9, None if watermark is None else watermark * 10**6))
        if watermark is not None:
            closing = pages.state.rows_between(attempt, "start", None, (watermark - 5) * 10**6)
            expected = {3: {("home", time_of(10)): 1}, 4: {("home", time_of(15)): 2}}.get(txid, {})
            trial.check_equal(f"rows_between() at transaction {txid}", pages.rows(closing), expected)
        pages.put(attempt, {("home", time_of(10)): 1, ("home", time_of(15)): 2} if txid == 1 else {})
    pages.check_rows({})
    pages.check_rows({("home", time_of(15)): 2}, committed=3)


@case
def expiry_without_facts(trial: Trial) -> None:
    """An attempt that was not begun has no horizon: it reads and writes nothing."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.begin(1, 1)
    unbegun = trial.attempt(1)
    trial.expect_error(ProtocolError, lambda: words.put(unbegun, {}))
    trial.expect_error(ProtocolError, lambda: words.state.items(unbegun))


# --- going back -------------------------------------------------------------------------------------------------------


@case
def going_back(trial: Trial) -> None:
    """A table goes back to what it was after an earlier transaction, at least after the one before, and on from
    there."""
    words = trial.open()
    committed = [words.put(1, {"cat": 1}), words.put(2, {"dog": 2}), words.put(3, {"cat": 3, "owl": 3})]
    words.fence(3)
    target = _target(trial, committed[1].txid, committed[1].attempt_id)
    _check_can_rewind(trial, words, target)
    first, repeated = trial.draw_attempt_id(2), trial.draw_attempt_id(2)
    for fence_id in (first, repeated):
        words.state.version()
        trial.note(f"writer 1 takes the table back to transaction 2, by the fence {fence_id}")
        words.state.parts.rewind.rewind(target, fence_id)
        words.check_version(fence_id)
        words.check_rows({"cat": 1, "dog": 2})
    trial.expect_error(Fenced, lambda: words.state.parts.rewind.rewind(target, first))
    words.put(3, {"cat": 4})
    words.check_rows({"cat": 4, "dog": 2})
    words.check_rows({"cat": 1, "dog": 2}, committed=2)


@case
def going_back_too_far(trial: Trial) -> None:
    """A table refuses to go back to a transaction whose rows it no longer has, before it changes anything."""
    words = trial.open()
    first = words.put(1, {"cat": 1})
    for txid in range(2, 5):
        words.put(txid, {"cat": txid})
        words.state.parts.maintenance.maintain(trial.txid_of(words.state.version()), lambda: True)
    words.fence(4)
    target = _target(trial, first.txid, first.attempt_id)
    _check_can_rewind(trial, words, None)
    try:
        words.state.parts.rewind.preview_rewind(*_owner(), target)
    except BeyondKept:
        words.check_rows({"cat": 4})
        trial.expect_error(BeyondKept, lambda: words.state.parts.rewind.rewind(target, trial.draw_attempt_id(1)))
        words.check_rows({"cat": 4})
    else:
        words.state.parts.rewind.rewind(target, trial.draw_attempt_id(1))
        words.check_rows({"cat": 1})


def _target(trial: Trial, txid: Any, attempt_id: Any) -> RewindTarget:
    return RewindTarget(txid, attempt_id, trial.stored_txid_of)


def _owner() -> tuple[str, str]:
    return "words", "count"


def _check_can_rewind(trial: Trial, words: Writer, target: RewindTarget | None) -> None:
    """Raise `NotOffered` if the table can't go back, after checking that both its methods refuse that."""
    reason = words.state.parts.rewind.rewind_obstacle
    if not reason:
        if target is not None:
            trial.check_equal(
                "whether preview_rewind() says something",
                bool(words.state.parts.rewind.preview_rewind(*_owner(), target)),
                True,
            )
        return
    any_target = target or _target(trial, 1, 1)
    trial.expect_error(ConfigError, lambda: words.state.parts.rewind.preview_rewind(*_owner(), any_target))
    trial.expect_error(ConfigError, lambda: words.state.parts.rewind.rewind(any_target, trial.draw_attempt_id(2)))
    raise NotOffered(reason)
