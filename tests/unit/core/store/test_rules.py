"""How fingerprints are compared: what counts as a change, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from transactional.core.store import TopologyStatus
from transactional.core.store.rules import check_fingerprint, fingerprint_changes, fingerprint_json, keeps_recorded
from transactional.errors import TopologyChanged
from transactional.model.attempt import AttemptId, Epoch, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId

KAFKA = {"kind": "kafka", "topics": ["a", "b"]}
TOTAL = {"table": "tables/total", "key": "carrier string"}
MEANING = {
    "combine": {"n": "sum"},
    "aggregates": {"n": "sum(m)"},
    "window_time": "at",
    "window_fields": "n long, at timestamp",
}
"""What the values of a table mean."""


def windows(by: str, key: str) -> dict[str, str]:
    """An entry of a windowed bolt's table."""
    return {**TOTAL, "windows": f"tuples of 3 every 3 by {by}, apart by ({key})"}


BY_TWO = {
    "table": "tables/two",
    "key": "a string, b string",
    "values": "n long, m long",
    "window_fields": "c int, d int",
}
BY_TWO_TURNED = {**BY_TWO, "key": "b string, a string", "values": "m long, n long", "window_fields": "d int, c int"}


@pytest.mark.parametrize(
    ("stored", "given", "changes"),
    [
        ({}, {}, []),
        ({"spout": KAFKA}, {"spout": dict(reversed(KAFKA.items()))}, []),
        ({"spout": KAFKA}, {"spout": MappingProxyType(KAFKA)}, []),
        ({"spout": KAFKA}, {"spout": {**KAFKA, "options": {}}}, []),
        ({"spout": KAFKA}, {"spout": {**KAFKA, "topics": ["b", "a"]}}, ["spout.topics"]),
        ({"spout": KAFKA}, {"spout": {"kind": "kafka"}}, ["spout.topics"]),
        ({"spout": KAFKA}, {"spout": "kafka"}, ["spout", "spout.kind", "spout.topics"]),
        ({"spout": KAFKA}, {"spout": KAFKA, "more": None}, ["more"]),
        ({"parallelism": 1}, {"parallelism": True}, ["parallelism"]),
        ({"a.b": 1}, {"a": {"b": 1}}, ["a.b", "a.b"]),
        ({"committers": {}}, {"committers": {"total": TOTAL}}, []),
        ({}, {"committers": {"total": TOTAL, "hourly": TOTAL}}, []),
        ({"committers": {"total": TOTAL}}, {"committers": {"total": TOTAL, "hourly": "x"}}, []),
        (
            {"committers": {"total": TOTAL}},
            {"committers": {"hourly": TOTAL}},
            ["committers.total.key", "committers.total.table"],
        ),
        ({"committers": {"total": TOTAL}}, {"committers": {"total": {**TOTAL, "more": 1}}}, ["committers.total.more"]),
        ({"committers": {"total": TOTAL}}, {}, ["committers.total.key", "committers.total.table"]),
        (
            {"committers": {"total": TOTAL}},
            {"committers": {"total": {**TOTAL, **MEANING}}},
            [f"committers.total.{entry}" for entry in ("aggregates.n", "combine.n", "window_fields", "window_time")],
        ),
        (
            {"committers": {"total": {**TOTAL, **MEANING}}},
            {"committers": {"total": {**TOTAL, "combine": {"n": "sum", "most": "max"}, "window_time": "seen"}}},
            [f"committers.total.{entry}" for entry in ("aggregates.n", "combine.most", "window_fields", "window_time")],
        ),
        (
            {"committers": {"total": {**TOTAL, **MEANING}}},
            {"committers": {"total": {**TOTAL, **MEANING, "aggregates": {"n": "count()"}}}},
            ["committers.total.aggregates.n"],
        ),
        ({"committers": {"total": BY_TWO}}, {"committers": {"total": BY_TWO_TURNED}}, []),
        (
            {"committers": {"total": windows("event time", "a, b")}},
            {"committers": {"total": windows("event time", "b, a")}},
            [],
        ),
        (
            {"committers": {"total": windows("event time", "a, b")}},
            {"committers": {"total": windows("event time", "a")}},
            ["committers.total.windows"],
        ),
        (
            {"committers": {"total": windows("count", "a, b")}},
            {"committers": {"total": windows("count", "b, a")}},
            ["committers.total.windows"],
        ),
        (
            {"committers": {"total": BY_TWO}},
            {"committers": {"total": {**BY_TWO, "key": "a string, b long"}}},
            ["committers.total.key"],
        ),
        ({"spout": {"web.fields": "a long, b string"}}, {"spout": {"web.fields": "b string, a long"}}, []),
        ({"spout": {"fields": "a long, b string"}}, {"spout": {"fields": "b string"}}, ["spout.fields"]),
        ({"spout": {"fields": "of corn, and of wheat"}}, {"spout": {"fields": "of wheat"}}, ["spout.fields"]),
        ({"spout": {"fields": [1, 2]}}, {"spout": {"fields": [2, 1]}}, ["spout.fields"]),
        ({"event_times": {"web": "at"}}, {"event_times": {"web": "seen"}}, ["event_times.web"]),
        ({"event_times": {"web": "at"}}, {"event_times": {"app": "at"}}, []),
        ({"sinks": {"raw": {"txid": "t"}}}, {"sinks": {"raw": {"txid": "t", "table_id": "a"}}}, []),
        ({"sinks": {"raw": {"txid": "t", "table_id": "a"}}}, {"sinks": {"raw": {"txid": "t"}}}, []),
        ({"sinks": {"raw": {"table_id": "a"}}}, {"sinks": {"raw": {"table_id": "b"}}}, ["sinks.raw.table_id"]),
        ({"spouts": {"committers": {}}}, {"spouts": {"committers": {"total": 1}}}, ["spouts.committers.total"]),
    ],
)
def test_what_counts_as_a_change(stored: dict[str, Any], given: dict[str, Any], changes: list[str]) -> None:
    assert [change.split(":")[0] for change in fingerprint_changes(stored, given)] == changes


