"""Transactions of streams, in the checker: partitions whose names gain their stream, positions that change hands."""

from __future__ import annotations

from collections.abc import Sequence

from verifier.evidence.findings import Findings, Kind
from verifier.evidence.store import CommittedBatch, StoreHistory, in_one_form
from verifier.transactions import check_transactions


def of(txid: int, **ranges: tuple[int, int]) -> CommittedBatch:
    """A batch of sources, `a_b` for `a/b`."""
    return CommittedBatch(txid, txid, {(name.replace("_", "/"), 0): (*range, 1) for name, range in ranges.items()}, 1)


def names(batches: Sequence[CommittedBatch]) -> list[set[str]]:
    return [{source for source, _ in batch.ranges} for batch in in_one_form(batches)]


def test_a_first_stream_without_its_name_is_the_one_that_goes_on_where_it_ended() -> None:
    batches = [of(1, t=(0, 3), b_t=(0, 5)), of(2, t=(3, 4), b_t=(5, 5)), of(3, a_t=(4, 6), b_t=(5, 7), c_t=(0, 1))]
    assert names(batches) == [{"a/t", "b/t"}, {"a/t", "b/t"}, {"a/t", "b/t", "c/t"}]
    both = [of(1, t=(0, 3)), of(2, a_t=(0, 1), b_t=(3, 4))]
    assert names(both) == [{"b/t"}, {"a/t", "b/t"}]


def test_what_has_no_successor_keeps_its_name() -> None:
    batches = [of(1, t=(0, 3)), of(2, u=(0, 1)), of(3, u=(1, 2))]
    assert in_one_form(batches) == tuple(batches)
    assert in_one_form([]) == ()


def test_a_position_that_changed_hands_is_found() -> None:
    """As if the streams had changed places, and gone on at each other's positions."""
    findings, batches = Findings(), [of(1, t=(0, 3), b_t=(0, 5)), of(2, a_t=(5, 6), b_t=(3, 4))]
    history = StoreHistory("both", 2, 2, 2, in_one_form(batches), {1: 1, 2: 2})
    check_transactions(history, findings, log_starts={})
    assert [each.kind for each in findings.report().findings] == [Kind.RANGE_GAP, Kind.RANGE_OVERLAP]


def test_one_opaque_stream_makes_all_opaque() -> None:
    def exact(*kinds: str) -> bool:
        spout = {f"s{number}.kind": kind for number, kind in enumerate(kinds)}
        return StoreHistory("both", 0, None, 0, fingerprint={"spout": spout}).replays_exactly

    assert exact("TransactionalKafkaSpout", "MemoryTransactionalSpout")
    assert not exact("TransactionalKafkaSpout", "OpaqueKafkaSpout")
    assert not StoreHistory("one", 0, None, 0, fingerprint={"spout": {"kind": "OpaqueKafkaSpout"}}).replays_exactly
