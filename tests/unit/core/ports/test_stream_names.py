"""Which stream a recorded partition is of, whatever form its name has, and which run says so."""

from __future__ import annotations

from typing import Any

import pytest

from transactional.core.ports.stream_names import StreamNames, add_stream_name, split_stream_name
from transactional.core.store.history import RunAbout, RunRecord
from transactional.model.attempt import Epoch, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.facts import LastSeen, Listed, Listing


def run(began_at: int, first: str | None, *others: str) -> RunRecord:
    streams = dict.fromkeys(("default", *others), "word string")
    components = [] if first is None else [{"id": first, "streams": streams}, {"id": "counts", "streams": {"old": ""}}]
    return RunRecord(Epoch(1), "test", None, RunAbout(topology={"components": components}), 0, TxId(began_at))


def batch(**ends: int) -> BatchMetadata:
    """A batch of sources, `a_b` for `a/b`."""
    names = {name.replace("_", "/"): until for name, until in ends.items()}
    return BatchMetadata({PartitionId(name, 0): OffsetRange(Offset(0), Offset(until)) for name, until in names.items()})


def today(names: StreamNames, of: BatchMetadata, txid: int = 5) -> dict[str, int]:
    return {
        partition.source: offset for partition, offset in names.with_current_names(of, TxId(txid)).positions().items()
    }


def test_a_name_is_taken_apart_at_the_first_separator() -> None:
    own = PartitionId("folder/file", 3)
    assert split_stream_name(add_stream_name("web", own)) == ("web", own)
    assert split_stream_name(PartitionId("memory", 0)) == ("", PartitionId("memory", 0))


RUNS = {
    "the only one": ([run(0, "web", "app")], 5, "web"),
    "the last one that has committed": ([run(5, "app", "web"), run(0, "web", "app")], 5, "web"),
    "the one that has, of several": ([run(2, "app", "web"), run(0, "web", "app")], 5, "app"),
    "the one before a transaction that was gone back to": (
        [run(3, "app"), run(9, None), run(0, "web", "app")],
        3,
        "web",
    ),
    "one of which nothing is left after going back": (
        [run(3, "app"), run(9, "x"), run(5, "y"), run(0, "web")],
        3,
        "web",
    ),
    "none": ([], 5, None),
    "one that is not described": ([run(0, None)], 5, None),
}


@pytest.mark.parametrize("case", RUNS)
def test_the_run_that_has_committed_says_which_was_first(case: str) -> None:
    runs, txid, first = RUNS[case]
    assert StreamNames(["web", "app"], runs).first_stream(TxId(txid)) == first


@pytest.mark.parametrize("streams", [("web", "app"), ("app", "web"), ("app",), ("web",), ("new", "app")])
def test_names_of_before_get_the_stream_that_was_first(streams: tuple[str, ...]) -> None:
    names = StreamNames(streams, [run(0, "web", "app")])
    assert today(names, batch(memory=3, app_memory=4)) == {"web/memory": 3, "app/memory": 4}


def test_without_a_run_it_is_the_first_that_the_batch_does_not_name() -> None:
    assert today(StreamNames(["app", "web"]), batch(memory=3, app_memory=4)) == {"web/memory": 3, "app/memory": 4}
    assert today(StreamNames(["app", "web"]), batch(memory=3)) == {"app/memory": 3}


def test_names_of_today_stay_also_those_of_a_stream_that_no_run_knows_any_more() -> None:
    names = StreamNames(["web"], [run(0, "web")])
    assert today(names, batch(web_memory=3, gone_memory=4)) == {"web/memory": 3, "gone/memory": 4}


def test_a_source_with_a_separator_in_its_name_is_not_taken_for_a_stream() -> None:
    names = StreamNames(["web"], [run(0, "web")])
    assert today(names, BatchMetadata({PartitionId("2026/05", 0): OffsetRange(Offset(0), Offset(7))})) == {
        "web/2026/05": 7
    }


def test_of_both_names_of_the_first_stream_the_one_without_is_newer() -> None:
    names = StreamNames(["web", "app"], [run(0, "web", "app")])
    assert today(names, batch(memory=9, web_memory=4, app_memory=5)) == {"web/memory": 9, "app/memory": 5}


def test_everything_that_is_kept_by_partition_is_renamed() -> None:
    at, seen, listed = PartitionId("memory", 0), LastSeen(1, 2), Listed(1, Listing.EMPTY)
    ranges = {at: OffsetRange(Offset(0), Offset(1))}
    kept: Any = BatchMetadata(ranges, {at: Digest(1, 2)}, {at: "m"}, event_times={at: seen}, listed={at: listed})
    named = StreamNames(["web"], [run(0, "web")]).with_current_names(kept, TxId(1))
    assert {*named.ranges, *named.digests, *named.metadata, *named.event_times, *named.listed} == {
        PartitionId("web/memory", 0)
    }


def test_a_topology_without_streams_keeps_its_names() -> None:
    one = batch(memory=3)
    assert StreamNames((), [run(0, "web")]).with_current_names(one, TxId(1)) is one


@pytest.mark.parametrize(
    ("streams", "runs", "of", "is_guess"),
    [
        (("web", "app"), [], batch(memory=1), True),
        (("web", "app"), [], batch(web_memory=1, app_memory=1), False),
        (("web", "app"), [run(0, "app")], batch(memory=1), False),
        (("web",), [], batch(memory=1), False),
        (("web", "app"), [], BatchMetadata({}), False),
    ],
)
def test_only_an_unnamed_partition_of_several_streams_without_a_run_is_a_guess(
    streams: tuple[str, ...], runs: list[RunRecord], of: BatchMetadata, *, is_guess: bool
) -> None:
    assert StreamNames(streams, runs).rests_on_guess(of, TxId(5)) is is_guess


def test_a_fingerprint_of_one_stream_is_compared_in_the_form_in_which_it_is_stored() -> None:
    names, given = StreamNames(["app", "web"], [run(0, "web")]), {"spout": {"web.kind": "K", "app.kind": "L"}}
    assert names.fingerprint(given, {"spout": {"kind": "K"}}, TxId(5)) == {"spout": {"kind": "K", "app.kind": "L"}}
    assert names.fingerprint(given, {"spout": {"web.kind": "K"}}, TxId(5)) is given
    assert names.fingerprint(given, {}, TxId(5)) is given


def test_what_is_gone_is_told_with_whether_there_are_records() -> None:
    names = StreamNames(["web"], [])
    assert names.removed_streams(batch(web_memory=1, app_memory=2, old_memory=0)) == {"app": True, "old": False}