def test_a_change_is_reported_with_both_sides() -> None:
    stored, given = {"spout": {"kind": "kafka", "cluster": "x"}}, {"spout": {"kind": "memory"}, "bolts": [1]}
    with pytest.raises(TopologyChanged) as caught:
        check_fingerprint("carriers", stored, given)
    assert str(caught.value) == (
        "topology 'carriers' is not the one whose progress the store holds: bolts: stored nothing, given [1]; "
        'spout.cluster: stored "x", given nothing; spout.kind: stored "kafka", given "memory". Give it another id to '
        "start over, or start it with --accept-changes (accept_changes=True) if the "
        "stored progress still applies; `transactional reset carriers` deletes the stored progress"
    )


def test_the_same_content_has_the_same_json() -> None:
    assert fingerprint_json({"a": (1,), "b": MappingProxyType({})}) == fingerprint_json({"b": {}, "a": [1]})


SPOUT = {"kind": "memory", "fields": "a long, b string"}
STORED = {"spout": SPOUT, "committers": {"total": TOTAL, "hourly": TOTAL}}
WITHOUT_HOURLY = {"spout": SPOUT, "committers": {"total": TOTAL}}
OTHER_SOURCE = {"spout": KAFKA, "committers": STORED["committers"]}
PROCESSED = BatchMetadata({PartitionId("a", 0): OffsetRange(Offset(0), Offset(3))}, {PartitionId("a", 0): Digest(3, 7)})
PLANNED = replace(PROCESSED, digests={})


def status_of(fingerprint: dict[str, Any], committed_txid: int = 0) -> TopologyStatus:
    return TopologyStatus("words", Epoch(1), None, None, False, TxId(committed_txid), AttemptId(1), fingerprint)


