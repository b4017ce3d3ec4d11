"""Transactions of streams, in the checker: partitions whose names gain their stream, positions that change hands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from verifier.evidence.findings import Findings, Kind
from verifier.evidence.store import CommittedBatch, StoreHistory, with_last_names
from verifier.transactions import check_transactions


def of(txid: int, **ranges: tuple[int, int]) -> CommittedBatch:
    """A batch of sources, `a_b` for `a/b`."""
    return CommittedBatch(txid, txid, {(name.replace("_", "/"), 0): (*range, 1) for name, range in ranges.items()}, 1)


def names(batches: Sequence[CommittedBatch]) -> list[set[str]]:
    return [{source for source, _ in batch.ranges} for batch in with_last_names(batches)]


def test_a_first_stream_without_its_name_is_the_one_that_goes_on_where_it_ended() -> None:
    batches = [of(1, t=(0, 3), b_t=(0, 5)), of(2, t=(3, 4), b_t=(5, 5)), of(3, a_t=(4, 6), b_t=(5, 7), c_t=(0, 1))]
    assert names(batches) == [{"a/t", "b/t"}, {"a/t", "b/t"}, {"a/t", "b/t", "c/t"}]
    both = [of(1, t=(0, 3)), of(2, a_t=(0, 1), b_t=(3, 4))]
    assert names(both) == [{"b/t"}, {"a/t", "b/t"}]


def test_what_has_no_successor_keeps_its_name() -> None:
    batches = [of(1, t=(0, 3)), of(2, u=(0, 1)), of(3, u=(1, 2))]
    assert with_last_names(batches) == tuple(batches)
    assert with_last_names([]) == ()


def test_a_position_that_changed_hands_is_found() -> None:
    """As if the streams had changed places, and gone on at each other's positions."""
    findings, batches = Findings(), [of(1, t=(0, 3), b_t=(0, 5)), of(2, a_t=(5, 6), b_t=(3, 4))]
    history = StoreHistory("both", 2, 2, 2, with_last_names(batches), {1: 1, 2: 2})
    check_transactions(history, findings, log_starts={})
    assert [each.kind for each in findings.report().findings] == [Kind.RANGE_GAP, Kind.RANGE_OVERLAP]


def lateness(*watermark_us: int | None, awaited: tuple[int, ...] = ()) -> list[str]:
    """What is found where transactions have these times before which tuples are late; some wait for a partition."""
    findings, batches = Findings(), []
    for txid, us in enumerate(watermark_us, start=1):
        waits = (("t", 7),) if txid in awaited else ()
        batches.append(replace(of(txid, t=(txid, txid + 1)), watermark_us=us, awaited=waits))
    last = len(batches)
    history = StoreHistory("one", last, last, last, tuple(batches), {txid: txid for txid in range(1, last + 1)})
    check_transactions(history, findings, log_starts={})
    return [f"{each.where}: {each.expected}" for each in findings.report().findings]


def test_what_is_late_only_grows_and_does_not_while_windows_wait_for_a_partition() -> None:
    assert lateness(None, None, 5, 5, 9, awaited=(1, 2, 4)) == []
    assert lateness(5, 4) == ["transaction 2: tuples before 5 µs late, as before"]
    assert lateness(5, None) == ["transaction 2: tuples before 5 µs late, as before"]
    waiting = "late, as before, while windows wait for partition 7 of 't'"
    assert lateness(None, 5, 6, awaited=(2, 3)) == [
        f"transaction 2: tuples before None µs {waiting}",
        f"transaction 3: tuples before 5 µs {waiting}",
    ]


def test_one_opaque_stream_makes_all_opaque() -> None:
    def exact(*kinds: str) -> bool:
        spout = {f"s{number}.kind": kind for number, kind in enumerate(kinds)}
        return StoreHistory("both", 0, None, 0, fingerprint={"spout": spout}).replays_exactly

    assert exact("TransactionalKafkaSpout", "MemoryTransactionalSpout")
    assert not exact("TransactionalKafkaSpout", "OpaqueKafkaSpout")
    assert not StoreHistory("one", 0, None, 0, fingerprint={"spout": {"kind": "OpaqueKafkaSpout"}}).replays_exactly
