"""Rows that go: keys that are deleted, rows that expire, and tables that go back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from transactional.core.ports.expiry import Expiry, Time
from transactional.core.ports.rewinding import RewindTarget
from transactional.model.absent import ABSENT
from transactional.model.errors import BeyondKept, ConfigError, Fenced, ProtocolError
from transactional.model.facts import BatchFacts
from transactional.testing.states.trial import NotOffered, Trial, Writer, case

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SEEN: Final = "count long, seen timestamp"
EXPIRY: Final = Expiry("seen", 10_000_000)
"""Ten seconds after it was seen a row goes."""


def at(second: float) -> datetime:
    """A time, by seconds since 1970."""
    return EPOCH + timedelta(seconds=second)


# --- deletes ----------------------------------------------------------------------------------------------------------


@case
def deleted_keys(trial: Trial) -> None:
    """A deleted key is gone, was there before, and can come again; one that is not there can be deleted, too."""
    words = trial.open(deletes=True)
    words.put(1, {"cat": 2, "dog": 1})
    words.put(2, {"cat": ABSENT, "owl": ABSENT})
    words.holds({"dog": 1})
    words.holds({"cat": 2, "dog": 1}, committed=1)
    words.finds(3, {"dog": 1}, ["cat", "dog", "owl"])
    words.put(3, {"cat": 5, "dog": ABSENT})
    words.holds({"cat": 5})
    words.holds({"dog": 1}, committed=2)
    words.put(4, {})
    words.holds({"cat": 5})


@case
def deletes_of_a_dead_attempt(trial: Trial) -> None:
    """What a dead attempt has deleted is there again for the replay, and stays unless that deletes it, too."""
    words = trial.open(deletes=True)
    words.put(1, {"cat": 2, "dog": None, "owl": 3})
    words.put(2, {"cat": ABSENT, "dog": ABSENT})
    again = trial.open(deletes=True)
    attempt = trial.attempt(2)
    again.finds(attempt, {"cat": 2, "dog": None, "owl": 3}, ["cat", "dog", "owl"])
    again.put(attempt, {"owl": ABSENT})
    again.holds({"cat": 2, "dog": None})
    again.put(2, {})
    again.holds({"cat": 2, "dog": None, "owl": 3})


@case
def deletes_that_are_not_allowed(trial: Trial) -> None:
    """A state whose keys may not be deleted refuses to, and writes nothing."""
    words = trial.open()
    trial.refuses(ConfigError, lambda: words.put(1, {"cat": ABSENT}))
    words.is_at(None)


# --- expiry -----------------------------------------------------------------------------------------------------------


@case
def an_expired_key_begins_anew(trial: Trial) -> None:
    """A row that has expired does not exist for a transaction, and a replay by a clock that is behind finds what it
    was."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    combine = {"count": "sum", "seen": "max"}
    words.merge(1, {"cat": (5, at(1))}, combine, now=1)
    late, replay = words.begin(2, 11), trial.attempt(2)
    words.finds(late, {}, ["cat"])
    words.merge(late, {"cat": (1, at(11))}, combine)
    words.holds({"cat": (1, at(11))})
    words.holds({"cat": (5, at(1))}, committed=1)
    words.begin(replay, 10)
    words.merge(replay, {"cat": (1, at(10))}, combine)
    words.holds({"cat": (6, at(10))})


@case
def expired_rows_are_seen_by_nobody(trial: Trial) -> None:
    """Readers see a row until the transaction for which it has expired, and one without a time always."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.put(1, {"cat": (1, at(1)), "dog": (1, None)}, now=1)
    words.put(2, {"owl": (2, at(11))}, now=11)
    words.holds({"dog": (1, None), "owl": (2, at(11))})
    words.holds({"cat": (1, at(1)), "dog": (1, None)}, committed=1)
    words.put(3, {}, now=12)
    words.state.maintain(trial.txid_of(words.state.version()), lambda: True)
    words.holds({"dog": (1, None), "owl": (2, at(11))}, committed=2)
    words.put(4, {}, now=30)
    words.holds({"dog": (1, None)})


@case
def a_horizon_never_goes_back(trial: Trial) -> None:
    """What has expired stays so, whatever clocks and settings say later, and for whoever opens the table."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.put(1, {"cat": (1, at(5))}, now=1)
    words.put(2, {"cat": (2, at(10))}, now=30)
    longer = trial.open(values=SEEN, expiry=Expiry("seen", 29_000_000))
    third = longer.begin(3, 31)
    longer.finds(third, {}, ["cat"])
    longer.put(third, {})
    longer.holds({})


