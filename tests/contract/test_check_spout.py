"""Spouts as users write them keep what `check_spout` tries; and it finds what is wrong with one that does not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spouts import MemoryTransactionalSpout
from tests.contract.wrong_spouts import (
    WRONG,
    Lists,
    OpaqueLists,
    WholeList,
    append,
    append_rows,
    hide,
    over_rows,
    truncate,
)
from transactional.errors import ConfigError
from transactional.testing import SPOUT_CASES, check_spout

NO_OFFSETS = {
    "the_lag_counts_unread_records",
    "a_range_is_read_in_parts",
    "offsets_are_those_of_the_records",
    "ranges_that_are_read_together_keep_their_tuples",
}
NO_LIMIT = {"batches_keep_a_limit"}
NO_REPLAY = {"an_opaque_replay_is_planned_again"}
NO_PARTITIONS = {"a_partition_joins_later", "a_partition_that_is_away_keeps_its_position"}
NOT_LOST = {"a_lost_batch_ends_the_run"}


def test_a_transactional_spout_passes_as_a_whole() -> None:
    assert set(check_spout(Lists, append, truncate=truncate, hide=hide)) == NO_OFFSETS | NO_LIMIT | NO_REPLAY


def test_an_opaque_spout_passes_as_a_whole() -> None:
    assert set(check_spout(OpaqueLists, append, truncate=truncate, hide=hide)) == NO_OFFSETS | NO_LIMIT | NOT_LOST


def test_a_spout_without_partitions_passes_as_a_whole() -> None:
    refused = check_spout(WholeList, append, partitions=1, truncate=truncate)
    assert set(refused) == NO_OFFSETS | NO_LIMIT | NO_REPLAY | NO_PARTITIONS | NOT_LOST


def test_small_batches_pass_as_a_whole() -> None:
    class Small(Lists):
        take = 2

        def limit_batches(self, limit: Any) -> None:
            self.take = limit.records

    cases = sorted({*SPOUT_CASES} - {"many_records_come_once", "a_reader_that_is_left_does_no_harm"})
    assert set(check_spout(Small, append, *cases, truncate=truncate, hide=hide)) == NO_OFFSETS | NO_REPLAY


def test_tuples_are_what_append_returns() -> None:
    class Numbered(Lists):
        output = "number long, word string"

        def emit_partition_batch(self, partition: str, metadata: Any) -> Any:
            return [(len(word), word) for [word] in super().emit_partition_batch(partition, metadata)]

    def append_numbered(source: str, partition: int, words: Any) -> Any:
        append(source, partition, words)
        return [(len(word), word) for word in words]

    check_spout(Numbered, append_numbered)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_what_is_wrong_is_found(wrong: Any) -> None:
    in_memory, partitions = issubclass(wrong, MemoryTransactionalSpout), 1 if issubclass(wrong, WholeList) else 2
    source = (over_rows(wrong), append_rows) if in_memory else (wrong, append)
    with pytest.raises(AssertionError, match=re.escape(f"case {WRONG[wrong]}: ")) as raised:
        check_spout(*source, WRONG[wrong], partitions=partitions, truncate=truncate, hide=hide)
    assert re.search(r"\nDone:\n  1\. .*\nExpected.*\nCame", str(raised.value), re.DOTALL)


def test_a_case_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"no case 'reads' of a spout: transactional\.testing\.SPOUT_CASES"):
        check_spout(Lists, append, "reads")
