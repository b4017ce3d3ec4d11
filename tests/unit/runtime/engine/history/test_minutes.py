"""Minutes: everything that was committed is counted once, in the minute in which it was."""

from __future__ import annotations

from transactional.core.store.history import MinuteRecord
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.runtime.engine.history.minutes import BUCKETS_MS, MINUTE_MS, Minutes
from transactional.runtime.engine.history.timeline import Flight, Moment

WORDS = PartitionId("words", 0)
READ = BatchMetadata({WORDS: OffsetRange(Offset(0), Offset(9))}, {WORDS: Digest(9, 0)})


def flight(at_ms: int, took_ms: int = 60) -> Flight:
    """Committed then; half of the time was processing, a tenth each planning and committing."""

    def moment(share: float) -> Moment:
        ago_ms = round(took_ms * (1 - share))
        return Moment(at_ms - ago_ms, 5_000 - ago_ms)

    return Flight(
        TransactionAttempt(TxId(1), AttemptId(1)),
        moment(0),
        0,
        "committed",
        moment(1),
        planned=moment(0.1),
        processed=moment(0.6),
        commit_started=moment(0.9),
        committed=moment(1),
    )


def test_a_minute_is_given_out_with_the_first_commit_of_the_next() -> None:
    minutes = Minutes()
    assert minutes.add(flight(MINUTE_MS + 5), READ, 7) is None
    minutes.failures += 2
    assert minutes.add(flight(2 * MINUTE_MS - 1, took_ms=600), READ, 3) is None
    counts = [0] * (len(BUCKETS_MS) + 1)
    counts[BUCKETS_MS.index(100)] = counts[BUCKETS_MS.index(1_000)] = 1
    spent = {"planning": 66, "processing": 330, "waiting": 198, "committing": 66}
    assert minutes.add(flight(2 * MINUTE_MS), READ, None) == MinuteRecord(
        MINUTE_MS, 2, 18, 2, tuple(counts), 10, 7, spent
    )
    assert minutes.add(flight(9 * MINUTE_MS), READ, None) == MinuteRecord(
        2 * MINUTE_MS,
        1,
        9,
        0,
        minutes_counts(60),
        0,
        0,
        {"planning": 6, "processing": 30, "waiting": 18, "committing": 6},
    )


def minutes_counts(took_ms: int) -> tuple[int, ...]:
    """The counts of one transaction."""
    return tuple(int(bound == min(each for each in BUCKETS_MS if each >= took_ms)) for bound in (*BUCKETS_MS, 0))


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    minutes = Minutes()
    minutes.add(flight(5 * MINUTE_MS), READ, None)
    assert minutes.add(flight(2 * MINUTE_MS), READ, None) is None
    done = minutes.add(flight(6 * MINUTE_MS), READ, None)
    assert done is not None
    assert (done.at_ms, done.transactions) == (5 * MINUTE_MS, 2)


def test_what_takes_longer_than_any_bound_is_counted_too() -> None:
    minutes = Minutes()
    minutes.add(flight(1, took_ms=999_999), READ, None)
    done = minutes.add(flight(MINUTE_MS), READ, None)
    assert done is not None
    assert done.latencies[-1] == 1