@case
def horizons_of_transactions_without_rows(trial: Trial) -> None:
    """A transaction without rows records its horizon; a fence changes none; without facts nothing more expires."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.put(1, {"cat": (1, at(1))}, now=1)
    words.put(words.begin(2, None), {})
    words.holds({"cat": (1, at(1))})
    words.put(2, {}, now=13)
    other = trial.open(values=SEEN, expiry=EXPIRY)
    other.fence(2)
    other.holds({})
    other.holds({"cat": (1, at(1))}, committed=1)


@case
def rows_between_two_times(trial: Trial) -> None:
    """`rows_between` has the rows that were there before, also those that expire only now: by a time in the key, and by
    event times, as windows do."""
    pages = trial.open("page string, start timestamp", expiry=Expiry("start", 5_000_000, Time.EVENT))
    for txid, watermark in ((1, None), (2, 14), (3, 15), (4, 20)):
        attempt = trial.attempt(txid)
        pages.state.begin(attempt, BatchFacts(10**9, None if watermark is None else watermark * 10**6))
        if watermark is not None:
            closing = pages.state.rows_between(attempt, "start", None, (watermark - 5) * 10**6)
            expected = {3: {("home", at(10)): 1}, 4: {("home", at(15)): 2}}.get(txid, {})
            trial.equal(f"rows_between() at transaction {txid}", pages.rows(closing), expected)
        pages.put(attempt, {("home", at(10)): 1, ("home", at(15)): 2} if txid == 1 else {})
    pages.holds({})
    pages.holds({("home", at(15)): 2}, committed=3)


@case
def expiry_without_facts(trial: Trial) -> None:
    """An attempt that was not begun has no horizon: it reads and writes nothing."""
    words = trial.open(values=SEEN, expiry=EXPIRY)
    words.begin(1, 1)
    other = trial.attempt(1)
    trial.refuses(ProtocolError, lambda: words.put(other, {}))
    trial.refuses(ProtocolError, lambda: words.state.items(other))


# --- going back -------------------------------------------------------------------------------------------------------


@case
def going_back(trial: Trial) -> None:
    """A table goes back to what it was after an earlier transaction, at least after the one before, and on from
    there."""
    words = trial.open()
    committed = [words.put(1, {"cat": 1}), words.put(2, {"dog": 2}), words.put(3, {"cat": 3, "owl": 3})]
    words.fence(3)
    target = _target(trial, committed[1].txid, committed[1].attempt_id)
    _check_can(trial, words, target)
    first, again = trial.drawn(2), trial.drawn(2)
    for fence_id in (first, again):
        words.state.version()
        trial.note(f"writer 1 takes the table back to transaction 2, by the fence {fence_id}")
        words.state.rewind(target, fence_id)
        words.is_at(fence_id)
        words.holds({"cat": 1, "dog": 2})
    trial.refuses(Fenced, lambda: words.state.rewind(target, first))
    words.put(3, {"cat": 4})
    words.holds({"cat": 4, "dog": 2})
    words.holds({"cat": 1, "dog": 2}, committed=2)


@case
def going_back_too_far(trial: Trial) -> None:
    """To a transaction that is not kept any more a table does not go, and says so before it changes anything."""
    words = trial.open()
    first = words.put(1, {"cat": 1})
    for txid in range(2, 5):
        words.put(txid, {"cat": txid})
        words.state.maintain(trial.txid_of(words.state.version()), lambda: True)
    words.fence(4)
    target = _target(trial, first.txid, first.attempt_id)
    _check_can(trial, words, None)
    try:
        words.state.preview_rewind(*_owner(), target)
    except BeyondKept:
        words.holds({"cat": 4})
        trial.refuses(BeyondKept, lambda: words.state.rewind(target, trial.drawn(1)))
        words.holds({"cat": 4})
    else:
        words.state.rewind(target, trial.drawn(1))
        words.holds({"cat": 1})


def _target(trial: Trial, txid: Any, attempt_id: Any) -> RewindTarget:
    return RewindTarget(txid, attempt_id, trial.known_txid_of)


def _owner() -> tuple[str, str]:
    return "words", "count"


def _check_can(trial: Trial, words: Writer, target: RewindTarget | None) -> None:
    """Raise `NotOffered` if it can't go back; then each of its methods says so."""
    reason = words.state.rewind_obstacle
    if not reason:
        if target is not None:
            trial.equal(
                "whether preview_rewind() says something", bool(words.state.preview_rewind(*_owner(), target)), True
            )
        return
    some = target or _target(trial, 1, 1)
    trial.refuses(ConfigError, lambda: words.state.preview_rewind(*_owner(), some))
    trial.refuses(ConfigError, lambda: words.state.rewind(some, trial.drawn(2)))
    raise NotOffered(reason)