@pytest.mark.parametrize("recorded", [[], [PLANNED], [PROCESSED]])
def test_a_committer_that_has_joined_stays_before_the_first_commit_too(recorded: list[BatchMetadata]) -> None:
    """Its table has a fence already, and would be behind when it comes back after transaction commits without it."""
    with pytest.raises(TopologyChanged, match=r"committers\.hourly\.key"):
        keeps_recorded(status_of(STORED), WITHOUT_HOURLY, recorded, accept_changes=False)
    assert keeps_recorded(status_of(STORED), WITHOUT_HOURLY, recorded, accept_changes=True)


@pytest.mark.parametrize(
    ("stored", "committed_txid", "given", "recorded", "is_kept"),
    [
        (STORED, 0, {**STORED, "spout": {**SPOUT, "fields": "b string, a long"}}, [PLANNED], True),
        (STORED, 0, {**STORED, "event_times": {"web": "at"}}, [PLANNED], True),
        ({}, 0, STORED, [PROCESSED], True),
        (WITHOUT_HOURLY, 0, STORED, [PROCESSED], True),
        (WITHOUT_HOURLY, 5, STORED, [], True),
        (STORED, 0, OTHER_SOURCE, [PLANNED], False),
        (STORED, 0, OTHER_SOURCE, [PROCESSED], None),
        (STORED, 5, OTHER_SOURCE, [PLANNED], None),
    ],
)
def test_which_runs_start_from_what_is_recorded(
    stored: dict[str, Any],
    committed_txid: int,
    given: dict[str, Any],
    recorded: list[BatchMetadata],
    is_kept: bool | None,  # noqa: FBT001
) -> None:
    """None: the run is refused."""
    status = status_of(stored, committed_txid)
    if is_kept is None:
        with pytest.raises(TopologyChanged):
            keeps_recorded(status, given, recorded, accept_changes=False)
    else:
        assert keeps_recorded(status, given, recorded, accept_changes=False) is is_kept


WINDOWS = {**TOTAL, "windows": "5 us every 5 us"}


@pytest.mark.parametrize(
    ("stored", "given", "text"),
    [
        ({**TOTAL, **MEANING}, {**TOTAL, "combine": {"n": "max"}}, "'n' values that are combined by sum, .* by max"),
        ({**TOTAL, **MEANING}, {**TOTAL, "values": "n long", "combine": {"n": "max"}}, "combined by sum"),
        ({**TOTAL, **MEANING}, {**TOTAL, "table": "others", "combine": {"n": "max"}}, None),
        ({**TOTAL, **MEANING}, {**TOTAL, "combine": {"m": "max"}}, None),
        (TOTAL, {**TOTAL, "combine": {"n": "max"}}, None),
        ({**TOTAL, **MEANING}, {**TOTAL, "window_fields": "n string"}, "'n' is long, and it is string now"),
        ({**TOTAL, **MEANING}, {**TOTAL, "window_fields": "at timestamp, m long"}, None),
        (WINDOWS, {**TOTAL, **MEANING, "windows": "6 us"}, "open windows of 5 us every 5 us, and .* now has 6 us"),
        (WINDOWS, {**TOTAL, **MEANING}, "now has none"),
        (WINDOWS, {**WINDOWS, **MEANING}, None),
        (WINDOWS, {**WINDOWS, "table": "others", "windows": "6 us"}, None),
    ],
)
def test_what_nobody_can_accept(stored: dict[str, Any], given: dict[str, Any], text: str | None) -> None:
    """None: it can be accepted."""
    status, now = status_of({"committers": {"total": stored}}, 5), {"committers": {"total": given}}
    if text is None:
        assert keeps_recorded(status, now, [], accept_changes=True)
        return
    for accept_changes in (False, True):
        with pytest.raises(TopologyChanged, match=f"the table of 'total' .*{text}.*not with --accept-changes either"):
            keeps_recorded(status, now, [], accept_changes=accept_changes)
