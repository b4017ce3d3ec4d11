"""Cases of several writers of one table: only the newest coordinator's may write, and of two at once one does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from transactional.core.ports import Partials, StateKind
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import Fenced, OperatingError, TableConflict
from transactional.testing.states.trial import Trial, Writer, case


@case
def a_fence_changes_no_row(trial: Trial) -> None:
    """A fence raises the version, and can be repeated if its outcome was not known."""
    words = trial.open()
    words.merge(1, {"a": 1})
    fence_id = words.fence(1)
    words.check_version(fence_id)
    words.check_rows({"a": 1})
    words.state.version()
    words.state.fence(fence_id)
    words.check_version(fence_id)
    trial.open().check_version(fence_id)


@case
def an_older_attempt_is_fenced(trial: Trial) -> None:
    """Once there is a fence, an earlier attempt changes nothing, whatever it brings."""
    words, late = trial.open(), trial.open()
    some, none = trial.attempt(1), trial.attempt(1)
    fence_id = words.fence(0)
    trial.expect_error(Fenced, lambda: late.merge(some, {"a": 1}))
    trial.expect_error(Fenced, lambda: late.put(none, {}))
    words.check_version(fence_id)
    words.check_rows({})


@case
def an_older_attempt_of_the_same_transaction(trial: Trial) -> None:
    """A late attempt does not write over what a newer one has written, in this process or in another one."""
    words, second = trial.open(), trial.open()
    words.put(1, {"a": 1})
    late, later = trial.attempt(2), trial.attempt(2)
    newer = second.put(2, {"a": 3})
    for writer in (words, second):
        trial.expect_error(Fenced, lambda writer=writer: writer.put(late, {"a": 2}))  # type: ignore[misc]
        trial.expect_error(Fenced, lambda writer=writer: writer.put(later, {}))  # type: ignore[misc]
    words.check_version(newer)
    words.check_rows({"a": 3})
    words.check_rows({"a": 1}, committed=1)


@case
def who_was_taken_over_reads_nothing(trial: Trial) -> None:
    """A coordinator that was taken over gets `Fenced` when it reads, and not an error that store and table do not
    belong together."""
    words = trial.open()
    words.put(1, {"a": 1})
    late = trial.attempt(2)
    words.put(2, {"a": 2})
    words.put(3, {"a": 3})
    trial.note(f"attempt {late.attempt_id} at transaction {late.txid} reads")
    trial.expect_error(Fenced, lambda: words.state.get(late, [("a",)]))
    trial.expect_error(Fenced, lambda: words.state.items(late))
    trial.expect_error(Fenced, lambda: words.state.parts.lookup.is_replay(late))
    words.check_rows({"a": 3})


@case
def after_a_fence_it_goes_on(trial: Trial) -> None:
    """A fence that a take-over leaves is followed by the next transaction, or by the same once more."""
    words = trial.open()
    words.merge(1, {"a": 1})
    words.fence(1)
    words.merge(2, {"a": 1, "b": 1})
    words.fence(2)
    words.merge(2, {"a": 2})
    words.check_rows({"a": 3})
    words.check_rows({"a": 1}, committed=1)


@case
def a_transactional_state_over_a_fence(trial: Trial) -> None:
    """A state knows over a fence, too, which transaction is written."""
    words = trial.open(kind=StateKind.TRANSACTIONAL)
    words.merge(1, {"a": 1})
    words.fence(1)
    words.merge(1, {"a": 1})
    words.check_rows({"a": 1})


@case
def a_fence_over_what_was_not_read(trial: Trial) -> None:
    """A fence goes over the version that was loaded: if another writer came since, it is refused, and written the next
    time."""
    words, late = trial.open(), trial.open()
    late.state.version()
    attempt = words.merge(1, {"a": 1})
    trial.expect_error(TableConflict, lambda: late.fence_only(1))
    late.check_version(attempt)
    late.check_version(late.fence_only(1))


@case
def a_fence_below_the_version(trial: Trial) -> None:
    """A fence below the version is refused, also if that was raised only since it was loaded."""
    words, late = trial.open(), trial.open()
    early, earlier = trial.draw_attempt_id(0), trial.draw_attempt_id(0)
    late.state.version()
    fence_id = words.fence(0)
    trial.note(f"{late.name} writes the fences {early} and {earlier}")
    trial.expect_error(Fenced, lambda: late.state.fence(early))
    late.state.version()
    trial.expect_error(Fenced, lambda: late.state.fence(earlier))
    words.check_version(fence_id)


@case
def fenced_between_reading_and_writing(trial: Trial) -> None:
    """A take-over while a bolt works on what it has read lets its write fail."""
    words, successor = trial.open(), trial.open()
    words.put(1, {"a": 1})
    attempt = trial.attempt(2)
    words.check_lookup(attempt, {"a": 1}, ["a"])
    successor.fence(1)
    trial.expect_error(Fenced, lambda: words.put(attempt, {"a": 2}))
    words.check_rows({"a": 1})


@case
def written_between_reading_and_writing(trial: Trial) -> None:
    """A write fails if another writer has put rows since it was read, with whichever attempt id."""
    words, second = trial.open(), trial.open()
    words.put(1, {"a": 1})
    theirs, attempt = trial.attempt(2), trial.attempt(2)
    words.check_lookup(attempt, {"a": 1}, ["a"])
    second.put(theirs, {"a": 5})
    trial.expect_error(TableConflict, lambda: words.put(attempt, {"a": 2}))
    words.check_version(theirs)
    words.check_rows({"a": 5})


@case
def two_writers_at_once(trial: Trial) -> None:
    """If two write the same transaction at once, at least one succeeds, rows and version are of the same attempt, and
    the transaction counts once."""
    writers = [trial.open(values="count long, by long") for _ in range(2)]
    with ThreadPoolExecutor(len(writers)) as pool:
        for txid in range(1, 9):
            attempts = [trial.attempt(txid) for _ in writers]
            trial.note(f"{attempts[0]} and {attempts[1]} write at once, each by a writer of its own")
            start = Barrier(len(writers))
            outcomes = list(pool.map(_try_write, writers[:: -1 if txid % 2 else 1], attempts, [start] * len(writers)))
            trial.check_equal("whether any of them has written", any(outcomes), True)
            version = writers[0].state.version()
            trial.check_equal("who has written", version in [attempt.attempt_id for attempt in attempts], True)
            writers[1].check_rows({"cat": (txid, version), **({"dog": (txid - 1, version)} if txid > 1 else {})})


def _try_write(writer: Writer, attempt: TransactionAttempt, start: Barrier) -> bool:
    """Write as soon as both writers are ready. Return whether the write succeeded."""
    start.wait(60)
    rows = {"cat": (1, attempt.attempt_id), **({"dog": (1, attempt.attempt_id)} if attempt.txid > 1 else {})}
    try:
        writer.state.merge(attempt, Partials({"count": "sum", "by": "last"}, writer.table_of(rows)))
    except (Fenced, OperatingError):
        return False
    return True


@case
def whose_store_it_is_for(trial: Trial) -> None:
    """A table has recorded the coordinator's store that it was created for, or nothing; whoever opens it later changes
    nothing about that."""
    words = trial.open(store_id="one")
    recorded = words.state.parts.store_record.created_for()
    trial.check_equal("what created_for() may be", recorded in ("one", None), True)
    trial.check_equal(
        "created_for() of another store's",
        trial.open(store_id="other").state.parts.store_record.created_for(),
        recorded,
    )
    words.fence(0)
    words.put(1, {"cat": 1})
    trial.check_equal("created_for() after a write", trial.open().state.parts.store_record.created_for(), recorded)


@case
def whose_store_it_is_for_of_several(trial: Trial) -> None:
    """If several processes create a table at once, all find the store of one of them."""
    names = [*"abcd"]
    with ThreadPoolExecutor(len(names)) as pool:
        writers = list(pool.map(lambda name: trial.open(store_id=name), names))
    store_ids = {writer.state.parts.store_record.created_for() for writer in writers}
    trial.check_equal("the number of stores that are found", len(store_ids), 1)
    trial.check_equal("whether it is one of them, or none", store_ids <= {*names, None}, True)


@case
def created_without_a_store(trial: Trial) -> None:
    """A table that was created without one has none, and nobody adds one."""
    words = trial.open()
    words.fence(0)
    trial.check_equal("created_for()", trial.open(store_id="other").state.parts.store_record.created_for(), None)
