"""The log layout's arithmetic: what is compacted when, how much that writes, which queries put the rows together."""

from __future__ import annotations

import pytest

from state.delta.segments.log_layout import (
    FAN_OUT,
    Compaction,
    LogLayout,
    Segment,
    SegmentQuery,
    check_same_combine,
    due_compaction,
    full_compaction,
)
from state.delta.tables.sql import DATA_FUSION, SPARK_SQL, build_range_condition
from state.rows.columns import StateColumns
from transactional.errors import ConfigError, ProtocolError
from transactional.model.attempt import TxId
from transactional.model.schema import Schema


def runs(*sizes: int, first: int = 1) -> list[Segment]:
    """Runs of the given sizes, one per transaction."""
    return [Segment(TxId(txid), rows) for txid, rows in enumerate(sizes, first)]


class TestDueCompaction:
    def test_waits_for_enough_transactions_and_leaves_the_newest(self) -> None:
        layout = LogLayout(compact_after=3)
        assert due_compaction(runs(1, 1, 1), TxId(0), TxId(3), layout) is None
        assert due_compaction(runs(1, 1, 1, 1), TxId(0), TxId(4), layout) == Compaction(TxId(0), TxId(3), 3, 3)

    def test_never_comes_when_it_is_not_wanted(self) -> None:
        assert due_compaction(runs(*[1] * 1000), TxId(0), TxId(1000), LogLayout(compact_after=None)) is None

    def test_leaves_a_large_base_alone(self) -> None:
        table = [Segment(TxId(10), 1000), *runs(5, 5, 5, first=11)]
        assert due_compaction(table, TxId(10), TxId(13), LogLayout(compact_after=2)) == Compaction(
            TxId(10), TxId(12), 2, 10
        )

    def test_takes_the_base_along_once_there_is_as_much_beside_it(self) -> None:
        table = [Segment(TxId(10), 10), *runs(5, 5, 5, first=11)]
        assert due_compaction(table, TxId(10), TxId(13), LogLayout(compact_after=2)) == Compaction(
            TxId(0), TxId(12), 3, 20
        )
        larger = [Segment(TxId(10), 11), *table[1:]]
        assert due_compaction(larger, TxId(10), TxId(13), LogLayout(compact_after=2)) == Compaction(
            TxId(10), TxId(12), 2, 10
        )

    def test_takes_runs_of_its_size_along_once_there_are_enough(self) -> None:
        base, layout = Segment(TxId(1), 10**6), LogLayout(compact_after=2)
        older = [Segment(TxId(2 * number), 10) for number in range(1, FAN_OUT)]
        last = older[-1].txid
        fresh = runs(5, 5, 5, first=last + 1)
        few, many = [base, *older[1:], *fresh], [base, *older, *fresh]
        rows = 10 * FAN_OUT
        assert due_compaction(many, last, TxId(last + 3), layout) == Compaction(
            TxId(1), TxId(last + 2), FAN_OUT + 1, rows
        )
        assert due_compaction(few, last, TxId(last + 3), layout) == Compaction(last, TxId(last + 2), 2, 10)

    def test_comes_with_few_rows_when_most_transactions_were_empty(self) -> None:
        table = [Segment(TxId(1), 100), Segment(TxId(40), 1)]
        assert due_compaction(table, TxId(1), TxId(60), LogLayout(compact_after=50)) == Compaction(
            TxId(1), TxId(40), 1, 1
        )
        assert due_compaction(table, TxId(40), TxId(100), LogLayout(compact_after=50)) is None

    @pytest.mark.parametrize("keys", [10, 1_000, 100_000, 10_000_000])
    def test_bounds_what_is_written_and_how_many_runs_there_are(self, keys: int) -> None:
        layout, rows, table = LogLayout(compact_after=10), 20, [Segment(TxId(1), keys)]
        compacted, written, most = TxId(1), 0, 0
        for txid in range(2, 5_000):
            table.append(Segment(TxId(txid), rows))
            if (compaction := due_compaction(table, compacted, TxId(txid), layout)) is not None:
                # At worst all keys differ, except in the base.
                size = min(compaction.rows, keys) if compaction.start == 0 else compaction.rows
                rest = [run for run in table if not compaction.start < run.txid <= compaction.end]
                table = sorted([*rest, Segment(compaction.end, size)], key=lambda run: run.txid)
                compacted, written = compaction.end, written + size
            most = max(most, len(table))
        assert written / (5_000 * rows) < 6
        assert most < 10 + FAN_OUT * 6


def test_a_whole_compaction_leaves_the_newest_transaction() -> None:
    assert full_compaction(runs(3, 2, 1), TxId(3)) == Compaction(TxId(0), TxId(2), 2, 5)
    assert full_compaction(runs(3, 2), TxId(2)) is None
    assert full_compaction([], TxId(7)) is None


@pytest.mark.parametrize("wrong", [{"compact_after": 0}])
def test_a_layout_that_can_not_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="compact_after is at least 1 or None"):
        LogLayout(**wrong)


def test_rows_are_combined_in_one_way() -> None:
    check_same_combine({"a": "sum", "b": "last"}, {"b": "last", "a": "sum"}, "t")
    with pytest.raises(ProtocolError, match="write it always by put, or always by the same aggregates"):
        check_same_combine({"a": "sum"}, {"a": "max"}, "t")


def test_a_view_groups_by_key() -> None:
    columns = StateColumns(Schema.parse("k string"), Schema.parse("n long, v string"))
    query = SegmentQuery(columns, {"n": "sum", "v": "last"}, SPARK_SQL, "words")
    assert query.view("`txid` < 7") == (
        "SELECT `k`, sum(`n`) AS `n`, max_by(`v`, `txid`) AS `v` FROM words WHERE `txid` < 7 GROUP BY `k`"
    )


def test_a_range_of_a_key_is_asked_of_each_scan() -> None:
    """Behind the join of base and segments the condition would not reach the files."""
    columns = StateColumns(Schema.parse("k string, at timestamp"), Schema.parse("n long"))
    narrowed = SegmentQuery(columns, {"n": "sum"}, DATA_FUSION).in_range("at", 5, 7)
    sql = narrowed.view_over_base(TxId(1), TxId(9))
    assert sql.count("FROM t ") == 2
    assert sql.count(f"(SELECT * FROM t WHERE {build_range_condition(DATA_FUSION, 'at', 5, 7)})") == 2


def test_a_base_lies_in_the_order_in_which_its_rows_go() -> None:
    key, values = Schema.parse("k string, at timestamp"), Schema.parse("n long, seen timestamp")
    whole, part = Compaction(TxId(0), TxId(9), 2, 20), Compaction(TxId(3), TxId(9), 2, 20)

    def order(expires: str | None, compaction: Compaction) -> str:
        return SegmentQuery(StateColumns(key, values, expires=expires), {}, DATA_FUSION).compaction_order(compaction)

    assert order("at", whole) == ' ORDER BY "at"'
    assert not order("at", part)
    assert not order("seen", whole)
    assert not order(None, whole)
